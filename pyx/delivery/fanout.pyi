"""From a match to its subscribers: one copy for each session, into its outbox and window, or into the log."""

from typing import final

@final
class FanOut:
    """Delivers, and keeps what is to be retained."""
