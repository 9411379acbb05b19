# cython: language_level=3
"""Topics that a session was sent a message of, as it was published, while retained ones are on their way to it: an
older message of theirs will not be sent as retained."""
from libc.stdint cimport uint32_t, uint64_t

cdef enum:
    WATCHED_MAX = 65536         # of a session: 3 MB
    WATCHED_ALL_MAX = 1 << 20   # of all sessions: 48 MB


cdef struct Seen:               # the last message to be retained that was sent as it came, by topic
    uint64_t topic              # a keyed hash; 0: free
    uint64_t number
    uint32_t asked              # `Session.asked` then


cdef struct WatchedTopics:      # an open table: linear probing, at most half full. Zeroed: empty
    Seen* places
    uint32_t cap
    uint32_t count


# a message to be retained was sent as it came (0: there is no room to remember it); `topic`: a keyed hash of it; asked:
# how many SUBSCRIBEs have asked for retained messages
cdef int watched_sent(WatchedTopics* w, uint64_t topic, uint64_t number, uint32_t asked) except -1
# whether one of that topic that is not older has been sent so since that SUBSCRIBE
cdef bint watched_overtaken(const WatchedTopics* w, uint64_t topic, uint64_t number, uint32_t asked) noexcept
cdef void watched_forget(WatchedTopics* w) noexcept
