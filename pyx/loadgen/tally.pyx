"""Counts of finished requests, for the reports of a load test."""
cimport cython
from libc.stdint cimport uint32_t


@cython.final
cdef class Tally:
    """Successful requests of one type and name that were not reported yet."""

    def __init__(self, str request_type not None, str name not None):
        self.request_type = request_type
        self.name = name
        self._times = []
        self._lengths = []

    cpdef add(self, ms, uint32_t length):
        """Add one request: milliseconds (None: it has no duration), and bytes."""
        self._times.append(ms)
        self._lengths.append(length)

    def take(self):
        """Return (times, lengths) of all since the last call."""
        taken = self._times, self._lengths
        if taken[0]:
            self._times, self._lengths = [], []
        return taken
