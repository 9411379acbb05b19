"""Sessions that are behind: offline, or without room in their window or outbox."""

from typing import final

@final
class Backlog:
    """The delivery of waiting messages to sessions that are behind."""

    def serve_ready(self) -> None: ...
