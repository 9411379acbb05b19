"""The messages by which a session moves between hosts (`broker.worker.moves`): their kinds and contents.

    GIVE        u64 epoch, u8 what is wanted (`GiveKind`)
    STATE       head of a part; first the terms of the session, then its subscriptions
    PAGE, LATE  head of a part; records of `pyx.delivery.moving`
    GO_ON, DONE u8: 1 if all hosts know the subscriptions of the sender's session, 0 if one is away
    others      nothing

Version 1; a part of another version is refused.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from pyx.protocol.packets import Subscription
from pyx.protocol.topics import parse_share, wrong_filter

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "ALL_THERE",
    "CANCEL",
    "DONE",
    "GIVE",
    "GIVE_TERMS",
    "GO_ON",
    "LAST",
    "LAST_FOR_NOW",
    "LATE",
    "MORE",
    "NOTHING",
    "ONE_AWAY",
    "PAGE",
    "PAGE_BYTES",
    "STATE",
    "GiveKind",
    "PartHead",
    "SessionTerms",
    "decode_subscriptions",
    "encode_subscription",
    "split_named",
]

GIVE: Final = b"G"
NOTHING: Final = b"N"
STATE: Final = b"S"
GO_ON: Final = b"C"
PAGE: Final = b"P"
CANCEL: Final = b"X"
LATE: Final = b"L"
DONE: Final = b"D"

ALL_THERE: Final = b"\x01"
ONE_AWAY: Final = b"\x00"
PAGE_BYTES: Final = 64 << 10
GIVE_TERMS: Final = struct.Struct("<QB")
MORE: Final = 0
LAST: Final = 1
LAST_FOR_NOW: Final = 2
"""Of a PAGE or LATE: a host is away that may have more for this session, which will be handed over."""
_PART: Final = struct.Struct("<IBqQ?QQ")
_TIME_MAX: Final = 1 << 50
"""ms: further away than any clock is."""
_FORMAT: Final = 1
_TERMS: Final = struct.Struct("<BBIQBQI")
"""Format, MQTT version, Session Expiry Interval, beginning, whether that was clean, ms since its client has gone, bytes
of the user name + 1.
"""
_SUBSCRIPTION: Final = struct.Struct("<HBI")
"""Bytes of the filter as the client named it, options, Subscription Identifier."""
_IDENTIFIER_MAX: Final = 268_435_455
_RETAIN_HANDLING: Final = 0x30
_NEVER_RETAINED: Final = 0x20


class GiveKind(IntEnum):
    """What a host wants of the session of a client id that it is about to take."""

    SESSION = 0
    OFFERED = 1
    """The session: it was offered (`broker.worker.draining`), and no client waits for it."""
    NOTHING = 2
    """Its client starts anew. It is held until it is heard, or found out, who owns the client id."""


class PartHead(NamedTuple):
    """Of a STATE, PAGE or LATE.

    number: of the part. place: MORE, LAST or LAST_FOR_NOW. wall_ms: the sender's Unix time. began: when the session
    began, Unix time in ms. is_left_behind: the session has moved before (`broker.worker.giving`). absent_from,
    absent_until: the numbers of messages between them are of a time when the sender did not run.
    """

    number: int
    place: int
    wall_ms: int
    began: int
    is_left_behind: bool
    absent_from: int
    absent_until: int

    def encode(self) -> bytes:
        """Return the head as bytes."""
        return _PART.pack(*self)

    @classmethod
    def decode(cls, part: bytes) -> tuple[PartHead, bytes]:
        """Return the head of a part, and the rest. Raises ValueError, struct.error."""
        head = cls(*_PART.unpack_from(part))
        if head.place > LAST_FOR_NOW or abs(head.wall_ms) > _TIME_MAX or head.began > _TIME_MAX:
            raise ValueError("the head of a part of a session is damaged")
        return head, part[_PART.size :]


class SessionTerms(NamedTuple):
    """version: of MQTT. expiry: Session Expiry Interval. began: Unix time in ms of its first CONNECT. began_clean: that
    had Clean Start. gone_ms: time since its client was connected.
    """

    version: int
    expiry: int
    began: int
    began_clean: bool
    gone_ms: int
    username: str | None

    def encode(self) -> bytes:
        """Return the terms as bytes."""
        name = (self.username or "").encode()
        length = 0 if self.username is None else len(name) + 1
        numbers = self.version, self.expiry, self.began, self.began_clean, self.gone_ms
        return _TERMS.pack(_FORMAT, *numbers, length) + name

    @classmethod
    def decode(cls, part: bytes) -> tuple[SessionTerms, bytes]:
        """Return the terms with which a part begins, and the rest. Raises ValueError, struct.error."""
        form, version, expiry, began, clean, gone, length = _TERMS.unpack_from(part)
        if form != _FORMAT:
            raise ValueError(f"the state of a session has format {form}, this release reads {_FORMAT}")
        if version not in (3, 4, 5) or began > _TIME_MAX or gone > _TIME_MAX:
            raise ValueError("the terms of a session are damaged")
        at = _TERMS.size + max(0, length - 1)
        if at > len(part):
            raise ValueError("the state of a session is cut off")
        username = part[_TERMS.size : at].decode() if length else None
        return cls(version, expiry, began, bool(clean), gone, username), part[at:]


def split_named(named: bytes) -> tuple[bytes | None, bytes]:
    """Return (share group or None, Topic Filter) of a subscription as its client named it."""
    share = parse_share(named) if named.startswith(b"$share/") else None
    return (None, named) if share is None else share


def encode_subscription(named: bytes, options: int, identifier: int) -> bytes:
    """Return one subscription as bytes."""
    return _SUBSCRIPTION.pack(len(named), options, identifier) + named


def decode_subscriptions(part: bytes) -> Iterable[tuple[Subscription, int]]:
    """Yield subscriptions that ask for no retained messages, because their client has been sent these; each with its
    Subscription Identifier. Raises ValueError, struct.error.
    """
    at = 0
    while at < len(part):
        length, options, identifier = _SUBSCRIPTION.unpack_from(part, at)
        at += _SUBSCRIPTION.size + length
        named = part[at - length : at]
        if at > len(part) or identifier > _IDENTIFIER_MAX or options & 3 == 3 or wrong_filter(named, 5) is not None:
            raise ValueError("a subscription is damaged")
        options = options & ~_RETAIN_HANDLING | _NEVER_RETAINED
        yield Subscription(named, options), identifier
