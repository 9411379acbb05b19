# cython: language_level=3
"""Begin and end of subscriptions: see the .pyx."""
from pyx.core.counters cimport Row
from pyx.core.limits cimport Limits
from pyx.delivery.bounding cimport Bounding
from pyx.delivery.ending cimport Ending
from pyx.delivery.enrolling cimport Enrolling
from pyx.delivery.peers cimport Peers
from pyx.delivery.router_state cimport RouterState
from pyx.delivery.session cimport Session
from pyx.delivery.windows cimport Windows
from pyx.matching.subscriptions cimport Subscriptions


cdef class Subscribing:
    cdef RouterState state
    cdef Row counters
    cdef Limits limits
    cdef Subscriptions subscriptions
    cdef Peers peers
    cdef Windows windows
    cdef Bounding bounding
    cdef Enrolling enrolling
    cdef Ending ending

    cdef bint restoring             # the subscription in hand comes from the store, which has it
    cdef int drop_unsubscribed(self, Session s) except -1
