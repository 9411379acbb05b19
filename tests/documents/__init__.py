"""Pages that are generated from the sources, and kept up to date by tests."""
