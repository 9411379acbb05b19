"""The bounds of the data path: a plain struct, filled from the settings."""

from collections.abc import Sequence
from typing import final

@final
class Limits:
    """The fields are those of limits.pxd."""

    def __getattr__(self, name: str) -> int: ...
    def __setattr__(self, name: str, value: float, /) -> None: ...
    def settle(self, queue_full: str = "drop_newest", rules: Sequence[tuple[str, int, int]] = ()) -> None: ...
