"""A recovery takes as long as its disk: the heartbeat of its worker depends on time, not on records."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.worker.core import Node
from broker.worker.starting import Starting
from leveldb_store.contract import StoreError
from leveldb_store.format import schema
from shards.data_dir import DataDir
from tests.kept_host import kept, lasting
from tests.sansio import START_WALL_MS, KeptLog
from tests.waiting import wait_until

BEATS = 25
SECONDS = 60.0


def test_a_slow_disk_does_not_stop_the_heart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One record, of a window with messages in flight, is read only after 25 heartbeats: more than two seconds, which
    the log reports.
    """
    DataDir(str(tmp_path / "data"), 1).close()
    host, store = kept()
    client = lasting(host, "c", 5)
    client.subscribe(("t", 1))
    publisher = host.connect("publisher")
    for number in range(20):
        publisher.publish("t", b"%d" % number, 1)
    host.settle()
    crashed = store.after_crash()
    settings = host.settings.model_copy(update={"data_dir": str(tmp_path / "data")})
    log: Any = KeptLog()
    node = Node(0, 1, settings, crashed, log, host.now_ms, START_WALL_MS)
    heartbeat = array("Q", [0])
    scan = crashed.scan
    waited: list[bytes] = []

    def has_beaten(until: int) -> bool:
        return heartbeat[0] >= until

    def slow(prefix: bytes, *more: Any) -> Iterator[tuple[bytes, bytes]]:
        for key, value in scan(prefix, *more):
            if key[:1] == schema.WINDOW:
                waited.append(key)
                wait_until(partial(has_beaten, heartbeat[0] + BEATS), SECONDS, "the heart beats")
            yield key, value

    monkeypatch.setattr(crashed, "scan", slow)
    starting = Starting(cast(Any, SimpleNamespace(heartbeat=heartbeat, settings=settings, index=0)), log)
    recovered = starting.recover(node.recovery, node.set_aside, crashed)
    assert recovered is not None
    assert recovered.sessions == 1
    assert waited == [schema.WINDOW + b"c"]
    assert heartbeat[0] >= BEATS
    assert len(log.named("recovering")) >= 1
    session = node.sessions.get("c")
    assert session is not None
    assert node.router.bounding.backlog(session)[0] == 20
    node.router.abandon()


def test_what_fails_in_the_thread_is_said_by_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    DataDir(str(tmp_path / "data"), 1).close()
    host, store = kept()
    settings = host.settings.model_copy(update={"data_dir": str(tmp_path / "data")})
    log: Any = KeptLog()
    node = Node(0, 1, settings, store.after_crash(), log, host.now_ms, START_WALL_MS)

    def fails(*_: Any) -> None:
        raise StoreError("the disk is gone")

    monkeypatch.setattr(node.recovery, "run", fails)
    starting = Starting(cast(Any, SimpleNamespace(heartbeat=array("Q", [0]), settings=settings, index=0)), log)
    with pytest.raises(StoreError, match=r"^the disk is gone$"):
        starting.recover(node.recovery, node.set_aside, node.context.store)
    node.router.abandon()
