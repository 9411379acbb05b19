"""Answers that are decided after their packet: they keep its place among the connection's answers.

The answer to a SUBSCRIBE may take several ticks, and the disk may refuse what an ack waits for. In both cases the
answer has a place in the ring of its connection (`PendingAck`), and what is sent there is decided here.
"""
cimport cython
from cpython.ref cimport PyObject
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memset

from pyx.core cimport counters as count
from pyx.core.work cimport OBJECT, PLACE, PYTHON, work
from pyx.delivery.answering cimport Answering
from pyx.delivery.connection cimport Connection, OPEN, PendingAck
from pyx.delivery.journal cimport Journal
from pyx.delivery.peers cimport Peer, Peers
from pyx.delivery.router_state cimport QUOTA_EXCEEDED, RouterState, pointers_push
from pyx.delivery.session cimport Session, is_stored
from pyx.delivery.windows cimport Windows
from pyx.protocol.packets cimport PUBCOMP, PUBREC


@cython.final
cdef class LateAnswers:
    """The answers of one worker that are filled in, or refused, after their packet."""

    def __cinit__(self, RouterState state not None, Journal journal not None, Peers peers not None,
                  Answering answering not None, Windows windows not None):
        self.state = state
        self.counters = state.counters
        self.journal = journal
        self.peers = peers
        self.answering = answering
        self.windows = windows

    def answer_later(self, Connection conn not None):
        """Reserve the place of an answer that is not known yet: later answers wait for it. Return the list to pass to
        `settle_answer`."""
        cdef PendingAck a
        cdef list waits = [None, None, None]
        memset(&a, 0, sizeof(a))
        a.packet = <PyObject*>waits
        conn.push_ack(&a)
        if not conn.waiting:
            conn.waiting = True
            pointers_push(&self.answering.waiting, conn)
        return waits

    def settle_answer(self, Connection conn not None, list answer not None, bytes packet not None, then=None,
                      unstored=None):
        """Fill in an answer of `answer_later`: it is sent like one of `answer_packet`."""
        cdef uint32_t i
        cdef PendingAck* a
        answer[:] = [packet, then, unstored]
        work(conn.ack_count * PLACE)
        for i in range(conn.ack_count):
            a = &conn.acks[(conn.ack_head + i) & (conn.ack_cap - 1)]
            if a.packet == <PyObject*>answer:
                a.ticket = self.journal.last_ticket + 1 if self.journal.recorded else 0
        self.state.acks_due = True

    def awaiting_answers(self):
        """Return the connections with waiting answers."""
        cdef uint32_t i
        work(self.answering.waiting.count * OBJECT)
        return [<object>self.answering.waiting.items[i] for i in range(self.answering.waiting.count)]

    def refuse_unstored(self, Connection conn not None, uint64_t workers):
        """Refuse the publishes of this connection whose acks wait for the disks of these workers (bits): a v5 client
        gets acks with Quota exceeded, an older one is closed (`handler.unstored`). Messages already logged may still be
        delivered. For SUBACK and UNSUBACK the caller of `answer_packet` decides."""
        cdef uint32_t k
        cdef PendingAck* a
        cdef bint closed = False
        cdef list packets = [], waits
        cdef object instead
        work(PYTHON + conn.ack_count * (4 * PLACE))
        if conn.state != OPEN:
            return
        for k in range(conn.ack_count):
            a = &conn.acks[(conn.ack_head + k) & (conn.ack_cap - 1)]
            if a.packet_type == PUBCOMP or not self.waits_for(a, workers):
                continue
            self.counters.at[count.STORE_REFUSED] += 1
            if a.packet != NULL:
                a.ticket = a.interest = 0
                self.state.acks_due = True
                packets.append(<list>a.packet)
                continue
            if conn.version != 5:
                closed = True
                break
            self.refuse_pending(conn, a)
        try:
            for waits in packets:           # undoing them changes no ack
                work(10 * PYTHON)
                if waits[2] is None:
                    continue
                instead = waits[2](conn)
                if instead is None:
                    closed = True
                else:
                    waits[0] = instead
                    waits[1] = None
            if closed:
                work(10 * PYTHON)
                self.state.handler.unstored(conn)
        except Exception as error:
            self.state.fail(conn, error)

    cdef bint waits_for(self, PendingAck* a, uint64_t workers) except -1:
        cdef uint64_t mask = a.mask & workers
        cdef int p = 0
        if workers >> self.state.worker & 1 and a.ticket > self.journal.durable_ticket:
            return True
        while mask:
            if mask & 1 and (<Peer>self.peers.peers[p]).acknowledged < a.tick:
                return True
            mask >>= 1
            p += 1
        return False

    cdef int refuse_pending(self, Connection conn, PendingAck* a) except -1:
        # it keeps its place among the acks, and waits for nothing any more
        cdef Session s = <Session>conn.session
        a.reason = QUOTA_EXCEEDED
        a.ticket = a.mask = 0
        self.state.acks_due = True
        if a.packet_type == PUBREC and s.leave(a.packet_id):
            if conn.unreleased:
                conn.unreleased -= 1
            if self.state.keeps and is_stored(s):
                self.windows.mark_dirty(s)
        return 0
