"""The router: from a publish to deliveries, log records, entries for siblings and acks."""
