# cython: language_level=3
"""The two ends of the mesh's connections: see the .pyx."""
from libc.stdint cimport uint64_t

from pyx.mesh.connection cimport ReceiveBuffer, ZmtpConnection


cdef class Push:
    cdef str path
    cdef object watcher
    cdef object when_writable
    cdef ReceiveBuffer buffer
    cdef ZmtpConnection connection      # None: to be made
    cdef readonly bint is_refused       # a message was, since the last `when_writable`
    cdef uint64_t retry_ms              # when the connection is made again
    cdef uint64_t pause_ms              # from that attempt to the next one

    cpdef bint send(self, list frames) except -1
    cpdef flush(self)
    cdef connect(self)
