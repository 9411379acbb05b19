# cython: language_level=3
"""The stored windows of sessions, and the packets that wait for the disk: see the .pyx."""
from cpython.ref cimport PyObject
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from pyx.core.counters cimport Row
from pyx.core.limits cimport Limits
from pyx.delivery.connection cimport Connection
from pyx.delivery.journal cimport Journal
from pyx.delivery.router_state cimport Pointers, RouterState
from pyx.delivery.session cimport Inflight, Session
from pyx.protocol.message cimport Message
from pyx.storage.entries cimport Packed


cdef enum:
    OWN_RECORD = 0x20           # flag of an in-flight message: `position` is the number of a record of its own
    HEAD_BYTES = 15             # of a window: u64 with bit WINDOW_2_BIT, u16 next Packet Identifier, u8 flags,
    WINDOW_2_BIT = 63           # ... u16 out, u16 in
    OUT_BYTES = 12              # u16 Packet Identifier, u8 flags, u8 state, u64 position
    QUEUED_HEAD_BYTES = 9       # u8 flags | FORM_2, u32 origin, u32 bytes of Subscription Identifiers
    FORM_2 = 0x80
    OF_ITS_OWN = 0x20           # flag of a queued message: the message itself has another record


cdef struct Deferred:           # a QoS 2 PUBLISH or a PUBREL that waits for the disk
    uint64_t ticket
    uint64_t order              # of the slot
    PyObject* connection        # strong
    uint16_t packet_id
    uint8_t state               # of the slot: which of the two packets it is


cdef class Sender:
    """The sender of the messages of a window: implemented by pyx.delivery.backlog."""
    cdef int send_one_deferred(self, Session s, Connection conn, Inflight* slot) except -1
    # the connection ends, and `Session.watched` is there: drop those overtaken of the retained messages that wait for
    # the record of their window; the others will be sent again
    cdef int drop_deferred(self, Session s) except -1
    # Subscription Identifiers of the matching subscriptions, as properties, or None
    cdef bytes identifiers_of(self, Session s, Message m)


cdef class Windows:
    cdef Sender sender
    cdef RouterState state
    cdef Row counters
    cdef Limits limits
    cdef Journal journal

    cdef Pointers dirty_windows  # sessions whose window is stored with this tick
    cdef Pointers lazy_windows   # sessions whose window is to be stored within LAZY_MS
    cdef Pointers awaiting      # sessions that become ready when their window is durable
    cdef dict moved             # sessions whose window was stored since the last sweep of the log, in that order
    cdef dict messages          # number of a message with a record of its own -> how many queued messages use it
    cdef dict message_of        # number of such a queued message -> number of its message
    cdef uint64_t lazy_due      # ms: when lazy_windows are stored
    cdef Deferred* deferred    # a ring, tickets rising
    cdef uint32_t deferred_head
    cdef uint32_t deferred_count
    cdef uint32_t deferred_cap

    cdef int mark_dirty(self, Session s) except -1
    cdef int mark_lazy(self, Session s) except -1
    cdef int wake(self, Session s) except -1
    cdef int await_window(self, Session s) except -1
    cdef int defer(self, Session s, Connection conn, Inflight* slot) except -1
    cdef int send_deferred(self) except -1
    cdef int store_lazy_windows(self) except -1
    cdef int store_windows(self) except -1
    cdef int store_window(self, Session s) except -1
    cdef int try_to_store(self, Session s) except -1            # closes the connection on failure
    cdef int put_out(self, Packed p, Session s) except -1
    cdef int put_rest(self, Packed p, Session s) except -1
    cdef int forget_window(self, Session s) except -1
    cdef uint64_t in_flight_since(self, Session s, set spans) except? 0xFFFFFFFFFFFFFFFF
    cdef uint64_t keep_queued(self, Session s, Message m, uint8_t flags, uint32_t origin,
                              PyObject* identifiers) except? 0
    cdef int forget_queued(self, Session s, uint64_t number) except -1
    cdef int put_message(self, Packed packed, Message m) except -1
    cdef int keep_message(self, Message m) except -1
    cdef int count_message(self, uint64_t number, uint64_t message) except -1
    cdef int finish_slot(self, Session s, Inflight* slot) except -1
    cdef int keep_unsubscribed(self, Session s) except -1
    cdef int pop_deferred(self) except -1
