from typing import Final

from typing_extensions import disjoint_base

FIGURES: Final[tuple[str, ...]]
HISTOGRAMS: Final[tuple[str, ...]]
HISTOGRAM_FIRST: Final[int]
HISTOGRAM_PLACES: Final[int]
ROW_PLACES: Final[int]
PAYLOAD_BYTES_MIN: Final[int]

def place_value(place: int) -> int: ...

@disjoint_base
class Ledger:
    def was_missing(self, number: int, publisher: int, sequence: int) -> bool: ...
    def seen_of(self, publisher: int) -> bytes: ...
