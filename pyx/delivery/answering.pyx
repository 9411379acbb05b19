"""Acks and other answers: they are sent in the order of the packets they answer, when their conditions are met.

A waiting answer is in a ring of its connection (`PendingAck`): it waits for the store's ticket, for siblings to
acknowledge a tick, or for siblings to know an interest. Connections with waiting answers are in `waiting`, and
`release_acks` examines them at the end of a tick in which any condition has changed.
"""
from collections import deque

cimport cython
from cpython.ref cimport PyObject, Py_DECREF, Py_XDECREF
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from pyx.core cimport counters as count
from pyx.core.outbox cimport outbox_reserve
from pyx.core.work cimport KIBI, OBJECT, PYTHON, VISIT, work
from pyx.delivery.connection cimport CLOSING, Connection, PendingAck
from pyx.delivery.journal cimport Journal
from pyx.delivery.peers cimport Peer, Peers
from pyx.delivery.publish_in_hand cimport PublishInHand
from pyx.delivery.router_state cimport RouterState, free_pointers, pointers_push
from pyx.delivery.session cimport Session
from pyx.protocol.encoders cimport put_ack
from pyx.protocol.packets cimport PUBCOMP


@cython.final
cdef class Answering:
    """The answers of one worker: put into outboxes, or into rings where they wait."""

    def __cinit__(self, RouterState state not None, PublishInHand in_hand not None, Journal journal not None,
                  Peers peers not None):
        self.state = state
        self.counters = state.counters
        self.limits = state.limits
        self.in_hand = in_hand
        self.journal = journal
        self.peers = peers
        self.after_acks = deque()
        self.unknown = []

    def __dealloc__(self):
        free_pointers(&self.waiting)

    def abandon(self):
        """Release the references in C lists: see `Router.abandon`."""
        cdef uint32_t i
        for i in range(self.waiting.count):
            (<Connection>self.waiting.items[i]).drop_acks()
        free_pointers(&self.waiting)
        self.unknown.clear()

    cdef int answer(self, Connection conn, uint8_t packet_type, uint16_t packet_id, uint8_t reason,
                    uint64_t mask) except -1:
        cdef PendingAck a
        cdef uint8_t* p
        cdef bint waits = self.state.keeps and (self.in_hand.logged or self.journal.recorded)
        cdef uint64_t ticket = self.journal.last_ticket + 1 if waits else 0
        self.counters.at[count.ANSWERS_SENT] += 1
        if conn.ack_count == 0 and mask == 0 and ticket == 0:
            p = outbox_reserve(&conn.out, 5)
            if put_ack(p, packet_type, packet_id, reason, conn.version == 5) - p == 4:
                conn.out.tail -= 1
                conn.out.pending -= 1
            self.state.set_dirty(conn)
            return 0
        memset(&a, 0, sizeof(a))
        a.tick = self.state.tick
        a.mask = mask
        a.ticket = ticket
        a.packet_id = packet_id
        a.packet_type = packet_type
        a.reason = reason
        if packet_type != PUBCOMP and self.state.now_ms >= self.state.sample_ms:
            a.since = self.state.tick_ns
        conn.push_ack(&a)
        if packet_type == 4:
            conn.unanswered += 1
        if not conn.waiting:
            conn.waiting = True
            pointers_push(&self.waiting, conn)
        return 0

    def answer_packet(self, Connection conn not None, bytes packet not None, uint64_t interest=0, then=None,
                      unstored=None):
        """Send a SUBACK, UNSUBACK, ... (b"": nothing) after the acks before it, when the records of this tick are
        durable, and every live peer has processed our interest up to number `interest`; then call `then()`. If the disk
        fails for too long, `unstored(conn)` returns the packet to send instead (None: close the connection); without
        `unstored` the packet itself is sent."""
        cdef PendingAck a
        cdef list waits
        cdef uint64_t ticket = self.journal.last_ticket + 1 if self.journal.recorded else 0
        if conn.ack_count == 0 and ticket == 0 and (interest == 0 or self.peers.live_for_interest == 0):
            if packet:
                self.state.write(conn, packet)
            if then is not None:
                then()
            return
        memset(&a, 0, sizeof(a))
        a.interest = interest
        a.ticket = ticket
        waits = [packet, then, unstored]
        a.packet = <PyObject*>waits
        self.state.acks_due = True                # the peers may have processed that much already
        conn.push_ack(&a)
        if not conn.waiting:
            conn.waiting = True
            pointers_push(&self.waiting, conn)

    def when_known(self, uint64_t interest, then not None):
        """Call `then()`, which raises nothing, when every live peer has processed our interest up to number `interest`:
        now, or at the end of a tick."""
        if interest <= self.known_interest():
            then()
        else:
            self.unknown.append((interest, then))
            self.state.acks_due = True

    cdef uint64_t known_interest(self) except? 0xFFFFFFFFFFFFFFFF:
        cdef int p
        cdef Peer peer
        cdef uint64_t interest = <uint64_t>-1
        for p in range(<int>len(self.peers.peers)):
            if self.peers.live_for_interest >> p & 1 and self.peers.peers[p] is not None:
                peer = <Peer>self.peers.peers[p]
                if peer.interest < interest:
                    interest = peer.interest
        return interest

    cdef int tell_known(self) except -1:
        cdef uint64_t known = self.known_interest()
        cdef list waits = self.unknown
        work(<uint64_t>len(waits) * OBJECT)
        self.unknown = [each for each in waits if each[0] > known]
        for interest, then in waits:
            if interest <= known:
                work(PYTHON)
                then()
        return 0

    cdef int release_acks(self) except -1:
        cdef uint32_t i, kept = 0
        cdef Connection conn
        cdef PendingAck* a
        cdef uint64_t[64] acknowledged
        cdef Peer peer
        cdef uint64_t mask, live = self.peers.live_peers, interest
        cdef int p
        cdef uint8_t* at
        self.state.acks_due = False
        if self.unknown:
            self.tell_known()
        interest = self.known_interest()
        memset(acknowledged, 0xFF, sizeof(acknowledged))    # they have everything
        for p in range(<int>len(self.peers.peers)):
            peer = <Peer>self.peers.peers[p] if self.peers.peers[p] is not None else None
            # (with a store on disk, entries for a gone peer go to its hand-off log: the link reports that)
            if peer is not None and (live >> p & 1 or self.state.keeps) and peer.acknowledged < peer.sent:
                acknowledged[p] = peer.acknowledged
        work(self.waiting.count * VISIT)
        for i in range(self.waiting.count):
            conn = <Connection>self.waiting.items[i]
            if conn.state >= CLOSING:
                work(conn.ack_count * VISIT)
                conn.drop_acks()            # nothing may follow its DISCONNECT
            while conn.ack_count:
                work(OBJECT)
                a = &conn.acks[conn.ack_head]
                if a.ticket > self.journal.durable_ticket or a.interest > interest:
                    break
                mask = a.mask
                p = 0
                while mask:
                    if mask & 1 and acknowledged[p] < a.tick:
                        break
                    mask >>= 1
                    p += 1
                if mask:
                    break
                if a.packet != NULL:
                    if not self.release_packet(conn, <list>a.packet):
                        break
                    Py_XDECREF(a.packet)
                else:
                    if a.since:
                        self.state.finished_since = a.since
                    at = outbox_reserve(&conn.out, 5)
                    if put_ack(at, a.packet_type, a.packet_id, a.reason, conn.version == 5) - at == 4:
                        conn.out.tail -= 1
                        conn.out.pending -= 1
                    if a.packet_type == 4:
                        conn.unanswered -= 1
                conn.ack_head = (conn.ack_head + 1) & (conn.ack_cap - 1)
                conn.ack_count -= 1
                self.state.set_dirty(conn)
            if conn.pace != NULL and conn.pace.owed:
                self.owe_less(conn)
            if conn.ack_count:
                self.waiting.items[kept] = <PyObject*>conn
                kept += 1
            else:
                conn.waiting = False
                Py_DECREF(conn)
        self.waiting.count = kept
        while self.after_acks:
            work(PYTHON)
            conn, then = self.after_acks.popleft()
            self.state.attempt(conn, then)
        return 0

    cdef int release_packet(self, Connection conn, list waits) except -1:
        # 0: the answer is not known yet (`answer_later`)
        cdef bytes packet = waits[0]
        if packet is None:
            return 0
        if waits[1] is not None:
            self.after_acks.append((conn, waits[1]))
        if packet:
            work(<uint64_t>len(packet) // 1024 * KIBI)
            memcpy(outbox_reserve(&conn.out, <uint32_t>len(packet)), <const char*>packet, len(packet))
            self.counters.at[count.ANSWERS_SENT] += 1
        return 1

    cdef int owe_less(self, Connection conn) except -1:
        # it waits because it has sent more than Receive Maximum: read on as soon as it may be within it again
        cdef Session s = conn.session
        if conn.ack_count == 0 or s is None or conn.unanswered + conn.unreleased < self.limits.receive_maximum:
            conn.pace.owed = False
            self.state.resumed.append(conn)
        return 0

    cdef uint64_t unacknowledged_peers(self) except? 0xFFFFFFFFFFFFFFFF:
        cdef int p
        cdef Peer peer
        cdef uint64_t mask = 0
        for p in range(<int>len(self.peers.peers)):
            if self.peers.peers[p] is not None:
                peer = <Peer>self.peers.peers[p]
                if peer.acknowledged < peer.sent:
                    mask |= <uint64_t>1 << p
        return mask
