"""A sibling's complete interest, sent as a snapshot: see the .pxd."""

from typing import final

@final
class WholeInterest:
    """Made by `Siblings.begin_interest`."""

    def __new__(cls, sibling: int, number: int) -> WholeInterest: ...
    @property
    def sibling(self) -> int: ...
    @property
    def number(self) -> int: ...
