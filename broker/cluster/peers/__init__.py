"""Coordination by the hosts themselves, for those without etcd: one of them leads, the others have a copy."""
