# cython: language_level=3
"""Windows that are too large for one record, in pages of their own: see the .pyx."""
from pyx.delivery.session cimport Session


cdef enum:
    OUT_IN_PAGES = 1            # flags of a window's record: what is in flight to the client stands in pages
    ARRIVED_IN_PAGES = 2        # so do the Packet Identifiers of its own QoS 2 publishes


# Store those pages that have changed since the last time; returns the flags.
cdef int store_pages(object store, Session s) except -1

# Delete what there is of them.
cdef int forget_pages(object store, Session s) except -1
