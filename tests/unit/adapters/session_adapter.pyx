# cython: language_level=3
"""A session's tables as Python sees them, for the tests alone."""
from cpython.ref cimport PyObject, Py_INCREF
from libc.stdint cimport uint16_t, uint32_t, uint8_t

from pyx.delivery.session cimport SHARED_COPY, WAIT_PUBACK, Session
from pyx.protocol.message cimport Message


def open_slot(Session session not None, Message message=None):
    """The Packet Identifier of a new slot."""
    slot = session.open_slot()
    slot.state = WAIT_PUBACK
    if message is not None:
        Py_INCREF(message)
        slot.message = <PyObject*> message
    return slot.packet_id, slot.order


def release(Session session not None, uint16_t packet_id):
    """False: there is none."""
    slot = session.slot(packet_id)
    if slot is NULL:
        return False
    session.release(slot)
    return True


def arrive(Session session not None, uint16_t packet_id):
    return bool(session.arrive(packet_id))


def leave(Session session not None, uint16_t packet_id):
    return bool(session.leave(packet_id))


def enqueue(Session session not None, Message message not None, bytes identifiers=None, uint8_t flags=0, uint32_t group=0):
    session.enqueue(message, <PyObject*> identifiers if identifiers is not None else NULL, flags, group, 0, 0)


def take_queued(Session session not None, uint32_t group):
    return session.take_queued(group, SHARED_COPY)


def dequeue(Session session not None):
    """(message, identifiers, flags) of the first."""
    entry = session.queue[session.queue_head]
    first = (<object> entry.message, <object> entry.identifiers if entry.identifiers is not NULL else None, entry.flags)
    session.dequeue()
    return first


def queue_bytes(Session session not None):
    return session.queue_bytes


def clear(Session session not None):
    session.clear()
    session.inflight = 0
