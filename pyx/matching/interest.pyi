"""A sibling's complete interest, sent as a snapshot: see the .pxd."""

from collections.abc import Iterator
from typing import final

from pyx.matching.subscriptions import Subscriptions

_Wanted = tuple[bytes, None] | tuple[bytes, bytes, int, int]

def interest_of(subscriptions: Subscriptions, workers: int) -> Iterator[list[_Wanted]]: ...

@final
class WholeInterest:
    """Made by `Siblings.begin_interest`."""

    def __new__(cls, sibling: int, number: int) -> WholeInterest: ...
    @property
    def sibling(self) -> int: ...
    @property
    def number(self) -> int: ...
