"""The stores of sessions' unread messages: a log in blocks, with one index per Topic Filter, and state records.

The contract (`leveldb_store.contract.Store`) is the same with and without a disk.
"""
