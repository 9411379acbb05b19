"""The archive's part of the data path: finds the rule that archives a topic, and fills the blocks of the tick.

A message is appended to the block of its rule as bytes, straight from its source; no object is made for it. The store
takes the blocks of a commit as bytes (`take`; `leveldb_store.format.archive_schema` has the format, and a plain Python
codec; one test compares the two on the same bytes). A full block is sealed, and another one begun: so a reader's page
is never much larger than a block.

    block       u8 format | u32 messages | u64 number of the first | u64 messages and u64 bytes before it in its
                sequence | u8 number of first levels, each: u8 length and text | records
    record      u32 matches | u8 tenant | a mesh entry | u16 length and publisher's client id

Numbers rise within a block, because they are given out in the order in which messages are routed.
"""
cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memchr, memcmp, memcpy

from pyx.core.little_endian cimport put16, put32, put64
from pyx.protocol.message cimport Content, Message
from pyx.protocol.topics cimport topic_matches

cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(object, Py_ssize_t*) except NULL

cdef enum:
    BLOCK_BYTES = 65536             # a block of this size is sealed
    RECORD_HEAD_BYTES = 38          # matches, tenant, the fixed part of an entry with expiry, the length
    PUBLISHER_BYTES_MAX = 0xFFFF
    ENTRY_RETAIN = 0x04             # pyx.storage.entries
    ENTRY_EXPIRES = 0x08


@cython.final
cdef class Archiver:
    """Gathers the messages that one worker archives. `filters`: of the rules, in the order of the configuration."""

    def __cinit__(self, list filters not None):
        self.filters = [bytes(each) for each in filters]
        self.rules = <uint32_t>len(filters)
        self.sealed = []
        self.gathered = <Gathered*>calloc(self.rules + 1, sizeof(Gathered))
        self.known = <Known*>calloc(KNOWN_TOPICS, sizeof(Known))
        if self.gathered == NULL or self.known == NULL:
            raise MemoryError
        self.pending_bytes_max = <uint64_t>-1

    def __dealloc__(self):
        cdef uint32_t i
        if self.gathered != NULL:
            for i in range(self.rules):
                free(self.gathered[i].at)
        free(self.gathered)
        free(self.known)

    cdef int32_t rule_of(self, const uint8_t* topic, uint32_t length, uint64_t hash_) except -2:
        cdef Known* known = &self.known[hash_ >> 20 & (KNOWN_TOPICS - 1)]
        cdef uint32_t i
        cdef bytes text
        if known.hash == hash_ and known.length == length:
            return known.rule
        known.hash = hash_
        known.length = length
        known.rule = -1
        for i in range(self.rules):
            text = <bytes>self.filters[i]
            if topic_matches(<const uint8_t*><const char*>text, <size_t>len(text), topic, length):
                known.rule = <int32_t>i
                break
        return known.rule

    cdef int append(self, int32_t rule, const Content* c, object publisher, uint32_t matches) except -1:
        cdef Gathered* g = &self.gathered[rule]
        cdef const char* name = NULL
        cdef Py_ssize_t name_bytes = 0
        cdef bytes encoded
        cdef uint64_t need, cap
        cdef uint8_t* p
        cdef uint8_t* begin
        if isinstance(publisher, str):
            try:
                name = PyUnicode_AsUTF8AndSize(publisher, &name_bytes)
            except UnicodeEncodeError:
                encoded = (<str>publisher).encode("utf-8", "surrogatepass")
                name = encoded
                name_bytes = len(encoded)
        if name_bytes > PUBLISHER_BYTES_MAX:
            name_bytes = 0
        need = RECORD_HEAD_BYTES + <uint64_t>c.topic_len + c.props_len + c.payload_len + <uint64_t>name_bytes
        if g.cap - g.size < need:
            cap = max(<uint64_t>g.cap * 2, <uint64_t>1024)
            while cap < g.size + need:
                cap *= 2
            if cap > 0xFFFFFFFF:
                raise MemoryError
            p = <uint8_t*>realloc(g.at, cap)
            if p == NULL:
                raise MemoryError
            g.at = p
            g.cap = <uint32_t>cap
        begin = p = g.at + g.size
        p = put32(p, matches)
        p[0] = 0
        p[1] = c.qos | (ENTRY_RETAIN if c.retain else 0) | (ENTRY_EXPIRES if c.expires else 0)
        p = put16(p + 2, c.topic_len)
        p = put64(put32(put32(p, c.props_len), c.payload_len), c.number)
        if c.expires:
            p = put64(p, c.expires)
        memcpy(p, c.topic, c.topic_len)
        if g.levels != MANY_LEVELS:
            self.note_level(g, p, c.topic_len, <uint32_t>(p - g.at))
        p += c.topic_len
        if c.props_len:
            memcpy(p, c.props, c.props_len)
            p += c.props_len
        if c.payload_len:
            memcpy(p, c.payload, c.payload_len)
            p += c.payload_len
        p = put16(p, <uint32_t>name_bytes)
        if name_bytes:
            memcpy(p, name, <size_t>name_bytes)
            p += name_bytes
        g.size = <uint32_t>(p - g.at)
        if g.count == 0:
            g.first = c.number
        g.last = c.number
        g.count += 1
        self.messages += 1
        self.record_bytes += <uint64_t>(p - begin)
        self.pending_bytes += <uint64_t>(p - begin)
        if g.size >= BLOCK_BYTES:
            self.seal(<uint32_t>rule)
        return 0

    cdef int note_level(self, Gathered* g, const uint8_t* topic, uint32_t length, uint32_t at) noexcept:
        cdef const uint8_t* slash = <const uint8_t*>memchr(topic, c'/', length)
        cdef uint32_t n = <uint32_t>(slash - topic) if slash != NULL else length
        cdef uint32_t i
        for i in range(g.levels):
            if g.level_bytes[i] == n and memcmp(g.at + g.level_at[i], topic, n) == 0:
                return 0
        if g.levels == LEVELS_MAX or n > LEVEL_BYTES_MAX:
            g.levels = MANY_LEVELS
            return 0
        g.level_at[g.levels] = at
        g.level_bytes[g.levels] = <uint8_t>n
        g.levels += 1
        return 0

    cdef int seal(self, uint32_t rule) except -1:
        cdef Gathered* g = &self.gathered[rule]
        cdef uint32_t levels = 0 if g.levels == MANY_LEVELS else g.levels, i
        cdef uint64_t size = BLOCK_HEAD_BYTES + <uint64_t>g.size
        cdef bytes block
        cdef uint8_t* p
        for i in range(levels):
            size += 1 + <uint64_t>g.level_bytes[i]
        block = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>size)
        p = <uint8_t*><char*>block
        p[0] = BLOCK_FORMAT
        p = put64(put64(put64(put32(p + 1, g.count), g.first), g.messages_before), g.bytes_before)
        p[0] = g.levels
        p += 1
        for i in range(levels):
            p[0] = g.level_bytes[i]
            memcpy(p + 1, g.at + g.level_at[i], g.level_bytes[i])
            p += 1 + g.level_bytes[i]
        memcpy(p, g.at, g.size)
        self.sealed.append((rule, g.last, g.size, g.bytes_before + BLOCK_KEY_BYTES + size, block))
        g.messages_before += g.count
        g.bytes_before += BLOCK_KEY_BYTES + size
        g.count = g.size = 0
        g.levels = 0
        if g.cap > 4 * BLOCK_BYTES:
            free(g.at)
            g.at = NULL
            g.cap = 0
        return 0

    def count_from(self, uint32_t place, uint64_t messages, uint64_t size):
        """Set the running counts of the sequence that the rule at this place goes on with: its messages, and the bytes
        of its blocks and their keys. IndexError: there is no such rule."""
        if place >= self.rules:
            raise IndexError("no rule at this place")
        self.gathered[place].messages_before = messages
        self.gathered[place].bytes_before = size

    def take(self):
        """Return the blocks since the last call: [(place of the rule, last number, bytes of records, running count of
        bytes with this block, the block)]. Those of one rule are in order."""
        cdef uint32_t i
        cdef list out
        for i in range(self.rules):
            if self.gathered[i].count:
                self.seal(i)
        out = self.sealed
        self.sealed = []
        return out

    def settled(self, uint64_t size):
        """Note that this many bytes of records are durable."""
        self.pending_bytes -= min(size, self.pending_bytes)

    def place_of(self, bytes topic not None):
        """Return the place of the rule that archives this topic, or None."""
        cdef uint32_t i
        cdef bytes text
        for i in range(self.rules):
            text = <bytes>self.filters[i]
            if topic_matches(<const uint8_t*><const char*>text, <size_t>len(text),
                             <const uint8_t*><const char*>topic, <size_t>len(topic)):
                return i
        return None

    def add(self, Message message not None, uint32_t matches=0):
        """Archive a message by its topic's rule; return False if there is none. For tests and tools."""
        cdef Content* c = &message.content
        place = self.place_of(message.topic)
        if place is None:
            return False
        self.append(place, c, message.publisher, matches)
        return True
