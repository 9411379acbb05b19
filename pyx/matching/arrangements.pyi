"""Arrangements of wildcards in Topic Filters: `a/+/c` and `x/+/z` have the same one."""

from typing import final

@final
class Arrangements:
    """The arrangements of one set of filters."""

    @property
    def count(self) -> int:
        """Number of arrangements: at most one filter of each matches a topic."""

    def brings(self, text: bytes) -> bool:
        """Return whether this valid Topic Filter (without $share) has wildcards in an arrangement of its own."""

    def __init__(self) -> None: ...
