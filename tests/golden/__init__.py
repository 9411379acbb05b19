"""Data directories and snapshots as this and earlier releases wrote them, and what is in them."""
