"""Topic Aliases that the broker sets for one client: see the .pxd."""
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memcpy

cdef enum:
    SEEN = 16                       # number of remembered topics that were last sent without an alias
    HEAT_MAX = 7


cdef struct Alias:
    uint8_t* topic                  # malloc'd
    uint16_t length
    uint8_t heat


cdef struct Aliases:
    uint32_t most
    uint32_t count
    uint32_t hand
    uint32_t next_seen
    uint32_t[SEEN] seen             # their hashes, a ring
    Alias* aliases                  # alias n is aliases[n - 1]
    uint32_t* hashes                # separate, so that the search stays in a line or two of cache


cdef Aliases* _new(uint32_t most) noexcept nogil:
    # one block: the head, the aliases, their hashes
    cdef Aliases* a = <Aliases*>calloc(1, sizeof(Aliases) + most * (sizeof(Alias) + sizeof(uint32_t)))
    if a != NULL:
        a.most = most
        a.aliases = <Alias*>(a + 1)
        a.hashes = <uint32_t*>(a.aliases + most)
    return a


cdef inline bint _seen(Aliases* a, uint32_t hash_) noexcept nogil:
    """Return whether the topic is among the remembered ones, and remember it."""
    cdef int i
    cdef bint found = False
    for i in range(SEEN):           # without an early end: a few vector instructions
        found |= a.seen[i] == hash_
    if not found:
        a.seen[a.next_seen] = hash_
        a.next_seen = (a.next_seen + 1) % SEEN
    return found


cdef int32_t alias_for(
    Aliases** table, uint32_t most, const uint8_t* topic, uint16_t length, uint32_t hash_
) noexcept nogil:
    cdef Aliases* a = table[0]
    cdef Alias* one
    cdef uint32_t i
    cdef uint8_t* copy
    if a == NULL:
        a = table[0] = _new(most)
        if a == NULL:
            return 0                # no memory for it: the topic is sent
    for i in range(a.count):
        if a.hashes[i] == hash_:
            one = &a.aliases[i]
            if one.length == length and memcmp(one.topic, topic, length) == 0:
                one.heat += one.heat < HEAT_MAX
                return <int32_t>(i + 1)
    i = a.count
    if i == a.most:
        if not _seen(a, hash_):
            return 0
        i = a.hand
        a.hand = a.hand + 1 if a.hand + 1 < a.most else 0
        if a.aliases[i].heat:
            a.aliases[i].heat -= 1
            return 0
    copy = <uint8_t*>malloc(length)
    if copy == NULL:
        return 0
    memcpy(copy, topic, length)
    one = &a.aliases[i]
    free(one.topic)
    one.topic = copy
    one.length = length
    one.heat = 1
    a.hashes[i] = hash_
    if i == a.count:
        a.count += 1
    return -<int32_t>(i + 1)


cdef void aliases_free(Aliases* a) noexcept nogil:
    cdef uint32_t i
    if a == NULL:
        return
    for i in range(a.count):
        free(a.aliases[i].topic)
    free(a)
