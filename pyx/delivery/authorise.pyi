"""Whether a client may publish to a topic: what was decided is kept for each connection and topic."""

from collections.abc import Callable
from typing import Any, final

@final
class Authorise:
    """What clients of one worker may publish."""

    @property
    def restricts(self) -> bool: ...
    def __init__(self) -> None: ...
    def set_rules(self, decide: Callable[[Any, bytes, int, bool], bool] | None) -> None:
        """`decide(session, topic, qos, retain)` is asked from now on, once for what is kept; None: everybody may. What
        was decided before is void.
        """
