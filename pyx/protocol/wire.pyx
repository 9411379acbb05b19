"""The slow paths of wire data types: raising, and UTF-8 that is not ASCII. The fast paths are in wire.pxd."""
from pyx.protocol.reasons cimport malformed


cdef int truncated() except -1:
    return malformed("a field reaches behind the end of its packet")


cdef int bad_varint() except -1:
    return malformed("Variable Byte Integer of more bytes than needed or allowed")


cdef int bad_utf8() except -1:
    return malformed("string is not well-formed UTF-8, contains U+0000, or a character that is refused here")


cdef bint utf8_valid_beyond_ascii(const uint8_t* p, size_t n) noexcept nogil:
    """Check by table 3-7 of the Unicode standard: the second byte's range depends on the first (no overlong forms, no
    surrogates, nothing above U+10FFFF); MQTT prohibits U+0000. p must be at the start of a character."""
    cdef const uint8_t* end = p + n
    cdef uint8_t first, low, high
    cdef size_t more
    while p != end:
        first = p[0]
        p += 1
        if first < 0x80:
            if first == 0:
                return False
            continue
        low = 0x80
        high = 0xBF
        if first < 0xC2:
            return False
        elif first < 0xE0:
            more = 1
        elif first < 0xF0:
            more = 2
            if first == 0xE0:
                low = 0xA0
            elif first == 0xED:
                high = 0x9F
        elif first < 0xF5:
            more = 3
            if first == 0xF0:
                low = 0x90
            elif first == 0xF4:
                high = 0x8F
        else:
            return False
        if <size_t>(end - p) < more or p[0] < low or p[0] > high:
            return False
        if more > 1 and p[1] & 0xC0 != 0x80:
            return False
        if more > 2 and p[2] & 0xC0 != 0x80:
            return False
        p += more
    return True


cdef bint _refusing = False         # configured, for all strings that this process reads


def refuse_disallowed(refuse: bool) -> None:
    """Set whether strings with control characters or non-characters are malformed from now on (MQTT 5, 1.5.4)."""
    global _refusing
    _refusing = refuse


cdef bint characters_allowed(const uint8_t* p, size_t n) noexcept nogil:
    cdef const uint8_t* end = p + n
    if not _refusing:
        return True
    while p != end:
        if p[0] < 0x80:                                             # U+0001 to U+001F, U+007F
            if p[0] < 0x20 or p[0] == 0x7F:
                return False
            p += 1
        elif p[0] < 0xE0:                                           # U+0080 to U+009F
            if p[0] == 0xC2 and p[1] < 0xA0:
                return False
            p += 2
        elif p[0] < 0xF0:                                           # U+FDD0 to U+FDEF, U+FFFE and U+FFFF
            if p[0] == 0xEF and (p[1] == 0xB7 and 0x90 <= p[2] <= 0xAF or p[1] == 0xBF and p[2] >= 0xBE):
                return False
            p += 3
        else:                                                       # the last two of every other plane
            if p[1] & 0x0F == 0x0F and p[2] == 0xBF and p[3] >= 0xBE:
                return False
            p += 4
    return True
