"""Scenarios that nobody has written down: made by a machine, checked by what must always be so."""
