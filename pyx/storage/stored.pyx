"""Packing and unpacking of a store's log: blocks and parts of indexes.

`leveldb_store.format.schema` documents the formats, and decodes the same bytes in plain Python; one test compares both
on the same golden bytes. Everything here is called once per block or part; work per message stays inside. Damaged bytes
raise ValueError, and nothing else.

    block       u8 format | u32 count | per message: a mesh entry, u16 length and publisher's client id
    part        u32 count | u64 messages before | u64 bytes before | u32 first position - block's
                | u32 indexes with a part in the block | per message: u32 position - first, u32 bytes
"""
cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcmp, memcpy

from pyx.core.little_endian cimport get16, get32, get64, put16, put32, put64
from pyx.protocol.message cimport Message, content_bytes, message_borrow, message_copy
from pyx.storage.entries cimport Entry, Packed, read_entry
from pyx.storage.records cimport Batch, Block

cdef enum:
    BLOCK_FORMAT = 1
    BLOCK_HEAD_BYTES = 5
    PART_HEAD_BYTES = 28
    PART_ENTRY_BYTES = 8
    PUBLISHER_BYTES_MAX = 0xFFFF
    READ_MESSAGES_MAX = 1024        # per batch
    MESSAGE_OVERHEAD_BYTES = 64     # by which a message counts in a batch in addition to its content
    MESSAGE_BYTES = 160             # memory of a message in addition to its content
    CONTENT_BYTES_MAX = 1 << 29     # no message has more: a PUBLISH has at most 268,435,455 after its fixed header
    STORED_FLAGS = 0x0F             # QoS, RETAIN, EXPIRES


cdef Batch batch_of(uint32_t cap):
    cdef Batch b = Batch.__new__(Batch)
    b.positions = <uint64_t*>malloc((cap if cap else 1) * sizeof(uint64_t))
    if b.positions == NULL:
        raise MemoryError
    return b


cdef int put_messages(Packed packed, list messages) except -1:
    cdef Message m
    cdef bytes publisher
    cdef uint32_t n
    for m in messages:
        packed.entry(&m.content, 0, NULL)
        # for a sibling's publisher at most a hash is known
        publisher = (<str>m.publisher).encode("utf-8", "surrogatepass") if isinstance(m.publisher, str) else b""
        if len(publisher) > PUBLISHER_BYTES_MAX:
            publisher = b""
        n = <uint32_t>len(publisher)
        memcpy(put16(packed.room(n + 2), n), <const char*>publisher, n)
    return 0


cdef int64_t read_stored(const uint8_t* p, size_t n, Entry* e, const uint8_t** publisher, uint32_t* length) except -1:
    # reads the stored message at p, of which n bytes are available; returns its size
    cdef size_t at = read_entry(p, n, e)
    if e.flags & ~STORED_FLAGS:
        raise ValueError("stored message with unknown flags")
    if n - at < 2:
        raise ValueError("stored message cut off")
    length[0] = get16(p + at)
    at += 2
    if n - at < length[0]:
        raise ValueError("stored message cut off")
    publisher[0] = p + at
    return at + length[0]


cdef bint is_text(const uint8_t* p, uint32_t n) except -1:
    # whether it can be decoded; most texts are ASCII
    cdef uint32_t i
    cdef uint8_t all_ = 0
    for i in range(n):
        all_ |= p[i]
    if all_ & 0x80:
        PyBytes_FromStringAndSize(<const char*>p, n).decode("utf-8", "surrogatepass")
    return True


@cython.final
cdef class Stored:
    """A sequence of stored messages: all are checked at once, and created on demand.
    ValueError: damaged."""

    def __cinit__(self, bytes value not None, size_t at, expiry_offset):
        cdef const uint8_t* p = <const uint8_t*><const char*>value
        cdef const uint8_t* publisher
        cdef size_t n = len(value)
        cdef uint32_t length, cap = 0
        cdef Entry e
        cdef uint32_t* grown
        if n > 0xFFFFFFFF:
            raise ValueError("stored messages of more than 4 GB")
        self.value = value
        self.expiry_offset = expiry_offset
        while at < n:
            if self.count == cap:
                cap = cap * 2 if cap else 8
                grown = <uint32_t*>realloc(self.offsets, cap * sizeof(uint32_t))
                if grown == NULL:
                    raise MemoryError
                self.offsets = grown
            self.offsets[self.count] = <uint32_t>at
            self.count += 1
            at += read_stored(p + at, n - at, &e, &publisher, &length)
            is_text(publisher, length)
            if e.content.expires:
                self.expiry_of(&e)
        self.made = [None] * self.count
        self.held_bytes = n + self.count * (sizeof(uint32_t) + sizeof(void*))

    def __dealloc__(self):
        free(self.offsets)

    def __len__(self):
        return self.count

    cdef int expiry_of(self, Entry* e) except -1:
        e.content.expiry_offset = self.expiry_offset(
            PyBytes_FromStringAndSize(<const char*>e.content.props, e.content.props_len))
        return 0

    cdef Message message(self, uint32_t i):
        cdef const uint8_t* p = <const uint8_t*><const char*>self.value
        cdef const uint8_t* publisher
        cdef size_t n = len(self.value)
        cdef uint32_t length
        cdef Entry e
        cdef Message m
        found = self.made[i]
        if found is not None:
            return <Message>found
        read_stored(p + self.offsets[i], n - self.offsets[i], &e, &publisher, &length)
        if length and not (length == self.last_length and memcmp(publisher, self.last_publisher, length) == 0):
            self.publisher = PyBytes_FromStringAndSize(<const char*>publisher, length).decode("utf-8", "surrogatepass")
            self.last_publisher = publisher
            self.last_length = length
        if e.content.expires:
            self.expiry_of(&e)
        self.held_bytes += MESSAGE_BYTES
        # a large one shares the bytes that were read; small ones do not, because each would keep all of them in memory
        if 2 * <uint64_t>content_bytes(&e.content) >= n:
            m = message_borrow(&e.content, self.value)
            m.publisher = self.publisher if length else None
        else:
            m = message_copy(&e.content, self.publisher if length else None)
            self.held_bytes += content_bytes(&e.content)
        self.made[i] = m
        return m

    def message_at(self, uint32_t i):
        """Return the i-th message, from 0. IndexError: there are fewer."""
        if i >= self.count:
            raise IndexError(i)
        return self.message(i)

    def messages(self):
        """Return all messages."""
        cdef uint32_t i
        return [self.message(i) for i in range(self.count)]


def pack_stored(list messages not None):
    """Pack messages with their publishers' client ids: a retained message, a will."""
    cdef Packed packed = Packed.__new__(Packed)
    put_messages(packed, messages)
    return PyBytes_FromStringAndSize(<char*>packed.at, packed.size)


def unpack_stored(bytes data not None, expiry_offset):
    """Unpack the messages of `pack_stored`; `expiry_offset(properties)`: offset of an expiry. ValueError: damaged."""
    return Stored(data, 0, expiry_offset).messages()


def pack_block(Block block not None):
    """Return a block's value."""
    cdef Packed packed = Packed.__new__(Packed)
    cdef uint8_t* p = packed.room(BLOCK_HEAD_BYTES)
    p[0] = BLOCK_FORMAT
    put32(p + 1, <uint32_t>len(block.messages))
    put_messages(packed, block.messages)
    return PyBytes_FromStringAndSize(<char*>packed.at, packed.size)


def unpack_block(bytes value not None, expiry_offset):
    """Return the messages of a block. ValueError: damaged."""
    cdef const uint8_t* p = <const uint8_t*><const char*>value
    cdef Stored stored
    if len(value) < BLOCK_HEAD_BYTES or p[0] != BLOCK_FORMAT:
        raise ValueError("block cut off, or of an unknown format")
    stored = Stored(value, BLOCK_HEAD_BYTES, expiry_offset)
    if stored.count != get32(p + 1):
        raise ValueError("block has more or fewer messages than it says")
    return stored


def block_messages(bytes value not None):
    """Return the number of a block's messages. ValueError: damaged."""
    if len(value) < BLOCK_HEAD_BYTES:
        raise ValueError("block cut off")
    return get32(<const uint8_t*><const char*>value + 1)


def pack_part(Batch batch not None, uint64_t messages_before, uint64_t bytes_before, uint64_t block, uint32_t indexes):
    """Return a tick's part of an index: (value, first position, last position, bytes of its messages)."""
    cdef uint32_t i, size
    cdef uint64_t total = 0
    cdef bytes value
    cdef uint8_t* p
    if batch.count == 0:
        raise ValueError("a part has at least one message")
    value = PyBytes_FromStringAndSize(NULL, PART_HEAD_BYTES + <Py_ssize_t>batch.count * PART_ENTRY_BYTES)
    p = <uint8_t*><char*>value
    p = put64(put64(put32(p, batch.count), messages_before), bytes_before)
    p = put32(put32(p, <uint32_t>(batch.positions[0] - block)), indexes)
    for i in range(batch.count):
        size = content_bytes(&(<Message>batch.messages[i]).content)
        p = put32(put32(p, <uint32_t>(batch.positions[i] - batch.positions[0])), size)
        total += size
    return value, batch.positions[0], batch.positions[batch.count - 1], total


cdef uint32_t part_count(bytes value) except 0:
    cdef uint32_t count
    if len(value) < PART_HEAD_BYTES:
        raise ValueError("part of an index cut off")
    count = get32(<const uint8_t*><const char*>value)
    if count == 0 or <uint64_t>len(value) != PART_HEAD_BYTES + <uint64_t>count * PART_ENTRY_BYTES:
        raise ValueError("part of an index with another length than it says")
    return count


def part_ends(bytes value not None, uint64_t first):
    """Return (last position, block's position, number of indexes with a part in that block). ValueError: damaged, or
    impossible values."""
    cdef uint32_t count = part_count(value)
    cdef const uint8_t* p = <const uint8_t*><const char*>value
    cdef uint64_t messages = get64(p + 4), behind_block = get32(p + 20)
    cdef uint32_t last = get32(p + PART_HEAD_BYTES + (count - 1) * PART_ENTRY_BYTES)
    # each message has a position of its own, the first of a log is 1
    if behind_block >= first or messages >= first or get32(p + PART_HEAD_BYTES) != 0 or last < count - 1 or \
            get64(p + 12) > messages * CONTENT_BYTES_MAX or get32(p + 24) == 0:
        raise ValueError("part of an index says what cannot be")
    return first + last, first - behind_block, get32(p + 24)


def part_before(bytes value not None):
    """Return (messages, bytes) of the index before this part. ValueError: damaged."""
    cdef const uint8_t* p = <const uint8_t*><const char*>value
    part_count(value)
    return get64(p + 4), get64(p + 12)


def part_running(bytes value not None, uint64_t first, uint64_t position):
    """Return (messages, bytes) of the index up to and including `position`, from this part and those before it."""
    cdef uint32_t count = part_count(value), i = 0
    cdef const uint8_t* p = <const uint8_t*><const char*>value
    cdef uint64_t messages = get64(p + 4), total = get64(p + 12)
    p += PART_HEAD_BYTES
    while i < count and first + get32(p) <= position:
        total += get32(p + 4)
        p += PART_ENTRY_BYTES
        i += 1
    return messages + i, total


@cython.final
cdef class Gathering:
    """A Batch being built, part by part: one message if there is one, then up to a number of bytes."""

    def __cinit__(self):
        self.batch = batch_of(0)
        self.cap = 1

    def __len__(self):
        return self.batch.count

    @property
    def last(self):
        """Position of the last message, 0 = none."""
        return self.batch.last

    cdef int room(self, uint32_t n) except -1:
        cdef uint32_t cap = self.cap
        cdef uint64_t* p
        if self.batch.count + n <= cap:
            return 0
        while cap < self.batch.count + n:
            cap *= 2
        p = <uint64_t*>realloc(self.batch.positions, cap * sizeof(uint64_t))
        if p == NULL:
            raise MemoryError
        self.batch.positions = p
        self.cap = cap
        return 0

    def add(self, bytes part not None, uint64_t first, Stored block not None, uint64_t after, uint64_t bytes_max):
        """Add the part's messages behind position `after`, from their block; return False if there is no room for more,
        and something may be left. ValueError: damaged, or the block does not have the part's messages."""
        cdef uint32_t count = part_count(part)
        cdef const uint8_t* p = <const uint8_t*><const char*>part + PART_HEAD_BYTES
        cdef const uint8_t* end = p + count * PART_ENTRY_BYTES
        cdef uint64_t position, at, base = first - get32(p - 8)
        cdef Batch b = self.batch
        self.room(count)
        while p < end:
            position = first + get32(p)
            if position > after:
                at = position - base
                if base > position or at >= block.count:
                    raise ValueError("part of an index with a position outside of its block")
                if b.count and (b.count >= READ_MESSAGES_MAX or
                                self.bytes + get32(p + 4) + MESSAGE_OVERHEAD_BYTES * b.count > bytes_max):
                    return False
                b.positions[b.count] = position
                b.messages.append(block.message(<uint32_t>at))
                b.count += 1
                self.bytes += get32(p + 4)
            p += PART_ENTRY_BYTES
        return True

    def finish(self, bint truncated):
        """Return the Batch. `truncated`: more follows."""
        self.batch.truncated = truncated
        return self.batch


def without(Batch batch not None, list spans not None):
    """Return the batch without the messages in the spans: (from behind, up to and including), rising."""
    cdef Batch b = batch_of(batch.count)
    cdef uint32_t i
    cdef uint64_t after = 0, up_to = 0, position
    cdef Py_ssize_t k = -1, n = len(spans)
    for i in range(batch.count):
        position = batch.positions[i]
        while k < n and position > up_to:
            k += 1
            if k < n:
                after, up_to = spans[k]
        if k < n and after < position:
            continue
        b.positions[b.count] = position
        b.messages.append(batch.messages[i])
        b.count += 1
    b.truncated = batch.truncated
    return b


def content_size(Batch batch not None):
    """Return the bytes of a batch's messages, as they count in queues."""
    cdef uint64_t total = 0
    cdef Message m
    for m in batch.messages:
        total += content_bytes(&m.content)
    return total


cdef uint32_t[256] crc_table


cdef int make_crc_table() except -1:
    cdef uint32_t i, c
    cdef int bits
    for i in range(256):
        c = i
        bits = 8
        while bits:
            c = c >> 1 ^ (0x82F63B78 if c & 1 else 0)
            bits -= 1
        crc_table[i] = c
    return 0


make_crc_table()


def crc32c(bytes data not None):
    """Return the CRC-32C (Castagnoli, RFC 3720 appendix B.4), as used by the records in LevelDB's logs."""
    cdef const uint8_t* p = <const uint8_t*><const char*>data
    cdef const uint8_t* end = p + len(data)
    cdef uint32_t c = 0xFFFFFFFF
    while p < end:
        c = crc_table[(c ^ p[0]) & 0xFF] ^ c >> 8
        p += 1
    return c ^ 0xFFFFFFFF
