"""The sending side of a link."""

from collections import deque
from collections.abc import Callable
from typing import Any, final

@final
class Outgoing:
    """The sending side of one link."""

    send: Callable[[list[Any]], bool]
    @property
    def is_open(self) -> bool: ...
    @property
    def away(self) -> bool: ...
    @property
    def full(self) -> bool: ...
    @property
    def frame(self) -> int: ...
    @property
    def waiting(self) -> deque[tuple[Any, list[Any], int]]: ...
    @property
    def flight(self) -> deque[tuple[int, int]]: ...
    def acknowledge(self) -> None: ...
