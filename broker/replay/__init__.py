"""Subscriptions that read the archive of all workers."""
