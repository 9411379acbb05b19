# cython: language_level=3
"""An Outbox as a Python object, for the tests alone."""
from libc.stdint cimport uint32_t, uint8_t
from libc.string cimport memcpy, memset

from pyx.core.outbox cimport (
    Outbox, iovec, outbox_clear, outbox_gather, outbox_reserve, outbox_sent, outbox_share,
)


cdef class OutboxAdapter:
    cdef Outbox out

    def __cinit__(self):
        memset(&self.out, 0, sizeof(Outbox))

    def __dealloc__(self):
        outbox_clear(&self.out)

    def copy(self, bytes data not None, bint qos0=False):
        self.out.qos0 += qos0
        memcpy(outbox_reserve(&self.out, <uint32_t> len(data)), <const char*> data, len(data))

    def share(self, bytes data not None):
        outbox_share(&self.out, <const uint8_t*> <const char*> data, <uint32_t> len(data), data)

    def gather(self, int vectors):
        """The bytes that so many iovecs show, and what the call says they sum up to."""
        cdef iovec[64] v
        cdef size_t total = 0
        cdef int i, n = outbox_gather(&self.out, v, vectors, &total)
        return [(<char*> v[i].iov_base)[:v[i].iov_len] for i in range(n)], total

    def sent(self, size_t n):
        return outbox_sent(&self.out, n)

    def clear(self):
        outbox_clear(&self.out)

    @property
    def qos0(self):
        return self.out.qos0

    @property
    def pending(self):
        return self.out.pending

    @property
    def capacity(self):
        return self.out.cap

    @property
    def holds_memory(self):
        return self.out.buf is not NULL or self.out.shared is not NULL
