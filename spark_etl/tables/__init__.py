"""The tables: their columns, and the reading of rows from stores."""
