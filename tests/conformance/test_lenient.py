"""`protocol.lenient`: errors for which the strict broker closes the connection are ignored or refused alone, as in
older brokers.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests import wire
from tests.broker_process import KIND, BrokerProcess
from tests.wire import Connect

pytestmark = pytest.mark.skipif(KIND != "mqttd", reason="a setting of mqttd")

FILTER_INVALID = 0x8F


@pytest.fixture
def broker(workers: int, configured: Callable[..., BrokerProcess]) -> BrokerProcess:
    """A lenient broker."""
    return configured(workers, {"PROTOCOL__LENIENT": "true"})


@pytest.mark.mqtt("5:3.8.4-7", "5:3.9.3-2", "311:3.8.4-5", "311:3.9.3-2")
@pytest.mark.parametrize("bad", ["", "#/a", "a/#/b", "a+", "$share//a", "$share/g"])
def test_a_malformed_filter_fails_alone(connect: Connect, version: int, name: str, bad: str) -> None:
    """A malformed filter gets a failure code, and the next filter in the packet is granted."""
    client = connect(version)
    assert client.subscribe((bad, 0), (name, 1)) == (FILTER_INVALID if version == 5 else 0x80, 1)
    client.publish(name, b"works")
    client.receive(name, b"works")


@pytest.mark.mqtt("5:3.11.2-1", "5:3.1.2-29")
@pytest.mark.parametrize("wanted", [0, 1])
def test_unsuback_says_so_too(connect: Connect, name: str, wanted: int) -> None:
    """UNSUBACK has 0x8F for the filter, and a Reason String if the client allows it and it fits."""
    client = connect(5, properties={"request_problem_information": wanted})
    client.subscribe(name)
    client.send(wire.unsubscribe(5, 2, name, "a/#/b"))
    got = client.expect("UNSUBACK", packet_id=2, codes=(0, FILTER_INVALID))
    assert ("filter 2" in got.properties.get("reason_string", "")) is bool(wanted)
    small = connect(5, properties={"maximum_packet_size": 22})
    small.send(wire.unsubscribe(5, 2, "a/#/b"))
    small.expect("UNSUBACK", codes=(FILTER_INVALID,), properties={})


@pytest.mark.mqtt("5:4.3.2-3", "5:4.3.3-3", "311:4.3.2-1", "311:4.3.3-1")
def test_acks_of_the_wrong_kind_are_passed_over(connect: Connect, version: int, name: str) -> None:
    """Acks of the wrong kind are ignored: the message waits for the right ack."""
    client = connect(version)
    client.subscribe((f"{name}/1", 1), (f"{name}/2", 2))
    client.publish(f"{name}/1", b"x", qos=1)
    first = client.await_packet("PUBLISH").packet_id
    client.ack("PUBREC", first)
    client.ack("PUBCOMP", first)
    client.expect_silence()
    client.ack("PUBACK", first)
    client.publish(f"{name}/2", b"x", qos=2)
    second = client.await_packet("PUBLISH").packet_id
    client.ack("PUBACK", second)
    client.ack("PUBCOMP", second)
    client.expect_silence()
    client.ack("PUBREC", second)
    client.expect("PUBREL", packet_id=second)
    client.ack("PUBCOMP", second)
    client.expect_silence()
