"""What every part of a worker stands on: its index, router, store, log, timers and sessions, and work in pieces."""
