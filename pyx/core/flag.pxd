# cython: language_level=3
"""A yes or no of one byte, for objects of which there is one for each client: a bint is an int, of four."""


cdef extern from "<stdbool.h>" nogil:
    ctypedef bint flag "bool"
