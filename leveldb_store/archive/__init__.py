"""The archive of a worker: writing, reading and retention."""
