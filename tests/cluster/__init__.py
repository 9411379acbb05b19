"""Hosts that are one broker: coordination by etcd, membership, ownership."""
