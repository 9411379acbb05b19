"""The archive of a worker: what is kept, read and removed."""
