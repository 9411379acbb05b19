# cython: language_level=3
"""Messages between peers as bytes: `zmq_mesh.envelope` describes them, tests.mesh_messages is compared with this."""
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from pyx.mesh.receiver cimport Part


cdef enum:
    PREFIX_BYTES = 28
    HEAD_END = 104                  # of the prefix and the head
    REFUSAL_BYTES = 13
    GREETING_BYTES = 28
    VERSION_AT = 1                  # in the prefix

    VERSION = 2
    OLDEST_VERSION = 2
    VERSION_OF_GREETINGS = 2

    # Up to this size a part is copied behind the head, without a frame of its own. Measured with ZeroMQ's library, CPU
    # of both processes with all threads, inline / own frame copied / own frame by reference: 8 KB 24 / 27 / 37 us,
    # 16 KB 29 / 31 / 48, 32 KB 52 / 52 / 59, 64 KB 70 / 97 / 76, 256 KB 297 / 241 / 167
    INLINE_BYTES_MAX = 32 * 1024


cdef enum Kind:
    HELLO = 1
    WELCOME = 2
    ACK = 3                         # acks, heartbeat
    BATCH = 4
    INTEREST = 5
    SKIP = 6                        # fills a number of the stream whose content is obsolete


cdef enum Flag:
    SEQUENCED = 0x01                # `sequence` is this message's own; otherwise it is the highest one sent so far
    GAP = 0x02                      # something before the highest sequence is missing: send again after `received`
    VOLATILE_FRAME = 0x04
    SEQUENCED_FRAME = 0x08
    SNAPSHOT = 0x10                 # INTEREST: (a part of) a snapshot, not a delta
    LAST = 0x20                     # INTEREST: the last message of this number
    MORE = 0x40                     # frames follow this one


cdef struct Head:
    uint8_t kind
    uint8_t flags
    uint16_t refusals
    uint32_t volatile_bytes
    uint32_t sequenced_bytes
    uint32_t payloads_volatile
    uint32_t payloads_sequenced
    uint64_t frame
    uint64_t sequence
    uint64_t received
    uint64_t committed
    uint64_t acknowledged
    uint64_t frames_seen
    uint64_t taken


cdef struct Prefix:
    int version
    uint16_t your_stream            # its low bits
    uint32_t sender
    uint32_t receiver
    uint64_t sender_incarnation
    uint64_t receiver_incarnation   # 0 = not known to the sender


cdef struct Greeting:
    uint64_t stream                 # of the sender
    uint64_t your_stream            # that the sender knows
    uint64_t interest               # number of the sender's interest
    uint32_t number                 # of the HELLO that a WELCOME answers
    int oldest                      # versions that the sender speaks
    int newest


cdef bytes pack_prefix(int version, uint64_t your_stream, uint32_t sender, uint32_t receiver,
                       uint64_t sender_incarnation, uint64_t receiver_incarnation)
# raises EnvelopeError when the frame is too short for a message, or is not one from `peer` to `own`
cdef int read_prefix(bytes first, uint32_t own, uint32_t peer, Prefix* prefix) except -1
# finds the parts in the frames; returns the index of the first payload frame. EnvelopeError if the head disagrees
cdef Py_ssize_t split_parts(list frames, const Head* head, Part* volatile, Part* sequenced) except -1
# raises EnvelopeError when the message, whose head this is, is no greeting
cdef int read_greeting(bytes first, const Head* head, Greeting* greeting) except -1
cdef void read_head(const uint8_t* p, Head* head) noexcept
cdef void write_head(uint8_t* p, const Head* head) noexcept
