# cython: language_level=3
"""Sessions that are behind: see the .pyx."""
from cpython.ref cimport PyObject
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from pyx.connection cimport Connection
from pyx.holding cimport Holding
from pyx.limits cimport QueueRule
from pyx.message cimport Content, Message
from pyx.records cimport Batch, LogKey
from pyx.session cimport Session
from pyx.filters cimport Membership


cdef class Backlog(Holding):
    cdef int queue_for(self, Session s, Message m, uint8_t qos, bint retain, object identifiers,
                       uint8_t flags, uint32_t origin) except -1
    cdef int serve(self, Session s) except -1
    cdef Batch read_log(self, Session s)
    cdef int caught_up(self, Session s) except -1
    cdef int deliver_logged(self, Session s, Connection conn, Message m) except -1
    cdef int sent_live(self, Session s, const Content* c) except -1
    cdef int options_of(self, Session s, Message m, uint64_t position, uint8_t* options) except -2
    cdef int unread_of(self, Session s, Membership* e, uint64_t position, uint64_t* messages, uint64_t* size) except -1
    cdef int send_copy(self, Session s, Connection conn, Message m, uint8_t qos, bint retain, object identifiers,
                       uint8_t flags, uint64_t position) except -1
    cdef int tally(self, const Content* c, uint64_t sent, uint64_t dropped) except -1
    cdef int send_held(self, Session s, Connection conn, Message m, uint8_t qos, bint retain, bint dup,
                       uint16_t packet_id, PyObject* ids) except -1
    cdef bint resend_next(self, Session s, Connection conn, uint32_t* released) except -1
    cdef int send_again(self, Session s, Connection conn, uint16_t packet_id) except -1
    cdef int sweep_grown(self, list keys) except -1
    cdef uint64_t wanted(self, Session s, set spans) except? 0xFFFFFFFFFFFFFFFF
    cdef int drop_unwanted(self, LogKey key, uint64_t lowest, set spans, uint64_t open_from) except -1
    cdef int sweep_key(self, LogKey key) except -1
    cdef int bound(self, Session s) except -1
    cdef uint64_t move_cursor(self, Session s, const QueueRule* rule, uint64_t total) except? 0xFFFFFFFFFFFFFFFF
    cdef uint64_t make_hole(self, Session s, const QueueRule* rule, uint64_t total,
                            uint64_t total_bytes) except? 0xFFFFFFFFFFFFFFFF
    cdef tuple backlog_after(self, Session s, uint64_t position)
    cdef tuple unread_after(self, Session s, uint64_t position)
    cdef uint64_t in_holes(self, Session s, uint64_t* size) except? 0xFFFFFFFFFFFFFFFF
