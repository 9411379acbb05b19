"""Bridges: connections of this broker to others, which pass on messages of some topics (docs/bridges.md)."""
