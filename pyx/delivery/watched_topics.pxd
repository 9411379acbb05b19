# cython: language_level=3
"""Topics sent live to a session while retained messages are on their way to it: an older message of such a topic will
not be sent as retained."""
from libc.stdint cimport uint32_t, uint64_t

cdef enum:
    WATCHED_MAX = 65536         # of a session: 3 MB
    WATCHED_ALL_MAX = 1 << 20   # of all sessions: 48 MB


cdef struct Seen:               # the last message with RETAIN that was sent live, by topic
    uint64_t topic              # a keyed hash; 0: free
    uint64_t number
    uint32_t asked              # `Session.asked` then


cdef struct WatchedTopics:      # an open table: linear probing, at most half full. Zeroed: empty
    Seen* places
    uint32_t cap
    uint32_t count


# note that a message with RETAIN was sent live (0: no room to remember it); `topic`: its keyed hash; `asked`: number of
# SUBSCRIBEs so far that asked for retained messages
cdef int watched_sent(WatchedTopics* w, uint64_t topic, uint64_t number, uint32_t asked) except -1
# has a message of that topic that is not older been sent live since that SUBSCRIBE?
cdef bint watched_overtaken(const WatchedTopics* w, uint64_t topic, uint64_t number, uint32_t asked) noexcept
cdef void watched_forget(WatchedTopics* w) noexcept
