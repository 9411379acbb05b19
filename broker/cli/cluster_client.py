"""Requests of a command to all hosts of a cluster, by way of a running broker (`broker.admin.host_requests`).

Its control process asks all hosts at once for their states; who does not answer in time is not asked for more. What a
host is asked afterwards and does not answer either is a `HostMissing`, and the command goes on with the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from broker.admin.host_requests import HostStates, OfHost, OnHost
from broker.admin.requests import UNKNOWN, NoAnswer, Paged, Request, page_at, understood
from broker.cli.console_client import ConsoleClient, NoBroker

__all__ = ["SOME_MISSING", "ClusterClient", "HostMissing", "HostWorkers"]

SOME_MISSING = 3
"""Exit status: done, but some hosts have not answered."""


class HostMissing(NoAnswer):
    """A host does not answer."""


@dataclass(frozen=True, slots=True)
class HostWorkers:
    """A host that answers."""

    node: str
    workers: int


@dataclass(slots=True)
class ClusterClient:
    """Asks hosts. `broker`: a broker of one of them."""

    broker: ConsoleClient
    missing: dict[str, str] = field(default_factory=dict)
    """Hosts that have not answered, and why."""

    def hosts(self, only: str | None = None) -> list[HostWorkers]:
        """Return the hosts that answer, by node id. only: that one, if it does. Raises NoAnswer: there is none of this
        name, or the control process does not answer.
        """
        try:
            states = self.broker.ask(self.broker.workers, HostStates())["hosts"]
        except NoBroker:
            raise
        except NoAnswer as error:
            raise NoAnswer(f"the control process of this host does not answer: {error}") from None
        if only is not None:
            states = [each for each in states if each["node"] == only]
            if not states:
                raise NoAnswer(f"there is no host {only!r} in the cluster")
        if not states:
            raise NoAnswer("this host has not joined its cluster yet")
        for each in states:
            if "error" in each:
                self.missing[each["node"]] = each["error"]
        return [HostWorkers(each["node"], each["workers"]) for each in states if "error" not in each]

    def ask(self, node: str, worker: int | None, request: Request | OfHost) -> dict[str, Any]:
        """Return the answer of a host's worker, or of its control process (None). Raises HostMissing, NoBroker."""
        try:
            said = self.broker.ask(self.broker.workers, OnHost(node, worker, request))
            if "silent" in said:
                raise HostMissing(said["silent"])
            answer: dict[str, Any] = said["answer"]
            if worker is None and answer == UNKNOWN:
                raise HostMissing(f"host {node} does not know this request: it is of another release")
            return answer if worker is None else understood(worker, answer)
        except (NoBroker, HostMissing):
            raise
        except NoAnswer as error:
            raise HostMissing(f"host {node}: {error}") from None

    def pages(self, node: str, worker: int, request: Paged) -> Iterator[dict[str, Any]]:
        """Yield all pages of an answer. Raises HostMissing, NoBroker."""
        at: int | None = request.at
        while at is not None:
            page = self.ask(node, worker, page_at(request, at))
            yield page
            at = page["next"]

    def report(self) -> list[str]:
        """Return a line for each host that has not answered."""
        return [reason for _, reason in sorted(self.missing.items())]
