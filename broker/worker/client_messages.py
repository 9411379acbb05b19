"""Messages between hosts about a client id: they go to any worker of a host, which passes them on to its home.

A message has a head of u32 host of the sender, u64 epoch or number of the move, u16 length of the client id, and the
client id; the rest depends on its kind (`broker.worker.owning`, `broker.worker.session_parts`).
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from pyx.core.peer import sibling
from shards.placement import home

if TYPE_CHECKING:
    from broker.context.context import Context
    from broker.worker.other_owners import OtherOwners

__all__ = ["ClientMessage", "ClientMessages"]

_HEAD: Final = struct.Struct("<IQH")


class ClientMessage(NamedTuple):
    """One message. host: the sender. number: an epoch, or that of a move."""

    host: int
    number: int
    client_id: str
    rest: bytes


class ClientMessages:
    """Those of one worker."""

    def __init__(self, context: Context, others: OtherOwners) -> None:
        self._context = context
        self._others = others

    def tell(self, host: int, kind: bytes, number: int, client_id: str, rest: bytes = b"", keeps: bool = False) -> bool:
        """Send a message; return whether that host is linked. keeps: if not, it hears it when it is back."""
        name = client_id.encode()
        payload = _HEAD.pack(self._others.number, number, len(name)) + name + rest
        return self._others.tell_host(host, kind, payload, keeps=keeps)

    def take(self, kind: bytes, payload: bytes) -> ClientMessage | None:
        """Return a message that came; None: it is for a sibling, and was passed on. Raises ValueError, struct.error."""
        host, number, length = _HEAD.unpack_from(payload)
        at = _HEAD.size + length
        client_id = payload[_HEAD.size : at].decode()
        worker = home(client_id, self._context.workers)
        if worker == self._context.index:
            return ClientMessage(host, number, client_id, payload[at:])
        self._context.router.peers.tell(sibling(worker), kind, payload)
        return None
