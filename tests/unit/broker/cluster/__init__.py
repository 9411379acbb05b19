"""The parts of the cluster that need no coordinator."""
