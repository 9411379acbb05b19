"""A worker process: its wiring, what it finds in its store, links to siblings, gauges, answers to the operator."""
