"""The way of messages over a bridge to another broker."""
