# cython: language_level=3
"""Memberships: the list of a session's subscriptions, and their former options with the ranges of the log that are
still read by these [MQTT-3.8.4-4]."""
from libc.stdint cimport uint8_t, uint64_t

from pyx.matching.filters cimport Formers, Membership, Memberships

cdef enum:
    SLOT_MASK = 0xFFFFFF                    # slot bits of Subscriber.slot_options


cdef int own_reserve(Memberships* own) except -1        # makes room for one more; OverflowError: no slot is left
cdef void own_shrink(Memberships* own) noexcept         # call it after a removal

# appends a range to those of the membership; beyond FORMERS_MAX the last one grows instead
cdef int add_former(
    Formers* all_, Membership* member, uint8_t options, uint64_t since, uint64_t up_to
) except -1
# removes ranges that end at or before up_to
cdef void drop_formers(Formers* all_, Membership* member, uint64_t up_to) noexcept
