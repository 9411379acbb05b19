# cython: language_level=3
"""Pages of windows that are too large for one record: see the .pyx."""
from pyx.delivery.session cimport Session


cdef enum:
    OUT_IN_PAGES = 1            # flags of a window's record: the messages in flight to the client are in pages
    ARRIVED_IN_PAGES = 2        # so are the Packet Identifiers of its own QoS 2 publishes


# Store the pages that have changed since the last call; returns the flags.
cdef int store_pages(object store, Session s) except -1

# Delete all pages of the session.
cdef int forget_pages(object store, Session s) except -1
