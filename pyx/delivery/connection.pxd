# cython: language_level=3
"""A client connection without its socket: its inbox of undecoded bytes, its outbox, and its waiting acks.

inbox   part[0 .. part_len): the beginning of one packet (or, when the packet budget of a tick ran out, whole packets
        that wait for the next tick). Grows as bytes arrive, never because of a length field alone.
acks    a ring of acks in the order of the packets they answer. An ack is sent when its conditions are met and all acks
        before it were sent. While none waits, an ack goes straight into the outbox.
"""
from cpython.ref cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from pyx.core.flag cimport flag
from pyx.core.outbox cimport Outbox
from pyx.core.timers cimport TimerNode
from pyx.delivery.authorise cimport Verdicts
from pyx.protocol.aliases cimport Aliases


cdef enum ConnectionState:
    OPENING = 0             # before the CONNECT, or, with `authenticating`, before the AUTH needed for the decision
    DECIDING = 1            # CONNECT was passed to the handler; packets behind it wait
    OPEN = 2                # CONNACK 0 is in the outbox
    CLOSING = 3             # the outbox is still sent; nothing is read any more
    CLOSED = 4


cdef struct PendingAck:
    # sent when every peer of `mask` has acknowledged this tick, and the store has committed `ticket`
    uint64_t tick
    uint64_t mask
    uint64_t ticket         # of the store; 0 = does not wait for it
    uint64_t interest       # number of our interest that every live peer must have processed; 0 = does not wait for it
    uint64_t since          # ns: when the sampled PUBLISH that it answers was received; 0 = not sampled
    PyObject* packet        # list with a SUBACK, UNSUBACK, ... (strong), or NULL: built from the next three
    uint16_t packet_id
    uint8_t packet_type
    uint8_t reason


cdef struct Pace:               # of a publisher while publishes are checked (pyx.delivery.back_pressure)
    uint64_t at                 # ms: when its allowance was last computed
    int64_t messages            # allowance, in thousandths
    int64_t bytes
    uint64_t since              # ms: since when its publish waits to be taken; 0 = none waits
    bint too_fast               # it waits for its allowance, and that was counted
    bint subscribes_too_fast    # likewise, with a SUBSCRIBE or UNSUBSCRIBE
    bint waits                  # it waits for a session or a worker, and that was counted
    bint owed                   # it waits until answers owed to it were sent
    bint listed                 # in the router's list of connections that wait


cdef class Connection:
    cdef Outbox out
    cdef public object session          # Session or None
    cdef object had                     # its Session, kept after the detach: for counting drops
    cdef uint8_t[16] peer               # address of the client, 4 or 16 bytes
    cdef uint16_t peer_port
    cdef uint8_t peer_family            # 4, 6; 0 = none
    cdef public int fd                  # -1: none (tests, simulation, after close)
    cdef public uint8_t listener        # number of its listener (shards.listening)
    cdef public uint8_t version         # 3, 4, 5; 0 before CONNECT
    cdef public uint8_t state
    cdef flag dirty                     # in the router's list of connections with output
    cdef flag want_write                # waits for EPOLLOUT
    cdef flag not_reading               # EPOLLIN is off
    cdef public flag paused             # not read: a peer's outbox is full, or back-pressure
    cdef public uint8_t busy            # number of its packets being processed in pieces: the next one waits
    cdef flag waiting                   # in the router's list of connections with pending acks
    cdef flag carried                   # part holds whole packets for the next tick
    cdef flag in_turn                   # in the dispatch's list of such connections
    cdef flag dropping                  # drops have begun and were logged
    cdef flag lingering                 # our FIN was sent; input is discarded until theirs or the timer
    cdef public flag authenticating     # between CONNECT and CONNACK, exchanging AUTH (MQTT 5, 4.12)
    cdef public flag problem_information
    cdef uint8_t* part
    cdef uint32_t part_len
    cdef uint32_t part_cap
    cdef uint32_t part_want             # length of the packet that part begins, 0 = not known yet
    cdef public uint32_t packet_bytes_max      # Maximum Packet Size of the client
    cdef public uint32_t topic_alias_max       # aliases the client may set here
    cdef public uint32_t topic_alias_out_max   # aliases we may set at the client; 0 before MQTT 5
    cdef Aliases* aliases_out           # aliases we have set; NULL until a topic is sent again
    cdef PyObject** aliases             # topic_alias_max + 1 strong bytes or NULL; NULL until the first
    cdef TimerNode timer                # connect deadline, then keep-alive, then lingering
    cdef uint64_t heard                 # ms: begin of the last packet
    cdef public uint32_t keep_alive_ms  # one and a half times the Keep Alive; 0 = off
    cdef PendingAck* acks
    cdef uint32_t ack_head
    cdef uint32_t ack_count
    cdef uint32_t ack_cap
    cdef uint32_t unanswered            # PUBLISH QoS 1 whose PUBACK is in acks
    # QoS 2 publishes of this connection without their PUBREL: Receive Maximum does not bound those of former
    # connections, and their PUBRELs do not raise the quota above its initial value (MQTT 5, 4.9)
    cdef uint32_t unreleased
    cdef uint32_t strays                # PUBRELs for identifiers that were not in flight, without their PUBCOMP
    cdef object source                  # Source while it is half open (pyx.io.sources), else None
    cdef Verdicts* verdicts             # cached verdicts on its publishes; NULL until the first
    cdef Pace* pace                     # NULL until its first publish is judged
    cdef public uint64_t opened         # ms, monotonic
    cdef public uint64_t bytes_in
    cdef uint64_t filters_until         # us: when its allowance of filters_per_second_max will be full again
    cdef public uint64_t bytes_out
    cdef public uint64_t messages_in
    cdef public uint64_t messages_out
    cdef public uint64_t drops

    cdef int keep(self, const uint8_t* p, uint32_t n) except -1
    cdef int push_ack(self, PendingAck* a) except -1
    cdef void drop_acks(self) noexcept
    cdef void free_part(self) noexcept
