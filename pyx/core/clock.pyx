"""The clock that message numbers come from: hybrid, and one for all workers of a host (docs/adr/0030).

A time is microseconds since 1970 as the wall clock says them, or one more than the highest time that was given or heard
before, whichever is later. So times of a worker rise whatever the wall clock does, they follow it forward at once, and
what is numbered here is newer than all that this worker has heard of.

What it hears of must not depend on what its siblings send it: a client that has its PUBACK from one worker may publish
at another at once, before that one has heard anything. Therefore all workers of a host share a *cell*, eight bytes of
memory that outlive them: the highest time that anybody has given. A worker raises it before anything leaves that one of
its times is the cause of (`tell`: once for each tick, before its outboxes are sent and its batches leave), and reads it
after each recv (`hear`). Whoever begins to send after an ack has come is read after the ack was sent:

    worker 1    gives t, raises the cell to t, sends the ack
    client                                                    has the ack, begins to publish
    worker 2                                                                                  recv, reads the cell: t or
                                                                                              more, gives t + 1 or more

Whatever a sibling numbered and sent is in the cell before it arrives, so nothing has to be read from messages. What a
store has (`behind`) is told with the first tick, before siblings or clients hear of it.
"""
cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer


@cython.final
cdef class Clock:
    """Of one worker. `cell`: 8 writable bytes that it shares with its siblings, aligned; None: it has none."""

    def __cinit__(self, cell=None):
        self.cell = &self.own
        if cell is not None:
            self.share(cell)

    def share(self, cell not None):
        """From now on the cell is this one."""
        cdef Py_buffer view
        PyObject_GetBuffer(cell, &view, PyBUF_SIMPLE | PyBUF_WRITABLE)
        if view.len != sizeof(uint64_t) or <size_t>view.buf % sizeof(uint64_t):
            PyBuffer_Release(&view)
            raise ValueError("a cell is 8 bytes, aligned")
        self.cell = <uint64_t*>view.buf
        self.owner = cell                       # keeps the mapping; the export itself may end
        self.told = 0
        PyBuffer_Release(&view)

    def behind(self, uint64_t t):
        """Times rise over the life of a store, also when the clock was put back: from now on they are above this
        one."""
        if t > self.last:
            self.last = t

    @property
    def ms(self):
        """Milliseconds since 1970: the time that a number would have now. It never goes back."""
        return (self.us if self.us > self.last else self.last) // 1000
