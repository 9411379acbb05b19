# cython: language_level=3
"""Retained messages [MQTT-3.3.1.3]: topic -> (number, message), found by a filter in pages.

Messages are any Python objects; a reference is held while the topic keeps it. Entry* never leaves this module.
"""
cimport cython
from cpython.object cimport PyObject
from libc.stdint cimport uint8_t, uint16_t, uint64_t

from pyx.core.hashing cimport HashKey
from pyx.core.tables cimport Table


cdef struct Entry:
    uint64_t hash
    uint64_t number             # of the message; higher wins
    PyObject* message           # owned
    uint16_t length
    uint8_t height              # 1 .. HEIGHT_MAX: how many lists this entry is linked into
    uint8_t unused[5]
    # Entry* next[height] follows, then the topic


@cython.final
cdef class Retained:
    cdef readonly uint64_t count
    cdef readonly uint64_t spent        # steps that `page` has taken, all together
    cdef readonly uint64_t bytes        # of the structure: entries, their topics, their table; not of the messages

    cdef HashKey key
    cdef Table table
    cdef Entry* head                    # links only
    cdef uint8_t* bound                 # where a search for the next candidate begins; BOUND_BYTES
    cdef object cleared                 # OrderedDict: topic -> number, oldest first
    cdef uint64_t cleared_bytes

    cdef Entry* find(self, uint64_t hash_, const uint8_t* topic, size_t length) noexcept
    cdef Entry* seek(self, const uint8_t* topic, size_t length, bint after) noexcept
    cdef bytes before(self, const Entry* entry)
    cdef int insert(self, uint64_t hash_, uint64_t number, bytes topic, object message) except -1
    cdef void take_out(self, Entry* entry) noexcept

    cpdef bint set(self, bytes topic, uint64_t number, object message) except -1
    cpdef bint clear(self, bytes topic, uint64_t number) except -1
    cpdef bint remove(self, bytes topic, object message) except -1
    cpdef object get(self, bytes topic)
    cpdef uint64_t number(self, bytes topic) except? 0
    cpdef list match(self, bytes filter_, bytes after, Py_ssize_t limit)
    cpdef tuple page(self, bytes filter_, bytes after, Py_ssize_t limit, Py_ssize_t steps)
