"""Base classes: a `Receiver` takes the messages of a transport, a `BatchReceiver` the batches of links, by calls in C.

The parts of a batch lie in frames of a message: whoever keeps one makes a view of it.
"""
from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport uint8_t, uint32_t, uint64_t


cdef class Receiver:
    """Takes the messages of a transport."""

    cpdef trust(self):
        """Note that it is certain now that this worker was not paused: what was read before is no sign of what a peer
        could not say."""
        self.trusts += 1

    cpdef bint may_receive(self) except -1:
        """Return whether anything should be read now."""
        return True

    cpdef bint received(self, list frames) except -1:
        """Process a message. Return True if no more of its sender should be taken in this round."""
        raise NotImplementedError


cdef class BatchReceiver(RoundPart):
    """Takes the batches of all links of a worker."""

    cdef int take_batch(self, uint32_t peer, const Part* volatile, const Part* sequenced, list payloads,
                        uint64_t sequence) except -1:
        # see `zmq_mesh.contract.LinkEvents.batch`
        raise NotImplementedError

    cpdef bint is_sated(self) except -1:
        """Return whether this round has taken enough."""
        return False

    cpdef bint is_full(self) except -1:
        """Return whether so much waits to be taken that nothing more should be read."""
        return False


cdef class EventReceiver(BatchReceiver):
    """Passes batches on as events of a link."""

    def __init__(self, events):
        self.events = events

    cdef int take_batch(self, uint32_t peer, const Part* volatile, const Part* sequenced, list payloads,
                        uint64_t sequence) except -1:
        self.events.batch(peer, view_of(volatile), view_of(sequenced), payloads, sequence)
        return 0


cdef object view_of(const Part* part):
    cdef bytes owner
    cdef Py_ssize_t at
    if part.data == NULL:
        return None
    owner = <bytes>part.owner
    at = part.data - <const uint8_t*>PyBytes_AS_STRING(owner)
    return memoryview(owner)[at:at + <Py_ssize_t>part.size]
