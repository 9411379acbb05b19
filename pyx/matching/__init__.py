"""Matching of Topic Filters with subscribers, share group members, siblings and retained messages."""
