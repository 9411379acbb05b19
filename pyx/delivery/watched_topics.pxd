# cython: language_level=3
"""What a session remembers while retained messages are on their way to it: the topics of messages with RETAIN that were
sent live meanwhile, so that no older message of such a topic follows as a retained one."""
from libc.stdint cimport uint32_t, uint64_t

cdef enum:
    WATCHED_MAX = 65536         # topics of a session: 4 MB
    WATCHED_ALL_MAX = 1 << 20   # of all sessions: 64 MB
    ASKS_MAX = 64               # SUBSCRIBEs told apart in the log


cdef struct Seen:               # the last message with RETAIN that was sent live, by topic
    uint64_t topic              # a keyed hash; 0: free
    uint64_t number
    uint32_t asked              # number of the last SUBSCRIBE before it that asked for retained messages
    bint is_qos0


cdef class WatchedTopics:       # an open table: linear probing, at most half full
    cdef Seen* places
    cdef uint32_t cap
    cdef uint32_t count
    cdef uint32_t requests      # open requests for retained messages
    cdef uint32_t asked         # number of the last SUBSCRIBE that asked for them
    # of the last retained copy that waits for the record of its window: `Inflight.order` plus one; 0: there is none
    cdef uint64_t deferred
    # [(number of a SUBSCRIBE, last position of the log then), ...], positions rising
    cdef list asks

    # note a SUBSCRIBE. `position`: the last one of the log; `cursor`: the session needs no position up to this one
    cdef int ask(self, uint64_t position, uint64_t cursor) except -1
    # the number of the last SUBSCRIBE before that position of the log was given out; 0: none of those remembered
    cdef uint32_t asked_before(self, uint64_t position) except? 0xFFFFFFFF
    cdef Seen* place_of(self, uint64_t topic) noexcept
    cdef int move(self, uint32_t cap) except -1
    # note that a message with RETAIN was sent after SUBSCRIBE `asked`; 0: no room for it. `topic`: its keyed hash
    cdef int sent(self, uint64_t topic, uint64_t number, uint32_t asked, bint is_qos0) except -1
    # has a newer message of that topic been sent, or this one live since that SUBSCRIBE?
    cdef bint is_overtaken(self, uint64_t topic, uint64_t number, uint32_t asked) noexcept
    # those of QoS 0 may not have left with the connection: they answer no SUBSCRIBE, but stay newer than others
    cdef void lose_qos0(self) noexcept
