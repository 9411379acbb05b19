"""What a worker writes of its clients' state, and of its links; what cannot be read; how the disk is."""
