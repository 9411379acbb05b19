"""A worker process: its wiring, links to siblings, gauges and answers to the operator."""
