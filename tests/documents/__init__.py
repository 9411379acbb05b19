"""Pages that are written from the sources, and kept true by tests."""
