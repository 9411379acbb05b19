# cython: language_level=3
"""Several calls that are all made even if one of them fails.

Compiled because each connection's end has half a dozen: in Python that took 2.5 of the 45 us of a client that
connects and disconnects.
"""
cimport cython


@cython.final
@cython.auto_pickle(False)
cdef class Steps:
    cdef object error

    def do(self, call, *arguments):
        """Make the call."""
        try:
            call(*arguments)
        except Exception as error:
            if self.error is None:
                self.error = error

    def finish(self):
        """Raise the first error of all calls."""
        if self.error is not None:
            raise self.error
