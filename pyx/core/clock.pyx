"""The clock of message numbers: hybrid, and one for all workers of a host (docs/adr/0030).

A time is the wall clock in microseconds since 1970, or one more than the highest time given out or heard before,
whichever is later. So a worker's times rise whatever the wall clock does, they follow it forward at once, and a new
number is higher than all that this worker has heard of.

This must not depend on messages between siblings: a client that has its PUBACK from one worker may publish at another
at once, before that one has heard anything. Therefore all workers of a host share a *cell*, eight bytes of memory that
outlive them, with the highest time given out by any. A worker raises it before anything leaves that depends on one of
its times (`tell`: once per tick, before its outboxes and batches are sent), and reads it after each recv (`hear`). A
publish that begins after an ack has arrived is read after that ack was sent:

    worker 1    gives t, raises the cell to t, sends the ack
    client                                                    has the ack, begins to publish
    worker 2                                                                                  recv, reads the cell: t or
                                                                                              more, gives t + 1 or more

The number of any message from a sibling is in the cell before the message arrives, so nothing has to be read from
messages. The numbers in a store (`behind`) are written to the cell with the first tick, before siblings or clients hear
of them.
"""
cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer


@cython.final
cdef class Clock:
    """The clock of one worker. `cell`: 8 writable, aligned bytes shared with its siblings; None: it has none."""

    def __cinit__(self, cell=None):
        self.cell = &self.own
        if cell is not None:
            self.share(cell)

    def share(self, cell not None):
        """Use this cell from now on."""
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
        """Make all further times higher than this one: they rise over the life of a store, also when the clock was set
        back."""
        if t > self.last:
            self.last = t

    @property
    def ms(self):
        """Milliseconds since 1970: the time of a number given out now. It never goes back."""
        return (self.us if self.us > self.last else self.last) // 1000
