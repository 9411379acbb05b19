"""Events that a real broker records and `mqttd events` prints: of a running one, a stopped one, and several workers."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import plyvel
import pytest

from broker.testing import Mqttd
from leveldb_store.format.events import KINDS, event_key
from shards.placement import home
from tests import mqttd_command
from tests.broker_process import KIND
from tests.integration.test_store_commands import Command
from tests.integration.test_store_commands import mqttd as mqttd
from tests.small_disk import fill, mounted
from tests.waiting import wait_until
from tests.wire import Client

pytestmark = pytest.mark.skipif(KIND == "mosquitto", reason="mosquitto records nothing")

SECONDS = 60.0
LASTING = {"clean": False, "properties": {"session_expiry_interval": 600}}


class Scene:
    """A broker on a data directory, clients that are closed at the end, and the output of `mqttd events`."""

    def __init__(self, data: Path, run: Command) -> None:
        self.data = data
        self._run = run
        self._brokers: list[Mqttd] = []
        self._clients: list[Client] = []

    def start(self, workers: int = 1, **config: Any) -> Mqttd:
        quiet = {"leveldb": {"reserve_bytes": 0}, "sys_interval_seconds": 0}
        self._brokers.append(Mqttd(workers, {"store": "leveldb", "data_dir": self.data, **quiet, **config}))
        return self._brokers[-1].start()

    def client(self, broker: Mqttd, version: int = 5) -> Client:
        self._clients.append(Client(broker.address, version))
        return self._clients[-1]

    def connected(self, broker: Mqttd, client_id: str, **options: Any) -> Client:
        client = self.client(broker)
        client.connect(client_id, **options)
        return client

    def events(self, *arguments: str) -> list[dict[str, Any]]:
        status, out, err = self._run("events", "--data-dir", str(self.data), "--json", *arguments)
        assert (status, err) == (0, "")
        found = [json.loads(line) for line in out.splitlines()]
        assert [each["number"] for each in found] == sorted({each["number"] for each in found})
        return found

    def moments(self, *arguments: str) -> list[dict[str, Any]]:
        """Return the events without the sums of a minute, which the wall clock can put into any test."""
        return [each for each in self.events(*arguments) if "minute" not in each]

    def await_moments(self, count: int, *arguments: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []

        def are_there() -> bool:
            found[:] = self.moments(*arguments)
            return len(found) >= count

        wait_until(are_there, SECONDS, f"{count} events of {arguments}")
        assert len(found) == count
        return found

    def close(self) -> None:
        for client in self._clients:
            client.close()
        for broker in self._brokers:
            broker.kill()
            broker.forget()


@pytest.fixture
def scene(tmp_path: Path, mqttd: Command) -> Iterator[Scene]:
    made = Scene(tmp_path / "data", mqttd)
    yield made
    made.close()


def ids_of(worker: int, workers: int) -> Iterator[str]:
    return (each for each in (f"c{number}" for number in itertools.count()) if home(each, workers) == worker)


@pytest.mark.parametrize("many", [1, 2])
def test_every_kind_is_recorded_and_printed(scene: Scene, mqttd: Command, many: int) -> None:
    """All events are printed from the running broker, and again from the stores after its stop, in the same order."""
    broker = scene.start(
        many, events={"topic_levels": 1, "events_per_second_max": 30}, limits={"connections_max": 10 * many}
    )
    worker = many - 1
    ids = ids_of(worker, many)
    name = next(ids)
    scene.connected(broker, name, **LASTING).subscribe(("t/#", 1), ("$share/g/x", 0))
    first = scene.connected(broker, name, **LASTING)
    first.unsubscribe("$share/g/x")
    scene.client(broker, 4).send(b"\x10\x00")
    scene.await_moments(1, "--kind", "connection_refused")
    publisher = scene.connected(broker, next(ids))
    for number in range(5):
        publisher.publish("t/x", b"body", qos=number % 2)
    first.disconnect()
    publisher.publish("t/x", b"for nobody", qos=0)
    short = next(ids)
    properties = {"session_expiry_interval": 1}
    scene.connected(broker, short, clean=False, properties=properties).disconnect()
    scene.await_moments(1, "--kind", "session_expired", "--client", short)
    scene.connected(broker, name, clean=True)
    for _ in range(40):
        scene.connected(broker, next(ids)).disconnect()
    wait_until(lambda: scene.events("--kind", "events_suppressed"), SECONDS, "what was too much has been told")
    live = scene.events()
    assert broker.stop() == 0
    stopped = scene.events()
    assert [each for each in stopped if each["number"] <= live[-1]["number"]] == live
    assert {each["kind"] for each in stopped} == {kind.name for kind in KINDS}
    assert {each["worker"] for each in stopped} == set(range(many))
    by_kind = {kind.name: [each for each in stopped if each["kind"] == kind.name] for kind in KINDS}
    assert [each["workers"] for each in by_kind["worker_started"]] == [many] * many
    opened = [each for each in by_kind["connection_opened"] if each["client"] == name]
    assert [(each["session_present"], each["session_expiry"]) for each in opened] == [
        (False, 600),
        (True, 600),
        (False, 0),
    ]
    assert {each["listener"] for each in opened} == {f"127.0.0.1:{broker.port}"}
    assert [each["filter"] for each in by_kind["subscription_made"]] == ["t/#", "$share/g/x"]
    assert by_kind["subscription_removed"][0]["filter"] == "$share/g/x"
    assert by_kind["session_taken_over"][0]["address_before"] == opened[0]["address"]
    assert by_kind["connection_closed"][0] | {"code": 0x8E, "by": "broker"} == by_kind["connection_closed"][0]
    assert by_kind["connection_refused"][0]["client"] is None
    assert {each["reason"] for each in by_kind["session_ended"]} == {"clean start"}
    assert any((each["reason"], each["client"]) == ("offline_qos0", None) for each in by_kind["messages_dropped"])
    assert sum(each["samples"] for each in by_kind["publish_to_ack"]) >= 1
    traffic = [each for each in by_kind["topic_traffic"] if each["prefix"] == "t"]
    assert (sum(each["delivered"] for each in traffic), sum(each["dropped"] for each in traffic)) == (5, 1)
    totals = {each["worker"]: each["counters"] for each in by_kind["counters"]}
    assert sum(each["publish_received"] for each in totals.values() if "publish_received" in each) == 6
    text = mqttd("events", "--data-dir", str(scene.data))[1].splitlines()
    assert len(text) == len(stopped)
    first_opened = next(line for line in text if " connection_opened " in line)
    assert f" connection_opened worker={worker} client={name} address=127.0.0.1:" in first_opened


def test_since_until_and_client_choose(scene: Scene, mqttd: Command) -> None:
    broker = scene.start()
    for number in range(3):
        scene.connected(broker, f"c{number}").disconnect()
    everything = scene.await_moments(7)
    times = [each["time"] for each in everything]
    assert scene.moments("--since", times[3]) == everything[3:]
    assert scene.moments("--until", times[3]) == everything[:3]
    assert scene.moments("--since", times[1], "--until", times[5]) == everything[1:5]
    assert [each["kind"] for each in scene.events("--client", "c1")] == ["connection_opened", "connection_closed"]
    assert scene.moments("--since", "1h") == everything
    assert scene.moments("--since", "9999-01-01T00:00:00Z") == []
    assert broker.stop() == 0
    assert scene.moments("--since", times[1], "--until", times[5]) == everything[1:5]
    assert scene.moments("--since", "9999-01-01T00:00:00Z") == []
    for wrong in (["--since", "yesterday"], ["--since", "2026-01-01T00:00:00"], ["--kind", "nothing"], ["--x"]):
        with pytest.raises(SystemExit) as ended:
            mqttd("events", "--data-dir", str(scene.data), *wrong)
        assert ended.value.code == 2
    status, _, err = mqttd("events", "--data-dir", str(scene.data / "none"))
    assert (status, err) == (4, f"mqttd: {scene.data}/none: is not a data directory of mqttd (it has no store.json)\n")
    with plyvel.DB(str(scene.data / "worker-0")) as db:
        db.put(event_key(1), b"damaged")
    status, _, err = mqttd("events", "--data-dir", str(scene.data))
    assert (status, err.count("\n")) == (1, 1)
    assert "cannot be read: an event is cut off" in err
    status, out, _ = mqttd("store", "verify", str(scene.data))
    assert status == 1
    assert "events: record" in out


def test_sigkill_takes_a_second_at_most_and_the_next_start_says_so(scene: Scene, mqttd: Command) -> None:
    broker = scene.start(2)
    ids = [next(ids_of(worker, 2)) for worker in range(2)]
    for name in ids:
        scene.connected(broker, name, **LASTING)
    scene.await_moments(2, "--kind", "session_created")
    broker.kill()
    assert len(scene.events("--kind", "connection_opened")) == 2
    broker = scene.start(2)
    found = scene.await_moments(4, "--kind", "worker_started")
    assert len({each["incarnation"] for each in found}) == 4
    assert scene.events("--kind", "connection_closed") == []
    broker.kill_worker(0)
    scene.await_moments(5, "--kind", "worker_started")
    assert broker.stop() == 0
    assert [line.partition(" records, ")[2] for line in mqttd("store", "verify", str(scene.data))[1].splitlines()] == [
        "no problems", "no problems",
    ]  # fmt: skip
    stats = json.loads(mqttd("store", "stats", "--json", str(scene.data))[1])
    assert sum(store["families"]["events"]["records"] for store in stats) == len(scene.events())


def test_a_snapshot_has_them_and_a_restored_broker_goes_on(scene: Scene, tmp_path: Path) -> None:
    broker = scene.start(2)
    for number in range(6):
        scene.connected(broker, f"c{number}", **LASTING)
    before = scene.await_moments(2 + 12)
    said = mqttd_command.mqttd("snapshot", "--data-dir", scene.data, "--out", tmp_path / "out")
    assert said.status == 0, said.err
    scene.connected(broker, "later")
    scene.await_moments(7, "--kind", "connection_opened")
    assert broker.stop() == 0
    scene.data = tmp_path / "out"
    assert scene.moments() == before
    assert scene.moments() == before, "reading changes nothing"
    scene.data = tmp_path / "restored"
    said = mqttd_command.mqttd("restore", "--from", tmp_path / "out", "--data-dir", scene.data)
    assert said.status == 0, said.err
    assert scene.moments() == before
    broker = scene.start(2)
    assert scene.await_moments(4, "--kind", "worker_started")[:2] == [
        each for each in before if each["kind"] == "worker_started"
    ]


def test_a_replay_is_a_subscription(scene: Scene) -> None:
    broker = scene.start(archive=[{"filter": "a/#", "hours": 1, "bytes": "10MB"}], events={"topic_levels": 1})
    client = scene.connected(broker, "c")
    for number in range(3):
        client.publish("a/x", b"%d" % number, qos=1)
    codes = client.subscribe(("a/#", 1), properties={"user_property": [("mqttd-offset", "earliest")]})
    assert codes == (1,)
    for number in range(3):
        client.receive("a/x", b"%d" % number, qos=1)
    client.unsubscribe("a/#")
    found = scene.await_moments(3, "--client", "c")
    assert [(each["kind"], each.get("filter")) for each in found[1:]] == [
        ("subscription_made", "a/#"), ("subscription_removed", "a/#"),
    ]  # fmt: skip
    assert broker.stop() == 0
    traffic = scene.events("--kind", "topic_traffic")
    assert sum(each["delivered"] for each in traffic if each["prefix"] == "a") == 3


def test_another_number_of_workers_keeps_them(scene: Scene) -> None:
    broker = scene.start(2)
    for number in range(10):
        scene.connected(broker, f"c{number}").disconnect()
    assert broker.stop() == 0
    before = scene.events()
    for workers in (1, 3):
        broker = scene.start(workers)
        assert [each for each in scene.events() if each["number"] <= before[-1]["number"]] == before
        assert broker.stop() == 0
    assert len(scene.events("--kind", "worker_started")) == 2 + 1 + 3


def test_more_than_the_bound_is_deleted_under_way(scene: Scene) -> None:
    broker = scene.start(events={"bytes_max": 65536, "events_per_second_max": 100_000})
    client = scene.connected(broker, "c")
    for number in range(100):
        client.subscribe(*((f"{'x' * 100}/{number}/{each}", 0) for each in range(10)))
        client.unsubscribe(*(f"{'x' * 100}/{number}/{each}" for each in range(10)))

    def held() -> int:
        return len(scene.events())

    def is_written() -> bool:
        return any(each["filter"].endswith("/99/9") for each in scene.events("--kind", "subscription_removed"))

    wait_until(is_written, SECONDS, "all is written")
    wait_until(lambda: held() < 65536 // 120, SECONDS, "the oldest are gone")
    assert held() > 65536 // 300
    broker.kill()
    assert held() < 65536 // 120


def test_a_full_disk_takes_events_last_and_it_is_over_by_itself(scene: Scene, tmp_path: Path) -> None:
    """Clients connect and disconnect as before; events not recorded are counted, and reported once there is room."""
    with mounted(tmp_path / "disk", "64m") as disk:
        scene.data = disk / "data"
        broker = scene.start()
        scene.connected(broker, "before")
        scene.await_moments(1, "--client", "before")
        others = fill(disk)
        scene.connected(broker, "notices")
        wait_until(lambda: " store_full " in broker.logs, SECONDS, "the disk is full")
        for number in range(5):
            scene.connected(broker, f"during{number}").disconnect()
        others.unlink()
        wait_until(lambda: " store_has_room" in broker.logs, SECONDS, "there is room")
        scene.connected(broker, "after")
        scene.await_moments(1, "--client", "after")
        (lost,) = scene.await_moments(1, "--kind", "events_suppressed")
        assert lost["reason"] == "the store is full or fails"
        assert lost["events"] | {"connection_opened": 5, "connection_closed": 5} == lost["events"]
        assert not [each for each in scene.events() if (each.get("client") or "").startswith("during")]
        assert broker.stop() == 0
        scene.close()
