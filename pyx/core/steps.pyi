"""Several things of which each is done even if another one fails: see the .pyx."""

from collections.abc import Callable
from typing import Any, final

@final
class Steps:
    """`do` as many as there are, then `finish`: it raises the first error there was."""

    def __new__(cls) -> Steps: ...
    def do(self, call: Callable[..., object], *arguments: Any) -> None: ...
    def finish(self) -> None: ...
