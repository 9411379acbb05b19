"""Verdicts on publishes: see the .pxd. `broker.auth.rules` has the rules; `broker.clients.authorising` calls them."""
cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memcpy

from pyx.core.work cimport PLACE, PYTHON, work

cdef enum:
    PLACES = 8
    PLACES_MAX = 256
    TOPIC_BYTES_MAX = 1 << 14       # of a connection: beyond this its whole table is cleared


cdef void verdicts_free(Verdicts* v) noexcept:
    if v != NULL:
        forget(v)
        free(v.at)
        free(v)


cdef void forget(Verdicts* v) noexcept:
    cdef uint32_t i
    work(v.places * PLACE)
    for i in range(v.places):
        free(v.at[i].topic)
        v.at[i].topic = NULL
    v.topic_bytes = 0


@cython.final
cdef class Authorise:
    """The verdicts on publishes of the clients of one worker."""

    def set_rules(self, decide):
        """Use `decide(session, topic, qos, retain)` from now on, once per cached verdict; None: all publishes are
        allowed. Former verdicts become invalid."""
        self.decide = decide
        self.restricts = decide is not None
        self.generation += 1

    cdef bint may_publish(self, Verdicts** kept, object session, const uint8_t* topic, uint16_t n, uint64_t topic_hash,
                          uint8_t qos, bint retain) except -1:
        # kept: the connection's pointer to its table, which is made with the first verdict. An exception of the rules
        # propagates: it allows nothing
        cdef uint8_t bit = <uint8_t>(1 << (qos | (4 if retain else 0)))
        cdef Verdict* v
        if n > TOPIC_BYTES_MAX:             # not cached
            work(4 * PYTHON)
            return bool(self.decide(session, PyBytes_FromStringAndSize(<const char*>topic, n), qos, retain))
        if kept[0] == NULL:
            kept[0] = <Verdicts*>calloc(1, sizeof(Verdicts))
            if kept[0] == NULL:
                raise MemoryError
        v = self.place(kept[0], topic, n, topic_hash)
        if not v.asked & bit:
            work(4 * PYTHON)
            if self.decide(session, PyBytes_FromStringAndSize(<const char*>topic, n), qos, retain):
                v.granted |= bit
            v.asked |= bit
        return v.granted & bit != 0

    cdef Verdict* place(self, Verdicts* v, const uint8_t* topic, uint16_t n, uint64_t topic_hash) except NULL:
        # the verdict of the topic, in the current generation
        cdef Verdict* at
        while True:
            if v.places == 0:
                self.grow(v)
            at = v.at + (topic_hash & (v.places - 1))
            if at.topic == NULL:
                break
            if at.generation == self.generation:
                if at.topic_hash == topic_hash and at.topic_len == n and memcmp(at.topic, topic, n) == 0:
                    return at
                if v.places < PLACES_MAX:
                    self.grow(v)
                    continue
            v.topic_bytes -= at.topic_len
            free(at.topic)
            at.topic = NULL
            break
        if v.topic_bytes + n > TOPIC_BYTES_MAX:
            forget(v)
        at.topic = <uint8_t*>malloc(n)
        if at.topic == NULL:
            raise MemoryError
        memcpy(at.topic, topic, n)
        v.topic_bytes += n
        at.topic_len = n
        at.topic_hash = topic_hash
        at.generation = self.generation
        at.asked = at.granted = 0
        return at

    cdef int grow(self, Verdicts* v) except -1:
        # double the places; if two verdicts collide, the later one stays
        cdef uint32_t i, places = v.places * 2 if v.places else <uint32_t>PLACES
        cdef Verdict* at = <Verdict*>calloc(places, sizeof(Verdict))
        cdef Verdict* to
        if at == NULL:
            raise MemoryError
        work(places * PLACE)
        for i in range(v.places):
            if v.at[i].topic == NULL:
                continue
            to = at + (v.at[i].topic_hash & (places - 1))
            if to.topic != NULL:
                v.topic_bytes -= to.topic_len
                free(to.topic)
            to[0] = v.at[i]
        free(v.at)
        v.at = at
        v.places = places
        return 0
