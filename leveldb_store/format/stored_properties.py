"""Plain decoder of the MQTT 5 properties of a stored message [MQTT 5.0, 2.2.2.2]. The data path uses
`pyx.protocol.properties`; one test compares both on the same bytes.

Importable without the compiled code, like `leveldb_store.format.schema`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from leveldb_store.format.schema import SchemaError

__all__ = ["Properties", "decode_properties"]

_U16 = struct.Struct(">H")
_U32 = struct.Struct(">I")


@dataclass(slots=True)
class Properties:
    """The properties that a PUBLISH may have; Topic Alias is never stored."""

    payload_format_indicator: int | None = None
    message_expiry_interval: int | None = None
    """Seconds, as published."""
    content_type: str | None = None
    response_topic: str | None = None
    correlation_data: bytes | None = None
    subscription_identifiers: tuple[int, ...] = ()
    """Only in messages stored for one session."""
    user_properties: tuple[tuple[str, str], ...] = ()
    """In order; a name may occur more than once."""


def decode_properties(data: bytes) -> Properties:
    """Decode properties in wire form, without their length. Raises SchemaError."""
    found = Properties()
    user: list[tuple[str, str]] = []
    identifiers: list[int] = []
    at = 0
    try:
        while at < len(data):
            identifier, at = data[at], at + 1
            match identifier:
                case 0x01:
                    found.payload_format_indicator, at = data[at], at + 1
                case 0x02:
                    (found.message_expiry_interval,) = _U32.unpack_from(data, at)
                    at += _U32.size
                case 0x03:
                    found.content_type, at = _text(data, at)
                case 0x08:
                    found.response_topic, at = _text(data, at)
                case 0x09:
                    found.correlation_data, at = _binary(data, at)
                case 0x0B:
                    each, at = _varint(data, at)
                    identifiers.append(each)
                case 0x26:
                    name, at = _text(data, at)
                    value, at = _text(data, at)
                    user.append((name, value))
                case _:
                    raise SchemaError(f"a stored message has a property {identifier:#04x}")
    except (IndexError, struct.error, UnicodeDecodeError) as error:
        raise SchemaError(f"the properties of a stored message are damaged: {error}") from None
    found.subscription_identifiers, found.user_properties = tuple(identifiers), tuple(user)
    return found


def _binary(data: bytes, at: int) -> tuple[bytes, int]:
    (length,) = _U16.unpack_from(data, at)
    end = at + _U16.size + length
    if end > len(data):
        raise IndexError("cut off")
    return data[at + _U16.size : end], end


def _text(data: bytes, at: int) -> tuple[str, int]:
    found, end = _binary(data, at)
    return found.decode(), end


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte, at = data[at], at + 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at
