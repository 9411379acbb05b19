"""Records of a tick, and their reading by sessions: blocks and batches.

The store's contract (leveldb_store) is in blocks: the router adds each message that some session cannot take at once to
the tick's Block, once, with the log indexes that list it; the store appends the block as a whole. A session that is
behind reads Batches by index name and position. Nothing here is called per message from Python.
"""
cimport cython
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memmove

from pyx.core.work cimport INDEX, OBJECT, PLACE, RECORD, VISIT, work
from pyx.protocol.message cimport content_bytes

cdef enum:
    READ_MESSAGES_MAX = 1024        # per batch


@cython.final
cdef class LogKey:
    def __cinit__(self, bytes name not None):
        self.name = name

    def __dealloc__(self):
        free(self.records)


@cython.final
cdef class Block:
    """The records of one tick. ``batches()`` returns each index's part."""

    def __cinit__(self, uint64_t first):
        self.first = first
        self.messages = []
        self.keys = []

    def __dealloc__(self):
        cdef uint32_t i
        for i in range(self.taken, self.part_count):
            free(self.parts[i].records)
        free(self.parts)

    @property
    def count(self):
        return len(self.messages)

    @property
    def indexes(self):
        """Number of indexes that list it."""
        return len(self.keys)

    @property
    def left(self):
        """Number of indexes of a sealed block that `batches` has not returned yet."""
        return self.part_count - self.taken if self.parts != NULL else 0

    cdef uint32_t add(self, Message m) except? 0xFFFFFFFF:
        self.messages.append(m)
        self.bytes += content_bytes(&m.content)
        return <uint32_t>(len(self.messages) - 1)

    cdef int index(self, LogKey key, uint32_t record) except -1:
        cdef uint32_t cap
        cdef uint32_t* r
        if key.count == 0:
            self.keys.append(key)
        elif key.records[key.count - 1] == record:
            return 0
        if key.count == key.cap:
            cap = key.cap * 2 if key.cap else 8
            r = <uint32_t*>realloc(key.records, cap * sizeof(uint32_t))
            if r == NULL:
                raise MemoryError
            key.records = r
            key.cap = cap
        key.records[key.count] = record
        key.count += 1
        key.grown += 1
        key.grown_bytes += content_bytes(&(<Message>self.messages[record]).content)
        return 0

    cdef int seal(self) except -1:
        cdef LogKey key
        cdef uint32_t n = <uint32_t>len(self.keys)
        work(n * VISIT)
        self.parts = <IndexPart*>malloc((n if n else 1) * sizeof(IndexPart))
        if self.parts == NULL:
            raise MemoryError
        for key in self.keys:
            self.parts[self.part_count].records = key.records
            self.parts[self.part_count].count = key.count
            self.part_count += 1
            key.records = NULL
            key.count = key.cap = 0
        return 0

    def batches(self, uint32_t most=0):
        """Return [(index name, Batch)], and make the keys ready for the next block. For a sealed block, at most `most`
        of them (0: all that are left): the next call continues."""
        cdef LogKey key
        cdef uint32_t n
        out = []
        if self.parts != NULL:
            n = self.part_count - self.taken
            for _ in range(n if most == 0 else min(n, most)):
                key = self.keys[self.taken]
                out.append((key.name, self.batch_of(self.parts[self.taken].records, self.parts[self.taken].count)))
                free(self.parts[self.taken].records)
                self.taken += 1
            return out
        for key in self.keys:
            out.append((key.name, self.batch_of(key.records, key.count)))
            key.count = 0
            if key.cap > 256:
                free(key.records)
                key.records = NULL
                key.cap = 0
        self.taken = <uint32_t>len(self.keys)
        return out

    cdef Batch batch_of(self, const uint32_t* records, uint32_t n):
        cdef Batch b = batch_new(n)
        cdef uint32_t i
        work(INDEX + n * OBJECT)
        for i in range(n):
            b.positions[i] = self.first + records[i]
            b.messages.append(self.messages[records[i]])
        b.count = n
        return b


@cython.final
@cython.freelist(16)
cdef class Batch:
    def __cinit__(self):
        self.messages = []

    def __dealloc__(self):
        free(self.positions)

    def __len__(self):
        return self.count

    @property
    def last(self):
        """Position of the last message, 0 = there is none."""
        return self.positions[self.count - 1] if self.count else 0

    def items(self):
        """Return [(position, Message)]: for tests and tools."""
        return [(self.positions[i], self.messages[i]) for i in range(self.count)]


cdef Batch batch_new(uint32_t n):
    cdef Batch b = Batch.__new__(Batch)
    b.positions = <uint64_t*>malloc((n if n else 1) * sizeof(uint64_t))
    if b.positions == NULL:
        raise MemoryError
    return b


@cython.final
cdef class Index:
    """A log index in memory. Positions rise; running counts and bytes make a backlog a subtraction."""

    def __cinit__(self):
        self.messages = []

    def __dealloc__(self):
        free(self.positions)
        free(self.ends)

    def __len__(self):
        return self.tail - self.head

    def extend(self, Batch batch not None):
        """Append a batch, whose positions must be behind the last one here."""
        cdef uint32_t i, live, cap
        cdef uint64_t* p
        cdef Message m
        if batch.count == 0:
            return
        if self.cap - self.tail < batch.count:
            live = self.tail - self.head
            if self.head > live and self.cap - live >= batch.count:
                self._compact()
            else:
                self._compact()
                cap = self.cap * 2 if self.cap else 16
                while cap < live + batch.count:
                    cap *= 2
                p = <uint64_t*>realloc(self.positions, cap * sizeof(uint64_t))
                if p == NULL:
                    raise MemoryError
                self.positions = p
                p = <uint64_t*>realloc(self.ends, cap * sizeof(uint64_t))
                if p == NULL:
                    raise MemoryError
                self.ends = p
                self.cap = cap
        work(batch.count * OBJECT)
        for i in range(batch.count):
            m = <Message>batch.messages[i]
            self.total_bytes += content_bytes(&m.content)
            self.positions[self.tail] = batch.positions[i]
            self.ends[self.tail] = self.total_bytes
            self.tail += 1
        self.messages.extend(batch.messages)

    def _compact(self):
        cdef uint32_t live = self.tail - self.head
        if self.head:
            work(live * (2 * PLACE) + self.head * PLACE)
            memmove(self.positions, self.positions + self.head, live * sizeof(uint64_t))
            memmove(self.ends, self.ends + self.head, live * sizeof(uint64_t))
            del self.messages[:self.head]
            self.head = 0
            self.tail = live

    cdef uint32_t first_after(self, uint64_t position) noexcept:
        # returns the first entry behind position, in [head, tail]
        cdef uint32_t lo = self.head, hi = self.tail, mid
        work(INDEX // 4)
        while lo < hi:
            mid = (lo + hi) // 2
            if self.positions[mid] <= position:
                lo = mid + 1
            else:
                hi = mid
        return lo

    def read(self, uint64_t after, uint64_t bytes_max):
        """Return a Batch of messages behind `after`: at least one if there is one, else up to `bytes_max` bytes."""
        cdef uint32_t i = self.first_after(after), k = i, n
        cdef uint64_t begin
        cdef Batch b
        if i < self.tail:
            begin = self.ends[i - 1] \
                    if i > self.head else self.ends[i] - content_bytes(&(<Message>self.messages[i]).content)
            k = i + 1
            while k < self.tail and k - i < READ_MESSAGES_MAX and self.ends[k] - begin + 64 * (k - i) <= bytes_max:
                k += 1
        n = k - i
        b = batch_new(n)
        work(n * OBJECT)
        if n:
            memcpy(b.positions, self.positions + i, n * sizeof(uint64_t))
            b.messages = self.messages[i:k]
        b.count = n
        b.truncated = k < self.tail
        return b

    def backlog(self, uint64_t after):
        """Return (messages, bytes) behind `after`."""
        cdef uint32_t i = self.first_after(after)
        if i == self.tail:
            return 0, 0
        return self.tail - i, self.total_bytes - (self.ends[i] - content_bytes(&(<Message>self.messages[i]).content))

    def position_of_last(self, uint64_t messages, uint64_t bytes_max):
        """Return the position behind which there are at most `messages` messages and `bytes_max` bytes: a cursor before
        it is beyond the bound."""
        cdef uint32_t n = self.tail - self.head, i = self.head, lo, hi, mid
        cdef uint64_t floor
        if n == 0:
            return 0
        if n > messages:
            i = self.tail - <uint32_t>messages
        if i < self.tail and self.total_bytes > bytes_max:
            floor = self.total_bytes - bytes_max        # entries that end before it are beyond the bound
            if self.ends[i] - content_bytes(&(<Message>self.messages[i]).content) < floor:
                lo = i + 1
                hi = self.tail
                while lo < hi:
                    mid = (lo + hi) // 2
                    if self.ends[mid - 1] < floor:
                        lo = mid + 1
                    else:
                        hi = mid
                i = lo
        if i == self.head:
            return 0
        return self.positions[i - 1]

    def trim(self, uint64_t up_to):
        """Remove everything at or before position `up_to`."""
        cdef uint32_t k = self.first_after(up_to), i
        work((k - self.head) * OBJECT)
        for i in range(self.head, k):
            self.messages[i] = None
        self.head = k
        if self.head == self.tail or self.head > 1024 and self.head > self.cap // 2:
            self._compact()

    def drop(self, uint64_t after, uint64_t up_to):
        """Remove everything behind position `after` up to and including `up_to`."""
        cdef uint32_t begin = self.first_after(after), end = self.first_after(up_to), i
        cdef uint64_t gone
        if begin >= end:
            return
        work((self.tail - end) * (2 * PLACE) + (end - begin) * OBJECT)
        gone = self.ends[end - 1] - (self.ends[begin] - content_bytes(&(<Message>self.messages[begin]).content))
        for i in range(end, self.tail):
            self.positions[i - end + begin] = self.positions[i]
            self.ends[i - end + begin] = self.ends[i] - gone
        del self.messages[begin:end]
        self.tail -= end - begin
        self.total_bytes -= gone


cdef bint lies_within(list spans, uint64_t position) except -1:
    # spans: (a, z) in order, each from behind a up to z; spans before the position, which only rises, are removed
    cdef uint64_t a, z
    while spans:
        work(OBJECT)
        a, z = spans[0]
        if position <= a:
            return False
        if position <= z:
            return True
        del spans[0]
    return False


cdef Batch merge_batches(list batches):
    # merges the Batches of several indexes by position, without duplicates; ends where the first truncated one ends
    cdef Batch b, out
    cdef uint64_t horizon = <uint64_t>-1, best
    cdef uint32_t total = 0, n = len(batches), i, which
    cdef bint more = False
    cdef uint32_t* at
    if n == 1:
        return <Batch>batches[0]
    for b in batches:
        total += b.count
        if b.truncated:
            more = True
            if b.positions[b.count - 1] < horizon:
                horizon = b.positions[b.count - 1]
    out = batch_new(total)
    at = <uint32_t*>malloc((n if n else 1) * sizeof(uint32_t))
    if at == NULL:
        raise MemoryError
    work(total * (RECORD + <uint64_t>n * (2 * PLACE)))
    for i in range(n):
        at[i] = 0
    try:
        while True:
            best = <uint64_t>-1
            which = 0
            for i in range(n):
                b = <Batch>batches[i]
                if at[i] < b.count and b.positions[at[i]] < best:
                    best = b.positions[at[i]]
                    which = i
            if best == <uint64_t>-1 or best > horizon:
                break
            out.positions[out.count] = best
            out.messages.append((<Batch>batches[which]).messages[at[which]])
            out.count += 1
            for i in range(n):
                b = <Batch>batches[i]
                if at[i] < b.count and b.positions[at[i]] == best:
                    at[i] += 1
    finally:
        free(at)
    out.truncated = more
    return out
