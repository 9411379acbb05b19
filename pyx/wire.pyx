"""The slow side of the wire: raises, and UTF-8 that is not ASCII. Everything that is fast stands in wire.pxd."""
from pyx.reasons cimport malformed


cdef int truncated() except -1:
    return malformed("a field reaches behind the end of its packet")


cdef int bad_varint() except -1:
    return malformed("Variable Byte Integer of more bytes than needed or allowed")


cdef int bad_utf8() except -1:
    return malformed("string is not well-formed UTF-8 or contains U+0000")


cdef bint utf8_valid_beyond_ascii(const uint8_t* p, size_t n) noexcept nogil:
    """Table 3-7 of the Unicode standard: the second byte's range depends on the first (no overlong forms, no
    surrogates, nothing above U+10FFFF); U+0000 is refused by MQTT. p must stand at the start of a character."""
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
