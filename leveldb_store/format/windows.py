"""Format of a session's window: its messages in flight, and the position up to which it has been sent the log.

A window is a record of family V, and if it is large also pages of family U (`leveldb_store.format.schema`;
docs/store.md has the tables). `pyx.delivery.windows` and `pyx.delivery.pages` write the same bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from leveldb_store.format.schema import U16, U64, WINDOW_PAGE, SchemaError

__all__ = [
    "NEVER_SENT", "Page", "Window", "check_page", "decode_window", "encode_window", "has_pages",
    "pages_of", "split_page",
]  # fmt: skip

HEAD: Final = struct.Struct("<QHBHH")
HEAD_1: Final = struct.Struct("<QHHH")
OUT: Final = struct.Struct("<HBBQ")
OUT_OF_PAGE: Final = struct.Struct("<HBBQQ")
SPAN: Final = struct.Struct("<QQ")
FORM_2: Final = 1 << 63
"""The first number in a record whose form version 2 has changed."""
OUT_IN_PAGES: Final = 1
ARRIVED_IN_PAGES: Final = 2
STATES: Final[dict[int, tuple[int, ...]]] = {1: (1,), 2: (2, 3)}
"""The packets that a message may wait for, by its QoS: a PUBACK; a PUBREC, a PUBCOMP."""
OUT_PAGE: Final = 64
"""Packet Identifiers per page of messages in flight."""
ARRIVED_PAGE: Final = 1024

Page = tuple[bytes, bytes]
"""Key and value of a record of family U."""


class Window(NamedTuple):
    """A session's messages in flight, and the parts of the log not sent to it."""

    next_packet_id: int
    out: list[tuple[int, int, int, int]]
    """(Packet Identifier, flags, state, position), in the order in which they were sent."""
    arrived: list[int]
    """Packet Identifiers of QoS 2 publishes without PUBREL."""
    cursor: int = 0
    """The position up to which the session was sent the log."""
    holes: list[tuple[int, int]] = []  # noqa: RUF012  never changed
    """(from behind, up to and including): not sent."""
    absences: list[tuple[int, int]] = []  # noqa: RUF012
    """Ranges in which it was offline, of which it is sent QoS 0 as well."""


NEVER_SENT: Final = Window(1, [], [])
"""The window of a session without a record: it was sent nothing behind the beginnings of its subscriptions."""


def pages_of(client_id: str) -> bytes:
    """Return the prefix of the keys of a session's pages."""
    return WINDOW_PAGE + client_id.encode() + b"\0"


def split_page(key: bytes) -> tuple[str, bytes, int]:
    """Split a page's key into (client id, kind: o or i, number); SchemaError if it is damaged."""
    name, kind = key[1:-4], key[-3:-2]
    if len(key) < 5 or key[-4:-3] != b"\0" or kind not in (b"o", b"i"):
        raise SchemaError("a key of a window's page is damaged")
    return name.decode(), kind, int.from_bytes(key[-2:], "big")


def check_page(key: bytes, value: bytes) -> None:
    """Raise SchemaError if a record of family U is damaged."""
    _, kind, number = split_page(key)
    for _ in _entries(value, number) if kind == b"o" else _identifiers(value, number):
        pass


def encode_window(window: Window) -> bytes:
    """Encode a session's window, all of it in one record."""
    pieces = [HEAD.pack(FORM_2, window.next_packet_id, 0, len(window.out), len(window.arrived))]
    pieces += (OUT.pack(*entry) for entry in window.out)
    pieces += map(U16.pack, window.arrived)
    pieces.append(U64.pack(window.cursor))
    for spans in (window.holes, window.absences):
        pieces.append(U16.pack(len(spans)))
        pieces += (SPAN.pack(*span) for span in spans)
    return b"".join(pieces)


def decode_window(data: bytes, pages: Iterable[Page] = ()) -> Window:
    """Decode a session's window, of either version; SchemaError if it is damaged."""
    try:
        window, flags, at = _decode(data)
    except struct.error as error:
        raise SchemaError(f"a window is cut off: {error}") from None
    if at != len(data):
        raise SchemaError("a window is cut off" if at > len(data) else "a window is damaged")
    _check(window.out)
    out: list[tuple[int, int, int, int, int]] = []
    arrived: list[int] = []
    for key, value in pages:
        _, kind, number = split_page(key)
        if kind == b"o":
            out += _entries(value, number)
        else:
            arrived += _identifiers(value, number)
    if flags & OUT_IN_PAGES:
        in_order = [entry[:4] for entry in sorted(out, key=lambda entry: entry[4])]
        _check(in_order)
        window = window._replace(out=in_order)
    if flags & ARRIVED_IN_PAGES:
        window = window._replace(arrived=arrived)
    return window


def has_pages(data: bytes) -> bool:
    """Whether a record of family V is marked as having pages."""
    return len(data) >= HEAD.size and bool(U64.unpack_from(data)[0] & FORM_2) and data[10] != 0


def _decode(data: bytes) -> tuple[Window, int, int]:
    # (the record's window, its flags, the offset of its end)
    flags, is_new = 0, bool(U64.unpack_from(data)[0] & FORM_2)
    if is_new:
        _, next_packet_id, flags, count_out, count_in = HEAD.unpack_from(data)
        at = HEAD.size
    else:
        _, next_packet_id, count_out, count_in = HEAD_1.unpack_from(data)
        at = HEAD_1.size
    out_end = at + count_out * OUT.size
    in_end = out_end + count_in * U16.size
    (cursor,) = U64.unpack_from(data, in_end)
    out = [(a, b, c, d) for a, b, c, d in OUT.iter_unpack(data[at:out_end])]
    arrived = [each for (each,) in U16.iter_unpack(data[out_end:in_end])]
    at = in_end + U64.size
    spans: list[list[tuple[int, int]]] = []
    for _ in range(2):
        (count,) = U16.unpack_from(data, at)
        end = at + U16.size + count * SPAN.size
        spans.append([(a, z) for a, z in SPAN.iter_unpack(data[at + U16.size : end])])
        at = end
    if not is_new:
        # beginnings of subscriptions made while the session was behind, which their own records have as well
        (count,) = U16.unpack_from(data, at)
        at += U16.size
        for _ in range(count):
            at += U16.size + U16.unpack_from(data, at)[0] + U64.size
    return Window(next_packet_id, out, arrived, cursor, *spans), flags, at


def _check(out: Iterable[tuple[int, int, int, int]]) -> None:
    for packet_id, flags, state, _ in out:
        if not packet_id or state not in STATES.get(flags & 3, ()):
            raise SchemaError("a window has a message without identifier, or in a state that there is not")


def _entries(value: bytes, number: int) -> Iterator[tuple[int, int, int, int, int]]:
    if not value or len(value) % OUT_OF_PAGE.size:
        raise SchemaError("a page of a window is cut off")
    for packet_id, flags, state, position, order in OUT_OF_PAGE.iter_unpack(value):
        if packet_id // OUT_PAGE != number:
            raise SchemaError("a page of a window has an entry of another")
        yield packet_id, flags, state, position, order


def _identifiers(value: bytes, number: int) -> Iterator[int]:
    if len(value) != ARRIVED_PAGE // 8:
        raise SchemaError("a page of a window is cut off")
    for at, byte in enumerate(value):
        for bit in range(8):
            if byte >> bit & 1:
                yield number * ARRIVED_PAGE + at * 8 + bit
