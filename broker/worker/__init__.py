"""A worker process: wiring, recovery from its store, links to siblings, gauges, answers to the operator."""
