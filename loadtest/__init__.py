"""Load tests: a generator that checks every delivery (`python -m loadtest.flood --help`)."""
