"""Arrangements of wildcards: `a/+/c` and `x/+/z` have the same one."""

from typing import final

@final
class Arrangements:
    """Those of one set of filters."""

    @property
    def count(self) -> int:
        """How many there are: a topic is matched by at most one filter of each."""

    def brings(self, text: bytes) -> bool:
        """Whether this valid Topic Filter (without $share) has wildcards, arranged as in no other one."""

    def __init__(self) -> None: ...
