"""What a worker writes of its clients' state, and what it finds when it starts."""
