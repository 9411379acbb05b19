"""The publish in hand: the one that is being routed."""

from typing import final

@final
class PublishInHand:
    """The publish that is being routed: its content, the frames made of it, and its recipients."""
