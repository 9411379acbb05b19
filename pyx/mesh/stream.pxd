# cython: language_level=3
"""The stream to one peer: see the .pyx."""
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t


cdef class LinkTraffic:
    cdef public uint64_t batches_sent
    cdef public uint64_t messages_sent      # entries that were submitted with their number
    cdef public uint64_t bytes_sent
    cdef public uint64_t bytes_received
    cdef public uint64_t resent
    cdef public uint64_t duplicates
    cdef public uint64_t frames_refused     # messages from or for a former incarnation
    cdef public uint64_t volatile_dropped   # QoS 0 entries not sent: peer away or gone, outbox far over its limit
    cdef public uint64_t batches_behind     # batches logged although the peer is there, because it is behind


cdef class Unacknowledged:
    cdef readonly uint64_t sequence
    cdef readonly object part
    cdef readonly object payloads           # a sequence
    cdef readonly uint64_t nbytes           # counted in the outbox or in the log; 0 for interest
    cdef readonly int64_t ticket            # -1 = not a batch, or its ticket is done already
    cdef readonly int64_t entries           # -1 = counted on demand
    cdef readonly double at
    cdef readonly uint8_t kind
    cdef readonly uint8_t flags
    cdef readonly uint64_t frame            # of the last transmission, 0 = never sent
    cdef readonly bint logged
    cdef readonly bint stored               # in the hand-off log, though it may be `sent, not acked` as well
    cdef readonly bint lasts                # it can be read back from there
    cdef readonly bint unloading            # it leaves the memory when it is stored
    cdef readonly bint unloaded             # part and payloads are only there, or with the peer
    cdef readonly bint read                 # and were read back and sent: it counts in read_bytes until it is acked


cdef class Stream:
    cdef object peer
    cdef uint64_t incarnation
    cdef object events
    cdef uint64_t log_bytes_max
    cdef uint64_t window_bytes_max
    cdef LinkTraffic traffic
    cdef object handoff                     # the hand-off log; None: memory
    cdef readonly uint64_t id
    cdef uint64_t ids
    cdef readonly uint64_t sequence         # last number given out
    cdef readonly uint64_t sent             # highest number ever sent
    cdef readonly uint64_t acknowledged
    cdef list items                         # those not acked, from `first` on; None before
    cdef Py_ssize_t first
    cdef readonly Py_ssize_t unsent         # of them, at the right end
    cdef readonly object holds              # numbers not stored yet: neither they nor later ones may be sent
    cdef readonly uint64_t outbox_bytes     # of batches that are kept and not logged
    cdef uint64_t outbox_batches            # their number
    cdef readonly uint64_t handoff_bytes
    cdef readonly uint64_t loaded_bytes     # of batches in memory
    cdef readonly uint64_t read_bytes       # read back from the hand-off log, sent and not acked
    cdef object just_read                   # read back, and refused by the transport
    cdef list unloadable                    # to be unloaded once stored: handled at flush
    cdef int64_t released                   # ticket whose batches are in the log: reported at flush
    cdef list done                          # reported as lost at flush
    cdef list over                          # refused by the full log: reported at flush

    cdef Py_ssize_t count(self) except -1
    cdef Unacknowledged item(self, Py_ssize_t i)
    cdef Unacknowledged add(self, object part, object payloads, uint64_t nbytes, int64_t ticket, int64_t entries,
                            double now, bint hold)
    cdef int add_absent(self, object part, object payloads, uint64_t nbytes, int64_t ticket, int64_t entries,
                        double now, bint is_away, bint hold) except -1
    cdef int add_interest(self, object part, uint8_t flags, double now) except -1
    cdef bint may_leave(self, Unacknowledged item) except -1
    cdef tuple content(self, Unacknowledged item)
    cdef int was_read(self, Unacknowledged item) except -1
    # processes the peer's cumulative ack; returns the highest ticket that is done by it, -1: none
    cdef int64_t advance(self, uint64_t committed) except -2
    cdef bint waits_for_room(self) except -1
    cdef Unacknowledged find(self, uint64_t sequence)
    cdef Py_ssize_t index(self, uint64_t sequence) except -1
    cdef bint misses(self, uint64_t received, uint64_t frames_seen) except -1
    cdef int go_back(self, Py_ssize_t index) except -1
    cdef int log(self, Unacknowledged item) except -1
    cdef int log_all(self) except -1
    cdef int store(self, Unacknowledged item) except -1
    cdef int store_all(self) except -1
    cdef int put_behind(self) except -1
    cdef int hold(self, Unacknowledged item) except -1
    cdef int unload_when_stored(self, Unacknowledged item) except -1
    cdef int unload(self) except -1
    cdef int unload_one(self, Unacknowledged item) except -1
    cdef int restore(self, double now) except -1
    cdef int keep_skip(self, uint64_t start, uint64_t end, double now) except -1
    cdef int begin_anew(self) except -1
    cdef int end_incarnation(self) except -1
    cdef int tell_done(self) except -1
    cdef bint lasts(self) except -1
    cdef bint cannot_store(self) except -1
    cdef uint64_t new_id(self) noexcept
