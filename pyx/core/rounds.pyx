"""What the reactor calls in its rounds, without a call of Python: base classes of what takes part in them."""


cdef class EventHandler:
    """The handler of a descriptor's events, for `watch_in_round`."""

    cdef int ready(self) except -1:
        # the descriptor is readable, or writable if that was asked for
        raise NotImplementedError

    def __call__(self):
        """Handle an event."""
        self.ready()


cdef class RoundPart:
    """Takes part in each round."""

    cdef int begin_round(self) except -1:
        # what the last one has left is taken
        return 0

    cdef int end_reading(self) except -1:
        # all events of the round were read
        return 0

    cdef bint has_more(self) except -1:
        # whether another round is needed without a new event
        return False
