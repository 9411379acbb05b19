# cython: language_level=3
"""The per-message part of a subscription that reads the archive: see the .pyx."""
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from pyx.delivery.backlog cimport Backlog
from pyx.delivery.session cimport Session
from pyx.protocol.message cimport Message


cdef enum:
    ORIGINS = 256                   # a message number has 8 bits for the worker that gave it
    POSITION_DIGITS = 16            # of the number in a position


cdef struct Source:  # one worker's archive
    uint64_t up_to                  # everything up to this number is in `pages`, or was delivered
    uint32_t at                     # index in its page: messages before it were delivered
    uint32_t host                   # index in `hosts`
    bint reached                    # it had nothing more at the last request


cdef struct HostSources:  # the archives of one host
    uint64_t position               # everything of this host up to this number was delivered
    uint32_t first                  # index of its first source
    uint32_t count                  # its sources; 0: it is not there, and only its position is kept
    uint32_t digits                 # place of its number in `properties`
    bint away                       # it is not waited for


cdef class Merge:
    cdef readonly Session session
    cdef readonly uint8_t options   # of the SUBSCRIBE
    cdef readonly uint32_t number   # of this replay in its session: marks its copies in the session's queue
    cdef readonly bint live         # all sources had nothing more at some time: no more merging
    cdef public bytes lost          # position to report with the next delivery: messages behind it are lost; or None
    cdef readonly bint kept         # since the last `take_kept`: a copy at QoS 1 or 2 was queued
    cdef list pages                 # by source: messages received, or None
    cdef Source* sources
    cdef uint32_t count             # of sources
    cdef HostSources* hosts
    cdef uint32_t host_count
    cdef uint64_t* floors           # by host and origin: this number and those before it were delivered
    cdef char* properties           # Subscription Identifier and mqttd-offset; its digits are written before each use
    cdef uint32_t properties_bytes
    cdef uint32_t value             # place of the position in `properties`

    cdef uint64_t given(self, uint32_t i) except? 0xFFFFFFFFFFFFFFFF
    cdef int deliver(self, Backlog backlog, Message m, uint32_t host, uint64_t position) except -1
    cdef bytes properties_for(self, uint32_t host)
    cdef void write_number(self, uint32_t host) noexcept
    cdef int settle(self) except -1
