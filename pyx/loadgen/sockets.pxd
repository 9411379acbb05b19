# cython: language_level=3
"""Thousands of client connections on one epoll set: reading and writing. See sockets.pyx.

`run` of a subclass calls flush_all, then for each event turn: turn calls flush and take, take calls packets.
"""
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from pyx.loadgen.ledger cimport Heard, Ledger

cdef enum:
    CONNECTING                      # no CONNACK yet
    SUBSCRIBING                     # no SUBACK yet
    OPEN
    CLOSED


cdef struct Buffer:                 # filled at the tail, emptied at the head
    uint8_t* bytes
    uint32_t head
    uint32_t tail
    uint32_t cap


cdef struct Client:
    int fd
    uint8_t state
    uint8_t is_writing              # waits for EPOLLOUT
    uint8_t is_dirty                # is in the list of clients with output
    uint8_t is_last_word            # is closed when its output is sent
    uint8_t is_wrapped              # has a transport between MQTT and its socket
    uint32_t publisher              # among the publishers of the run, UNKNOWN = none
    uint32_t local                  # among the publishers of this process
    uint64_t began                  # connect(2)
    uint64_t heard
    Buffer out                      # MQTT
    Buffer wire                     # the same, encoded by its transport
    Buffer part                     # an incomplete packet
    # a publisher
    uint8_t* heads                  # per payload: fixed header, topic, room for a Packet Identifier, property length
    uint32_t sequence               # of the next message
    uint32_t inflight
    uint16_t next_id
    uint64_t* since                 # per slot of the window: when its message was due; 0 = free
    uint64_t owed                   # due, and not sent
    Heard heard_of                  # a subscriber


cdef inline uint32_t filled(const Buffer* b) noexcept nogil:
    return b.tail - b.head


cdef class Sockets(Ledger):
    cdef int epoll, timer
    cdef uint32_t clients_count, clients_cap
    cdef Client** clients
    cdef Client** dirty
    cdef uint32_t dirty_count
    cdef uint8_t* buffer
    cdef uint64_t now
    cdef dict transports            # by descriptor, for wrapped connections
    cdef readonly list said
    cdef readonly uint32_t remaining        # clients whose connections have not ended

    cdef Client* new_client(self, int fd, object transport) except NULL
    cdef int say(self, str what) except -1
    cdef uint8_t* room(self, Client* c, uint32_t n) except NULL
    cdef int put(self, Client* c, const uint8_t* p, uint32_t n) except -1
    cdef int touch(self, Client* c) except -1
    cdef int wait(self, uint64_t until_ns) except -1
    cdef int flush_all(self) except -1
    cdef int flush(self, Client* c) except -1
    cdef int end(self, Client* c) except -1
    cdef int lost(self, Client* c) except -1
    cdef int wrong(self, Client* c, str why) except -1
    cdef int take(self, Client* c) except -1
    cdef int turn(self, Client* c, uint32_t what) except -1
    cdef uint32_t packets(self, Client* c, const uint8_t* p, uint32_t n) except? 0

    cdef int register(self, int how, int fd, uint32_t events, Client* c) except -1
    cdef int wake_at(self, uint64_t at) except -1
    cdef bint wrap(self, Client* c) except -1
    cdef int fed(self, Client* c, const uint8_t* p, uint32_t n) except -1
    cdef int unwrapped(self, Client* c, uint32_t n) except -1
