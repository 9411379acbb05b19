"""Topics sent live while retained messages are on their way: see the .pxd."""
from libc.stdlib cimport calloc, free

from pyx.core.work cimport PLACE, work

cdef uint64_t remembered = 0                   # number of topics of all sessions of the process


cdef Seen* place_of(const WatchedTopics* w, uint64_t topic) noexcept:
    # the place of the topic, or a free one for it
    cdef uint32_t i = <uint32_t>topic & (w.cap - 1)
    while w.places[i].topic and w.places[i].topic != topic:
        i = (i + 1) & (w.cap - 1)
    work(PLACE)
    return &w.places[i]


cdef void note_newer(Seen* place, uint64_t number, uint32_t asked) noexcept:
    # a message of QoS 0 may have overtaken one that had to wait: the newest counts
    if number >= place.number:
        place.number = number
        place.asked = asked


cdef int watched_sent(WatchedTopics* w, uint64_t topic, uint64_t number, uint32_t asked) except -1:
    global remembered
    cdef Seen* old = w.places
    cdef Seen* place
    cdef uint32_t i, cap = w.cap
    topic |= 1
    if w.count * 2 >= cap:
        if w.count >= WATCHED_MAX:
            place = place_of(w, topic)
            if place.topic == 0:
                return 0
            note_newer(place, number, asked)
            return 1
        w.places = <Seen*>calloc(cap * 2 if cap else 16, sizeof(Seen))
        if w.places == NULL:
            w.places = old
            raise MemoryError
        w.cap = cap * 2 if cap else 16
        work(cap * PLACE)
        for i in range(cap):
            if old[i].topic:
                place_of(w, old[i].topic)[0] = old[i]
        free(old)
    place = place_of(w, topic)
    if place.topic == 0:
        if remembered >= <uint64_t>WATCHED_ALL_MAX:
            return 0
        remembered += 1
        w.count += 1
        place.topic = topic
    note_newer(place, number, asked)
    return 1


cdef bint watched_overtaken(const WatchedTopics* w, uint64_t topic, uint64_t number, uint32_t asked) noexcept:
    cdef Seen* place
    if w.count == 0:
        return False
    place = place_of(w, topic | 1)
    return place.topic != 0 and number <= place.number and asked <= place.asked


cdef void watched_forget(WatchedTopics* w) noexcept:
    global remembered
    remembered -= w.count
    free(w.places)
    w.places = NULL
    w.cap = w.count = 0
