"""The brokers of these tests serve on when a client resets its connection, wherever in a packet it is."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable

import pytest

from tests import wire
from tests.loadtest.scripted import Scripted
from tests.loadtest.stub import Stub

SUBSCRIBE = wire.subscribe(4, 1, ("#", 0))
CONNACK = b"\x20\x02\x00\x00"


def connected(port: int) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", port), wire.DEADLINE_SECONDS)
    client.sendall(wire.connect(4, "a"))
    assert client.recv(4, socket.MSG_WAITALL) == CONNACK
    return client


@pytest.mark.parametrize("broker", [Stub, lambda: Scripted(lambda *_: CONNACK)], ids=["stub", "scripted"])
@pytest.mark.parametrize("begun", [b"", SUBSCRIBE[:1], SUBSCRIBE[:5], SUBSCRIBE, 2 * SUBSCRIBE])
def test_a_client_resets_its_connection(broker: Callable[[], Stub | Scripted], begun: bytes) -> None:
    with broker() as running:
        for _ in range(20):
            client = connected(running.port)
            client.sendall(begun)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()
        connected(running.port).close()
