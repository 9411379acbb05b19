"""Sessions that are behind: offline, or without room in their window or outbox."""

from typing import final

@final
class Backlog:
    """Serves."""

    def serve_ready(self) -> None: ...
