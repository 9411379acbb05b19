"""One host in its cluster: joins it, and tells its workers of the other hosts.

It runs in the control process, which alone speaks with etcd. The workers are told of other hosts by way of the
supervisor, and go on with what they know while etcd, or this process, is away.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import broker
from broker.cluster.contract import Coordination, CoordinationError
from broker.cluster.host_channel import NEWEST, OLDEST, Answerer, HostChannel
from broker.cluster.host_numbers import keep_number, number_of_host
from broker.cluster.host_record import HostRecord, HostState, MalformedHostRecord
from broker.cluster.leadership import Leadership, LeadershipCounts, SendAway
from broker.cluster.membership import HostMembership
from broker.cluster.owner_messages import Standing
from broker.cluster.owner_requests import OwnerRequests
from broker.cluster.ownership import Ownership
from broker.cluster.reaping import mark_in_memory
from shards.whole_file import replace_file
from zmq_mesh.curve import KeyPair, new_keys
from zmq_mesh.envelope import OLDEST_VERSION, VERSION

if TYPE_CHECKING:
    from broker.cluster.host_load import HostLoad
    from broker.config.cluster import Cluster
    from broker.logs import Log

__all__ = ["ClusterHost", "HostIdentity", "identity_of"]

_RETRY_SECONDS: Final = 1.0
_FILE: Final = "cluster.json"
_FORMAT: Final = 1


class HostIdentity(NamedTuple):
    """Who this host is. installation: 32 hexadecimal digits. keys: for links; those of one run of the broker."""

    installation: str
    keys: KeyPair


def identity_of(data_dir: str | None) -> HostIdentity:
    """Return the identity of a host with this data directory, where its installation is kept; None: with a store in
    memory it is another one at each start. Raises OSError, and ValueError for a file that is damaged.
    """
    keys = new_keys()
    if data_dir is None:
        return HostIdentity(secrets.token_hex(16), keys)
    file = Path(data_dir) / _FILE
    try:
        read = json.loads(file.read_bytes())
        if read["format"] != _FORMAT:
            raise ValueError(f"its format is {read['format']!r}, this release reads {_FORMAT}")
        return HostIdentity(str(bytes.fromhex(read["installation"]).hex()), keys)
    except FileNotFoundError:
        installation = secrets.token_hex(16)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{file}: damaged: {error}") from None
    record = json.dumps({"format": _FORMAT, "installation": installation}).encode() + b"\n"
    replace_file(file, record, file.with_suffix(".new"))
    return HostIdentity(installation, keys)


class ClusterHost:
    """Implements `broker.cluster.membership.MembershipEvents`. `keeps`: its sessions are on disk. `tell`: sends the
    supervisor an event. `worker_sockets`: one for each worker, over which it asks for owners of client ids. `answer`:
    answers what other hosts ask. `measure`: returns the load of this host. `send_away`: lets the workers do so.
    `drains`: it has been draining when the former control process ended.
    """

    def __init__(
        self,
        coordination: Coordination,
        settings: Cluster,
        identity: HostIdentity,
        workers: int,
        keeps: bool,
        log: Log,
        tell: Callable[..., None],
        worker_sockets: Sequence[socket.socket],
        answer: Answerer,
        measure: Callable[[], HostLoad],
        send_away: SendAway,
        drains: bool = False,
    ) -> None:
        self._coordination = coordination
        self._settings = settings
        self._identity = identity
        self._workers = workers
        self._keeps = keeps
        self._log = log
        self._tell = tell
        self._linked = [False] * workers
        self._linked_hosts: list[frozenset[str]] = [frozenset()] * workers
        """By worker: the hosts with which it is linked."""
        self._number = 0
        self._incarnation = 0
        self._has_seen_hosts = False
        self._others: set[str] = set()
        self._keeping: asyncio.Task[None] | None = None
        self._membership: HostMembership | None = None
        self._out_of_reach = False
        self._ownership = Ownership(coordination, settings.name, settings.node_id, self._lease)
        self._owner_requests = OwnerRequests(self._ownership, self._standing, worker_sockets, log)
        self.channel = HostChannel(identity.keys, settings.listen, workers, answer, log)
        """To the control processes of the other hosts."""
        self._leadership = Leadership(
            coordination, settings, lambda: self.hosts, self._lease, lambda: self.is_proven, measure, send_away, log
        )
        self.state = HostState.DRAINING if drains else HostState.JOINING
        """Of this host, as the others are told."""

    @property
    def hosts(self) -> Mapping[str, HostRecord]:
        """All hosts as last seen, by node id."""
        return {} if self._membership is None else self._membership.hosts

    @property
    def node(self) -> str:
        """The node id of this host."""
        return self._settings.node_id

    @property
    def number(self) -> int:
        """Its number in the cluster; 0: not known yet."""
        return self._number

    @property
    def is_proven(self) -> bool:
        """Whether this host surely is a member."""
        return self._membership is not None and self._membership.is_proven

    @property
    def is_ready(self) -> bool:
        """Whether it has once known what all other hosts want, and they what it wants, and takes clients."""
        return self.state is HostState.READY

    async def owner_of(self, client_id: str) -> dict[str, Any] | None:
        """Return the owner of a client id: the host, its address for other hosts and that for clients, and the epoch;
        None: nobody owns it. Raises ConnectionError if etcd does not say.
        """
        try:
            owner = await self._ownership.look(client_id)
        except CoordinationError as error:
            raise ConnectionError(str(error)) from None
        if not owner.node:
            return None
        host = self.hosts.get(owner.node)
        return {
            "client_id": client_id,
            "node": owner.node,
            "address": host.address if host is not None else None,
            "client_address": (host.client_address if host is not None else "") or None,
            "epoch": owner.epoch,
        }

    def drain(self, begins: bool) -> str | None:
        """Send the clients and sessions of this host to the others, or no longer. Return why not."""
        if self.state is HostState.JOINING or not self._knows_hosts:
            return "this host has not joined its cluster yet"
        if begins and not self._takers():
            return "no other host takes clients"
        if begins and self.state is not HostState.DRAINING:
            self._log.info("drain_begun", node=self._settings.node_id)
            self._set_state(HostState.DRAINING)
        elif not begins and self.state is HostState.DRAINING:
            self._log.info("drain_ended", node=self._settings.node_id)
            self._set_state(HostState.READY)
        return None

    def _set_state(self, state: HostState) -> None:
        self.state = state
        if self._membership is not None:
            self._membership.set_state(state)
        self._tell_hosts(self.hosts)

    @property
    def _knows_hosts(self) -> bool:
        """Whether the workers may be told of the hosts: without others they would be ready at once."""
        return self._has_seen_hosts and self._incarnation > 0

    def _takers(self) -> list[tuple[int, str]]:
        """Return the hosts that take clients, each with the address where, as clients are told."""
        return [
            (each.number, each.client_address)
            for each in self.hosts.values()
            if each.state is HostState.READY and each.number != self._number
        ]

    def reloaded(self, settings: Cluster) -> None:
        """Take settings that may change while the host runs."""
        self._leadership.settings = settings

    def leadership_counts(self) -> LeadershipCounts:
        """Return what is counted about the leadership of the cluster."""
        return self._leadership.counts()

    def links(self) -> dict[str, int]:
        """Return by other host how many of the workers are linked with it."""
        others = {*self.hosts, *chain.from_iterable(self._linked_hosts)} - {self._settings.node_id}
        return {node: sum(node in linked for linked in self._linked_hosts) for node in others}

    def report(self) -> dict[str, Any]:
        """Return the state of the cluster as this host sees it."""
        links = self.links()
        return {
            "node": self._settings.node_id,
            "state": self.state.value,
            "member": self.is_proven,
            **self._leadership.report(),
            "hosts": [
                {
                    "node": node,
                    "state": each.state.value,
                    "address": each.address,
                    "client_address": each.client_address,
                    "workers": each.workers,
                    "release": each.release,
                    "links": None if node == self._settings.node_id else links.get(node, 0),
                }
                for node, each in sorted(self.hosts.items())
            ],
        }

    def _lease(self) -> int:
        return 0 if self._membership is None else self._membership.lease

    def _standing(self) -> Standing:
        return Standing(self._lease(), self.is_proven)

    async def run(self) -> None:
        """Join, and stay a member, until cancelled."""
        self._owner_requests.start()
        is_heard = self.channel.start()
        self._number = await self._own_number()
        own = HostRecord(
            node=self._settings.node_id,
            number=self._number,
            incarnation=1,  # until it joins
            installation=self._identity.installation,
            address=self._settings.address,
            curve_key=self._identity.keys.public.decode(),
            workers=self._workers,
            state=HostState.JOINING,
            release=broker.__version__,
            link_versions=(OLDEST_VERSION, VERSION),
            keeps=self._keeps,
            client_address=self._settings.client_address,
            question_versions=(OLDEST, NEWEST) if is_heard else (0, 0),
        )
        self._membership = HostMembership(self._coordination, self._settings.name, own, self)
        self._membership.set_state(self.state)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._membership.run())
            group.create_task(self._leadership.run())

    async def close(self) -> None:
        """Close the connection. The host stays a member until its lease ends: it may be back before that."""
        if self._keeping is not None:
            self._keeping.cancel()
        await self._owner_requests.close()
        await self.channel.close()
        await self._coordination.close()

    async def _own_number(self) -> int:
        while True:
            try:
                number = await number_of_host(self._coordination, self._settings.name, self._identity.installation)
            except CoordinationError as error:
                self.out_of_reach(str(error))
                await asyncio.sleep(_RETRY_SECONDS)
            else:
                self.reached()
                return number

    def linked(self, worker: int, linked: bool, hosts: Iterable[str]) -> None:
        """Note whether a worker and all other hosts know what the other wants, and with which hosts it is linked."""
        self._linked[worker], self._linked_hosts[worker] = linked, frozenset(hosts)
        if self.state is HostState.JOINING and all(self._linked):  # once: a host that comes later joins by itself
            self.state = HostState.READY
            if self._membership is not None:
                self._membership.set_state(self.state)
            self._log.info("cluster_ready", node=self._settings.node_id)

    # ------------------------------------------------------------ events of the membership

    def hosts_changed(self, hosts: Mapping[str, HostRecord]) -> None:
        """Implements MembershipEvents."""
        self._has_seen_hosts = True
        others = hosts.keys() - {self._settings.node_id}
        for node in sorted(others - self._others):
            self._log.info("host_joined", host=node)
        for node in sorted(self._others - others):
            self._log.warning("host_left", host=node)
        self._others = others
        self.channel.set_hosts({node: each for node, each in hosts.items() if node in others})
        self._ownership.hosts = max(1, len(hosts))
        if self.state is HostState.DRAINING and self._knows_hosts and not self._takers():
            self.drain(begins=False)  # two that drain at the same time would both keep clients out
        else:
            self._tell_hosts(hosts)

    def joined(self, incarnation: int, lease: int, kept_lease: bool) -> None:
        """Implements MembershipEvents."""
        self._log.info("cluster_joined", node=self._settings.node_id, host=self._number, kept_lease=kept_lease)
        self._incarnation = incarnation
        self._owner_requests.tell_standing()
        self._tell_hosts(self.hosts)
        self._keeping = asyncio.get_running_loop().create_task(self._keep_number())

    async def _keep_number(self) -> None:
        """Write this host's number again if etcd has lost its data: else another host would be given it."""
        while True:
            try:
                kept = await keep_number(
                    self._coordination, self._settings.name, self._identity.installation, self._number
                )
                if not self._keeps:
                    await mark_in_memory(self._coordination, self._settings.name, self._identity.installation)
            except CoordinationError:
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            if not kept:
                self._log.error("host_number_taken", node=self._settings.node_id, host=self._number)
            return

    def _tell_hosts(self, hosts: Mapping[str, HostRecord]) -> None:
        if not self._knows_hosts:
            return
        others: list[dict[str, Any]] = [
            {
                "number": each.number,
                "node": node,
                "workers": each.workers,
                "address": each.address,
                "key": each.curve_key,
                "keeps": each.keeps,
            }
            for node, each in sorted(hosts.items())
            if each.number != self._number
        ]
        self._tell(
            "hosts",
            number=self._number,
            hosts=others,
            drains=self.state is HostState.DRAINING,
            takers=self._takers(),
            ready=[
                (each.number, node, each.client_address)
                for node, each in hosts.items()
                if each.state is HostState.READY
            ],
            client_addresses={node: each.client_address for node, each in hosts.items()},
        )

    def lost(self) -> None:
        """Implements MembershipEvents."""
        self._log.error("cluster_lost", node=self._settings.node_id)

    def node_id_taken(self, by: HostRecord) -> None:
        """Implements MembershipEvents."""
        self._log.error("node_id_taken", node=by.node, address=by.address)

    def malformed(self, error: MalformedHostRecord) -> None:
        """Implements MembershipEvents."""
        self._log.error("host_record_malformed", reason=str(error))

    def out_of_reach(self, reason: str) -> None:
        """Implements MembershipEvents."""
        if not self._out_of_reach:
            self._out_of_reach = True
            self._log.error("etcd_out_of_reach", reason=reason)

    def reached(self) -> None:
        """Implements MembershipEvents."""
        if self._out_of_reach:
            self._out_of_reach = False
            self._log.info("etcd_reached")
