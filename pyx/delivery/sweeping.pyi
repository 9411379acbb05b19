"""What waits for sessions that are behind is looked through: bounds are kept, and what nobody needs is forgotten."""

from typing import final

@final
class Sweeping:
    """Looks through the log of one worker."""

    def sweep(self) -> None: ...
