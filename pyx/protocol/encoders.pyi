from collections.abc import Sequence
from typing import Any, Final

from pyx.protocol.packets import Subscription, Will

PINGREQ_BYTES: Final[bytes]
PINGRESP_BYTES: Final[bytes]

def encode_connack(
    version: int,
    session_present: bool,
    reason_code: int,
    properties: dict[str, Any] | None = None,
    packet_bytes_max: int | None = None,
) -> bytes: ...
def encode_suback(
    version: int,
    packet_id: int,
    codes: list[int],
    properties: dict[str, Any] | None = None,
    packet_bytes_max: int | None = None,
) -> bytes: ...
def encode_unsuback(
    version: int,
    packet_id: int,
    codes: list[int],
    properties: dict[str, Any] | None = None,
    packet_bytes_max: int | None = None,
) -> bytes: ...
def encode_disconnect(
    reason_code: int,
    properties: dict[str, Any] | None = None,
    version: int = 5,
    from_server: bool = True,
    packet_bytes_max: int | None = None,
) -> bytes: ...
def encode_auth(
    reason_code: int,
    properties: dict[str, Any] | None = None,
    from_server: bool = True,
    packet_bytes_max: int | None = None,
) -> bytes: ...
def encode_connect(
    version: int,
    client_id: str,
    clean_start: bool = True,
    keep_alive: int = 0,
    username: str | None = None,
    password: bytes | None = None,
    will: Will | None = None,
    properties: dict[str, Any] | None = None,
) -> bytes: ...
def encode_publish(
    version: int,
    topic: bytes | str,
    payload: bytes = b"",
    qos: int = 0,
    retain: bool = False,
    dup: bool = False,
    packet_id: int = 0,
    properties: dict[str, Any] | None = None,
    from_server: bool = False,
) -> bytes: ...
def encode_ack(
    version: int,
    packet_type: int,
    packet_id: int,
    reason_code: int = 0,
    properties: dict[str, Any] | None = None,
    from_server: bool = False,
    packet_bytes_max: int | None = None,
) -> bytes: ...
def encode_subscribe(
    version: int,
    packet_id: int,
    filters: Sequence[Subscription | tuple[bytes | str, int]],
    properties: dict[str, Any] | None = None,
) -> bytes: ...
def encode_unsubscribe(
    version: int, packet_id: int, filters: Sequence[bytes | str], properties: dict[str, Any] | None = None
) -> bytes: ...
