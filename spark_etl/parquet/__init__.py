"""Jobs that write Parquet, and their commits."""
