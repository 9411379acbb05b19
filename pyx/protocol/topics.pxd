# cython: language_level=3
"""Topic Names and Topic Filters (MQTT 5, 4.7 and 4.8.2): the only place that interprets / + # and $share."""
from libc.stddef cimport size_t
from libc.stdint cimport uint8_t
from libc.string cimport memchr, memcmp

from pyx.protocol.wire cimport characters_allowed, utf8_valid


cdef struct Share:                  # $share/group/filter; borrowed from the text it was split from
    const uint8_t* group
    const uint8_t* filter
    size_t group_len
    size_t filter_len


# 1 and *out filled: a well-formed shared filter; 0: does not begin with $share/; -1: begins with it and is not
# well-formed (ShareName empty or with a wildcard, nothing after it). The filter inside is not checked: use
# topic_filter_valid.
cdef int split_share(const uint8_t* p, size_t n, Share* out) noexcept nogil

# Not empty, at most 65,535 bytes, UTF-8 without U+0000, + and # only as whole levels, # last, $share well-formed.
cdef bint topic_filter_valid(const uint8_t* p, size_t n) noexcept nogil

# Whether a valid Topic Filter (f, without $share) matches a valid Topic Name (t).
cdef bint topic_matches(const uint8_t* f, size_t fn, const uint8_t* t, size_t tn) noexcept nogil


cdef inline bint has_wildcard(const uint8_t* p, size_t n) noexcept nogil:
    """Whether it has a + or # anywhere: for a valid filter, whether it is a wildcard filter."""
    return n != 0 and (memchr(p, c'+', n) != NULL or memchr(p, c'#', n) != NULL)


cdef inline bint topic_name_valid(const uint8_t* p, size_t n) noexcept nogil:
    """Not empty, at most 65,535 bytes, UTF-8 without U+0000 or other refused characters, no wildcard."""
    return 0 < n <= 65535 and not has_wildcard(p, n) and utf8_valid(p, n) and characters_allowed(p, n)


cdef inline size_t level_count(const uint8_t* p, size_t n) noexcept nogil:
    """Return the levels of a name or filter: the separators + 1; an empty level counts ("/" has two)."""
    cdef size_t i, levels = 1
    for i in range(n):
        levels += p[i] == c'/'
    return levels


cdef inline bint is_shared(const uint8_t* p, size_t n) noexcept nogil:
    return n >= 7 and memcmp(p, b"$share/", 7) == 0
