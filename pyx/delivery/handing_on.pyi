"""Handing on of messages that a member of a share group did not take."""

from typing import Any, final

@final
class HandingOn:
    """Another choice of a member, here or on another worker."""

    def choose_again(
        self, peer: int, tick: int, entries: Any, payloads: list[Any], refusals: list[tuple[int, int]]
    ) -> None: ...
    def choose_again_lost(self, peer: int, tick: int, entries: Any, payloads: list[Any], sent: bool) -> int: ...
