"""Reading of archived blocks: the messages of several sequences of blocks, merged by number.

A sequence has the blocks that one worker has archived by one rule: its numbers rise. No object is made for a message
that no filter matches. Damaged bytes raise ValueError and nothing else. `leveldb_store.format.archive_schema` has the
format.
"""
cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcmp, memset

from pyx.core.little_endian cimport get16, get32, get64
from pyx.delivery.router_state cimport find_expiry
from pyx.protocol.message cimport Message, content_bytes, message_borrow, message_copy
from pyx.protocol.topics cimport topic_matches
from pyx.storage.archive cimport BLOCK_FORMAT, BLOCK_HEAD_BYTES, BLOCK_KEY_BYTES, MANY_LEVELS
from pyx.storage.entries cimport Entry, read_entry

cdef enum:
    COUNT_AT = 1                    # offset of the number of messages
    FIRST_AT = 5                    # offset of the number of the first message
    LEVELS_AT = 29                  # offset of the number of levels
    RECORD_HEAD_BYTES = 5
    KEY_NUMBER = 4                  # offset of the last number in a block's key
    STORED_FLAGS = 0x0F             # QoS, RETAIN, EXPIRES
    FLAGS_AT = 5                    # in a record
    TOPIC_LENGTH_AT = 6
    PROPS_LENGTH_AT = 8
    PAYLOAD_LENGTH_AT = 12
    EXPIRES_AT = 24                 # if the message has an expiry; else the topic begins here
    EXPIRES = 0x08
    SLOTS = 64                      # topics of a block that are recognised as repeated
    BITS = 8192                     # bits of a summary
    NEEDED = 20                     # bits checked for a Topic Filter: for itself and its first nine levels


cdef struct Watched:                # a Topic Filter, prepared for checking summaries
    uint16_t begin                  # 2: it has wildcards, so the bits of the whole topic are unknown
    uint16_t end
    uint16_t[NEEDED] at             # numbers of bits, those of the whole topic first


cdef struct Wanted:                 # a Topic Filter
    const uint8_t* at
    size_t length


cdef struct Sequence:               # a sequence and the position of the merge in it
    const uint8_t* at               # behind the message in hand
    const uint8_t* end              # of its block
    const uint8_t* publisher
    uint32_t publisher_bytes
    uint64_t last                   # the number of the message in hand, or of the one before it
    Py_ssize_t next                 # index of the next block
    Entry entry                     # the message in hand
    bint over                       # there is no message left


cdef const uint8_t* records_of(bytes value, const uint8_t** end) except NULL:
    cdef const uint8_t* p = <const uint8_t*><const char*>value
    cdef size_t at = BLOCK_HEAD_BYTES, n = <size_t>len(value)
    cdef uint32_t _
    if n < BLOCK_HEAD_BYTES or p[0] != BLOCK_FORMAT:
        raise ValueError("archived block cut off, or of an unknown format")
    if p[LEVELS_AT] != MANY_LEVELS:
        for _ in range(p[LEVELS_AT]):
            if at >= n:
                raise ValueError("archived block cut off")
            at += 1 + p[at]
    if at > n:
        raise ValueError("archived block cut off")
    end[0] = p + n
    return p + at


def first_of(bytes value not None):
    """Return the number of a block's first message."""
    cdef const uint8_t* end
    records_of(value, &end)
    return get64(<const uint8_t*><const char*>value + FIRST_AT)


def place_of(bytes key not None, bytes value not None, uint64_t behind):
    """Return (number of a block's last message, from its key; number of its first one). ValueError: the block is
    damaged, or does not begin behind number `behind`."""
    cdef const uint8_t* end
    cdef const uint8_t* p = <const uint8_t*><const char*>key
    cdef uint64_t last = 0, first
    cdef uint32_t count
    cdef int i
    if len(key) != BLOCK_KEY_BYTES:
        raise ValueError("no key of an archived block")
    for i in range(KEY_NUMBER, BLOCK_KEY_BYTES):
        last = last << 8 | p[i]
    records_of(value, &end)
    p = <const uint8_t*><const char*>value
    first = get64(p + FIRST_AT)
    count = get32(p + COUNT_AT)
    if not behind < first <= last or count == 0 or (count == 1 and first != last):
        raise ValueError("archived block with a number of another one")
    return last, first


def concerns(bytes value not None, levels not None):
    """Return whether a block may have topics with one of these first levels (a set of bytes), by its head."""
    cdef const uint8_t* p = <const uint8_t*><const char*>value
    cdef const uint8_t* end
    cdef size_t at = BLOCK_HEAD_BYTES
    cdef uint32_t _
    records_of(value, &end)
    if p[LEVELS_AT] == MANY_LEVELS:
        return True
    for _ in range(p[LEVELS_AT]):
        if PyBytes_FromStringAndSize(<const char*>p + at + 1, p[at]) in levels:
            return True
        at += 1 + p[at]
    return False


cdef int step(Sequence* s, list blocks, uint64_t after, uint64_t up_to) except -1:
    # go to the next message behind `after`; `over`: there is none up to and including `up_to`
    cdef size_t n
    while True:
        while s.at == s.end:
            if s.next == len(blocks):
                s.over = True
                return 0
            s.at = records_of(<bytes>blocks[s.next], &s.end)
            s.next += 1
        n = <size_t>(s.end - s.at)
        if n < RECORD_HEAD_BYTES or s.at[4] != 0:
            raise ValueError("archived message cut off, or of an unknown tenant")
        s.at += RECORD_HEAD_BYTES
        n -= RECORD_HEAD_BYTES
        n -= <size_t>read_entry(s.at, n, &s.entry)
        s.at = s.end - n
        if s.entry.flags & ~STORED_FLAGS or n < 2 or n - 2 < get16(s.at):
            raise ValueError("archived message damaged")
        s.publisher_bytes = get16(s.at)
        s.publisher = s.at + 2
        s.at = s.publisher + s.publisher_bytes
        if s.entry.content.number <= s.last:
            raise ValueError("archived messages whose numbers do not rise")
        s.last = s.entry.content.number
        if s.last > up_to:
            if s.next < len(blocks):
                raise ValueError("archived message with a number of another block")
            s.over = True
            return 0
        if s.entry.content.number > after:
            return 0


cdef int set_expiry(Entry* e) except -1:
    e.content.expiry_offset = find_expiry(&e.content)
    return 0


def merge(list sequences not None, list filters not None, uint64_t after, uint64_t up_to):
    """Return the messages behind number `after`, up to and including `up_to`, that match one of the Topic Filters: a
    list of Message, numbers rising. `sequences`: lists of blocks (bytes), rising in each; they must include every
    block with such numbers."""
    cdef Py_ssize_t i, k = len(sequences), n = len(filters), best
    cdef Sequence* all_ = <Sequence*>calloc(k + 1, sizeof(Sequence))
    cdef Wanted* wanted = <Wanted*>calloc(n + 1, sizeof(Wanted))
    cdef Sequence* s
    cdef Message m
    cdef object publisher = None
    cdef bytes encoded = b"", value
    cdef list out = []
    try:
        if all_ == NULL or wanted == NULL:
            raise MemoryError
        for i in range(n):
            wanted[i].at = <const uint8_t*><const char*><bytes>filters[i]
            wanted[i].length = <size_t>len(<bytes>filters[i])
        for i in range(k):
            step(&all_[i], <list>sequences[i], after, up_to)
        while True:
            best = -1
            for i in range(k):
                if not all_[i].over and \
                        (best < 0 or all_[i].entry.content.number < all_[best].entry.content.number):
                    best = i
            if best < 0:
                return out
            s = &all_[best]
            for i in range(n):
                if topic_matches(wanted[i].at, wanted[i].length, s.entry.content.topic, s.entry.content.topic_len):
                    break
            else:
                step(s, <list>sequences[best], after, up_to)
                continue
            if s.publisher_bytes == 0:
                publisher = None
                encoded = b""
            elif s.publisher_bytes != <uint32_t>len(encoded) or \
                    memcmp(s.publisher, <const char*>encoded, s.publisher_bytes) != 0:
                encoded = PyBytes_FromStringAndSize(<const char*>s.publisher, s.publisher_bytes)
                publisher = encoded.decode("utf-8", "surrogatepass")
            if s.entry.content.expires:
                set_expiry(&s.entry)
            value = <bytes>(<list>sequences[best])[s.next - 1]
            if 2 * <uint64_t>content_bytes(&s.entry.content) >= <uint64_t>len(value):
                m = message_borrow(&s.entry.content, value)
                m.publisher = publisher
            else:
                m = message_copy(&s.entry.content, publisher)
            out.append(m)
            step(s, <list>sequences[best], after, up_to)
    finally:
        free(all_)
        free(wanted)


def check(bytes value not None, uint64_t after, uint64_t last):
    """Count the messages of a block and return their number. ValueError: it is damaged, its head disagrees with its
    messages, or their numbers do not rise from behind `after` up to `last`."""
    cdef Sequence s
    cdef list blocks = [value]
    cdef uint32_t n = 0
    cdef uint64_t before = after
    s.at = s.end = NULL
    s.next = 0
    s.over = False
    s.last = 0
    step(&s, blocks, 0, <uint64_t>-1)
    while not s.over:
        if s.entry.content.number <= before or n == 0 and s.entry.content.number != first_of(value):
            raise ValueError("archived block with other numbers than it says")
        before = s.entry.content.number
        if s.entry.content.expires:
            set_expiry(&s.entry)
        PyBytes_FromStringAndSize(<const char*>s.publisher, s.publisher_bytes).decode("utf-8", "surrogatepass")
        n += 1
        step(&s, blocks, 0, <uint64_t>-1)
    if n != get32(<const uint8_t*><const char*>value + COUNT_AT) or before != last:
        raise ValueError("archived block with more or fewer messages than it says")
    return n


cdef inline uint64_t folded(uint64_t h, uint64_t more) noexcept:
    return (h ^ more) * 0x100000001B3u              # FNV-1a, 64 bits


cdef inline uint64_t begun(uint64_t place) noexcept:
    return folded(0xCBF29CE484222325u, place)


cdef inline uint64_t mixed(uint64_t h) noexcept:
    h = (h ^ h >> 33) * 0xFF51AFD7ED558CCDu
    return h ^ h >> 29


cdef inline void set_bits(uint8_t* bits, uint64_t h) noexcept:
    h = mixed(h)
    bits[(h & (BITS - 1)) >> 3] |= <uint8_t>(1 << (h & 7))
    h >>= 32
    bits[(h & (BITS - 1)) >> 3] |= <uint8_t>(1 << (h & 7))


cdef void note_topic(uint8_t* bits, const uint8_t* topic, size_t n) noexcept:
    # set the bits of a topic: of itself, and of each of its levels with its place
    cdef uint64_t whole = begun(0), level = begun(1), place = 1
    cdef size_t i
    for i in range(n):
        whole = folded(whole, topic[i])
        if topic[i] == c'/':
            set_bits(bits, level)
            place += 1
            level = begun(place)
        else:
            level = folded(level, topic[i])
    set_bits(bits, level)
    set_bits(bits, whole)


def note_topics(bytearray bits not None, bytes block not None):
    """Add the topics of a block, as made by `pyx.storage.archive`, to a summary."""
    cdef const uint8_t* end
    cdef const uint8_t* p = records_of(block, &end)
    cdef uint8_t* b = <uint8_t*><char*>bits
    cdef size_t at = 0, n = <size_t>(end - p), size, length, slot
    cdef size_t[SLOTS] seen_at
    cdef size_t[SLOTS] seen_length
    if len(bits) != BITS // 8:
        raise ValueError("no summary")
    memset(seen_length, 0, sizeof(seen_length))
    while n - at >= <size_t>EXPIRES_AT:
        length = get16(p + at + TOPIC_LENGTH_AT)
        size = length + get32(p + at + PROPS_LENGTH_AT) + <size_t>get32(p + at + PAYLOAD_LENGTH_AT)
        at += EXPIRES_AT + (8 if p[at + FLAGS_AT] & EXPIRES else 0)
        if at > n or n - at < size + 2:
            raise ValueError("archived records cut off")
        slot = 0
        if length:
            slot = (length * 31 + p[at + length - 1] * 7 + p[at + (length >> 1)]) & (SLOTS - 1)
        if seen_length[slot] != length or length == 0 or memcmp(p + at, p + seen_at[slot], length) != 0:
            note_topic(b, p + at, length)
            seen_at[slot] = at
            seen_length[slot] = length
        at += size
        at += 2 + get16(p + at)
    if at != n:
        raise ValueError("archived records cut off")


cdef inline void need(Watched* w, uint64_t h) noexcept:
    h = mixed(h)
    w.at[w.end] = <uint16_t>(h & (BITS - 1))
    w.at[w.end + 1] = <uint16_t>(h >> 32 & (BITS - 1))
    w.end += 2


cdef void look_for(Watched* w, const uint8_t* p, size_t n) noexcept:
    # the bits that a summary has if a topic in it matches this filter
    cdef size_t i, begin = 0
    cdef uint64_t whole = begun(0), level = begun(1), place = 1
    w.end = 2
    w.begin = 0
    for i in range(n + 1):
        if i == n or p[i] == c'/':
            if i == begin + 1 and p[begin] == c'#':
                w.begin = 2
                return
            if i == begin + 1 and p[begin] == c'+':
                w.begin = 2
            elif w.end < NEEDED:
                need(w, level)
            place += 1
            level = begun(place)
            begin = i + 1
        else:
            level = folded(level, p[i])
        if i < n:
            whole = folded(whole, p[i])
    if w.begin == 0:
        i = w.end
        w.end = 0
        need(w, whole)
        w.end = <uint16_t>i


cdef inline bint has_all(const uint8_t* bits, const Watched* w) noexcept:
    cdef uint32_t i
    for i in range(w.begin, w.end):
        if not bits[w.at[i] >> 3] >> (w.at[i] & 7) & 1:
            return False
    return True


def may_match(bytes bits not None, bytes topic_filter not None):
    """Return whether a topic in a summary may match this Topic Filter."""
    cdef Watched w
    if len(bits) != BITS // 8:
        raise ValueError("no summary")
    look_for(&w, <const uint8_t*><const char*>topic_filter, <size_t>len(topic_filter))
    return has_all(<const uint8_t*><const char*>bits, &w)


@cython.final
cdef class Watch:
    """A set of Topic Filters, by key, to be checked against summaries repeatedly."""
    cdef Watched* filters
    cdef size_t cap
    cdef list keys                              # the keys, by place
    cdef dict places                            # key -> place

    def __cinit__(self):
        self.keys = []
        self.places = {}

    def __dealloc__(self):
        free(self.filters)

    def __len__(self):
        return len(self.keys)

    def add(self, key, bytes topic_filter not None):
        """Add a key with its filter, or replace the filter of a key."""
        cdef Watched* grown
        cdef size_t place = <size_t>self.places.get(key, len(self.keys))
        if place == self.cap:
            grown = <Watched*>realloc(self.filters, (2 * self.cap + 16) * sizeof(Watched))
            if grown == NULL:
                raise MemoryError
            self.filters = grown
            self.cap = 2 * self.cap + 16
        look_for(&self.filters[place], <const uint8_t*><const char*>topic_filter, <size_t>len(topic_filter))
        if place == <size_t>len(self.keys):
            self.keys.append(key)
            self.places[key] = place

    def discard(self, key):
        """Remove a key, if it exists."""
        cdef Py_ssize_t place = self.places.pop(key, -1)
        if place < 0:
            return
        last = self.keys.pop()
        if place < len(self.keys):
            self.filters[place] = self.filters[len(self.keys)]
            self.keys[place] = last
            self.places[last] = place

    def found(self, bytes bits not None):
        """Return the keys of the filters that may match a topic in this summary."""
        cdef const uint8_t* b = <const uint8_t*><const char*>bits
        cdef size_t i
        cdef list out = []
        if len(bits) != BITS // 8:
            raise ValueError("no summary")
        for i in range(<size_t>len(self.keys)):
            if has_all(b, &self.filters[i]):
                out.append(self.keys[i])
        return out
