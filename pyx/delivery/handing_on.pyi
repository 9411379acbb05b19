"""What one member of a share group did not take, another one is given."""

from typing import Any, final

@final
class HandingOn:
    """To another member, here or elsewhere."""

    def choose_again(
        self, peer: int, tick: int, entries: Any, payloads: list[Any], refusals: list[tuple[int, int]]
    ) -> None: ...
    def choose_again_lost(self, peer: int, tick: int, entries: Any, payloads: list[Any], sent: bool) -> int: ...
