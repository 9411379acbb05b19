"""Positions in the archive, in the form of the user property `mqttd-offset`, and times.

Clients treat a position as an opaque string. It has one of two forms:

    1   eight digits that identify an archive, sixteen of a message number: everything in this archive up to that
        number, from every worker of its host, has been delivered. A host without a cluster writes it
    h1  the same for the archives of several hosts, each: `+` or `-`, six digits of the number of its host in the
        cluster, eight that identify its archive, sixteen of a message number. `-`: the client knows that this host is
        away, and takes what it has when it is back

Digits are hexadecimal. A position is never longer than 64 hosts need.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from hashlib import blake2b
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "EARLIEST_NAME",
    "FORM_OF_HOSTS",
    "HOSTS_MAX",
    "LOST_NAME",
    "NAME",
    "UNKNOWN",
    "WITHOUT_NAME",
    "HostPosition",
    "OffsetError",
    "RequestedStart",
    "before",
    "head_of",
    "requested_start",
    "tag_of",
    "write_positions",
]

NAME: Final = "mqttd-offset"
"""Name of the user property in SUBSCRIBE and in PUBLISH."""
EARLIEST_NAME: Final = "mqttd-offset-earliest"
"""In a SUBACK that refuses a position before the log's start: the start."""
LOST_NAME: Final = "mqttd-offset-lost"
"""In the first PUBLISH after a gap: retention has removed the messages between this position and the message's."""

WITHOUT_NAME: Final = "mqttd-offset-without"
"""In a SUBACK that refuses a position because a host is away: the same one, which takes what that host has later."""
HOSTS_MAX: Final = 64
"""Hosts in one position: as many as a worker has places for peers."""

UNKNOWN: Final = b"100000000"
"""The tag (`tag_of`) of a host's archive as long as it is not known."""
_FORMAT: Final = b"1"
FORM_OF_HOSTS: Final = "h1"
"""What a position of the second form begins with."""
_ENTRY: Final = re.compile(r"([+-])([0-9a-f]{6})([0-9a-f]{8})([0-9a-f]{16})", re.ASCII)
_ENTRY_LENGTH: Final = 31
_TAG_BYTES: Final = 4
_DIGITS: Final = 16
_WORKER_BITS: Final = 8
_CLOCKS_APART: Final = 60_000_000 << _WORKER_BITS
_HIGHEST: Final = 2**64 - 1
# RFC 3339, 5.6: date-time. A space may stand for T there, too
_TIME = re.compile(r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(\.\d+)?([Zz]|[+-]\d\d:\d\d)\Z", re.ASCII)


class OffsetError(Exception):
    """The value is not a position of this archive. The text is one line."""


class HostPosition(NamedTuple):
    """The part of a position that concerns the archive of one host."""

    tag: bytes
    """What `tag_of` returns for it."""
    host: int
    """Number of the host in its cluster; 0: not known."""
    number: int
    """Everything up to this message number was delivered."""
    waits: bool = False
    """Whether the client knows that the host is away."""


class RequestedStart(NamedTuple):
    """The requested start of a subscription. With no field: the earliest message."""

    after: int = 0
    """Begin behind this number, in all archives."""
    positions: tuple[HostPosition, ...] = ()
    """It was given as a position of these archives: then nothing behind it may be missing."""
    is_latest: bool = False

    @property
    def is_position(self) -> bool:
        """Whether it was given as a position."""
        return bool(self.positions)


def tag_of(epoch: str) -> bytes:
    """Return the common prefix of this archive's positions of the first form; 9 characters."""
    return _FORMAT + blake2b(epoch.encode(), digest_size=_TAG_BYTES).hexdigest().encode()


def before(number: int) -> int:
    """Return a number that is lower by as much as the clocks of hosts may differ: a minute."""
    return max(0, number - _CLOCKS_APART)


def head_of(position: HostPosition) -> bytes:
    """Return what stands before the message number of a host in a position of the second form."""
    return b"%c%06x%s" % (b"-"[0] if position.waits else b"+"[0], position.host, position.tag[1:])


def write_positions(positions: Sequence[HostPosition]) -> str:
    """Return a position of the second form."""
    return FORM_OF_HOSTS + "".join(f"{head_of(each).decode()}{each.number:016x}" for each in positions)


def requested_start(values: list[str], tag: bytes, last: int) -> RequestedStart:
    """Parse the values of the user property. tag: of this host's archive; empty: it has none. last: the highest number
    that a client may have received of it.

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
    positions = _of_hosts(text) if text.startswith(FORM_OF_HOSTS) else _of_one(text, tag)
    for position in positions:
        if position.tag == tag and position.number > last:
            raise OffsetError(f"{NAME} lies behind the end of the archive")
    return RequestedStart(positions=positions)


def _of_one(text: str, tag: bytes) -> tuple[HostPosition, ...]:
    begin = tag.decode()
    digits = text[len(begin) :]
    if len(text) != len(_FORMAT) + 2 * _TAG_BYTES + _DIGITS or not re.fullmatch(r"1[0-9a-f]+", text, re.ASCII):
        raise OffsetError(f"{NAME} is no position, no RFC 3339 time, and neither earliest nor latest")
    if not begin or not text.startswith(begin):
        raise OffsetError(f"{NAME} is a position of another archive")
    return (HostPosition(tag, 0, int(digits, 16)),)


def _of_hosts(text: str) -> tuple[HostPosition, ...]:
    begin = len(FORM_OF_HOSTS)
    count, rest = divmod(len(text) - begin, _ENTRY_LENGTH)
    found = [_ENTRY.fullmatch(text, at, at + _ENTRY_LENGTH) for at in range(begin, len(text), _ENTRY_LENGTH)]
    if rest or not count:
        raise OffsetError(f"{NAME} is cut off")
    if count > HOSTS_MAX:
        raise OffsetError(f"{NAME} names {count} hosts, more than {HOSTS_MAX}")
    positions = []
    for entry in found:
        if entry is None:
            raise OffsetError(f"{NAME} is damaged")
        flag, host, tag, number = entry.groups()
        positions.append(HostPosition(_FORMAT + tag.encode(), int(host, 16), int(number, 16), flag == "-"))
    if len({(each.tag, each.host if each.tag == UNKNOWN else 0) for each in positions}) != count:
        raise OffsetError(f"{NAME} names an archive twice")
    return tuple(positions)


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
