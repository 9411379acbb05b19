"""Statistics of a minute: see the .pxd."""
import os

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memcpy

from pyx.core.hashing cimport hash_bytes

cdef enum:
    CAP_FIRST = 64


@cython.final
cdef class Drops:
    """Counts of dropped copies, by session and reason, for at most `most` sessions."""

    def __cinit__(self, uint32_t most):
        self.most = most
        self.sessions = []

    cdef int add(self, object session, int counter, uint64_t n) except -1:
        cdef Session s
        if session is None or self.most == 0 or n == 0:
            return 0
        s = <Session>session
        if s.drops == NULL:
            if <uint32_t>len(self.sessions) >= self.most:
                self.unlisted += n
                return 0
            s.drops = <uint64_t*>calloc(REASONS, sizeof(uint64_t))
            if s.drops == NULL:
                raise MemoryError
            self.sessions.append(s)
        s.drops[counter - DROPPED_EXPIRED] += n
        return 0

    def take(self):
        """Return [(client id, counter, copies), ...] since the last call."""
        cdef Session s
        cdef int i, reasons = REASONS
        cdef list rows = []
        for s in self.sessions:
            for i in range(reasons):
                if s.drops[i]:
                    rows.append((s.client_id, DROPPED_EXPIRED + i, s.drops[i]))
            free(s.drops)
            s.drops = NULL
        self.sessions = []
        return rows


@cython.final
cdef class Prefixes:
    """Counts of messages put into outboxes and dropped, by the first `levels` levels of their topics, for at most
    `most` such prefixes."""

    def __cinit__(self, uint32_t levels, uint32_t most):
        cdef bytes secret = os.urandom(sizeof(HashKey))
        memcpy(&self.key, <const char*>secret, sizeof(HashKey))
        self.levels = levels
        self.most = most

    def __dealloc__(self):
        self.clear()

    cdef int add(self, const Content* c, uint64_t delivered, uint64_t dropped) except -1:
        cdef uint32_t n = 0, levels = self.levels, at
        cdef uint64_t hash_
        cdef Traffic* t
        if delivered == 0 and dropped == 0:
            return 0
        while n < c.topic_len:
            if c.topic[n] == c'/':
                levels -= 1
                if levels == 0:
                    break
            n += 1
        hash_ = hash_bytes(&self.key, c.topic, n)
        if self.count * 2 >= self.cap and self.count < self.most:
            self.grow()
        t = &self.others
        if self.cap:
            at = <uint32_t>hash_ & (self.cap - 1)
            while self.table[at].text != NULL:
                if self.table[at].hash_ == hash_ and self.table[at].length == n \
                        and memcmp(self.table[at].text, c.topic, n) == 0:
                    t = &self.table[at]
                    break
                at = (at + 1) & (self.cap - 1)
            else:
                if self.count < self.most:
                    t = &self.table[at]
                    t.text = <uint8_t*>malloc(n + 1)        # also for an empty prefix
                    if t.text == NULL:
                        raise MemoryError
                    memcpy(t.text, c.topic, n)
                    t.length = n
                    t.hash_ = hash_
                    self.count += 1
        if t == &self.others:
            self.unlisted += delivered + dropped
        t.delivered += delivered
        t.dropped += dropped
        return 0

    cdef int grow(self) except -1:
        cdef uint32_t cap = self.cap * 2 if self.cap else CAP_FIRST, i, at
        cdef Traffic* grown = <Traffic*>calloc(cap, sizeof(Traffic))
        if grown == NULL:
            raise MemoryError
        for i in range(self.cap):
            if self.table[i].text != NULL:
                at = <uint32_t>self.table[i].hash_ & (cap - 1)
                while grown[at].text != NULL:
                    at = (at + 1) & (cap - 1)
                grown[at] = self.table[i]
        free(self.table)
        self.table = grown
        self.cap = cap
        return 0

    def take(self):
        """Return ([(prefix, delivered, dropped), ...], (delivered, dropped) of others) since the last call."""
        cdef uint32_t i
        cdef Traffic* t
        cdef list rows = []
        for i in range(self.cap):
            t = &self.table[i]
            if t.text != NULL:
                rows.append((PyBytes_FromStringAndSize(<char*>t.text, t.length), t.delivered, t.dropped))
        others = (self.others.delivered, self.others.dropped)
        self.clear()
        return rows, others

    def clear(self):
        """Clear the table and the counts of others."""
        cdef uint32_t i
        for i in range(self.cap):
            free(self.table[i].text)
        free(self.table)
        self.table = NULL
        self.cap = self.count = 0
        self.others.delivered = self.others.dropped = 0
