"""The commands on stores, against a real broker: `mqttd sessions`, `mqttd store`, and foreign schema versions."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import plyvel
import pytest

from broker.cli import main as cli
from broker.testing import BrokerFailed, Mqttd
from leveldb_store.format import schema
from pyx.core.peer import sibling
from tests.broker_process import KIND, ROOT
from tests.waiting import wait_until
from tests.wire import Client

pytestmark = pytest.mark.skipif(KIND == "mosquitto", reason="mosquitto has no such stores")

Start = Callable[[int], Mqttd]
Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """``start(workers)``: a broker on the data directory, ended with the test."""
    opened: list[Mqttd] = []

    def run(workers: int = 1) -> Mqttd:
        opened.append(Mqttd(workers, {"store": "leveldb", "data_dir": tmp_path / "data"}))
        return opened[-1].start()

    yield run
    for each in opened:
        each.kill()
        each.forget()


@pytest.fixture
def mqttd(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """``mqttd(*arguments)``: return (status, standard output, standard error)."""
    for name in [name for name in os.environ if name.startswith("MQTTD_")]:
        monkeypatch.delenv(name)

    def run(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        before = os.getpriority(os.PRIO_PROCESS, 0)
        status = cli.main(list(arguments))
        # anything that follows in this process would run at the lower priority
        assert os.getpriority(os.PRIO_PROCESS, 0) == before, "it steps back: for tests.mqttd_command"
        return status, *capsys.readouterr()

    return run


def filled(broker: Mqttd) -> None:
    """Make sessions with some of every kind of record."""
    for number in range(6):
        with closing(Client(broker.address, 5)) as client:
            client.connect(f"c{number}", clean=False, properties={"session_expiry_interval": 1000})
            client.subscribe(("t/#", 2), ("$share/g/t", 1))
    with closing(Client(broker.address, 5)) as client:
        client.connect("publisher")
        for number in range(20):
            client.publish(f"t/{number % 3}", b"body %d" % number, qos=1 + number % 2, retain=number < 3)


def test_no_control_sequence_of_a_client_reaches_the_terminal(start: Start, mqttd: Command, tmp_path: Path) -> None:
    broker = start(1)
    data = ["--data-dir", str(tmp_path / "data")]
    with closing(Client(broker.address, 5)) as client:
        client.connect("\x1b[31mred", username="\x1b[2J", clean=False, properties={"session_expiry_interval": 60})
        client.subscribe("a\n\x1b[5m")
        for command in (("list",), ("show", "\x1b[31mred")):
            status, out, _ = mqttd("sessions", *command, *data)
            assert status == 0
            assert all(line.isprintable() for line in out.split("\n"))
            assert '"\\u001b[31mred"' in out


def test_sessions_are_listed_shown_and_deleted(start: Start, mqttd: Command, tmp_path: Path) -> None:
    broker = start(2)
    data = ["--data-dir", str(tmp_path / "data")]
    with closing(Client(broker.address, 5)) as client:
        client.connect("here", clean=False, properties={"session_expiry_interval": 1000})
        client.subscribe(("a/+", 1))
        with closing(Client(broker.address, 4)) as other:
            other.connect("elsewhere", clean=False)
        longest = "n" * 65_535
        with closing(Client(broker.address, 4)) as other:
            other.connect(longest, clean=False)
        assert longest[:1000] in mqttd("sessions", "show", longest, *data)[1]  # it is shown shortened
        assert mqttd("sessions", "delete", longest, *data)[0] == 0
        status, out, err = mqttd("sessions", "list", "--json", *data)
        assert (status, err) == (0, "")
        rows = {row["client"]: row for row in map(json.loads, out.splitlines())}
        assert rows.keys() == {"here", "elsewhere"}
        assert (rows["here"]["connected"], rows["elsewhere"]["connected"]) == (True, False)
        assert "elsewhere" in mqttd("sessions", "list", *data)[1]
        shown = json.loads(mqttd("sessions", "show", "here", "--json", *data)[1])
        assert (shown["expiry_seconds"], shown["filters"]) == (1000, ["a/+"])
        assert mqttd("sessions", "delete", "here", *data)[:2] == (0, "the session of 'here' is deleted\n")
        assert client.expect("DISCONNECT").reason == 0x98
    status, _, err = mqttd("sessions", "show", "here", *data)
    assert (status, err) == (1, "mqttd: there is no session of 'here'\n")
    assert broker.stop() == 0
    status, _, err = mqttd("sessions", "list", *data)
    assert (status, err) == (1, f"mqttd: no mqttd runs on {tmp_path}/data\n")


def test_a_broker_with_its_store_in_memory_is_asked_too(
    mqttd: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker is found by its runtime directory, given as a flag or in the configuration."""
    where = tmp_path / "run"
    config = tmp_path / "mqttd.toml"
    config.write_text(f'store = "memory"\nruntime_dir = "{where}"\n')
    arguments = ["--store", "memory", "--runtime-dir", str(where)]
    with Mqttd(2, arguments=arguments) as broker, closing(Client(broker.address, 5)) as client:
        client.connect("here", properties={"session_expiry_interval": 0})
        client.publish("t", b"x", qos=1, retain=True)
        for named in (["--runtime-dir", str(where)], ["--config", str(config)]):
            status, out, err = mqttd("sessions", "list", "--json", *named)
            assert (status, err) == (0, "")
            assert [json.loads(each)["client"] for each in out.splitlines()] == ["here"]
        for named in ([str(where)], ["--config", str(config)]):
            status, out, err = mqttd("store", "stats", "--json", *named)
            assert (status, err) == (0, "")
            assert [(each["worker"], each["kept"]) for each in json.loads(out)] == [(0, False), (1, False)]
        assert "worker 1:\n" in mqttd("store", "stats", str(where))[1]
        assert mqttd("sessions", "delete", "here", "--runtime-dir", str(where))[0] == 0
        assert client.expect("DISCONNECT").reason == 0x98
    assert not list(where.iterdir())
    status, _, err = mqttd("sessions", "list", "--runtime-dir", str(where))
    assert (status, err) == (1, f"mqttd: no mqttd runs on {where}\n")
    monkeypatch.setenv("MQTTD_STORE", "memory")
    for command in (("sessions", "list"), ("store", "stats")):
        status, _, err = mqttd(*command)
        assert status == 1
        assert err == "mqttd: a broker with its store in memory is found by its runtime_dir, which its start shows\n"


def test_a_running_broker_is_asked_for_the_stats_of_its_stores(start: Start, mqttd: Command, tmp_path: Path) -> None:
    """A running broker is asked; after a kill the stores are read."""
    broker, data = start(2), str(tmp_path / "data")
    filled(broker)

    def retained() -> int:
        status, out, err = mqttd("store", "stats", "--json", data)
        assert (status, err) == (0, "")
        return sum(each["retained_messages"] for each in json.loads(out))

    wait_until(lambda: retained() == 3, 60, "the gauges are written")
    with subprocess.Popen(
        [sys.executable, "-m", "broker", "store", "stats", data],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
    ) as cut:
        assert cut.stdout is not None
        cut.stdout.close()  # the reader has seen enough
        assert cut.communicate()[1] == b""
        assert cut.returncode == 0
    out = mqttd("store", "stats", data)[1]
    assert [line for line in out.splitlines() if not line.startswith(" ")] == ["worker 0:", "worker 1:"]
    assert sum(int(line.split()[-1]) for line in out.splitlines() if line.startswith("  retained messages")) == 3
    broker.kill()
    stats = json.loads(mqttd("store", "stats", "--json", data)[1])
    assert sum(store["families"]["retained messages"]["records"] for store in stats) == 3


def test_stores_are_verified_and_problems_named(start: Start, mqttd: Command, tmp_path: Path) -> None:
    broker, data = start(2), tmp_path / "data"
    filled(broker)
    status, _, err = mqttd("store", "verify", str(data))
    assert (status, err) == (4, f"mqttd: data_dir {data}: in use by another mqttd\n")
    assert (data / "broker.json").stat().st_mode & 0o777 == 0o600
    broker.kill()  # broker.json stays, and the logs are left as after a crash
    assert "(an earlier one was killed)" in mqttd("sessions", "list", "--data-dir", str(data))[2]
    copy = tmp_path / "copy"
    shutil.copytree(data, copy)
    for directory in (data, copy):
        status, out, err = mqttd("store", "verify", str(directory))
        assert (status, err) == (0, ""), out
        assert [line.partition(" records, ")[2] for line in out.splitlines()] == ["no problems", "no problems"]
    status, out, _ = mqttd("store", "stats", "--json", str(data))
    stats = json.loads(out)
    assert status == 0
    assert sum(store["families"]["sessions"]["records"] for store in stats) == 6
    assert sum(store["families"]["retained messages"]["records"] for store in stats) == 3
    assert "retained messages" in mqttd("store", "stats", str(data))[1]
    assert mqttd("store", "stats", str(tmp_path))[0] == 4


def test_every_family_is_verified(start: Start, mqttd: Command, tmp_path: Path) -> None:
    broker, data = start(1), tmp_path / "data"
    filled(broker)
    assert broker.stop() == 0
    spoilt = dict.fromkeys((b"\0position", b"FX", b"Sx", b"Tx\0t", b"Vx", b"Rt", b"Wx", b"P\1", b"Xx"), b"\x01")
    spoilt |= {schema.block_key(2**40): b"\x01", schema.part_key(1, 2**40): b"\x01", schema.trimmed_key(1): b"\x01"}
    spoilt |= {
        schema.dropped_key(1): b"\x01",
        schema.wanted_key(1): b"\x01",
        schema.handoff_key(sibling(1), 5): b"\x01",
    }
    spoilt |= {schema.queued_key("x", 5): b"\x01"}
    with plyvel.DB(str(data / "worker-0")) as db:
        (block, _) = next(db.iterator(prefix=b"B"))
        db.delete(block)
        for key, value in spoilt.items():
            db.put(key, value)
    status, out, _ = mqttd("store", "verify", str(data))
    assert status == 1
    problems = [line for line in out.splitlines() if "record b" in line]
    assert all(any(f"record {key!r}: " in line for line in problems) for key in spoilt), out
    missing = f"block {schema.key_position(block)} is missing"
    assert any(missing in line for line in problems)
    assert all(missing in line or any(repr(key) in line for key in spoilt) for line in problems), out


def test_a_flipped_bit_in_a_table_and_in_a_log_is_a_problem(start: Start, mqttd: Command, tmp_path: Path) -> None:
    broker, data = start(1), tmp_path / "data"
    filled(broker)
    assert broker.stop() == 0
    store = data / "worker-0"
    with plyvel.DB(str(store)) as db:
        db.compact_range()
    for kind in ("*.ldb", "MANIFEST-*"):
        copy = tmp_path / f"copy {kind[:3]}"
        shutil.copytree(data, copy)
        for file in (copy / "worker-0").glob(kind):
            content = bytearray(file.read_bytes())
            content[len(content) // 3] ^= 4
            file.write_bytes(content)
        status, out, _ = mqttd("store", "verify", str(copy))
        assert status == 1, kind
        assert "Corruption" in out or "damaged at byte" in out or "cannot be opened" in out, out
    assert mqttd("store", "verify", str(data))[0] == 0


@pytest.mark.parametrize("version", [schema.OLDEST_VERSION - 1, schema.VERSION + 1])
def test_a_store_of_another_version_is_refused(start: Start, mqttd: Command, tmp_path: Path, version: int) -> None:
    """One line and a status, with the same number of workers and with another; nothing is read, nothing changed."""
    assert start(1).stop() == 0
    store = tmp_path / "data" / "worker-0"
    with plyvel.DB(str(store)) as db:
        db.put(schema.SCHEMA, schema.U32.pack(version))
        before = list(db)
    said = f"the store {store} has schema version {version}, this mqttd reads versions 1 to {schema.VERSION}"
    for workers, status in ((1, 1), (2, 4)):
        with pytest.raises(BrokerFailed) as failed:
            start(workers)
        assert f"mqttd ended with status {status} before it was ready" in str(failed.value)
        lines = [line for line in str(failed.value).splitlines() if line.startswith("mqttd: ")]
        assert len(lines) == 1
        assert said in lines[0]
    with plyvel.DB(str(store)) as db:
        assert list(db) == before
    assert not list((tmp_path / "data").glob("worker-*.1"))
    status, out, _ = mqttd("store", "verify", str(tmp_path / "data"))
    assert status == 1
    assert f"has schema version {version}, this mqttd reads versions 1 to {schema.VERSION}" in out
