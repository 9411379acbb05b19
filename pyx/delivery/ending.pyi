"""How sessions end: see the .pyx."""

from typing import final

@final
class Remains:
    """What sessions that have ended, or subscriptions that have, are still to be cleared of."""

    def __new__(cls) -> Remains: ...
    def __len__(self) -> int: ...
