"""Topic Names and Topic Filters (MQTT 5, 4.7 and 4.8.2). C callers use topics.pxd, Python the functions at the end."""


cdef int split_share(const uint8_t* p, size_t n, Share* out) noexcept nogil:
    cdef const uint8_t* slash
    if not is_shared(p, n):
        return 0
    out.group = p + 7
    slash = <const uint8_t*>memchr(p + 7, c'/', n - 7)
    if slash == NULL:
        return -1
    out.group_len = <size_t>(slash - out.group)
    out.filter = slash + 1
    out.filter_len = <size_t>(p + n - out.filter)
    if out.group_len == 0 or out.filter_len == 0 or has_wildcard(out.group, out.group_len):
        return -1
    return 1


cdef bint _wildcards_placed(const uint8_t* p, size_t n) noexcept nogil:
    """Whether every + and # is a level of its own, # the last one (MQTT-4.7.1-1, -2 of v5; -2, -3 of v3.1.1)."""
    cdef size_t i
    if not has_wildcard(p, n):
        return True
    for i in range(n):
        if p[i] == c'+':
            if (i and p[i - 1] != c'/') or (i + 1 < n and p[i + 1] != c'/'):
                return False
        elif p[i] == c'#':
            if (i and p[i - 1] != c'/') or i + 1 != n:
                return False
    return True


cdef bint topic_filter_valid(const uint8_t* p, size_t n) noexcept nogil:
    cdef Share share
    cdef int shared
    if n == 0 or n > 65535 or not utf8_valid(p, n):
        return False
    shared = split_share(p, n, &share)
    if shared < 0:
        return False
    if shared:
        return _wildcards_placed(share.filter, share.filter_len)
    return _wildcards_placed(p, n)


cdef bint topic_matches(const uint8_t* f, size_t fn, const uint8_t* t, size_t tn) noexcept nogil:
    """Return whether a valid Topic Filter matches a valid Topic Name [MQTT-4.7.1-2, 4.7.1-3, 4.7.2-1]."""
    cdef size_t i = 0, k = 0
    if tn and t[0] == c'$' and fn and (f[0] == c'+' or f[0] == c'#'):
        return False
    while i < fn:
        if f[i] == c'#':
            return True
        if f[i] == c'+':
            while k < tn and t[k] != c'/':
                k += 1
            i += 1
        else:
            while i < fn and f[i] != c'/':
                if k >= tn or t[k] != f[i]:
                    return False
                i += 1
                k += 1
            if k < tn and t[k] != c'/':
                return False
        if i >= fn:
            return k >= tn
        # f[i] is '/'
        if k >= tn:
            return fn - i == 2 and f[i + 1] == c'#'
        i += 1
        k += 1
        if i >= fn:                 # the filter ends with an empty level
            return k >= tn
    return k >= tn


def is_topic_name(topic: bytes) -> bool:
    """Return whether this may be the Topic Name of a PUBLISH or a Will."""
    return topic_name_valid(<const uint8_t*><const char*>topic, <size_t>len(topic))


def is_topic_filter(filter: bytes) -> bool:
    """Return whether this may be the Topic Filter of a SUBSCRIBE, $share included."""
    return topic_filter_valid(<const uint8_t*><const char*>filter, <size_t>len(filter))


def wrong_filter(filter: bytes, version: int) -> str | None:
    """Return why this UTF-8 text is not a valid Topic Filter, or None. Before MQTT 5 there is no $share."""
    cdef const uint8_t* p = <const uint8_t*><const char*>filter
    cdef size_t n = <size_t>len(filter)
    cdef Share share
    if n == 0:
        return "Topic Filter is empty"
    if version == 5 and split_share(p, n, &share) < 0:
        return "$share without a ShareName, or without a Topic Filter behind it"
    if not _wildcards_placed(p, n):
        return "Topic Filter with a wildcard that is not a level, or # that is not the last"
    return None


def contains_wildcard(filter: bytes) -> bool:
    """Return whether it has a + or #."""
    return has_wildcard(<const uint8_t*><const char*>filter, <size_t>len(filter))


def levels(text: bytes) -> int:
    """Return the number of levels of a name or filter: "a/b" has 2, "/" has 2."""
    return level_count(<const uint8_t*><const char*>text, <size_t>len(text))


def parse_share(filter: bytes) -> tuple | None:
    """Return (ShareName, Topic Filter) of $share/ShareName/filter, or None if it is not a well-formed shared filter."""
    cdef Share share
    if split_share(<const uint8_t*><const char*>filter, <size_t>len(filter), &share) != 1:
        return None
    return (share.group[:share.group_len], share.filter[:share.filter_len])
