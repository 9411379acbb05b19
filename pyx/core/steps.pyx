# cython: language_level=3
"""Several things that belong together, of which each is done even if another one fails.

Compiled because the end of every connection has half a dozen: in Python that took 2.5 of the 45 us of a client that
comes and goes.
"""
cimport cython


@cython.final
@cython.auto_pickle(False)
cdef class Steps:
    cdef object error

    def do(self, call, *arguments):
        """Call it."""
        try:
            call(*arguments)
        except Exception as error:
            if self.error is None:
                self.error = error

    def finish(self):
        """All are done: raise the first error there was."""
        if self.error is not None:
            raise self.error
