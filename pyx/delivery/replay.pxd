# cython: language_level=3
"""A subscription that reads the archive, per message: see the .pyx."""
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from pyx.delivery.backlog cimport Backlog
from pyx.delivery.session cimport Session
from pyx.protocol.message cimport Message


cdef enum:
    ORIGINS = 256                   # a message number has 8 bits for the worker that gave it
    POSITION_DIGITS = 16            # of the number in a position


cdef struct Source:  # one worker's archive
    uint64_t up_to                  # everything up to this number was taken into `pages`, or is delivered
    uint32_t at                     # in its page: what lies before was delivered
    bint reached                    # it had nothing more when it was asked


cdef class Merge:
    cdef readonly Session session
    cdef readonly uint8_t options   # of the SUBSCRIBE
    cdef readonly uint32_t number   # of this replay in its session: names its copies in the session's queue
    cdef readonly uint64_t position     # everything up to it was delivered
    cdef readonly bint live         # all sources had nothing more at some time: they are not merged any more
    cdef public bytes lost          # the next delivery says that what lay behind this position is gone; or None
    cdef readonly bint kept         # since the last `take_kept`: copies that the session's window will have to answer
    cdef list pages                 # by source: messages that have come, or None
    cdef Source* sources
    cdef uint32_t count             # of sources
    cdef uint64_t* floors           # by origin: this number and those before it were delivered
    cdef bytes properties           # Subscription Identifier and mqttd-offset up to its number

    cdef uint64_t given(self, uint32_t i) except? 0xFFFFFFFFFFFFFFFF
    cdef int deliver(self, Backlog backlog, Message m, uint64_t position) except -1
    cdef bytes properties_for(self, uint64_t position)
    cdef int settle(self) except -1
