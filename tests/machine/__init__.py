"""State machines that generate scenarios and check invariants in each."""
