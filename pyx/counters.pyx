"""One table of counters and drop reasons. A new counter is one line in counters.pxd."""
cimport cython
from libc.string cimport memset
from cpython.buffer cimport PyObject_GetBuffer, PyBuffer_Release, PyBUF_SIMPLE, PyBUF_WRITABLE

ROW_BYTES = 8192


_by_value = None


def names():
    """The counters' names in the order of the table (the constants are attributes of this module from its import
    on)."""
    global _by_value
    if _by_value is None:
        table = {value: name for name, value in globals().items() if name.isupper() and type(value) is int}
        _by_value = tuple(table[i].lower() for i in range(COUNTERS_END))
    return _by_value


def __getattr__(name):
    if name == "NAMES":
        return names()
    raise AttributeError(name)


if <int>COUNTERS_END > <int>PLACES or PLACES * sizeof(uint64_t) != ROW_BYTES:
    raise ImportError("the counter table is longer than a row")


@cython.final
cdef class Row:
    """A row of uint64 counters. ``Row()`` owns its memory; ``Row(buffer)`` writes into `buffer` (at least ROW_BYTES
    long)."""

    def __cinit__(self, buffer=None):
        cdef Py_buffer view
        memset(self.own, 0, sizeof(self.own))
        self.at = self.own
        self.owner = None
        if buffer is not None:
            PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE | PyBUF_WRITABLE)
            if view.len < <Py_ssize_t>(COUNTERS_END * sizeof(uint64_t)):
                PyBuffer_Release(&view)
                raise ValueError("counter row too short")
            self.at = <uint64_t*>view.buf
            self.owner = buffer             # keeps the mapping; the export itself may end
            PyBuffer_Release(&view)

    def __getitem__(self, str name):
        return self.at[names().index(name)]

    def get(self, int counter):
        """The value at an index of the table."""
        if not 0 <= counter < COUNTERS_END:
            raise IndexError(counter)
        return self.at[counter]

    def set(self, int counter, uint64_t value):
        """Set a gauge."""
        if not 0 <= counter < COUNTERS_END:
            raise IndexError(counter)
        self.at[counter] = value

    def add(self, int counter, uint64_t n=1):
        """Add to a counter."""
        if not 0 <= counter < COUNTERS_END:
            raise IndexError(counter)
        self.at[counter] += n

    def as_dict(self):
        """name -> value of every counter."""
        return {name: self.at[i] for i, name in enumerate(names())}
