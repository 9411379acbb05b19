"""Positions in the archive over the hosts of a cluster: each host archives what is published there, a replay reads all.

Payloads are `HOST NUMBER`; what has to come follows from the acks that publishers got.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import wire
from tests.cluster.hosts import ClusteredHost, Hosts, hosts_of, ids_on
from tests.waiting import let_pass, wait_until
from tests.wire import Client, Packet

SECONDS = 30.0
CANNOT = 0x83


@contextlib.contextmanager
def archiving(tmp_path: Path, workers: tuple[int, ...], **limits: float) -> Iterator[Hosts]:
    """Run hosts that archive `a/#`."""
    config = tmp_path / "archive.toml"
    config.write_text('[[archive]]\nfilter = "a/#"\nhours = 1\nbytes = "1GB"\n')
    with hosts_of(workers, "leveldb", {"MQTTD_CONFIG": str(config)}, **limits) as hosts:
        yield hosts


class Publisher:
    """Publishes on one host, numbered."""

    def __init__(self, host: ClusteredHost, name: str = "p") -> None:
        self.host = host
        self.client = host.client(f"{name}-{host.node}")
        self.sent: list[bytes] = []

    def publish(self, count: int, topic: str = "a/b", qos: int = 1) -> None:
        for _ in range(count):
            payload = b"%s %d" % (self.host.node.encode(), len(self.sent))
            assert self.client.publish(topic, payload, qos=qos) in (0, 0x10)
            self.sent.append(payload)


def ask(client: Client, offset: str, *filters: tuple[str, int]) -> Packet:
    """Send SUBSCRIBE with mqttd-offset and return its SUBACK."""
    packet_id = client.next_packet_id()
    properties: dict[str, Any] = {"user_property": [("mqttd-offset", offset)]}
    client.send(wire.subscribe(5, packet_id, *(filters or (("a/#", 1),)), properties=properties))
    return client.await_packet("SUBACK", packet_id)


def take(client: Client, count: int) -> list[Packet]:
    """Take this many messages, and acknowledge them."""
    packets = []
    for _ in range(count):
        packet = client.await_packet("PUBLISH")
        if packet.qos == 1:
            client.ack("PUBACK", packet.packet_id)
        packets.append(packet)
    return packets


def told(packet: Packet, name: str = "mqttd-offset") -> str:
    found: str = dict(packet.properties["user_property"])[name]
    return found


def payloads(packets: list[Packet]) -> list[bytes]:
    return [packet.payload for packet in packets]


def of_host(found: list[bytes], host: ClusteredHost) -> list[bytes]:
    return [each for each in found if each.startswith(host.node.encode() + b" ")]


def wait_until_read(hosts: Hosts) -> None:
    """Wait until each host knows the archives of all others: `earliest` is told of none that is missing."""

    def all_known() -> bool:
        for host, worker in [(each, worker) for each in hosts for worker in range(each.workers)]:
            with contextlib.closing(Client(host.address, 5)) as client:
                client.connect(next(ids_on(worker, host.workers, f"looks-{host.node}-")))
                publisher = Publisher(host, "probe")
                publisher.publish(1, "a/probe")
                assert ask(client, "latest", ("a/probe", 0)).codes == (0,)
                publisher.publish(1, "a/probe")
                packet = client.await_packet("PUBLISH")
                publisher.client.close()
                properties = dict(packet.properties["user_property"])
                if "mqttd-offset-lost" in properties or properties["mqttd-offset"].count("+") != len(hosts):
                    return False
        return True

    wait_until(all_known, SECONDS, "archives are known")


@pytest.mark.parametrize("counts", [(1, 1), (2, 3)], ids=str)
def test_a_position_of_one_host_goes_on_at_the_other(tmp_path: Path, counts: tuple[int, int]) -> None:
    """Nothing is missing and nothing is there twice, of either host, while both are published to."""
    with archiving(tmp_path, counts) as hosts:
        wait_until_read(hosts)
        publishers = [Publisher(host) for host in hosts]
        for publisher in publishers:
            publisher.publish(40)
        got: list[bytes] = []
        offset = "earliest"
        for turn in range(6):
            host = hosts[turn % 2]
            client = host.client(f"reader-{turn}")
            suback = ask(client, offset, ("a/b", 1))
            assert suback.codes == (1,), suback
            for publisher in publishers:
                publisher.publish(10)
            packets = take(client, 25)
            client.close()
            got += payloads(packets)
            offset = told(packets[-1])
        client = hosts[0].client("last")
        assert ask(client, offset, ("a/b", 1)).codes == (1,)
        expected = [payload for publisher in publishers for payload in publisher.sent]
        got += payloads(take(client, len(expected) - len(set(got))))
        assert set(got) == set(expected)
        for host, publisher in zip(hosts, publishers, strict=True):
            assert list(dict.fromkeys(of_host(got, host))) == publisher.sent
        publishers[1].publish(1, "a/b", qos=0)
        assert payloads(take(client, 1)) == [publishers[1].sent[-1]]
        client.expect_silence()


def test_a_host_that_is_killed_is_told_of_and_comes_back(tmp_path: Path) -> None:
    """In the middle of a replay of a slow reader the other host is killed: the reader is told at the next message, and
    gets all that is missing, once and in order, when that host is back. Meanwhile positions that name it are refused.
    """
    with archiving(tmp_path, (1, 1), replay_page_bytes=4096) as hosts:
        wait_until_read(hosts)
        there, here = (Publisher(host) for host in hosts)
        there.publish(300)
        here.publish(300)
        client = hosts[1].client("reader", properties={"receive_maximum": 5})
        assert ask(client, "earliest", ("a/b", 1)).codes == (1,)
        packets = take(client, 50)
        offset = told(packets[-1])
        hosts[0].kill()
        wait_until(lambda: bool(hosts[1].logged("replay_host_lost")), SECONDS, "the host is lost")
        got = payloads(packets)
        packets = take(client, 300 - len(of_host(got, hosts[1])))
        while len(of_host(got + payloads(packets), hosts[1])) < 300:
            packets += take(client, 1)
        lost = [told(each, "mqttd-offset-lost") for each in packets if "mqttd-offset-lost" in str(each.properties)]
        assert len(lost) == 1
        assert lost[0].count("+") == 2
        got += payloads(packets)
        assert len(of_host(got, hosts[0])) < 300
        refused = ask(hosts[1].client("another"), offset, ("a/b", 1))
        assert refused.codes == (CANNOT,)
        assert refused.properties["reason_string"] == (
            "mqttd-offset names the archive of host n0, which cannot be reached"
        )
        without = told(refused, "mqttd-offset-without")
        waiting = hosts[1].client("waiting")
        assert ask(waiting, without, ("a/b", 1)).codes == (1,)
        assert of_host(payloads(take(waiting, 1)), hosts[1])
        since = len(hosts[1].logged("host_linked"))
        hosts[0].start()
        wait_until(lambda: len(hosts[1].logged("host_linked")) > since, SECONDS, "the host is linked")
        got += payloads(take(client, 300 - len(of_host(got, hosts[0]))))
        assert of_host(got, hosts[0]) == there.sent
        assert of_host(got, hosts[1]) == here.sent
        found: list[bytes] = []
        while not of_host(found, hosts[0]) or found[-1] != there.sent[-1]:
            found += payloads(take(waiting, 1))
        assert of_host(found, hosts[0]) == there.sent[-len(of_host(found, hosts[0])) :]
        late = Publisher(hosts[0], "late")
        late.sent = [b""] * 300
        late.publish(5)
        assert payloads(take(client, 5)) == late.sent[-5:]
        client.expect_silence()


def test_a_lasting_session_of_mqtt_3_goes_on_with_both_hosts(tmp_path: Path) -> None:
    """[MQTT-3.1.2-4] A client of MQTT 5 begins the replay, one of MQTT 3.1.1 resumes its session: it has no positions,
    and gets what was published on both hosts meanwhile, also after its host was killed.
    """
    with archiving(tmp_path, (2, 1)) as hosts:
        wait_until_read(hosts)
        publishers = [Publisher(host) for host in hosts]
        client = hosts[0].client("lasts", clean=False, properties={"session_expiry_interval": 600})
        assert ask(client, "latest", ("a/b", 1)).codes == (1,)
        for publisher in publishers:
            publisher.publish(5)
        got = payloads(take(client, 10))
        client.disconnect()
        for publisher in publishers:
            publisher.publish(5)
        client = hosts[0].client("lasts", 4, clean=False)
        assert client.connack.session_present
        got += payloads(take(client, 10))
        client.disconnect()
        hosts[0].kill()
        publishers[1].publish(5)
        hosts[0].start()
        wait_until(lambda: bool(hosts[0].logged("cluster_ready")), SECONDS, "the host is back")
        client = hosts[0].client("lasts", 4, clean=False)
        assert client.connack.session_present
        while set(publishers[1].sent) - set(got):
            got += payloads(take(client, 1))
        assert of_host(list(dict.fromkeys(got)), hosts[1]) == publishers[1].sent
        assert of_host(list(dict.fromkeys(got)), hosts[0]) == publishers[0].sent
        assert hosts[0].client("third", 4).subscribe(("a/b", 1)) == (1,)
        let_pass(0.2)
        client.expect_silence()


def test_a_host_takes_no_more_replays_of_others_than_it_may(tmp_path: Path) -> None:
    """replays_for_hosts_max: 1, the second one gets 0x97, and there is room again when the first has gone."""
    with archiving(tmp_path, (1, 1), replays_for_hosts_max=1) as hosts:
        wait_until_read(hosts)
        first, second = (hosts[0].client(name) for name in ("first", "second"))

        def taken(client: Client) -> bool:
            return ask(client, "latest", ("a/b", 1)).codes == (1,)

        wait_until(lambda: taken(first), SECONDS, "there is room for the first")
        let_pass(0.5)
        refused = ask(second, "latest", ("a/b", 1))
        assert refused.codes == (0x97,)
        assert refused.properties["reason_string"] == "filter 1 is beyond replays_for_hosts_max of n1"
        first.unsubscribe("a/b")
        wait_until(lambda: taken(second), SECONDS, "there is room again")
