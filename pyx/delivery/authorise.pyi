"""Verdicts on whether a client may publish to a topic: cached for each connection and topic."""

from collections.abc import Callable
from typing import Any, final

@final
class Authorise:
    """The verdicts on publishes of the clients of one worker."""

    @property
    def restricts(self) -> bool: ...
    def __init__(self) -> None: ...
    def set_rules(self, decide: Callable[[Any, bytes, int, bool], bool] | None) -> None:
        """Use `decide(session, topic, qos, retain)` from now on, once per cached verdict; None: all publishes are
        allowed. Former verdicts become invalid.
        """
