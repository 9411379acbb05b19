"""Repartitioning: turns the stores of N workers into those of M."""
