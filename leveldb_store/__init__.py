"""Where sessions find what they have not read yet: a log in blocks, with one index per Topic Filter.

The contract (`leveldb_store.contract.Store`) is the same with and without a disk.
"""
