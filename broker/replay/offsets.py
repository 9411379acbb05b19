"""Positions in the archive, in the form of the user property `mqttd-offset`, and times.

A position is `1`, eight digits that identify the archive, and sixteen digits of a message number: everything up to that
number, from every worker, has been delivered. Clients treat it as an opaque string.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Final, NamedTuple

__all__ = ["EARLIEST_NAME", "LOST_NAME", "NAME", "OffsetError", "RequestedStart", "requested_start", "tag_of"]

NAME: Final = "mqttd-offset"
"""Name of the user property in SUBSCRIBE and in PUBLISH."""
EARLIEST_NAME: Final = "mqttd-offset-earliest"
"""In a SUBACK that refuses a position before the log's start: the start."""
LOST_NAME: Final = "mqttd-offset-lost"
"""In the first PUBLISH after a gap: retention has removed the messages between this position and the message's."""

_FORMAT: Final = b"1"
_TAG_BYTES: Final = 4
_DIGITS: Final = 16
_WORKER_BITS: Final = 8
_HIGHEST: Final = 2**64 - 1
# RFC 3339, 5.6: date-time. A space may stand for T there, too
_TIME = re.compile(r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(\.\d+)?([Zz]|[+-]\d\d:\d\d)\Z", re.ASCII)


class OffsetError(Exception):
    """The value is not a position of this archive. The text is one line."""


class RequestedStart(NamedTuple):
    """The requested start of a subscription. With neither field: the earliest message."""

    after: int = 0
    """Begin behind this number."""
    is_position: bool = False
    """Whether it was given as a position: then nothing behind it may be missing."""
    is_latest: bool = False


def tag_of(epoch: str) -> bytes:
    """Return the common prefix of this archive's positions; 9 characters."""
    return _FORMAT + blake2b(epoch.encode(), digest_size=_TAG_BYTES).hexdigest().encode()


def requested_start(values: list[str], tag: bytes, last: int) -> RequestedStart:
    """Parse the values of the user property. `last`: the highest number that a client may have received.

    Raises OffsetError.
    """
    if len(values) != 1:
        raise OffsetError(f"{NAME} is there {len(values)} times")
    (text,) = values
    if text == "earliest":
        return RequestedStart()
    if text == "latest":
        return RequestedStart(is_latest=True)
    if (moment := _time(text)) is not None:
        return RequestedStart(after=min(moment, last)) if moment < last else RequestedStart(is_latest=True)
    begin = tag.decode()
    digits = text[len(begin) :]
    if len(text) != len(begin) + _DIGITS or not re.fullmatch(r"[0-9a-f]+", text, re.ASCII) or text[0] != begin[0]:
        raise OffsetError(f"{NAME} is no position, no RFC 3339 time, and neither earliest nor latest")
    if not text.startswith(begin):
        raise OffsetError(f"{NAME} is a position of another archive")
    number = int(digits, 16)
    if number > last:
        raise OffsetError(f"{NAME} lies behind the end of the archive")
    return RequestedStart(after=number, is_position=True)


def _time(text: str) -> int | None:
    """Return the highest number of a message received before this time; None: not a time."""
    found = _TIME.match(text)
    if found is None:
        return None
    day, clock, fraction, zone = found.groups()
    try:
        moment = datetime.fromisoformat(f"{day}T{clock}{'+00:00' if zone in 'Zz' else zone}").astimezone(UTC)
    except (ValueError, OverflowError):  # the 31st of February; a leap second; before the year 1
        raise OffsetError(f"{NAME} is no time of the calendar") from None
    seconds = int((moment - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds())
    microseconds = seconds * 1_000_000 + int(f"{fraction or '.0'}000000"[1:7])
    return max(0, min((microseconds << _WORKER_BITS) - 1, _HIGHEST))
