# cython: language_level=3
"""The encoder of acks for the data path: see the .pyx for all others."""
from libc.stdint cimport uint8_t, uint16_t

from pyx.protocol.packets cimport PUBREL
from pyx.protocol.wire cimport put_u16


# Writes a PUBACK, PUBREC, PUBREL or PUBCOMP: 4 bytes, 5 for v5 with a reason other than 0. Returns the end.
cdef inline uint8_t* put_ack(
    uint8_t* p, uint8_t packet_type, uint16_t packet_id, uint8_t reason, bint v5
) noexcept nogil:
    p[0] = <uint8_t>(packet_type << 4) | (2 if packet_type == PUBREL else 0)
    p[1] = 2
    put_u16(p + 2, packet_id)
    if not v5 or reason == 0:
        return p + 4
    p[1] = 3
    p[4] = reason
    return p + 5
