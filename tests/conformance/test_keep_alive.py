"""Keep Alive and PINGREQ."""

from __future__ import annotations

import time

import pytest

from tests import wire
from tests.conformance.conftest import Everywhere
from tests.waiting import let_pass
from tests.wire import Connect, Will

KEEP_ALIVE_TIMEOUT = 0x8D


@pytest.mark.mqtt("5:3.1.2-22", "5:3.2.2-22", "311:3.1.2-24")
@pytest.mark.mosquitto_differs("looks every five seconds only")
def test_keep_alive_one_and_a_half(everywhere: Everywhere) -> None:
    """A client with Keep Alive 2 that sends nothing is closed after 3 s, and not before."""

    def scenario(connect: Connect, version: int, _name: str) -> None:
        began = time.monotonic()
        client = connect(version, keep_alive=2)
        client.expect_closed(KEEP_ALIVE_TIMEOUT)
        assert time.monotonic() - began >= 2.8

    everywhere(scenario)


@pytest.mark.mqtt("5:3.1.2-22", "311:3.1.2-24")
def test_any_packet_keeps_alive(everywhere: Everywhere) -> None:
    """A client with Keep Alive 3 that sends any packet now and then stays connected."""

    def scenario(connect: Connect, version: int, name: str) -> None:
        client = connect(version, keep_alive=3)
        for number in range(4):
            let_pass(1.6)
            client.send(wire.PINGREQ if number % 2 else wire.publish(version, name, b"I live"))
            if number % 2:
                client.expect("PINGRESP")
        client.expect_silence()

    everywhere(scenario)


@pytest.mark.mqtt("5:3.1.2-22", "311:3.1.2-24")
@pytest.mark.mosquitto_differs("looks every five seconds only")
def test_what_the_broker_sends_keeps_nobody_alive(everywhere: Everywhere) -> None:
    """A client with Keep Alive 2 that only receives is still closed."""

    def scenario(connect: Connect, version: int, name: str) -> None:
        client = connect(version, keep_alive=2)
        client.subscribe(name)
        publisher = connect(version)
        closed = False
        for _ in range(80):
            publisher.publish(name, b"x")
            try:
                closed = client.read().kind == "DISCONNECT"
            except wire.Closed:
                closed = True
            if closed:
                break
            let_pass(0.1)
        assert closed

    everywhere(scenario)


@pytest.mark.mqtt("5:3.1.2-8", "5:3.1.2-22", "311:3.1.2-8", "311:3.1.2-24")
def test_keep_alive_timeout_publishes_the_will(everywhere: Everywhere) -> None:
    """The will of a client that exceeds its Keep Alive is published, as after a network failure."""

    def scenario(connect: Connect, version: int, name: str) -> None:
        watcher = connect(version)
        watcher.subscribe(name)
        connect(version, keep_alive=1, will=Will(name, b"silent"))
        watcher.receive(name, b"silent")

    everywhere(scenario)


@pytest.mark.mqtt("5:3.12.4-1", "311:3.12.4-1")
def test_every_pingreq_is_answered(connect: Connect, any_version: int) -> None:
    """Ten PINGREQs in one segment get ten PINGRESPs."""
    client = connect(any_version)
    client.send(wire.PINGREQ * 10)
    for _ in range(10):
        client.expect("PINGRESP")
    client.expect_silence()
