# cython: language_level=3
"""What the reactor calls in its rounds, without a call of Python: see the .pyx."""


cdef class EventHandler:
    cdef int ready(self) except -1


cdef class RoundPart:
    cdef int begin_round(self) except -1
    cdef int end_reading(self) except -1
    cdef bint has_more(self) except -1
