"""Topic Filters and what is found by them: subscribers, share group members, siblings, retained messages."""
