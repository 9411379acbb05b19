"""A client that pings a worker every two milliseconds, to measure how long the worker's loop stood still.

    python -m tests.chaos.pings HOST PORT CLIENT_ID

Ends with its standard input. Standard output: one line per answer that took longer than LEAST_SECONDS, with the
monotonic time of the ping and the seconds until the answer; then `asked N`.
"""

from __future__ import annotations

import select
import socket
import sys
import time

from tests import wire

EVERY_SECONDS = 0.002
LEAST_SECONDS = 0.003


def _main() -> int:
    host, port, client_id = sys.argv[1:]
    asked = 0
    with socket.create_connection((host, int(port))) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client.sendall(wire.connect(4, client_id))
        assert len(client.recv(4)) == 4
        print("asks", flush=True)
        rest = EVERY_SECONDS
        while not select.select([sys.stdin], [], [], rest)[0]:
            began = time.monotonic()
            client.sendall(b"\xc0\0")
            assert client.recv(2)
            seconds = time.monotonic() - began
            asked += 1
            rest = max(0.0, EVERY_SECONDS - seconds)
            if seconds > LEAST_SECONDS:
                print(f"{began:.6f} {seconds:.6f}", flush=True)
    print(f"asked {asked}", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(_main())
