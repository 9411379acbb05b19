"""Clones of live databases, snapshots of a broker, and data directories made of them."""
