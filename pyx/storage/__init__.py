"""Packing and unpacking of logged, archived and forwarded messages."""
