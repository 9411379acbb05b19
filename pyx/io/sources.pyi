"""Limits per source address: connections without an answered CONNECT (half open), and connections per second."""

from typing import final

@final
class Source: ...

@final
class Sources:
    """The source addresses of one worker's connections."""

    half_open_max: int
    per_second_max: int
    def __len__(self) -> int: ...
