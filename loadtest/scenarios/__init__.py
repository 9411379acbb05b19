"""Realistic fleets for locust: each a small class with a page in docs/scenarios."""
