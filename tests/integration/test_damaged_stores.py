"""A start over a store with unreadable parts: the rest serves, or `--strict-store` names the damage."""

from __future__ import annotations

import json
import shutil
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import plyvel
import pytest

from broker.cli import store_command as inspection
from broker.testing import BrokerFailed
from leveldb_store.format import schema
from tests.broker_process import KIND, BrokerProcess
from tests.waiting import wait_until
from tests.wire import Client

pytestmark = pytest.mark.skipif(KIND == "mosquitto", reason="mosquitto has no such stores")

SESSIONS = 40
STEP_BYTES = 101
Start = Callable[..., BrokerProcess]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """``start(workers, *arguments)``: a broker on the data directory, ended with the test."""
    opened: list[BrokerProcess] = []

    def run(workers: int = 1, *arguments: str) -> BrokerProcess:
        settings = ["--store", "leveldb", "--data-dir", str(tmp_path / "data"), "--admin", "127.0.0.1:0"]
        opened.append(BrokerProcess(workers, ["--log-format", "json", *settings, *arguments]))
        opened[-1].start()
        return opened[-1]

    yield run
    for each in opened:
        each.kill()
        each.forget()


def fill(broker: BrokerProcess) -> None:
    """Make sessions with a backlog each, and retained messages."""
    for number in range(SESSIONS):
        with closing(Client(broker.address, 5)) as client:
            client.connect(f"c{number}", clean=False, properties={"session_expiry_interval": 1000})
            client.subscribe((f"t/{number}", 1))
    with closing(Client(broker.address, 5)) as client:
        client.connect("publisher")
        for number in range(SESSIONS):
            client.publish(f"t/{number}", b"%d" % number, qos=1, retain=True)


def backlog(broker: BrokerProcess, number: int) -> tuple[bool, bytes | None]:
    """Return (whether the session is there, the first message it gets)."""
    with closing(Client(broker.address, 5)) as client:
        properties = {"session_expiry_interval": 1000}
        connack = client.connect(f"c{number}", clean=False, properties=properties)
        return connack.session_present, client.expect("PUBLISH").payload if connack.session_present else None


def named(broker: BrokerProcess, event: str) -> list[str]:
    """Return the records that log lines of this kind name."""
    return [line["record"] for line in broker.logged(event)]


def ready(broker: BrokerProcess) -> list[int]:
    """Return how many records each worker has set aside, from /ready once it is 200."""
    said: list[int] = []

    def is_ready() -> bool:
        with suppress(urllib.error.HTTPError), urllib.request.urlopen(page) as answer:  # 503 before it is ready
            said[:] = [worker["records_set_aside"] for worker in json.load(answer)["workers"]]
        return bool(said)

    page = "http://{}:{}/ready".format(*broker.admin)
    wait_until(is_ready, 60.0, "it is ready")
    return said


def spoil_sessions(store: Path, scratch: Path) -> None:
    """Flip a bit of a table so that LevelDB opens it, but cannot read the sessions in it."""
    (file,) = store.glob("*.ldb")
    whole = file.read_bytes()
    for at in range(STEP_BYTES, len(whole), STEP_BYTES):
        file.write_bytes(whole[:at] + bytes((whole[at] ^ 4,)) + whole[at + 1 :])
        shutil.copytree(store, scratch)
        try:
            with plyvel.DB(str(scratch)) as db:
                if is_damaged(db):
                    return
        except plyvel.Error:
            continue  # LevelDB does not even open it
        finally:
            shutil.rmtree(scratch)
    raise AssertionError("no bit of it does that")


def is_damaged(db: plyvel.DB) -> bool:
    """Whether the sessions cannot be read."""
    try:
        list(db.iterator(prefix=schema.SESSION, verify_checksums=True))
    except plyvel.CorruptionError:
        return True
    return False


@pytest.mark.parametrize("count", [pytest.param(1, marks=pytest.mark.long), 2])
def test_records_that_cannot_be_read_are_set_aside(
    start: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str], count: int
) -> None:
    """One record of each family, also with another number of workers: logged once, counted at every start, kept."""
    broker = start(1)
    fill(broker)
    assert broker.stop() == 0
    store = tmp_path / "data" / "worker-0"
    with plyvel.DB(str(store)) as db:
        spoilt = {schema.session_key("c0"), schema.subscription_key("c1", b"t/1"), schema.window_key("c2")}
        spoilt |= {schema.retained_key(b"t/3"), schema.name_key(b"t/4"), schema.will_key("c5")}
        for key in spoilt:
            db.put(key, b"spoilt")
    with pytest.raises(BrokerFailed) as failed:
        start(count, "--strict-store")
    (line,) = [line for line in str(failed.value).splitlines() if line.startswith("mqttd: ")]
    assert any(repr(key) in line for key in spoilt)
    broker = start(count)
    aside = sum(ready(broker))
    assert aside >= len(spoilt)
    if count == 1:
        assert {ascii(key) for key in spoilt} <= set(named(broker, "record_set_aside"))
        assert len(named(broker, "record_set_aside")) == aside
    assert [backlog(broker, number) for number in range(6, SESSIONS)] == [(True, b"%d" % i) for i in range(6, SESSIONS)]
    assert backlog(broker, 0) == (False, None)
    assert broker.stop() == 0
    broker = start(count)
    assert sum(ready(broker)) == aside
    assert not named(broker, "record_set_aside")
    assert broker.stop() == 0
    assert inspection.main(["verify", str(tmp_path / "data")]) == 1
    capsys.readouterr()
    assert inspection.main(["discard", str(tmp_path / "data")]) == 0
    assert sum(int(line.rpartition(": ")[2].split()[0]) for line in capsys.readouterr().out.splitlines()) == aside
    broker = start(count)
    assert sum(ready(broker)) == 0
    assert broker.stop() == 0


@pytest.mark.parametrize("count", [pytest.param(1, marks=pytest.mark.long), 2])
def test_a_table_that_is_damaged_is_repaired_when_it_shows(
    start: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str], count: int
) -> None:
    """LevelDB opens the store and meets the flipped bit when sessions are read: in the worker, or for a repartition."""
    broker = start(1)
    fill(broker)
    assert broker.stop() == 0
    store = tmp_path / "data" / "worker-0"
    with plyvel.DB(str(store)) as db:
        db.compact_range()
    spoil_sessions(store, tmp_path / "scratch")
    with pytest.raises(BrokerFailed, match="strict_store" if count == 1 else "unchanged: start with --workers 1"):
        start(count, "--strict-store")
    broker = start(count)
    assert "is repaired" in broker.stderr()
    with closing(Client(broker.address, 5)) as client:
        client.connect("new", clean=False, properties={"session_expiry_interval": 1000})
        client.subscribe(("new", 1))
        client.publish("new", b"x", qos=1)
        assert client.expect("PUBLISH").payload == b"x"
    assert broker.stop() == 0
    capsys.readouterr()
    assert inspection.main(["verify", str(tmp_path / "data")]) in (0, 1), capsys.readouterr().out
    assert "cannot be opened" not in capsys.readouterr().out
    assert start(count).stop() == 0
