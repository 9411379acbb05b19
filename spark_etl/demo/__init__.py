"""The job `demo`."""
