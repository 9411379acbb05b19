"""Several things that belong together, of which each is done even if another one fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["Steps"]


class Steps:
    """`do` as many as there are, then `finish`: it raises the first error there was."""

    def __init__(self) -> None:
        self._error: Exception | None = None

    def do(self, call: Callable[..., object], *arguments: Any) -> None:
        """Call it."""
        try:
            call(*arguments)
        except Exception as error:  # noqa: BLE001  `finish` raises it
            self._error = self._error or error

    def finish(self) -> None:
        """All are done."""
        if self._error is not None:
            raise self._error
