"""A host's part in the leadership: it carries out what is planned, tells operators, and outlives its own defects."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from broker.cluster import leadership as module
from broker.cluster.advice import Advice, HostsNeeded
from broker.cluster.balance import encode_moves
from broker.cluster.contract import Delete, Put
from broker.cluster.election import prefix_of
from broker.cluster.host_load import HostLoad, loads_of
from broker.cluster.host_record import HostRecord, HostState
from broker.cluster.leadership import Leadership
from broker.config.cluster import Cluster
from tests.cluster.in_memory import CoordinatorInMemory
from tests.cluster.test_leading import HOST, Lines

CLUSTER = "test"
PLAN = prefix_of(CLUSTER) + b"plan"
ADVICE = prefix_of(CLUSTER) + b"advice"


class Part:
    """The part of the host a, beside b, which is only there."""

    def __init__(self, **settings: Any) -> None:
        self.shared = CoordinatorInMemory()
        self.lease = self.shared.grant(3600)
        records = {"a": HOST, "b": HOST.changed(HostState.READY)}
        self.hosts = records
        self.told: list[tuple[int, Sequence[tuple[str, int]], float]] = []
        self.log = Lines()
        self.fails = False
        log: Any = self.log
        self.settings = Cluster(
            etcd=["etcd://127.0.0.1:1"],
            name=CLUSTER,
            node_id="a",
            listen="tcp://127.0.0.1:1",
            **{"rebalance": "on", **settings},
        )
        self.part = Leadership(
            self.shared.connect(),
            self.settings,
            lambda: self.hosts,
            lambda: self.lease,
            lambda: True,
            self._measure,
            self._send_away,
            log,
        )

    def _measure(self) -> HostLoad:
        if self.fails:
            raise RuntimeError("a defect")
        return HostLoad(5, 6, 1000)

    async def _send_away(self, plan: int, places: Sequence[tuple[str, int]], per_second: float) -> None:
        self.told.append((plan, places, per_second))

    async def write(self, *operations: Put | Delete) -> int:
        return (await self.shared.connect().transact([], operations)).revision

    async def until(self, condition: Callable[[], object], what: str) -> None:
        for _ in range(1000):
            if condition():
                return
            await asyncio.sleep(0.01)
        raise AssertionError(f"not within 10 s: {what}; {self.told}, {self.log.lines}")


def run(test: Callable[[Part], Coroutine[Any, Any, None]], **settings: Any) -> None:
    async def with_part() -> None:
        made = Part(**settings)
        task = asyncio.create_task(made.part.run())
        try:
            await made.until(lambda: made.part.report()["leader"]["is_this_host"], "it leads")
            await made.until(lambda: made.part.report()["advice"], "it advises")
            assert made.told == [(0, [], 0.0)], "what a former process has begun ends"
            made.told.clear()
            await test(made)
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    asyncio.run(with_part())


def test_what_operators_see() -> None:
    async def test(made: Part) -> None:
        report = made.part.report()
        assert report["leader"]["node"] == "a"
        assert report["leader"]["changes"] == 1
        assert report["rebalance"] == {"setting": "on", "moves": {}}
        assert report["advice"]["verdict"] == "unknown"
        assert report["advice"]["reason"] == "the load of b is not known, or it is not ready"
        assert made.part.counts() == (True, 1, 0, 0, 0)
        assert made.log.count("leader_elected") == 1
        assert made.shared.entry(loads_of(CLUSTER) + b"a") is not None
        await made.write(Put(ADVICE, Advice(HostsNeeded.DRAIN, "few clients", "b").encode()))
        await made.until(lambda: made.part.report()["advice"]["host"] == "b", "it is shown")
        assert made.part.report()["advice"] == {"verdict": "drain", "host": "b", "reason": "few clients"}
        await made.write(Put(ADVICE, b"of a later release"))
        await made.until(lambda: made.log.count("leader_malformed") == 1, "it is said")

    run(test)


def test_a_plan_is_carried_out_and_taken_back() -> None:
    """Once each, with the number of its revision."""

    async def test(made: Part) -> None:
        plan = await made.write(Put(PLAN, encode_moves({"a": {"b": 30}, "c": {"b": 10}})))
        await made.until(lambda: made.told, "the workers are told")
        assert made.told == [(plan, [("a.example:1883", 30)], 250.0)]
        assert made.part.report()["rebalance"]["moves"] == {"a": {"b": 30}, "c": {"b": 10}}
        made.shared.compact()
        await made.write(Delete(PLAN))
        await made.until(lambda: len(made.told) == 2, "it is taken back")
        assert made.told[1] == (plan, [], 0.0)
        assert made.part.report()["rebalance"]["moves"] == {}

    run(test)


@pytest.mark.parametrize("why", ["of others", "off", "drains", "is gone", "joins", "no address", "malformed"])
def test_a_plan_that_is_not_carried_out(why: str) -> None:
    async def test(made: Part) -> None:
        match why:
            case "of others":
                record = encode_moves({"b": {"a": 30}})
            case "malformed":
                record = b'{"format":2}'
            case _:
                record = encode_moves({"a": {"b": 30}})
        if why == "drains":
            made.hosts["a"] = HOST.changed(HostState.DRAINING)
        elif why == "is gone":
            del made.hosts["b"]
        elif why == "joins":
            made.hosts["b"] = HOST.changed(HostState.JOINING)
        elif why == "no address":
            made.hosts["b"] = HostRecord.decode("b", HOST.encode().replace(b"a.example:1883", b""))
        await made.write(Put(PLAN, record))
        await made.write(Put(ADVICE, Advice(HostsNeeded.FINE, "seen afterwards").encode()))
        await made.until(lambda: made.part.report()["advice"]["reason"] == "seen afterwards", "both are seen")
        await asyncio.sleep(0)
        assert made.told == []
        await made.write(Delete(PLAN))
        await made.write(Put(ADVICE, Advice(HostsNeeded.FINE, "and again").encode()))
        await made.until(lambda: made.part.report()["advice"]["reason"] == "and again", "both are seen")
        assert made.told == []
        assert made.log.count("leader_malformed") == (why == "malformed")

    run(test, rebalance="off" if why == "off" else "on")


def test_a_setting_that_changes() -> None:
    async def test(made: Part) -> None:
        made.part.settings = made.settings.model_copy(update={"rebalance": "on", "drain_per_second": 7})
        await made.write(Put(PLAN, encode_moves({"a": {"b": 30}})))
        await made.until(lambda: made.told, "the workers are told")
        assert made.told[0][2] == 7

    run(test, rebalance="off")


def test_a_defect_ends_this_part_for_a_while_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is logged, and another host may lead; then it stands for election again."""
    monkeypatch.setattr(module, "_FAILED_SECONDS", 0.2)

    async def test() -> None:
        made = Part()
        made.fails = True
        task = asyncio.create_task(made.part.run())
        await made.until(lambda: made.log.count("leadership_failed") >= 2, "it is logged")
        assert not task.done()
        made.fails = False
        await made.until(lambda: made.part.report()["leader"]["is_this_host"], "it leads")
        await made.until(lambda: made.shared.entry(loads_of(CLUSTER) + b"a"), "it reports")
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    asyncio.run(test())


def test_nothing_on_the_way_of_a_message_knows_of_a_leader() -> None:
    """Workers import none of it: what they are told comes as a request that may be missing."""
    import subprocess
    import sys

    code = (
        "import sys, broker.worker.other_hosts, broker.worker.process\n"
        "print([name for name in sys.modules if name.startswith('broker.cluster.')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = done.stdout
    for each in ("election", "leading", "leadership", "balance", "advice", "reaping", "host_load"):
        assert f"broker.cluster.{each}'" not in loaded, loaded
