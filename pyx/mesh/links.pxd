# cython: language_level=3
"""The links of one worker: see the .pyx."""
from libc.stdint cimport uint64_t

from pyx.mesh.link cimport Link
from pyx.mesh.receiver cimport BatchReceiver, Receiver


cdef class Links(Receiver):
    cdef readonly dict by_peer
    cdef dict by_number                 # as messages name them
    cdef list links
    cdef object publisher
    cdef public object host_publisher
    cdef public object when_sealed      # called when one of the two has another number
    cdef uint64_t sealed                # their numbers then
    cdef uint64_t host_sealed
    cdef object barrier
    cdef object waiting                 # the barrier's, true while something waits for it
    cdef list flushes                   # of transports that gather what they send
    cdef BatchReceiver batches          # None: they are events of the links
    cdef public object go_on            # of the transport: continue with messages that were left
    cdef readonly uint64_t drain_bytes_max
    cdef double now                     # of this round
    cdef uint64_t rounds
    cdef readonly bint stopped          # some messages were left in this round
    cdef bint heard                     # some were taken
    cdef bint is_due                    # something that was taken may need `flush`
    cdef readonly bint is_idle          # no link waits for its sibling, when last looked at
    cdef readonly uint64_t greetings    # messages that were received
    cdef readonly uint64_t greetings_trusted
    cdef public uint64_t trusted_until_ns   # whoever reads the clock until then knows that there was no pause
    cdef public uint64_t malformed
    cdef public object defect           # called with an exception that nothing else has caught; None: it is raised

    cdef int seal_both(self) except -1
    cpdef bint begin(self, double now) except -1
    cpdef flush(self, double now)
    cpdef bint end_reading(self) except -1
    cpdef send(self)
    cpdef bint look_idle(self, double now) except -1
    cdef bint is_full(self) except -1
    cdef Link of(self, bytes first)
