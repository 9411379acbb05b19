"""What everything else stands on: tables, hashing, timers, clocks, counters, limits, the count of work."""
