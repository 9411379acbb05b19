# cython: language_level=3
"""Packet classes for Python, one each. PUBLISH and its acks are C structs (decoders.pxd) on the data path; their
classes here are for tests and tools."""
import cython

from libc.stdint cimport uint8_t, uint16_t, uint32_t


cdef enum PacketType:               # high nibble of the fixed header (MQTT 5, 2.1.2)
    WILL = 0                        # reserved on the wire; used for the Will Properties inside CONNECT in our tables
    CONNECT = 1
    CONNACK = 2
    PUBLISH = 3
    PUBACK = 4
    PUBREC = 5
    PUBREL = 6
    PUBCOMP = 7
    SUBSCRIBE = 8
    SUBACK = 9
    UNSUBSCRIBE = 10
    UNSUBACK = 11
    PINGREQ = 12
    PINGRESP = 13
    DISCONNECT = 14
    AUTH = 15


cdef class Packet:
    pass


@cython.final
cdef class Will(Packet):
    cdef public bytes topic
    cdef public bytes payload
    cdef public uint8_t qos
    cdef public bint retain
    cdef public uint32_t delay_interval     # seconds
    cdef public object expiry_interval      # seconds or None
    cdef public bytes properties            # wire form, no length, no Will Delay Interval: ready to be a PUBLISH's


@cython.final
cdef class Connect(Packet):
    cdef public uint8_t version             # 3, 4, 5
    cdef public str client_id               # may be empty
    cdef public bint clean_start
    cdef public uint16_t keep_alive         # seconds, 0 = off
    cdef public str username                # or None
    cdef public bytes password              # or None
    cdef public Will will                   # or None
    cdef public dict properties             # empty for 3 and 4


@cython.final
cdef class Subscription(Packet):
    cdef public bytes filter                # UTF-8, otherwise unchecked
    # the wire byte: QoS 0x03, No Local 0x04, Retain As Published 0x08, Retain Handling 0x30
    cdef public uint8_t options


@cython.final
cdef class Subscribe(Packet):
    cdef public uint16_t packet_id
    cdef public list filters                # of Subscription, at least one
    cdef public uint32_t identifier         # Subscription Identifier, 0 = none
    cdef public dict properties


@cython.final
cdef class Unsubscribe(Packet):
    cdef public uint16_t packet_id
    cdef public list filters                # of bytes, at least one
    cdef public dict properties


@cython.final
cdef class Disconnect(Packet):
    cdef public uint8_t reason_code
    cdef public dict properties


@cython.final
cdef class Auth(Packet):
    cdef public uint8_t reason_code
    cdef public dict properties


# --- packets that the data path handles without Python objects, and those that only a server sends

@cython.final
cdef class Publish(Packet):
    cdef public bytes topic
    cdef public bytes payload
    cdef public uint8_t qos
    cdef public bint retain
    cdef public bint dup
    cdef public uint16_t packet_id          # 0 at QoS 0
    cdef public dict properties


@cython.final
cdef class Ack(Packet):
    cdef public uint8_t packet_type         # PUBACK, PUBREC, PUBREL, PUBCOMP
    cdef public uint16_t packet_id
    cdef public uint8_t reason_code
    cdef public dict properties


@cython.final
cdef class Connack(Packet):
    cdef public bint session_present
    cdef public uint8_t reason_code         # versions 3 and 4: the return code 0-5
    cdef public dict properties


@cython.final
cdef class Suback(Packet):
    cdef public uint16_t packet_id
    cdef public list codes
    cdef public dict properties


@cython.final
cdef class Unsuback(Packet):
    cdef public uint16_t packet_id
    cdef public list codes                  # empty for versions 3 and 4
    cdef public dict properties


@cython.final
cdef class Pingreq(Packet):
    pass


@cython.final
cdef class Pingresp(Packet):
    pass
