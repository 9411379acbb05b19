# cython: language_level=3
"""What a session has subscribed to, as a list of its own, and what it had subscribed to before: stretches of the log
that are read under former options [MQTT-3.8.4-4]."""
from libc.stdint cimport uint8_t, uint64_t

from pyx.matching.filters cimport Formers, Membership, Memberships

cdef enum:
    SLOT_MASK = 0xFFFFFF                    # of Subscriber.slot_options


cdef int own_reserve(Memberships* own) except -1        # room for one more; OverflowError: no index is left for it
cdef void own_shrink(Memberships* own) noexcept         # after one has left

# behind the others it has; FORMERS_MAX are kept, then the last one grows
cdef int add_former(
    Formers* all_, Membership* member, uint8_t options, uint64_t since, uint64_t up_to
) except -1
cdef void drop_formers(Formers* all_, Membership* member, uint64_t up_to) noexcept      # those that end at or before
