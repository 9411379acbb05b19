"""The base that all parts of a worker share: index, router, store, log, timers, sessions, and work in pieces."""
