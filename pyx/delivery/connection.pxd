# cython: language_level=3
"""One client connection without its socket: what came and is not a whole packet yet, what is to leave, and acks that
wait.

inbox   part[0 .. part_len): the beginning of one packet (or, when the packet budget of a tick ran out, whole packets
        that wait for the next tick). Grows as bytes come, never on the word of a length field.
acks    a ring of acks in the order of the packets they answer. One leaves when everything it waits for has happened and
        all before it have left. While nothing waits an ack goes straight into the outbox.
"""
from cpython.ref cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from pyx.core.flag cimport flag
from pyx.core.outbox cimport Outbox
from pyx.core.timers cimport TimerNode
from pyx.delivery.authorise cimport Verdicts
from pyx.protocol.aliases cimport Aliases


cdef enum ConnectionState:
    OPENING = 0             # before the CONNECT, or, with `authenticating`, before the AUTH that the decision needs
    DECIDING = 1            # CONNECT was handed up; packets behind it wait
    OPEN = 2                # CONNACK 0 is in the outbox
    CLOSING = 3             # what is in the outbox still leaves; nothing is read any more
    CLOSED = 4


cdef struct PendingAck:
    # leaves when every peer of `mask` has acknowledged this tick, and the store too when `stored`
    uint64_t tick
    uint64_t mask
    uint64_t ticket         # of the store; 0 = does not wait for it
    uint64_t interest       # number of our interest that every live peer must have taken; 0 = does not wait for it
    uint64_t since          # ns: when the sampled PUBLISH that it answers was received; 0 = not sampled
    PyObject* packet        # SUBACK, UNSUBACK, ... ready to send (strong), or NULL: built from the next three
    uint16_t packet_id
    uint8_t packet_type
    uint8_t reason


cdef struct Pace:               # of a publisher while something is guarded (pyx.delivery.back_pressure)
    uint64_t at                 # ms: when its room was last reckoned
    int64_t messages            # thousandths it may publish now
    int64_t bytes
    uint64_t since              # ms: it waits for its publish to be taken; 0 = it does not
    bint too_fast               # it waits for room, and that was counted
    bint subscribes_too_fast    # likewise, of a SUBSCRIBE or UNSUBSCRIBE
    bint waits                  # it waits for a session or a worker, and that was counted
    bint owed                   # it waits until answers have left that are due to it
    bint listed                 # in the router's list of connections that wait


cdef class Connection:
    cdef Outbox out
    cdef public object session          # Session or None
    cdef object had                     # its Session, also when that has let it go: for what is dropped then
    cdef uint8_t[16] peer               # address of the client, 4 or 16 bytes
    cdef uint16_t peer_port
    cdef uint8_t peer_family            # 4, 6; 0 = none
    cdef public int fd                  # -1: none (tests, simulation, after close)
    cdef public uint8_t listener        # by which it came, as the workers number them (shards.listening)
    cdef public uint8_t version         # 3, 4, 5; 0 before CONNECT
    cdef public uint8_t state
    cdef flag dirty                     # in the router's list of connections with output
    cdef flag want_write                # waits for EPOLLOUT
    cdef flag not_reading               # EPOLLIN is off
    cdef public flag paused             # stopped reading because a peer's outbox is full
    cdef public uint8_t busy            # so many of its packets are carried out in pieces: the next one waits for that
    cdef flag waiting                   # in the router's list of connections with pending acks
    cdef flag carried                   # part holds whole packets for the next tick
    cdef flag in_turn                   # in the dispatch's list of such connections
    cdef flag dropping                  # drops have begun and were logged
    cdef flag lingering                 # our FIN is out; what comes is thrown away until theirs or the timer
    cdef public flag authenticating     # CONNECT has come, AUTH goes to and fro until the CONNACK (MQTT 5, 4.12)
    cdef public flag problem_information
    cdef uint8_t* part
    cdef uint32_t part_len
    cdef uint32_t part_cap
    cdef uint32_t part_want             # length of the packet that part begins, 0 = not known yet
    cdef public uint32_t packet_bytes_max      # that the client takes
    cdef public uint32_t topic_alias_max       # aliases the client may set here
    cdef public uint32_t topic_alias_out_max   # aliases we may set at the client; 0 before MQTT 5
    cdef Aliases* aliases_out           # those we have set; NULL until a topic is sent again
    cdef PyObject** aliases             # topic_alias_max + 1 strong bytes or NULL; NULL until the first
    cdef TimerNode timer                # connect deadline, then keep-alive, then lingering
    cdef uint64_t heard                 # ms: last packet began
    cdef public uint32_t keep_alive_ms  # one and a half times what was agreed; 0 = off
    cdef PendingAck* acks
    cdef uint32_t ack_head
    cdef uint32_t ack_count
    cdef uint32_t ack_cap
    cdef uint32_t unanswered            # PUBLISH QoS 1 whose PUBACK is in acks
    # QoS 2 publishes of this connection without their PUBREL: those of former ones are no part of what Receive Maximum
    # bounds, and their PUBRELs make no more room than there was at first (MQTT 5, 4.9)
    cdef uint32_t unreleased
    cdef uint32_t strays                # PUBRELs for identifiers that were not in flight, without their PUBCOMP
    cdef object source                  # Source while it is half open (pyx.io.sources), else None
    cdef Verdicts* verdicts             # what it may publish; NULL until rules were asked
    cdef Pace* pace                     # NULL until the first publish that is judged
    cdef public uint64_t opened         # ms, monotonic
    cdef public uint64_t bytes_in
    cdef uint64_t filters_until         # us: when what filters_per_second_max gives it will be whole again
    cdef public uint64_t bytes_out
    cdef public uint64_t messages_in
    cdef public uint64_t messages_out
    cdef public uint64_t drops

    cdef int keep(self, const uint8_t* p, uint32_t n) except -1
    cdef int push_ack(self, PendingAck* a) except -1
    cdef void drop_acks(self) noexcept
    cdef void free_part(self) noexcept
