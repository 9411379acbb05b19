"""The sockets over which a worker gives a connection to its home (`pyx.io.handing_over` has the messages): made by the
supervisor, which holds both ends, so that connections on their way outlive the worker.
"""

from __future__ import annotations

import socket
from typing import Final

_BUFFER_BYTES: Final = 1 << 20


def pair() -> tuple[socket.socket, socket.socket]:
    """Return (send, receive), both non-blocking. The sender's buffer bounds what may wait for a worker that is down."""
    send, receive = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    send.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
    send.setblocking(False)
    receive.setblocking(False)
    return send, receive
