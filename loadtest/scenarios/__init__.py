"""Fleets as there are in the field, for locust: each a small class with a page in docs/scenarios."""
