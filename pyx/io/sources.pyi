"""Where connections come from: how many of one source address have not said CONNECT yet, and how fast they come."""

from typing import final

@final
class Source: ...

@final
class Sources:
    """The source addresses of one worker's connections."""

    half_open_max: int
    per_second_max: int
    def __len__(self) -> int: ...
