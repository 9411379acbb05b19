"""Replays: subscriptions that read the archives of all workers."""
