"""One client that publishes QoS 0 as fast as the broker takes it, in its own process, until a signal ends it.

Started by ``python -m tests.chaos.flood PORT CLIENT_ID TOPIC``; prints ``flooding`` when it is connected.
"""

from __future__ import annotations

import sys

from tests import wire

_MESSAGES = 1000


def main(port: str, client_id: str, topic: str) -> None:
    """Connect, print ``flooding``, flood."""
    client = wire.Client(("127.0.0.1", int(port)), 4)
    client.connect(client_id)
    client.socket.settimeout(None)
    print("flooding", flush=True)
    chunk = wire.publish(4, topic, bytes(64)) * _MESSAGES
    while True:
        client.socket.sendall(chunk)


if __name__ == "__main__":
    main(*sys.argv[1:])
