"""Share groups: each message goes to one member of a group [MQTT 5, 4.8.2]."""

from collections.abc import Callable, Iterator
from typing import Any, final

@final
class Sharing:
    """Chooses members and workers."""

    strategy_of: Callable[[bytes, bytes], int] | None
    def choose_again(
        self, peer: int, tick: int, entries: Any, payloads: list[Any], refusals: list[tuple[int, int]]
    ) -> None: ...
    def choose_again_lost(self, peer: int, tick: int, entries: Any, payloads: list[Any], sent: bool) -> int: ...
    def strategies_changed(self) -> Iterator[None]: ...
    def look_again(self) -> None: ...
