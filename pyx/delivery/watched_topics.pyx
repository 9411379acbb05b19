"""Topics sent live while retained messages are on their way: see the .pxd."""
cimport cython
from libc.stdlib cimport calloc, free
from libc.stdint cimport uint32_t, uint64_t

from pyx.core.work cimport PLACE, VISIT, work

cdef uint64_t remembered = 0                   # number of topics of all sessions of the process


cdef void note_newer(Seen* place, uint64_t number, uint32_t asked, bint is_qos0) noexcept:
    # a message of QoS 0 may have overtaken one that had to wait: the newest counts
    if number > place.number:
        place.number = number
        place.asked = asked
        place.is_qos0 = is_qos0
    elif number == place.number:
        place.asked = max(asked, place.asked)
        place.is_qos0 &= is_qos0


@cython.final
cdef class WatchedTopics:
    """The messages with RETAIN that were sent live to one session, and the SUBSCRIBEs before them."""

    def __dealloc__(self):
        global remembered
        remembered -= self.count
        free(self.places)

    cdef int ask(self, uint64_t position, uint64_t cursor) except -1:
        self.asked += 1
        if self.asks is None:
            self.asks = []
        # where all unread positions are behind the second one, the first is not looked for any more
        while len(self.asks) > 1 and self.asks[1][1] <= cursor:
            del self.asks[0]
        if self.asks and self.asks[len(self.asks) - 1][1] == position:
            self.asks[len(self.asks) - 1] = (self.asked, position)
        elif len(self.asks) < ASKS_MAX:
            self.asks.append((self.asked, position))
        else:
            # what was logged between the two counts as sent after this SUBSCRIBE, which is true: it is unread
            self.asks[len(self.asks) - 1] = (self.asked, self.asks[len(self.asks) - 1][1])
        return 0

    cdef uint32_t asked_before(self, uint64_t position) except? 0xFFFFFFFF:
        cdef uint32_t asked
        cdef uint64_t behind
        if self.asks is not None:
            work(<uint64_t>len(self.asks) * VISIT)
            for asked, behind in reversed(self.asks):
                if position > behind:
                    return asked
        return 0

    cdef Seen* place_of(self, uint64_t topic) noexcept:
        # the place of the topic, or a free one for it
        cdef uint32_t i = <uint32_t>topic & (self.cap - 1)
        while self.places[i].topic and self.places[i].topic != topic:
            i = (i + 1) & (self.cap - 1)
        work(PLACE)
        return &self.places[i]

    cdef int move(self, uint32_t cap) except -1:
        # into a table of this size
        cdef Seen* old = self.places
        cdef uint32_t i, had = self.cap
        cdef Seen* places = <Seen*>calloc(cap, sizeof(Seen))
        if places == NULL:
            raise MemoryError
        self.places = places
        self.cap = cap
        work(had * PLACE)
        for i in range(had):
            if old[i].topic:
                self.place_of(old[i].topic)[0] = old[i]
        free(old)
        return 0

    cdef int sent(self, uint64_t topic, uint64_t number, uint32_t asked, bint is_qos0) except -1:
        global remembered
        cdef Seen* place
        topic |= 1
        if self.count * 2 >= self.cap:
            if self.count >= WATCHED_MAX:
                place = self.place_of(topic)
                if place.topic == 0:
                    return 0
                note_newer(place, number, asked, is_qos0)
                return 1
            self.move(self.cap * 2 if self.cap else 16)
        place = self.place_of(topic)
        if place.topic == 0:
            if remembered >= <uint64_t>WATCHED_ALL_MAX:
                return 0
            remembered += 1
            self.count += 1
            place.topic = topic
        note_newer(place, number, asked, is_qos0)
        return 1

    cdef bint is_overtaken(self, uint64_t topic, uint64_t number, uint32_t asked) noexcept:
        cdef Seen* place
        if self.count == 0:
            return False
        place = self.place_of(topic | 1)
        return place.topic != 0 and (number < place.number or number == place.number and asked <= place.asked)

    cdef void lose_qos0(self) noexcept:
        cdef uint32_t i
        work(self.cap * PLACE)
        for i in range(self.cap):
            if self.places[i].is_qos0:
                self.places[i].asked = 0
