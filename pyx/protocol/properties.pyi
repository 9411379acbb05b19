from typing import Any, Final

# (identifier, name, type, packet types by the client, by the server, repeatable in, least value, greatest value)
TABLE: Final[tuple[tuple[int, str, int, tuple[int, ...], tuple[int, ...], tuple[int, ...], int, int], ...]]

# Values: int for the integer types, str for strings, bytes for binary data; "user_property" is a list of (str, str),
# and "subscription_identifier" in a PUBLISH a list of int.
def pack(properties: dict[str, Any], packet_type: int, from_server: bool = False) -> bytes: ...
def unpack(data: bytes, packet_type: int, from_server: bool = False) -> dict[str, Any]: ...
