"""Which worker owns a retained topic: rendezvous hashing, per message and therefore here (client ids:
shards.placement).

FNV-1a over the topic, then one SplitMix64 finalizer per worker; the highest wins. Fixed constants, no seed: every
process and every later run must agree. Growing from N to N + 1 workers moves only the topics that the new one wins.
"""


cdef int owner_of(const uint8_t* topic, size_t n, int workers) noexcept nogil:
    cdef uint64_t h = 0xCBF29CE484222325u, x, best = 0
    cdef size_t i
    cdef int w, winner = 0
    for i in range(n):
        h = (h ^ topic[i]) * 0x100000001B3u
    for w in range(workers):
        x = h + <uint64_t>(w + 1) * 0x9E3779B97F4A7C15u
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u
        x = (x ^ (x >> 27)) * 0x94D049BB133111EBu
        x ^= x >> 31
        if x > best or w == 0:
            best = x
            winner = w
    return winner


def owner(bytes topic not None, int workers):
    """The worker, 0 .. workers - 1, that owns the retained message of `topic`."""
    return owner_of(<const uint8_t*><const char*>topic, len(topic), workers)
