# cython: language_level=3
"""SeenMessages, with its marks chosen, for the tests alone."""
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from pyx.delivery.seen_messages cimport SEEN_ALL_MAX, SEEN_MAX, SeenMessages, mark_of
from pyx.protocol.message cimport Message

HALF = SEEN_MAX
ALL = SEEN_ALL_MAX


def make():
    return SeenMessages.__new__(SeenMessages)


def add(SeenMessages seen not None, uint64_t first, uint64_t after):
    """Add these marks; return how many were new."""
    cdef uint64_t mark
    cdef int new = 0
    for mark in range(first, after):
        new += not seen.is_again(mark)
    return new


def has(SeenMessages seen not None, uint64_t mark):
    return seen.has(mark)


def packed(SeenMessages seen not None):
    return seen.packed()


def unpack(SeenMessages seen not None, bytes marks not None):
    seen.unpack(<const uint8_t*><const char*>marks, <uint32_t>len(marks))


def mark(Message message not None):
    return mark_of(&message.content)
