"""What a session has had."""

from typing import final

@final
class SeenMessages:
    """The last messages of a session."""

    has_forgotten: bool
