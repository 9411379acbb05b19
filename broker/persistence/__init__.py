"""Persistence of a worker: records of clients and links, unreadable records, and the state of the disk."""
