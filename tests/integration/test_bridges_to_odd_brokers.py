"""Bridges to brokers that a test plays itself: what they send, what they do not take, and what they never answer."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.broker_process import KIND
from tests.integration.test_admin import ids_on
from tests.integration.test_bridges import SECONDS, Dial, Start, dial, start, states, tables, wait_for_bridges
from tests.scripted_broker import ScriptedBroker
from tests.waiting import let_pass, wait_until
from tests.wire import Client, Packet, ack, packet, publish

__all__ = ["dial", "start"]

pytestmark = pytest.mark.skipif(KIND == "mosquitto", reason="bridges are mqttd's own")

IN = "{pattern = '#', direction = 'in', qos = 2}"
ENDED = packet("DISCONNECT", 0, b"\x90")
STRICT = "refuse_disallowed_characters = true\n"
LIMITS = "[limits]\nuser_properties_max = 2\n[protocol]\nmaximum_qos = 1\n"


@pytest.mark.parametrize("version", [4, 5])
def test_what_this_broker_would_end_the_connection_for_is_refused(start: Start, dial: Dial, version: int) -> None:
    """It would come again with each connection, and everything else wait behind it."""
    with ScriptedBroker(version) as there:
        here = start(STRICT + tables(there.url, IN, version="5" if version == 5 else "3.1.1") + LIMITS)
        local = dial(here.address, "local")
        local.subscribe("#", qos=1)
        remote = there.accept()
        remote.welcome()
        remote.grant()
        bad = [publish(version, "control/\x01", b"", qos=1, packet_id=1)]
        if version == 5:
            two = {"user_property": [("a", "b")] * 2}
            bad += [
                publish(5, "text", b"", qos=1, packet_id=2, properties={"content_type": "\x01"}),
                publish(5, "list", b"", qos=1, packet_id=3, properties={"user_property": [("a", "b")] * 300}),
                publish(5, "alias", b"", qos=1, packet_id=4, properties={"topic_alias": 1}),
            ]
        remote.send(*bad, publish(version, "control/\x01", b"", qos=0))
        for number, _ in enumerate(bad, 1):
            got = remote.expect("PUBACK", packet_id=number)
            assert got.reason == (0 if version < 5 else [0x90, 0x83, 0x97, 0x83][number - 1])
        properties = two if version == 5 else {}
        remote.send(publish(version, "good", b"1", qos=2, packet_id=9, properties=properties))
        assert local.receive("good", b"1", qos=1).properties == properties
        remote.expect("PUBREC", packet_id=9)
        remote.ack("PUBREL", 9)
        remote.expect("PUBCOMP", packet_id=9)
        (state,) = states(here)
        assert (state["is_connected"], state["connects"], state["refused"]) == (True, 1, len(bad) + 1)
        assert state["messages_in"] == 1


def test_acknowledgements_cross_without_properties(start: Start, dial: Dial) -> None:
    """They might be more than the other broker takes (Maximum Packet Size), or this one (user_properties_max)."""
    with ScriptedBroker() as there:
        topics = "{pattern = 'out'}, {pattern = 'in/#', direction = 'in'}"
        here = start(tables(there.url, topics) + "[limits]\nuser_properties_max = 2\ntopic_levels_max = 3\n")
        remote = there.accept()
        remote.welcome(properties={"maximum_packet_size": 60})
        remote.grant()
        wait_for_bridges(here)
        local = dial(here.address, "local")
        answer = {"user_property": [("a", "b")] * 300}
        remote.send(publish(5, "in/1/2/3/4", b"", qos=1, packet_id=1))
        got = remote.expect("PUBACK", packet_id=1, reason=0x90)
        assert got.properties == {}
        for number in range(3):
            local.publish("out", b"%d" % number, qos=1)
            asked = remote.expect("PUBLISH", payload=b"%d" % number)
            remote.send(ack(5, "PUBACK", asked.packet_id, 0, answer))
        wait_until(lambda: states(here)[0]["waiting"] == 0, SECONDS, "all are acknowledged")
        assert states(here)[0]["connects"] == 1


def test_a_network_of_32_kb_per_second_is_no_silent_broker(start: Start, dial: Dial) -> None:
    """Keep Alive 5 s: it is given up after 7.5 s in which it neither says nor takes anything. What it takes here needs
    longer, and it says nothing, for the PINGREQ wait behind that.
    """
    with ScriptedBroker(receive_bytes=4096) as there:
        here = start(tables(there.url, "{pattern = 'a'}", keep_alive_seconds=5))
        remote = there.accept()
        remote.welcome()
        wait_for_bridges(here)
        local = dial(here.address, "local")
        for number in range(90):
            local.publish("a", b"%02d" % number + bytes(4000), qos=1)
        taken = b""
        while taken.count(bytes(4000)) < 90:
            let_pass(0.1)
            taken += remote.socket.recv(3277)
        assert states(here)[0]["is_connected"]


def answered(client: Client) -> Packet:
    """Take the next message, and answer it as its QoS demands."""
    got = client.await_packet("PUBLISH")
    client.kept.insert(0, got)
    return client.receive(got.topic, got.payload)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_message_that_two_tables_match_crosses_once(start: Start, dial: Dial, qos: int) -> None:
    """Also if the tables belong to two connections: the first one counts."""
    there = start()
    topics = (
        "{pattern = 'a/#', direction = 'both', qos = 2, remote_prefix = 'x/'},"
        "{pattern = '#', direction = 'both', qos = 2, remote_prefix = 'y/'}"
    )
    here = start(tables(f"mqtt://127.0.0.1:{there.port}", topics, connections=2))
    wait_for_bridges(here)
    remote, local = dial(there.address, "remote"), dial(here.address, "local")
    remote.subscribe("#", qos=2)
    local.publish("a/b", b"1", qos=qos)
    local.publish("c", b"2", qos=qos)
    got = {(each.topic, each.payload) for each in (answered(remote), answered(remote))}
    assert got == {("x/a/b", b"1"), ("y/c", b"2")}
    wait_until(lambda: all(each["waiting"] == 0 for each in states(here)), SECONDS, "nothing waits")
    remote.expect_silence()
    assert sum(each["messages_out"] for each in states(here)) == 2
    assert sum(each["refused"] for each in states(here)) == 0


def test_a_retained_message_that_the_other_broker_does_not_stand(start: Start, dial: Dial) -> None:
    """It is sent with each connection, and not repeated under a Packet Identifier: later, then not any more."""
    with ScriptedBroker() as there:
        topics = "{pattern = 'out/#'}, {pattern = 'in', direction = 'in'}"
        here = start(tables(there.url, topics, reconnect_seconds_max=1))
        local = dial(here.address, "local")
        local.subscribe("in")
        local.publish("out/bad", b"x", retain=True)
        remote = there.accept()
        remote.welcome()
        remote.receive("out/bad", b"x")
        remote.send(ENDED)
        remote = there.accept()
        remote.welcome()
        remote.kept.append(remote.expect("SUBSCRIBE"))
        remote.grant()
        remote.send(publish(5, "in", b"1"))
        local.receive("in", b"1")
        local.publish("out/good", b"2", qos=1)
        remote.receive("out/good", b"2")
        remote.receive("out/bad", b"x", retain=True)
        assert len(here.logged("bridge_connected")) == 1


BOTH = "{pattern = 'in', direction = 'in', qos = 2}, {pattern = 'out', qos = 2}"


def test_a_session_that_only_the_other_broker_has_lost(start: Start, dial: Dial) -> None:
    """In the middle of QoS 2 both ways: a Packet Identifier that it uses anew is that of a new message."""
    with ScriptedBroker() as there:
        here = start(tables(there.url, BOTH, reconnect_seconds_max=1), store="leveldb")
        local = dial(here.address, "local")
        local.subscribe("in", qos=2)
        remote = there.accept()
        remote.welcome()
        remote.grant()
        remote.send(publish(5, "in", b"1", qos=2, packet_id=1))
        remote.await_packet("PUBREC", 1)
        local.receive("in", b"1")
        local.publish("out", b"a", qos=2)
        asked = remote.expect("PUBLISH")
        remote.ack("PUBREC", asked.packet_id)
        remote.expect("PUBREL", packet_id=asked.packet_id)
        remote.close()
        remote = there.accept()
        remote.welcome(session_present=False)
        remote.send(publish(5, "in", b"2", qos=2, packet_id=1))
        remote.await_packet("PUBREL", asked.packet_id)
        remote.ack("PUBCOMP", asked.packet_id, 0x92)
        remote.grant()
        remote.await_packet("PUBREC", 1)
        remote.ack("PUBREL", 1)
        assert remote.await_packet("PUBCOMP", 1).reason == 0
        local.receive("in", b"2")
        local.expect_silence()
        wait_until(lambda: states(here)[0]["waiting"] == 0, SECONDS, "nothing waits")
        assert not remote.kept


def test_a_worker_that_is_killed_in_the_middle_of_qos_2(start: Start, dial: Dial) -> None:
    with ScriptedBroker() as there:
        here = start(tables(there.url, BOTH, reconnect_seconds_max=1), 2, store="leveldb")
        remote = there.accept()
        remote.welcome()
        remote.grant()
        wait_for_bridges(here)
        worker = states(here)[0]["worker"]
        local = dial(here.address, ids_on(1 - worker, 2))
        local.subscribe("in", qos=2)
        remote.send(publish(5, "in", b"1", qos=2, packet_id=1))
        remote.await_packet("PUBREC", 1)
        local.publish("out", b"a", qos=2)
        asked = remote.await_packet("PUBLISH")
        remote.ack("PUBREC", asked.packet_id)
        remote.await_packet("PUBREL", asked.packet_id)
        os.kill(here.worker_pids()[worker], signal.SIGKILL)
        remote = there.accept()
        remote.welcome(session_present=True)
        remote.send(publish(5, "in", b"1", qos=2, packet_id=1, dup=True))
        remote.await_packet("PUBREL", asked.packet_id)
        remote.ack("PUBCOMP", asked.packet_id)
        remote.grant()
        remote.await_packet("PUBREC", 1)
        remote.ack("PUBREL", 1)
        remote.await_packet("PUBCOMP", 1)
        local.receive("in", b"1")
        local.expect_silence()
        wait_until(lambda: states(here)[0]["waiting"] == 0, SECONDS, "nothing waits")
        assert not [each for each in remote.kept if each.kind == "PUBLISH"]


@pytest.mark.parametrize("qos", [1, 2])
def test_the_receive_maximum_of_the_other_broker(start: Start, dial: Dial, qos: int) -> None:
    """A message of QoS 2 counts until its PUBCOMP."""
    with ScriptedBroker() as there:
        here = start(tables(there.url, "{pattern = 'out', qos = 2}"))
        remote = there.accept()
        remote.welcome(properties={"receive_maximum": 3})
        wait_for_bridges(here)
        local = dial(here.address, "local")
        for number in range(10):
            local.publish("out", b"%d" % number, qos=qos)
        wait_until(lambda: states(here)[0]["waiting"] == 7, SECONDS, "the others wait")
        unanswered = [remote.expect("PUBLISH").packet_id for _ in range(3)]
        for sent in range(3, 10):
            number = unanswered.pop(0)
            if qos == 2:
                remote.ack("PUBREC", number)
                remote.expect("PUBREL", packet_id=number)
            assert states(here)[0]["messages_out"] == sent
            remote.ack("PUBACK" if qos == 1 else "PUBCOMP", number)
            unanswered.append(remote.expect("PUBLISH", payload=b"%d" % sent).packet_id)


def test_few_answers_behind_much_that_waits(start: Start, dial: Dial) -> None:
    """Only a broker that takes none of very many is given up."""
    with ScriptedBroker(receive_bytes=4096) as there:
        here = start(tables(there.url, "{pattern = 'out'}"))
        remote = there.accept()
        remote.welcome()
        wait_for_bridges(here)
        local = dial(here.address, "local")
        for _ in range(100):
            local.publish("out", bytes(100_000), qos=1)
        remote.send(publish(5, "no table has it", b"", qos=1, packet_id=7))
        wait_until(lambda: states(here)[0]["refused"] == 1, SECONDS, "it is refused")
        for _ in range(100):
            remote.await_packet("PUBLISH")
        remote.await_packet("PUBACK", 7)
        assert states(here)[0]["connects"] == 1


def test_connections_that_have_ended_leave_no_sockets(start: Start, dial: Dial) -> None:
    """Also if the other broker neither closes its end, nor takes what waits for it."""
    with ScriptedBroker(receive_bytes=4096) as there:
        here = start(tables(there.url, "{pattern = 'out'}", reconnect_seconds_max=1))
        remote = there.accept()
        local = dial(here.address, "local")
        for _ in range(50):
            local.publish("out", bytes(100_000), qos=1)
        open_files = Path(f"/proc/{here.worker_pids()[0]}/fd")
        counts = []
        for _ in range(3):
            remote.welcome()
            counts.append(len(list(open_files.iterdir())))
            remote.await_packet("PUBLISH")
            remote.send(ENDED)
            remote = there.accept()
        wait_until(lambda: len(list(open_files.iterdir())) <= counts[0], SECONDS, "the former sockets are closed")
