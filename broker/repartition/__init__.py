"""The stores of N workers become those of M."""
