# cython: language_level=3
"""Sessions that are behind: see the .pyx."""
from cpython.ref cimport PyObject
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from pyx.core.counters cimport Row
from pyx.core.limits cimport Limits
from pyx.delivery.back_pressure cimport BackPressure
from pyx.delivery.bounding cimport Bounding
from pyx.delivery.connection cimport Connection
from pyx.delivery.journal cimport Journal
from pyx.delivery.publish_in_hand cimport PublishInHand
from pyx.delivery.router_state cimport RouterState
from pyx.delivery.session cimport Inflight, Queued, Session
from pyx.delivery.windows cimport Sender, Windows
from pyx.matching.filters cimport Membership
from pyx.matching.subscriptions cimport Subscriptions
from pyx.protocol.message cimport Content, Message
from pyx.storage.records cimport Batch


cdef class Backlog(Sender):
    cdef RouterState state
    cdef Row counters
    cdef Limits limits
    cdef Subscriptions subscriptions
    cdef PublishInHand in_hand
    cdef Journal journal
    cdef Windows windows
    cdef BackPressure back_pressure
    cdef Bounding bounding
    cdef bint keeps_formers             # what is read is not sent: it is read again

    cdef int queue_for(self, Session s, Message m, uint8_t qos, bint retain, object identifiers,
                       uint8_t flags, uint32_t origin) except -1
    cdef int serve(self, Session s) except -1
    cdef bint is_before_the_log(self, const Queued* q, uint64_t position, Message m) noexcept
    cdef uint64_t topic_key(self, const Content* c) noexcept
    cdef int drop_overtaken(self, Session s) except -1
    cdef int drop_deferred(self, Session s) except -1
    cdef bint is_overtaken_in(self, Session s, Inflight* slot) except -1
    cdef bint serve_queued(self, Session s, Connection conn) except -1
    cdef Batch read_log(self, Session s)
    cdef Batch read_unread(self, Session s)
    cdef int caught_up(self, Session s) except -1
    cdef int deliver_logged(self, Session s, Connection conn, Message m) except -1
    cdef int sent_live(self, Session s, const Content* c, uint32_t asked, bint is_qos0) except -1
    cdef int note_sent(self, Session s, uint64_t topic, uint64_t number, uint32_t asked, bint is_qos0) except -1
    cdef bint option_of(self, Session s, Message m, Membership* e, uint64_t position, uint8_t* options,
                        int* ids_len) except -1
    cdef int options_of(self, Session s, Message m, uint64_t position, uint8_t* options) except -2
    cdef int send_copy(self, Session s, Connection conn, Message m, uint8_t qos, bint retain, object identifiers,
                       uint8_t flags, uint64_t position) except -1
    cdef int tally(self, const Content* c, uint64_t sent, uint64_t dropped) except -1
    cdef int send_held(self, Session s, Connection conn, Message m, uint8_t qos, bint retain, bint dup,
                       uint16_t packet_id, PyObject* ids) except -1
    cdef bint resend_next(self, Session s, Connection conn, uint32_t* released) except -1
    cdef int send_again(self, Session s, Connection conn, uint16_t packet_id) except -1
