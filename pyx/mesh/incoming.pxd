# cython: language_level=3
"""The receiving side of a link: see the .pyx."""
from libc.stdint cimport uint8_t, uint64_t

from pyx.mesh.envelope cimport Head
from pyx.mesh.receiver cimport BatchReceiver, Part
from pyx.mesh.stream cimport LinkTraffic


cdef class Incoming:
    cdef object peer
    cdef object events
    cdef BatchReceiver batches
    cdef object decode                  # of interest: bytes -> list of changes
    cdef object barrier                 # None: interest is acknowledged at once
    cdef LinkTraffic traffic
    cdef uint64_t unsaid_bytes_max
    cdef readonly uint64_t stream
    cdef readonly uint64_t received
    cdef readonly uint64_t committed
    cdef readonly uint64_t highest      # highest number of the stream known to have been sent
    cdef uint64_t last_batch
    cdef uint64_t offset                # number for the node - number of the stream, modulo 2 ** 64
    cdef uint64_t floor                 # numbers for the node up to here belong to a former stream
    cdef readonly uint64_t frames_seen
    cdef uint64_t acknowledged          # the peer has received our acks of these numbers
    cdef uint64_t unsaid_bytes
    cdef readonly bint owe              # an ack that the peer waits for is due
    cdef uint64_t interest_heard
    cdef uint64_t interest_acked        # not before what was sent before it has arrived
    cdef bint in_snapshot               # its last part has not arrived
    cdef readonly object refused        # deque of (number of the batch, packed), oldest first

    cdef int commit(self, uint64_t sequence, object refused) except -1
    # the ack, and the packed refusals, for the next message of this kind
    cdef bytes news(self, uint8_t kind, uint64_t* committed, uint64_t* count)
    cdef int forget_refusals(self, uint64_t acknowledged) except -1
    cdef int count(self, list frames, bint volatile) except -1
    # passes the next number on (or a SKIP, which may be a range that includes the next); returns whether interest was
    # taken. Raises EnvelopeError
    cdef bint deliver(self, Head* head, const Part* volatile, const Part* part, list payloads, double now) except -1
    cdef bint take_interest(self, uint64_t number, uint8_t flags, object part, double now) except -1
    cdef int end_incarnation(self) except -1
    # takes in a greeting's position in its stream; returns whether the stream is new: the peer has a new numbering, or
    # its numbering was not known here
    cdef bint greeted(self, uint64_t stream, Head* head) except -1
    cdef int begin_stream(self, uint64_t stream, uint64_t acknowledged) except -1
