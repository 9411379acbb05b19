"""Settings of a host in a cluster (docs/cluster.md)."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from broker.config.listeners import listed

__all__ = ["PEERS_MAX", "SECRET_BYTES_MAX", "SECRET_BYTES_MIN", "Cluster", "cluster_errors", "read_secret"]

PEERS_MAX = 64
"""Hosts in `cluster.peers`."""
SECRET_BYTES_MIN = 16
SECRET_BYTES_MAX = 4096

_RESTART: dict[str, Any] = {"restart": True}
_HOST = r"([A-Za-z0-9._-]+|\[[0-9a-fA-F:.]+\])"
_ENDPOINT = re.compile(f"etcd://{_HOST}:([0-9]{{1,5}})")
_PEER = re.compile(f"{_HOST}:([0-9]{{1,5}})")
_ADDRESS = re.compile(f"tcp://{_HOST}:([0-9]{{1,5}})")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_ANY = ("0.0.0.0", "[::]")


class Cluster(BaseModel):
    """Several hosts that are one broker: see [cluster](../cluster.md). Without `etcd`, `peers` and `dns` the host is
    alone, and nothing of this is loaded.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    etcd: Annotated[list[str], BeforeValidator(listed), Field(max_length=16)] = Field(
        default_factory=list,
        json_schema_extra=_RESTART,
        description="Addresses of etcd (3.4 or newer) by which hosts find each other, each `etcd://HOST:PORT`.",
    )
    peers: Annotated[list[str], BeforeValidator(listed), Field(max_length=PEERS_MAX)] = Field(
        default_factory=list,
        json_schema_extra=_RESTART,
        description="In place of `etcd`: all hosts of the cluster, this one among them, each `HOST:PORT` where its "
        "control process listens. The same list on all of them.",
    )
    dns: str = Field(
        default="",
        json_schema_extra=_RESTART,
        description="In place of `etcd` and `peers`: `NAME:PORT`, a name whose addresses (A and AAAA records) are those"
        " of all hosts, looked up again every 30 s.",
    )
    peers_listen: str = Field(
        default="",
        json_schema_extra=_RESTART,
        description="Where the control process listens for other hosts, `HOST:PORT`, with `peers` or `dns`. Empty: on "
        "the host of `listen`, and the port that `dns` says, or that of the one of `peers` with the host of `listen` "
        "or `advertise`.",
    )
    quorum: int = Field(
        default=0,
        ge=0,
        le=PEERS_MAX,
        json_schema_extra=_RESTART,
        description="Hosts that have to agree on a decision, with `peers` or `dns`. 0: more than half of `peers`; with "
        "`dns`, whose number nobody knows, 1: then each side of a network that is cut decides alone",
    )
    secret_file: str | None = Field(
        default=None,
        min_length=1,
        json_schema_extra=_RESTART,
        description="File with a secret that all hosts have, with `peers` or `dns`: 16 to 4,096 bytes, not readable by "
        "others on the machine.",
    )
    name: str = Field(
        default="mqttd",
        json_schema_extra=_RESTART,
        description="Name of the cluster: hosts with the same name and the same etcd, or peers, are one broker.",
    )
    node_id: str = Field(
        default="", json_schema_extra=_RESTART, description="Name of this host, different from that of every other one."
    )
    listen: str = Field(
        default="",
        json_schema_extra=_RESTART,
        description="Where the first worker listens for other hosts, `tcp://HOST:PORT`; each further worker has the "
        "next port, and what operators ask of all hosts comes over the one after those.",
    )
    advertise: str = Field(
        default="",
        json_schema_extra=_RESTART,
        description="Where other hosts reach `listen`, if that is another address or all of this host; `tcp://HOST:PORT`.",
    )
    client_address: str = Field(
        default="",
        pattern=r"^[!-~]{0,255}$",
        json_schema_extra=_RESTART,
        description="Where clients reach this host, `HOST` or `HOST:PORT`: told to clients that other hosts send away "
        "(Server Reference), and to those that ask for the owner of a client id. Empty: it does not say",
    )
    snapshot_dir: str | None = Field(
        default=None,
        min_length=1,
        description="Directory for this host's part of snapshots of all hosts (`mqttd snapshot`), outside of its data "
        "directory. Not set: there is none of this host",
    )
    drain_per_second: int = Field(
        default=500,
        ge=1,
        le=1_000_000,
        description="Clients and sessions that a host which drains (`mqttd drain`) sends to other hosts, in a second.",
    )
    rebalance: Literal["off", "on"] = Field(
        default="off",
        description="Whether hosts that have more than their share of the clients send some to others, as the leader "
        "of the cluster plans: see [cluster](../cluster.md#spreading-clients). To be set alike on all hosts; they need "
        "`client_address`",
    )
    unproven_seconds_max: int = Field(
        default=300,
        ge=0,
        le=1_000_000,
        json_schema_extra=_RESTART,
        description="Time after which a host that cannot prove that it is a member (etcd is away, or has lost it) "
        "refuses CONNECTs with sessions that last: another host may own them by then. 0: never",
    )
    etcd_user: str = Field(default="", json_schema_extra=_RESTART, description="User of etcd; empty: none.")
    etcd_password_file: str | None = Field(
        default=None, min_length=1, json_schema_extra=_RESTART, description="File with the password of `etcd_user`."
    )
    etcd_ca: str | None = Field(
        default=None,
        min_length=1,
        json_schema_extra=_RESTART,
        description="File with the certificates (PEM) that etcd's is checked against; set: the connection uses TLS.",
    )
    etcd_certificate: str | None = Field(
        default=None, min_length=1, json_schema_extra=_RESTART, description="File with this client's certificate (PEM)."
    )
    etcd_key: str | None = Field(
        default=None, min_length=1, json_schema_extra=_RESTART, description="File with its key (PEM)."
    )

    @property
    def is_on(self) -> bool:
        """Whether this host is one of a cluster."""
        return bool(self.etcd or self.peers or self.dns)

    @property
    def has_peers(self) -> bool:
        """Whether the hosts agree among themselves, without etcd."""
        return bool(self.peers or self.dns)

    @property
    def needed_peers(self) -> int:
        """`quorum` with its default resolved."""
        return self.quorum or (len(self.peers) // 2 + 1 if self.peers else 1)

    @property
    def peers_address(self) -> str:
        """`peers_listen` with its default resolved; "": it cannot be told from `peers`."""
        if self.peers_listen:
            return self.peers_listen
        found = _ADDRESS.fullmatch(self.listen)
        if found is None:
            return ""
        if self.dns:
            return f"{found[1]}:{self.dns.rpartition(':')[2]}"
        own = {found[1], self.address.removeprefix("tcp://").rpartition(":")[0]}
        ports = [each.rpartition(":")[2] for each in self.peers if each.rpartition(":")[0] in own]
        return f"{found[1]}:{ports[0]}" if len(ports) == 1 else ""

    @property
    def endpoints(self) -> tuple[str, ...]:
        """HOST:PORT of each etcd."""
        return tuple(each.removeprefix("etcd://") for each in self.etcd)

    @property
    def address(self) -> str:
        """Where other hosts reach the first worker."""
        return self.advertise or self.listen


def read_secret(path: str) -> bytes:
    """Return the secret of the peers. Raises OSError, and ValueError for a file that is none."""
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as opened:
        status = os.fstat(opened.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise ValueError(f"{path}: not a regular file")
        if status.st_mode & stat.S_IRWXO:
            raise ValueError(f"{path}: others on this machine may read or write it: chmod o= {path}")
        secret = opened.read(SECRET_BYTES_MAX + 3).rstrip(b"\r\n")
    if not SECRET_BYTES_MIN <= len(secret) <= SECRET_BYTES_MAX:
        raise ValueError(f"{path}: {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} bytes are needed")
    return secret


def _peer_errors(cluster: Cluster) -> Iterator[str]:
    if not cluster.has_peers:
        for name in ("peers_listen", "quorum", "secret_file"):
            if getattr(cluster, name):
                yield f"cluster.{name}: has no meaning without cluster.peers or cluster.dns"
        return
    settings = [("peers", each) for each in cluster.peers] + [("dns", cluster.dns)] * bool(cluster.dns)
    for name, value in settings + [("peers_listen", cluster.peers_listen)] * bool(cluster.peers_listen):
        found = _PEER.fullmatch(value)
        if found is None or not 1 <= int(found[2]) <= 65535:
            yield f"cluster.{name}: {value!r} is not HOST:PORT"
        elif name != "peers_listen" and found[1] in _ANY:
            yield f"cluster.{name}: other hosts cannot reach {found[1]}"
    for each in sorted({each for each in cluster.peers if cluster.peers.count(each) > 1}):
        yield f"cluster.peers: {each} is named twice"
    if cluster.peers and cluster.quorum > len(cluster.peers):
        yield f"cluster.quorum: {cluster.quorum} of {len(cluster.peers)} peers can never agree"
    if not cluster.peers_address and _ADDRESS.fullmatch(cluster.listen):
        yield "cluster.peers_listen: needed, because not exactly one of cluster.peers has the host of cluster.listen"
    if cluster.secret_file is None:
        yield "cluster.secret_file: needed with cluster.peers and cluster.dns"
        return
    try:
        read_secret(cluster.secret_file)
    except OSError as error:
        yield f"cluster.secret_file: {cluster.secret_file}: {error.strerror}"
    except ValueError as error:
        yield f"cluster.secret_file: {error}"


def cluster_errors(cluster: Cluster, workers: int) -> Iterator[str]:
    """Yield what is wrong. workers: as many as there may be."""
    if not cluster.is_on:
        for name in ("node_id", "listen", "advertise", "client_address"):
            if getattr(cluster, name):
                yield f"cluster.{name}: has no meaning without cluster.etcd, cluster.peers or cluster.dns (--cluster)"
        return
    if (named := sum(map(bool, (cluster.etcd, cluster.peers, cluster.dns)))) > 1:
        yield f"cluster.etcd, cluster.peers and cluster.dns: one of them is needed, {named} are set"
    for endpoint in cluster.etcd:
        found = _ENDPOINT.fullmatch(endpoint)
        if found is None or not 1 <= int(found[2]) <= 65535:
            yield f"cluster.etcd: {endpoint!r} is not etcd://HOST:PORT"
    yield from _peer_errors(cluster)
    for name in ("name", "node_id"):
        if not _NAME.fullmatch(value := getattr(cluster, name)):
            yield (
                f"cluster.{name}: {value!r} is no name: 1 to 63 letters, digits, '.', '_' and '-', "
                "a letter or a digit first"
            )
    for name in ("listen", "advertise"):
        value = getattr(cluster, name)
        found = _ADDRESS.fullmatch(value)
        if not value and name == "advertise":
            continue
        if found is None or not 1 <= int(found[2]) <= 65535 - max(workers, 1):
            yield (
                f"cluster.{name}: {value!r} is not tcp://HOST:PORT with a port for each worker ({max(workers, 1)}) "
                "from PORT on, and one more"
            )
    found = _ADDRESS.fullmatch(cluster.address)
    if found is not None and found[1] in _ANY:
        yield f"cluster.advertise: needed, because other hosts cannot reach {found[1]}"
    if cluster.etcd_password_file is not None and not cluster.etcd_user:
        yield "cluster.etcd_password_file: has no meaning without cluster.etcd_user"
    if (cluster.etcd_certificate is None) != (cluster.etcd_key is None):
        yield "cluster.etcd_certificate and cluster.etcd_key: one has no meaning without the other"
    if cluster.etcd_certificate is not None and cluster.etcd_ca is None:
        yield "cluster.etcd_certificate: has no meaning without cluster.etcd_ca"
