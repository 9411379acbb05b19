"""Bad input, two thousand times each, on one broker, leaves nothing behind in memory."""

from __future__ import annotations

import selectors
import socket

import pytest

from tests import wire
from tests.broker_process import BrokerProcess
from tests.chaos.conftest import Record, StartBroker
from tests.conformance.test_known_defects import bad_connects
from tests.conformance.test_malformed import WRONG

GROWTH_BYTES_MAX = 1 << 20
"""Per worker; a leak in one line of the tables occurs two thousand times."""


def hostile(client_id: str) -> list[bytes]:
    """Return the bytes of each connection: a CONNECT followed by something wrong, or a wrong CONNECT."""
    found = []
    for number, wrong in enumerate(WRONG.values()):  # each under an id of its own: otherwise they take each other over
        found += [wire.connect(4, f"{client_id}{number}v3") + wrong.v3] if wrong.v3 is not None else []
        found += [wire.connect(5, f"{client_id}{number}v5") + wrong.v5] if wrong.v5 is not None else []
    return found + bad_connects(client_id)


def send_to_the_end(broker: BrokerProcess, data: list[bytes]) -> None:
    """Open a connection for each, send, and read until the broker has closed them all."""
    with selectors.DefaultSelector() as selector:
        for each in data:
            opened = socket.create_connection(broker.address, timeout=wire.DEADLINE_SECONDS)
            opened.sendall(each)
            selector.register(opened, selectors.EVENT_READ)
        while selector.get_map():
            ready = selector.select(wire.DEADLINE_SECONDS)
            assert ready, f"{len(selector.get_map())} connections are not closed"
            for key, _ in ready:
                closing = key.fileobj
                assert isinstance(closing, socket.socket)
                try:
                    open_still = closing.recv(65536)
                except ConnectionResetError:
                    open_still = b""
                if not open_still:
                    selector.unregister(closing)
                    closing.close()


@pytest.mark.parametrize(
    "times", [30, pytest.param(100, marks=pytest.mark.long), pytest.param(2000, marks=pytest.mark.soak)]
)
def test_bad_input_leaves_nothing(start_broker: StartBroker, record_property: Record, workers: int, times: int) -> None:
    """After the first tenth of so many connections for each line of the tables, memory stays constant."""
    broker = start_broker(workers, log_lines_per_second_max=1)
    everything = hostile("hostile")
    for _ in range(times // 10):
        send_to_the_end(broker, everything)
    before = broker.pss_bytes()
    for _ in range(times):
        send_to_the_end(broker, everything)
    growth = broker.pss_bytes() - before
    record_property("connections", times * len(everything))
    record_property("growth_bytes", growth)
    assert growth < GROWTH_BYTES_MAX * workers
