"""Take-over: a CONNECT with a connected client id wins, the old connection is notified, and there is one session."""

from __future__ import annotations

import pytest

from tests import wire
from tests.wire import Connect, OpenConnection

TAKEN_OVER = 0x8E
KEEP = {"session_expiry_interval": 60}


@pytest.mark.mqtt("5:3.1.4-3", "5:3.14.4-2", "311:3.1.4-2")
def test_the_older_connection_is_closed(connect: Connect, any_version: int, name: str) -> None:
    """The second CONNECT with a client id closes the first connection; a v5 client gets 0x8E."""
    old = connect(any_version, name)
    new = connect(any_version, name)
    old.expect_closed(TAKEN_OVER)
    new.expect_silence()


@pytest.mark.mqtt("5:3.1.4-3", "311:3.1.4-2")
@pytest.mark.parametrize(("before", "after"), [(4, 5), (5, 4), (3, 5)])
def test_take_over_by_another_version(connect: Connect, name: str, before: int, after: int) -> None:
    """The client that takes over may speak another version."""
    old = connect(before, name)
    connect(after, name).expect_silence()
    old.expect_closed(TAKEN_OVER)


@pytest.mark.mqtt("5:3.1.2-5", "5:3.2.2-3", "311:3.1.2-4", "311:3.2.2-2")
def test_take_over_resumes_the_session(connect: Connect, version: int, name: str) -> None:
    """With clean start 0 the new connection resumes the session of the old one with its subscriptions."""
    options = {"clean": False, "properties": KEEP if version == 5 else {}}
    old = connect(version, name, **options)
    old.subscribe(name, qos=1)
    new = connect(version, name, **options)
    assert new.connack.session_present
    old.expect_closed(TAKEN_OVER)
    new.publish(name, b"still subscribed", qos=1)
    assert new.await_packet("PUBLISH").payload == b"still subscribed"


@pytest.mark.mqtt("5:3.1.2-4", "5:3.2.2-2", "311:3.1.2-6", "311:3.2.2-1")
def test_take_over_with_clean_start(connect: Connect, version: int, name: str) -> None:
    """With clean start 1 the new connection has a new session: no Session Present, no subscription."""
    old = connect(version, name, clean=False, properties=KEEP if version == 5 else {})
    old.subscribe(name)
    new = connect(version, name, clean=True)
    assert not new.connack.session_present
    old.expect_closed(TAKEN_OVER)
    new.publish(name, b"nobody listens")
    wire.expect_nothing_more(new, new, f"{name}/marker")


@pytest.mark.mqtt("5:4.4.0-1", "311:4.4.0-1")
def test_take_over_redelivers_what_was_not_acknowledged(connect: Connect, version: int, name: str) -> None:
    """A QoS 1 message that the old connection did not acknowledge is sent again on the new one, with DUP."""
    options = {"clean": False, "properties": KEEP if version == 5 else {}}
    old = connect(version, name, **options)
    old.subscribe(name, qos=1)
    connect(version).publish(name, b"once more", qos=1)
    first = old.expect("PUBLISH", payload=b"once more", dup=False)
    new = connect(version, name, **options)
    new.expect("PUBLISH", payload=b"once more", dup=True, packet_id=first.packet_id)


@pytest.mark.mqtt("5:3.1.4-3", "311:3.1.4-2")
def test_a_row_of_take_overs(connect: Connect, version: int, name: str) -> None:
    """Of twenty connections in a row with one client id, each closes the one before; the last stays open."""
    clients = [connect(version, name) for _ in range(20)]
    for old in clients[:-1]:
        old.expect_closed(TAKEN_OVER)
    clients[-1].expect_silence()


@pytest.mark.mqtt("5:3.1.4-3", "5:3.2.0-1", "5:3.14.0-1", "311:3.1.4-2", "311:3.2.0-1")
def test_take_overs_at_once(open_connection: OpenConnection, version: int, name: str) -> None:
    """Ten connections CONNECT at once with one client id: exactly one stays, and none got a packet before CONNACK."""
    clients = [open_connection(version) for _ in range(10)]
    for client in clients:
        client.send(wire.connect(version, name))
    answered = []
    for client in clients:
        client.send(wire.PINGREQ)
        seen: list[str] = []
        try:
            while "PINGRESP" not in seen:
                got = client.read()
                assert got.reason in (0, TAKEN_OVER)
                seen.append(got.kind)
        except wire.Closed:
            assert seen in ([], ["CONNACK"], ["CONNACK", "DISCONNECT"])
            continue
        assert seen == ["CONNACK", "PINGRESP"]
        answered.append(client)
    left = 0  # each CONNECT has been decided by now
    for client in answered:
        try:
            client.expect_silence()
            left += 1
        except (wire.Closed, AssertionError):
            continue
    assert left == 1
