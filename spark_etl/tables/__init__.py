"""The tables: their columns, and how rows are read from stores."""
