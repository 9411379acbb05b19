"""Counting of a callback's work in steps, in test builds only: see the .pxd."""

from collections.abc import Callable
from typing import Any, Final, TypeVar

_F = TypeVar("_F", bound=Callable[..., Any])

NAMES: Final[tuple[str, ...]]
"""Names of the kinds of callbacks, in order."""
COUNTED: Final[bool]
"""Whether this is a test build."""
BOUND: Final[int]
"""ns of work that no callback may exceed."""
STEP: Final[int]
"""ns of a step of a loop in Python, with the calls in it."""
SOUGHT: Final[int]
"""ns of a seek in LevelDB."""
BLOCK_READ: Final[int]
"""ns of a block that is read from there."""
INDEXED: Final[int]
"""ns of a read or update of an index of the log in memory."""
FOUND: Final[int]
"""ns of a Topic Filter that is found, inserted or removed."""
PACKED: Final[int]
"""ns of a message that is packed or unpacked."""
HELD: Final[int]
"""ns of a Python object that compiled code creates, looks up or releases."""

def spend(ns: int) -> None: ...
def callback(name: str) -> Callable[[_F], _F]: ...
def total() -> int: ...
def highest() -> dict[str, int]: ...
def whole() -> dict[str, int]: ...
def longest() -> dict[str, int]: ...
def over() -> dict[str, tuple[int, str | None]]: ...
def forget() -> None: ...
