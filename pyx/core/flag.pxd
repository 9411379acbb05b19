# cython: language_level=3
"""A boolean of one byte, for objects that exist once per client: a bint is an int, of four."""


cdef extern from "<stdbool.h>" nogil:
    ctypedef bint flag "bool"
