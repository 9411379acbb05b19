"""Load tests: a generator that checks what it is delivered (`python -m loadtest.flood --help`)."""
