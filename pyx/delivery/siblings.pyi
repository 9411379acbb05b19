"""Messages from the other workers of the host."""

from typing import Any, final

from pyx.matching.interest import WholeInterest

@final
class Siblings:
    """The routing of entries from siblings, and the record of their interest."""

    def set_interest(
        self, peer: int, text: bytes, members: int, group: bytes | None = None, online: int = 0, full: bool = False
    ) -> None: ...
    def set_member(self, peer: int, text: bytes, group: bytes, identity: int, present: bool, since: int) -> None: ...
    def offer_retained(self, place: int, messages: list[Any]) -> None: ...
    def set_ahead(self, place: int, ms: int) -> None: ...
    def begin_interest(self, peer: int) -> WholeInterest: ...
    def forget_unnamed(self, whole: WholeInterest) -> bool: ...
    def ingest(
        self,
        peer: int,
        entries: Any,
        payloads: list[Any],
        used: int = 0,
        at: int = 0,
        position: int = 0,
        taken: int = 0,
        until: int = 0,
    ) -> tuple[int, list[tuple[int, int]] | None, tuple[int, int] | None]: ...
