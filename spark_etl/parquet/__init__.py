"""Jobs that write Parquet, and what they have committed."""
