"""Data directories and snapshots as earlier releases wrote them, and what is in them."""
