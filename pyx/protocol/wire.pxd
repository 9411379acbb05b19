# cython: language_level=3
"""Wire data types: checked reads, unchecked writes, UTF-8 (MQTT 5, 1.5; MQTT 3.1.1, 1.5 and 2.2.3).

Everything that a peer sent is read through a Cursor. Invariant: at <= end. Every read compares its size with `end - at`
as unsigned numbers before it touches a byte; a length field is trusted only after that, so nothing is ever allocated or
read because of an unchecked length. A read that does not fit raises MalformedPacket and leaves the cursor unchanged.

The put_ functions check nothing: the caller has computed the size before (varint_size, ...).
"""
from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy


cdef struct Cursor:                 # bytes are borrowed: valid while the caller's buffer is
    const uint8_t* at
    const uint8_t* end


# Raise the errors, out of line. All return -1 with MalformedPacket set.
cdef int truncated() except -1      # a field extends beyond the end of its packet
cdef int bad_varint() except -1     # a Variable Byte Integer of more than 4 bytes, or longer than necessary
cdef int bad_utf8() except -1       # ill-formed UTF-8, a surrogate, U+0000, or a character that is refused here

cdef bint utf8_valid_beyond_ascii(const uint8_t* p, size_t n) noexcept nogil

# False for well-formed UTF-8 with a character that the standard allows a receiver to refuse (MQTT 5, 1.5.4: control
# characters and non-characters), if configured (refuse_disallowed). For strings, not for payloads.
cdef bint characters_allowed(const uint8_t* p, size_t n) noexcept nogil


cdef inline bint utf8_valid(const uint8_t* p, size_t n) noexcept nogil:
    """Check for well-formed UTF-8 without U+0000 (MQTT-1.5.4-1, -2). ASCII is checked here, eight bytes at a time."""
    cdef uint64_t word
    cdef bint eight = n >= 8
    while n >= 8:
        memcpy(&word, p, 8)
        # a byte >= 0x80 shows in word itself; among bytes < 0x80 only 0x00 borrows its high bit from the subtraction
        if (word | (word - <uint64_t>0x0101010101010101)) & <uint64_t>0x8080808080808080:
            return utf8_valid_beyond_ascii(p, n)
        p += 8
        n -= 8
    if n == 0:
        return True
    if eight:                       # the rest, together with bytes that were checked before
        memcpy(&word, p + n - 8, 8)
        if (word | (word - <uint64_t>0x0101010101010101)) & <uint64_t>0x8080808080808080:
            return utf8_valid_beyond_ascii(p, n)
        return True
    while n:
        if p[0] == 0 or p[0] >= 0x80:
            return utf8_valid_beyond_ascii(p, n)
        p += 1
        n -= 1
    return True


cdef inline int read_u8(Cursor* c) except -1:
    cdef const uint8_t* p = c.at
    if p == c.end:
        return truncated()
    c.at = p + 1
    return p[0]


cdef inline int read_u16(Cursor* c) except -1:
    cdef const uint8_t* p = c.at
    if <size_t>(c.end - p) < 2:
        return truncated()
    c.at = p + 2
    return (<int>p[0] << 8) | p[1]


cdef inline int64_t read_u32(Cursor* c) except -1:
    cdef const uint8_t* p = c.at
    if <size_t>(c.end - p) < 4:
        return truncated()
    c.at = p + 4
    return (<int64_t>p[0] << 24) | (<int64_t>p[1] << 16) | (<int64_t>p[2] << 8) | p[3]


cdef inline int64_t read_varint(Cursor* c) except -1:
    """Read a Variable Byte Integer: at most 4 bytes, the fewest that hold the value (MQTT-1.5.5-1)."""
    cdef const uint8_t* p = c.at
    cdef uint32_t value
    cdef int shift = 0
    if p != c.end and p[0] < 0x80:
        c.at = p + 1
        return p[0]
    value = 0
    while p != c.end:
        value |= <uint32_t>(p[0] & 0x7F) << shift
        if p[0] < 0x80:
            if p[0] == 0:           # a last byte of 0 adds nothing: one byte fewer would do (a single 0 left above)
                return bad_varint()
            c.at = p + 1
            return value
        p += 1
        shift += 7
        if shift == 28:
            return bad_varint()
    return truncated()


cdef inline int read_binary(Cursor* c, const uint8_t** out) except -1:
    """Read a Two Byte Integer length and that many bytes. Returns the length; *out is borrowed from the buffer."""
    cdef size_t length
    cdef const uint8_t* p = c.at
    cdef size_t left = <size_t>(c.end - p)
    out[0] = p
    if left < 2:
        return truncated()
    length = (<size_t>p[0] << 8) | p[1]
    if left - 2 < length:
        return truncated()
    out[0] = p + 2
    c.at = p + 2 + length
    return <int>length


cdef inline int read_utf8(Cursor* c, const uint8_t** out) except -1:
    """Read a UTF-8 Encoded String, validated. Returns its length in bytes; *out is borrowed from the buffer."""
    cdef int length = read_binary(c, out)
    if not utf8_valid(out[0], <size_t>length) or not characters_allowed(out[0], <size_t>length):
        return bad_utf8()
    return length


cdef inline uint32_t varint_size(uint32_t v) noexcept nogil:
    """Return the bytes of `v` as a Variable Byte Integer: 1 to 4; 5: it does not fit (above 268,435,455)."""
    return 1 + (v > 0x7F) + (v > 0x3FFF) + (v > 0x1FFFFF) + (v > 0xFFFFFFF)


cdef inline uint8_t* put_u16(uint8_t* p, uint16_t v) noexcept nogil:
    p[0] = <uint8_t>(v >> 8)
    p[1] = <uint8_t>v
    return p + 2


cdef inline uint8_t* put_u32(uint8_t* p, uint32_t v) noexcept nogil:
    p[0] = <uint8_t>(v >> 24)
    p[1] = <uint8_t>(v >> 16)
    p[2] = <uint8_t>(v >> 8)
    p[3] = <uint8_t>v
    return p + 4


cdef inline uint8_t* put_varint(uint8_t* p, uint32_t v) noexcept nogil:
    while v >= 0x80:
        p[0] = <uint8_t>(v | 0x80)
        p += 1
        v >>= 7
    p[0] = <uint8_t>v
    return p + 1
