# cython: language_level=3
"""Retained messages of one owner: set, cleared and versioned by message number; read in pages by Topic Filter.

Every topic is one block: header, its links, its text. A hash table finds a topic; a skip list keeps all of them in
order, so that a page of a result can be continued after any topic whatever happened in between, and nothing has to be
copied or kept for a reader.

The order is that of the topics as sequences of levels: bytes are compared with / before everything else, so that a
topic and all below it are adjacent (a, a/b, a/c, a!b: in plain byte order a!b would be between them). That makes a
filter a walk with jumps:

    filter a/+/x    at a/b/c      -> the level x is still ahead under a/b:     seek a/b/x
                    at a/b/y      -> past x, nothing more under a/b:           seek the topic after everything in a/b
                    at b/...      -> past a: the end
    filter #, +/x   at $SYS/...   -> not for a leading wildcard [MQTT-4.7.2-1]: seek the topic after everything with $

A jump tries the neighbour first, which is usually the target, then descends the skip list (log n). Entries that do not
match are thus skipped in groups wherever the filter has a literal level; `page` bounds the remaining work of one call.

The height of an entry comes from its keyed hash: without the key nobody can choose topics that degrade it to a linear
list.

Late messages: the number decides, and a late message has a lower one. A cleared topic is remembered with its number
among the last CLEARED_MAX (4096) clears, or as many as have CLEARED_BYTES_MAX (1 MB) of topic text, so that an older
message that another worker sends late does not bring it back. With more clears than that within the time that a message
travels, it could.
"""
from collections import OrderedDict
from os import urandom

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport uint8_t, uint16_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memchr, memcmp, memcpy

from pyx.core.hashing cimport hash_bytes, prefetch
from pyx.core.tables cimport Probe, table_first, table_free, table_init, table_insert, table_next, table_remove
from pyx.core.work cimport FILTER, NODE, OBJECT, work

cdef enum:
    HEIGHT_MAX = 16                         # lists: one entry in 4 reaches the next, enough for 4^16 topics
    TOPIC_BYTES_MAX = 65535
    BOUND_BYTES = 2 * TOPIC_BYTES_MAX + 2   # the beginning of a topic, a level of a filter, one byte
    CLEARED_MAX = 4096
    CLEARED_BYTES_MAX = 1 << 20

cdef size_t MATCHES = <size_t> -1
cdef size_t NOTHING_MORE = <size_t> -2
cdef Py_ssize_t STEPS_MAX = <Py_ssize_t> 1 << 62


cdef inline Entry** links(const Entry* entry) noexcept nogil:
    return <Entry**> (entry + 1)


cdef inline const uint8_t* topic_of(const Entry* entry) noexcept nogil:
    return <const uint8_t*> (links(entry) + entry.height)


cdef inline size_t entry_bytes(const Entry* entry) noexcept nogil:
    """Its size as allocated by malloc, and its slot in a table about 3/4 full."""
    return ((sizeof(Entry) + entry.height * sizeof(Entry*) + entry.length + 8 + 15) & ~<size_t> 15) + 11


cdef inline const uint8_t* level_end(const uint8_t* p, const uint8_t* end) noexcept nogil:
    cdef const void* slash = memchr(p, c'/', end - p)
    return end if slash is NULL else <const uint8_t*> slash


cdef inline int compare(const uint8_t* a, size_t a_length, const uint8_t* b, size_t b_length) noexcept nogil:
    """Compare topics in their order: < 0, 0, > 0. Eight bytes at a time while they are equal."""
    cdef size_t i = 0, shorter = min(a_length, b_length)
    while i + 8 <= shorter and memcmp(a + i, b + i, 8) == 0:
        i += 8
    while i < shorter and a[i] == b[i]:
        i += 1
    if i == shorter:
        return (a_length > b_length) - (a_length < b_length)
    if a[i] == c'/':
        return -1
    if b[i] == c'/':
        return 1
    return -1 if a[i] < b[i] else 1


cdef inline bint precedes(const Entry* a, const Entry* b) noexcept nogil:
    return compare(topic_of(a), a.length, topic_of(b), b.length) < 0


cdef size_t put_bound(
    uint8_t* bound, const uint8_t* head, size_t head_length, const uint8_t* tail, size_t tail_length
) noexcept:
    memcpy(bound, head, head_length)
    memcpy(bound + head_length, tail, tail_length)
    return head_length + tail_length


cdef size_t next_candidate(
    const uint8_t* f, size_t f_length, const uint8_t* t, size_t t_length, uint8_t* bound
) noexcept:
    """Return MATCHES, NOTHING_MORE, or the length of the text put at `bound`, before which no later topic matches.

    The first text after P and everything below it is P and the lowest byte that a topic can have besides /, which is 1.
    """
    cdef const uint8_t* f_end = f + f_length
    cdef const uint8_t* t_end = t + t_length
    cdef const uint8_t* f_level = f
    cdef const uint8_t* t_level = t
    cdef const uint8_t* f_stop
    cdef const uint8_t* t_stop
    cdef size_t through_plus = 0            # the bytes of the topic up to the end of the last level matched by +
    cdef bint has_plus = False, plus
    cdef int order
    while True:
        f_stop = level_end(f_level, f_end)
        if f_stop == f_level + 1 and f_level[0] == c'#':
            return MATCHES
        plus = f_stop == f_level + 1 and f_level[0] == c'+'
        if t_level is NULL:                 # too short: the next candidate is below it
            memcpy(bound, t, t_length)
            bound[t_length] = c'/'
            if plus:
                return t_length + 1
            memcpy(bound + t_length + 1, f_level, f_stop - f_level)
            return t_length + 1 + (f_stop - f_level)
        t_stop = level_end(t_level, t_end)
        if plus:
            through_plus = t_stop - t
            has_plus = True
        else:
            order = compare(t_level, t_stop - t_level, f_level, f_stop - f_level)
            if order < 0:
                return put_bound(bound, t, t_level - t, f_level, f_stop - f_level)
            if order > 0:
                return put_bound(bound, t, through_plus, b"\1", 1) if has_plus else NOTHING_MORE
        if f_stop == f_end:
            if t_stop == t_end:
                return MATCHES
            return put_bound(bound, t, t_stop - t, b"\1", 1)        # too long, like everything below this level
        f_level = f_stop + 1
        t_level = t_stop + 1 if t_stop < t_end else NULL


@cython.auto_pickle(False)
cdef class Retained:
    """The retained messages of the topics this worker owns."""

    def __cinit__(self):
        cdef bytes seed = urandom(sizeof(self.key))
        memcpy(&self.key, <const char*> seed, sizeof(self.key))
        self.cleared = OrderedDict()
        self.head = <Entry*> calloc(1, sizeof(Entry) + HEIGHT_MAX * sizeof(Entry*))
        self.bound = <uint8_t*> malloc(BOUND_BYTES)
        if self.head is NULL or self.bound is NULL:
            raise MemoryError()
        self.head.height = HEIGHT_MAX
        table_init(&self.table)

    def __dealloc__(self):
        cdef Entry* entry
        cdef Entry* following
        if self.head is not NULL:
            entry = links(self.head)[0]
            while entry is not NULL:
                following = links(entry)[0]
                Py_DECREF(<object> entry.message)
                free(entry)
                entry = following
        free(self.head)
        free(self.bound)
        table_free(&self.table)

    # ------------------------------------------------------------------ the structure

    cdef Entry* find(self, uint64_t hash_, const uint8_t* topic, size_t length) noexcept:
        cdef Probe probe
        cdef Entry* entry = <Entry*> table_first(&self.table, hash_, &probe)
        work(FILTER)
        while entry is not NULL:
            if entry.hash == hash_ and entry.length == length and memcmp(topic_of(entry), topic, length) == 0:
                return entry
            entry = <Entry*> table_next(&probe)
        return NULL

    cdef Entry* seek(self, const uint8_t* topic, size_t length, bint after) noexcept:
        """Return the first entry at or after this text, or after it."""
        cdef Entry* entry = self.head
        cdef Entry* following
        cdef int height = HEIGHT_MAX - 1
        work(2 * FILTER)
        while True:
            following = links(entry)[height]
            if following is not NULL and compare(topic_of(following), following.length, topic, length) < <int> after:
                entry = following
            elif height:
                height -= 1
            else:
                return following

    cdef bytes before(self, const Entry* entry):
        """Return the text of the entry before this one, b"" if it is the first, to continue with this one."""
        cdef const Entry* at = self.head
        cdef const Entry* following
        cdef int height = HEIGHT_MAX - 1
        while True:
            following = links(at)[height]
            if following is not NULL and following != entry and precedes(following, entry):
                at = following
            elif height:
                height -= 1
            else:
                break
        return b"" if at == self.head else PyBytes_FromStringAndSize(<const char*> topic_of(at), at.length)

    cdef int insert(self, uint64_t hash_, uint64_t number, bytes topic, object message) except -1:
        cdef size_t length = len(topic)
        cdef uint64_t chance = hash_ >> 20          # bits that the table does not use
        cdef uint8_t height = 1
        cdef Entry* entry
        cdef Entry* at = self.head
        cdef Entry* following
        cdef int level
        work(3 * FILTER)
        while height < HEIGHT_MAX and chance & 3 == 0:
            chance >>= 2
            height += 1
        entry = <Entry*> malloc(sizeof(Entry) + height * sizeof(Entry*) + length)
        if entry is NULL:
            raise MemoryError()
        entry.hash = hash_
        entry.number = number
        entry.length = <uint16_t> length
        entry.height = height
        memcpy(<uint8_t*> topic_of(entry), <const char*> topic, length)
        try:
            table_insert(&self.table, entry)
        except MemoryError:
            free(entry)
            raise
        Py_INCREF(message)
        entry.message = <PyObject*> message
        level = HEIGHT_MAX - 1
        while level >= 0:
            following = links(at)[level]
            if following is not NULL and precedes(following, entry):
                at = following
                continue
            if level < height:
                links(entry)[level] = following
                links(at)[level] = entry
            level -= 1
        self.count += 1
        self.bytes += entry_bytes(entry)
        return 0

    cdef void take_out(self, Entry* entry) noexcept:
        """Unlink and free it; the caller releases the message's reference."""
        cdef Entry* at = self.head
        cdef Entry* following
        cdef int level = HEIGHT_MAX - 1
        work(3 * FILTER)
        while level >= 0:
            following = links(at)[level]
            if following is not NULL and following != entry and precedes(following, entry):
                at = following
                continue
            if following == entry:
                links(at)[level] = links(entry)[level]
            level -= 1
        table_remove(&self.table, entry)
        self.count -= 1
        self.bytes -= entry_bytes(entry)
        free(entry)

    # ------------------------------------------------------------------ one topic

    cpdef bint set(self, bytes topic, uint64_t number, object message) except -1:
        """Store this message for the topic. False: the topic has, or was cleared by, the same or a higher number."""
        cdef size_t length = len(topic)
        cdef uint64_t hash_ = hash_bytes(&self.key, <const uint8_t*> topic, length)
        cdef Entry* entry
        cdef PyObject* old
        if length == 0 or length > TOPIC_BYTES_MAX:
            raise ValueError("a Topic Name has 1 to 65535 bytes")
        entry = self.find(hash_, <const uint8_t*> topic, length)
        if entry is not NULL:
            if number <= entry.number:
                return False
            old = entry.message
            Py_INCREF(message)
            entry.message = <PyObject*> message
            entry.number = number
            Py_DECREF(<object> old)
            return True
        if self.cleared:
            clear = self.cleared.get(topic)
            if clear is not None:
                if number <= <uint64_t> clear:
                    return False
                del self.cleared[topic]
                self.cleared_bytes -= length
        self.insert(hash_, number, topic, message)
        return True

    cpdef bint clear(self, bytes topic, uint64_t number) except -1:
        """Remove the message up to this number. False: the topic has, or was cleared by, the same or a higher one.

        Remembered among the last 4096 clears (and 1 MB of their topics), so that an older message that arrives late
        is not stored.
        """
        cdef size_t length = len(topic)
        cdef uint64_t hash_ = hash_bytes(&self.key, <const uint8_t*> topic, length)
        cdef Entry* entry
        cdef PyObject* old = NULL
        if length == 0 or length > TOPIC_BYTES_MAX:
            raise ValueError("a Topic Name has 1 to 65535 bytes")
        entry = self.find(hash_, <const uint8_t*> topic, length)
        if entry is not NULL:
            if number <= entry.number:
                return False
        else:
            before = self.cleared.get(topic)
            if before is not None:
                if number <= <uint64_t> before:
                    return False
                self.cleared_bytes -= length
        self.cleared[topic] = number
        self.cleared.move_to_end(topic)
        self.cleared_bytes += length
        while len(self.cleared) > CLEARED_MAX or self.cleared_bytes > CLEARED_BYTES_MAX:
            forgotten, _ = self.cleared.popitem(False)
            self.cleared_bytes -= len(<bytes> forgotten)
        if entry is not NULL:
            old = entry.message
            self.take_out(entry)
            Py_DECREF(<object> old)
        return True

    cpdef bint remove(self, bytes topic, object message) except -1:
        """Remove the topic's message if it is this one, because it has expired. Unlike a clear it is not remembered."""
        cdef uint64_t hash_ = hash_bytes(&self.key, <const uint8_t*> topic, len(topic))
        cdef Entry* entry = self.find(hash_, <const uint8_t*> topic, len(topic))
        if entry is NULL or entry.message != <PyObject*> message:
            return False
        self.take_out(entry)
        Py_DECREF(message)
        return True

    cpdef object get(self, bytes topic):
        """Return the message of a topic or None."""
        cdef uint64_t hash_ = hash_bytes(&self.key, <const uint8_t*> topic, len(topic))
        cdef Entry* entry = self.find(hash_, <const uint8_t*> topic, len(topic))
        return None if entry is NULL else <object> entry.message

    cpdef uint64_t number(self, bytes topic) except? 0:
        """Return the number of a topic's message, or of its remembered clear; 0 when there is neither."""
        cdef uint64_t hash_ = hash_bytes(&self.key, <const uint8_t*> topic, len(topic))
        cdef Entry* entry = self.find(hash_, <const uint8_t*> topic, len(topic))
        return self.cleared.get(topic, 0) if entry is NULL else entry.number

    def __len__(self):
        return self.count

    # ------------------------------------------------------------------ many topics

    cpdef list match(self, bytes filter_, bytes after, Py_ssize_t limit):
        """Return at most `limit` (topic, message) of matching topics behind `after` (None: from the first).

        In the order of the topics' levels; fewer than `limit` means that there are no more. The time is unbounded:
        `page` is the bounded form.
        """
        return self.page(filter_, after, limit, STEPS_MAX)[0]

    cpdef tuple page(self, bytes filter_, bytes after, Py_ssize_t limit, Py_ssize_t steps):
        """Do the same in about `steps` steps at most: return (list, where to continue or None).

        A step examines one topic, or 64 bytes of a long one; it takes 0.1 to 0.3 us at a million topics.
        Pass the second as `after` to the next call; it need not match, nor exist any more. None: nothing is left.
        """
        cdef const uint8_t* f = <const uint8_t*> filter_
        cdef size_t f_length = len(filter_)
        cdef bint wild = f_length and (f[0] == c'+' or f[0] == c'#')
        cdef bint literal = memchr(f, c'+', f_length) is NULL and memchr(f, c'#', f_length) is NULL
        cdef list result = []
        cdef Entry* entry
        cdef size_t bound
        if f_length > TOPIC_BYTES_MAX:
            raise ValueError("a Topic Filter has 1 to 65535 bytes")
        if limit <= 0 or f_length == 0:
            return result, after
        if after is not None:
            entry = self.seek(<const uint8_t*> after, len(after), True)
        elif wild:
            entry = links(self.head)[0]
        else:
            entry = self.seek(f, level_end(f, f + f_length) - f, False)
        if literal:
            entry = self.find(hash_bytes(&self.key, f, f_length), f, f_length)
            if entry is not NULL and (
                after is None or compare(f, f_length, <const uint8_t*> after, len(after)) > 0
            ):
                result.append((filter_, <object> entry.message))
            return result, None
        while entry is not NULL:
            if steps <= 0:
                return result, self.before(entry)
            steps -= 1 + entry.length // 64
            self.spent += 1 + entry.length // 64
            work(4 * NODE + <uint64_t>entry.length // 64 * NODE)
            if links(entry)[0] is not NULL:
                prefetch(links(entry)[0])
            if wild and topic_of(entry)[0] == c'$':
                self.bound[0] = c'$' + 1
                bound = 1
            else:
                bound = next_candidate(f, f_length, topic_of(entry), entry.length, self.bound)
                if bound == MATCHES:
                    topic = PyBytes_FromStringAndSize(<const char*> topic_of(entry), entry.length)
                    work(2 * OBJECT)
                    result.append((topic, <object> entry.message))
                    if len(result) == limit:
                        return result, None if links(entry)[0] is NULL else topic
                    entry = links(entry)[0]
                    continue
                if bound == NOTHING_MORE:
                    break
            entry = links(entry)[0]
            if entry is not NULL and compare(topic_of(entry), entry.length, self.bound, bound) < 0:
                entry = self.seek(self.bound, bound, False)
        return result, None
