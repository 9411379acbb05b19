"""The owner of a retained topic among the workers: rendezvous hashing, done per message and therefore here (client ids:
shards.placement). And the similar hash by which members of share groups are identified and ranked.

FNV-1a over the topic, then one SplitMix64 finalizer per worker; the highest wins. Fixed constants, no seed: every
process and every later run must agree. Growing from N to N + 1 workers moves only the topics that the new one wins.
"""


cdef inline uint64_t fnv(const uint8_t* p, size_t n) noexcept nogil:
    cdef uint64_t h = 0xCBF29CE484222325u
    cdef size_t i
    for i in range(n):
        h = (h ^ p[i]) * 0x100000001B3u
    return h


cdef uint64_t fixed_hash(const uint8_t* p, size_t n) noexcept nogil:
    cdef uint64_t x = mixed(fnv(p, n))
    return x if x else 1


cdef int owner_of(const uint8_t* topic, size_t n, int workers) noexcept nogil:
    cdef uint64_t h = fnv(topic, n), x, best = 0
    cdef int w, winner = 0
    for w in range(workers):
        x = mixed(h + <uint64_t>(w + 1) * 0x9E3779B97F4A7C15u)
        if x > best or w == 0:
            best = x
            winner = w
    return winner


def owner(bytes topic not None, int workers):
    """Return the worker, 0 .. workers - 1, that owns the retained message of `topic`."""
    return owner_of(<const uint8_t*><const char*>topic, len(topic), workers)


def group_number(bytes label not None):
    """Return the number that identifies the share group b"group/filter" in copies (unless two groups have the same)."""
    return <uint32_t>fixed_hash(<const uint8_t*><const char*>label, len(label)) or 1
