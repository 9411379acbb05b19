"""What a control process answers about its host, to other hosts and to the operator, and what it passes on to them.

It asks its own workers as for the admin interface (`broker.admin.workers`), and other hosts over their channel
(`broker.cluster.host_channel`). Each has less time than whoever waits for it, so that the reason that is told names
what has not answered: a worker, its host, or the control process here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from broker.admin import host_requests
from broker.admin.host_requests import (
    EndSnapshot,
    KeepManifest,
    OnHost,
    OwnState,
    SnapshotState,
    TakeSnapshot,
)
from broker.admin.metrics import connected
from broker.admin.requests import UNKNOWN, NoAnswer
from broker.cluster.host_channel import HostSilent

if TYPE_CHECKING:
    from broker.admin.host_snapshots import HostSnapshots
    from broker.admin.workers import Workers
    from broker.cluster.host import ClusterHost
    from pyx.core.counters import Row

__all__ = ["HOST_SECONDS_MAX", "STATE_SECONDS_MAX", "WORKER_SECONDS_MAX", "HostAnswers"]

HOST_SECONDS_MAX: Final = 8.0
"""Time that another host has for an answer. The supervisor gives this process 10 s for it."""
WORKER_SECONDS_MAX: Final = 6.0
"""Time that a worker has for one to another host."""
STATE_SECONDS_MAX: Final = 3.0
"""Time that hosts have to tell their state, all of them together. `mqttd status` waits for 5 s."""


class HostAnswers:
    """The answers of one host. Set `cluster` before anything is asked."""

    cluster: ClusterHost

    def __init__(self, asking: Workers, rows: Sequence[Row], snapshots: HostSnapshots) -> None:
        self._asking = asking
        self._rows = rows
        self._snapshots = snapshots

    async def close(self) -> None:
        """Give up what is being done for others."""
        await self._snapshots.close()

    async def answer(self, question: dict[str, Any]) -> dict[str, Any]:
        """Answer another host: {"answer": ...}, or {"silent": why} for a worker that does not."""
        asked = host_requests.decode_own(question)
        if asked is None:
            return {"answer": UNKNOWN}
        worker, request = asked
        match request:
            case OwnState():
                return {"answer": self._state()}
            case TakeSnapshot(id_):
                return {"answer": await self._snapshots.begin(id_)}
            case SnapshotState(id_):
                return {"answer": self._snapshots.state(id_)}
            case EndSnapshot(id_):
                return {"answer": await self._snapshots.end(id_)}
            case KeepManifest(id_, manifest):
                return {"answer": await self._snapshots.keep(id_, manifest)}
        if worker is None or worker >= len(self._rows):
            return {"silent": f"this host has {len(self._rows)} workers: there is no worker {worker}"}
        try:
            return {"answer": await self._asking.ask(worker, request, WORKER_SECONDS_MAX)}
        except NoAnswer as error:
            return {"silent": str(error)}

    def _state(self) -> dict[str, Any]:
        return {
            "clients": sum(connected(row) for row in self._rows),
            "sessions": sum(row["sessions"] for row in self._rows),
        }

    async def passed_on(self, request: OnHost) -> dict[str, Any]:
        """Return the answer of the host that is asked: {"answer": ...}, or {"silent": why}."""
        question = host_requests.encode(request)
        node = question.pop("node")
        if node == self.cluster.node:
            return _naming(node, await self.answer(question))
        try:
            return _naming(node, await self.cluster.channel.ask(node, question, HOST_SECONDS_MAX))
        except HostSilent as error:
            return {"silent": str(error)}

    async def states(self) -> list[dict[str, Any]]:
        """Return the state of every host, by node id; of one that does not tell it, why."""
        hosts = sorted(self.cluster.hosts.items())
        asked = [self._state_of(node) for node, _ in hosts]
        found = await asyncio.gather(*asked)
        return [
            {
                "node": node,
                "state": host.state.value,
                "release": host.release,
                "workers": host.workers,
                "address": host.address,
                **said,
            }
            for (node, host), said in zip(hosts, found, strict=True)
        ]

    async def _state_of(self, node: str) -> dict[str, Any]:
        if node == self.cluster.node:
            return self._state()
        question = host_requests.encode(OnHost(node, None, OwnState()))
        del question["node"]
        try:
            said = await self.cluster.channel.ask(node, question, STATE_SECONDS_MAX)
        except HostSilent as error:
            return {"error": str(error)}
        match said:
            case {"answer": {"clients": int(clients), "sessions": int(sessions)}}:
                return {"clients": clients, "sessions": sessions}
        return {"error": f"host {node} does not know this question: it is of another release"}


def _naming(node: str, said: dict[str, Any]) -> dict[str, Any]:
    """Return an answer with the name of its host in the reason why there is none."""
    if isinstance(said.get("answer"), dict):
        return {"answer": said["answer"]}
    return {"silent": f"host {node}: {said.get('silent', 'its answer is none')}"}
