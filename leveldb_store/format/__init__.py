"""Formats of a store: keys, values, and plain decoders. Nothing compiled is needed."""
