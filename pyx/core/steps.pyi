"""Several calls that are all made even if one of them fails: see the .pyx."""

from collections.abc import Callable
from typing import Any, final

@final
class Steps:
    """Call `do` for each step, then `finish`, which raises the first error."""

    def __new__(cls) -> Steps: ...
    def do(self, call: Callable[..., object], *arguments: Any) -> None: ...
    def finish(self) -> None: ...
