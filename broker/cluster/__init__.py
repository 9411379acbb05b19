"""Hosts that are one broker: what they agree on through etcd, used by the control process alone."""
