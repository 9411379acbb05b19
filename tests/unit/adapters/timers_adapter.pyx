# cython: language_level=3
"""TimerNodes as Python objects, for the tests alone: what a connection or a session does with its own."""
from libc.stdint cimport uint8_t, uint64_t

from pyx.core.timers cimport TimerNode, TimerWheel
from pyx.delivery.connection cimport Connection


cdef class Timed:
    cdef TimerNode node
    cdef readonly object name

    def __cinit__(self, name, uint8_t kind=0):
        self.name = name
        self.node.kind = kind
        self.node.owner = <void*> self

    @property
    def scheduled(self):
        return self.node.prev is not NULL


def schedule(TimerWheel wheel, Timed timed, uint64_t deadline_ms):
    wheel.schedule(&timed.node, deadline_ms)


def cancel(TimerWheel wheel, Timed timed):
    wheel.cancel(&timed.node)


def expired(TimerWheel wheel, uint64_t now_ms):
    """One turn: the names of those whose time has come."""
    cdef list names = []
    cdef TimerNode* node = wheel.expired(now_ms)
    while node is not NULL:
        names.append((<Timed> node.owner).name)
        node = wheel.expired(now_ms)
    return names


def keep_alive_of(Connection conn not None):
    """(when the last packet was heard, when the connection's timer expires), in ms."""
    return conn.heard, conn.timer.deadline
