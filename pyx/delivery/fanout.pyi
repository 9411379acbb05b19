"""Fan-out of a match to its subscribers: one copy for each session, into its outbox and window, or into the log."""

from typing import final

@final
class FanOut:
    """The delivery of the publish in hand to the subscribers of this worker."""
