"""The base of all compiled modules: tables, hashing, timers, clocks, counters, limits, counting of work."""
