"""Retained messages: set, cleared and expired by the owners of their topics, and queued for new subscriptions."""
cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from pyx.core cimport counters as count
from pyx.core.placement cimport owner_of
from pyx.core.work cimport OBJECT, work
from pyx.delivery.back_pressure cimport BackPressure
from pyx.delivery.backlog cimport Backlog
from pyx.delivery.journal cimport Journal
from pyx.delivery.publish_in_hand cimport PublishInHand
from pyx.delivery.router_state cimport NUMBER_WORKER_BITS, RouterState, put_identifier
from pyx.delivery.session cimport RETAINED_COPY, Session
from pyx.matching.subscriptions cimport Filter, Subscriber
from pyx.protocol.message cimport Content, Message, content_bytes


@cython.final
cdef class Retaining:
    """The retained messages of the topics that this worker owns."""

    def __cinit__(self, RouterState state not None, PublishInHand in_hand not None, Journal journal not None,
                  BackPressure back_pressure not None, Backlog backlog not None):
        self.state = state
        self.counters = state.counters
        self.limits = state.limits
        self.subscriptions = state.subscriptions
        self.in_hand = in_hand
        self.journal = journal
        self.back_pressure = back_pressure
        self.backlog = backlog

    cdef int keep(self) except -2:
        # set or clear the retained message of the publish in hand [MQTT-3.3.1-5, 3.3.1-6]; returns its owner if that is
        # a sibling, else -1
        cdef const Content* c = self.in_hand.content
        cdef int owner
        cdef uint64_t had = 0
        cdef bytes topic
        if self.state.workers > 1:
            owner = owner_of(c.topic, c.topic_len, self.state.workers)
            if owner != self.state.worker:
                return owner
        topic = PyBytes_FromStringAndSize(<const char*>c.topic, c.topic_len)
        old = self.retained.get(topic)
        if old is not None:
            had = content_bytes(&(<Message>old).content)
        if c.payload_len == 0:
            if self.retained.clear(topic, c.number):
                self.retained_bytes -= had
                if self.state.keeps and old is not None:    # else there is no record
                    self.note_retained(topic, None)
        elif old is None and (<uint64_t>self.retained.count >= self.limits.retained_messages_max or
                              self.back_pressure.memory_full >> self.state.worker & 1) or \
                self.retained_bytes - had + content_bytes(c) > self.limits.retained_bytes_max:
            self.counters.at[count.RETAINED_REFUSED] += 1
            self.state.handler.retained_full(topic)
        elif self.retained.set(topic, c.number, self.in_hand.hold()):
            self.retained_bytes += content_bytes(c) - had
            if self.state.keeps:
                self.note_retained(topic, self.in_hand.held)
        self.counters.at[count.RETAINED_MESSAGES] = self.retained.count
        self.counters.at[count.RETAINED_BYTES] = self.retained_bytes
        return -1

    cdef int note_retained(self, bytes topic, Message m) except -1:
        # the handler stores the changes when the tick is committed; acks of this tick wait for that
        self.journal.retained_changes[topic] = m
        self.journal.recorded = True
        if self.journal.durabilities is None or m is None:
            self.journal.synced = True
        else:
            self.journal.settle_durability(&m.content)
        return 0

    def restore_retained(self, Message m not None):
        """Restore a stored retained message."""
        if self.retained.set(m.topic, m.content.number, m):
            self.retained_bytes += content_bytes(&m.content)
        self.state.clock.behind(m.content.number >> NUMBER_WORKER_BITS)
        self.counters.at[count.RETAINED_MESSAGES] = self.retained.count
        self.counters.at[count.RETAINED_BYTES] = self.retained_bytes

    def queue_retained(self, Session s not None, list messages not None, bytes text not None, uint32_t asked):
        """Send retained messages to a session that has subscribed, at the subscription's QoS, through its own queue
        [MQTT-3.3.1-6]. `asked`: the number that `Session.ask` returned for the SUBSCRIBE."""
        cdef Filter* f = self.subscriptions.find(<const uint8_t*><const char*>text, len(text))
        cdef int i
        cdef Subscriber* sub
        cdef Message m
        cdef uint8_t options, qos
        cdef uint8_t[8] ids
        cdef object identifiers = None
        if f == NULL:
            return
        i = self.subscriptions.membership(f, NULL, <void*>s, &s.own)
        if i < 0:
            return
        sub = &f.plain.items[s.own.items[i].index]
        options = <uint8_t>(sub.slot_options >> 24)
        if sub.identifier:
            identifiers = PyBytes_FromStringAndSize(<const char*>ids, put_identifier(ids, sub.identifier))
        if messages:
            s.begin_watching()
        work(<uint64_t>len(messages) * OBJECT)
        for m in messages:
            if options & 4 and m.publisher is not None and m.publisher == s.client_id:
                continue                    # [MQTT-3.8.3-3]
            qos = min(options & 3, m.content.qos)
            self.backlog.queue_for(s, m, qos, True, identifiers, RETAINED_COPY, asked)

    def expire_retained(self, Message m not None):
        """Remove a retained message whose Message Expiry Interval has passed; a newer one of its topic stays."""
        if self.retained.remove(m.topic, m):
            self.retained_bytes -= content_bytes(&m.content)
            if self.state.keeps:
                self.note_retained(m.topic, None)
            self.counters.at[count.RETAINED_MESSAGES] = self.retained.count
            self.counters.at[count.RETAINED_BYTES] = self.retained_bytes
