"""Settings of a host in a cluster (docs/cluster.md)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from broker.config.listeners import listed

__all__ = ["Cluster", "cluster_errors"]

_RESTART: dict[str, Any] = {"restart": True}
_HOST = r"([A-Za-z0-9._-]+|\[[0-9a-fA-F:.]+\])"
_ENDPOINT = re.compile(f"etcd://{_HOST}:([0-9]{{1,5}})")
_ADDRESS = re.compile(f"tcp://{_HOST}:([0-9]{{1,5}})")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_ANY = ("0.0.0.0", "[::]")


class Cluster(BaseModel):
    """Several hosts that are one broker: see [cluster](../cluster.md). Without `etcd` the host is alone, and nothing of
    this is loaded.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    etcd: Annotated[list[str], BeforeValidator(listed), Field(max_length=16)] = Field(
        default_factory=list,
        json_schema_extra=_RESTART,
        description="Addresses of etcd (3.4 or newer) by which hosts find each other, each `etcd://HOST:PORT`.",
    )
    name: str = Field(
        default="mqttd",
        json_schema_extra=_RESTART,
        description="Name of the cluster: hosts with the same name and the same etcd are one broker.",
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
        return bool(self.etcd)

    @property
    def endpoints(self) -> tuple[str, ...]:
        """HOST:PORT of each etcd."""
        return tuple(each.removeprefix("etcd://") for each in self.etcd)

    @property
    def address(self) -> str:
        """Where other hosts reach the first worker."""
        return self.advertise or self.listen


def cluster_errors(cluster: Cluster, workers: int) -> Iterator[str]:
    """Yield what is wrong. workers: as many as there may be."""
    if not cluster.is_on:
        for name in ("node_id", "listen", "advertise", "client_address"):
            if getattr(cluster, name):
                yield f"cluster.{name}: has no meaning without cluster.etcd (--cluster)"
        return
    for endpoint in cluster.etcd:
        found = _ENDPOINT.fullmatch(endpoint)
        if found is None or not 1 <= int(found[2]) <= 65535:
            yield f"cluster.etcd: {endpoint!r} is not etcd://HOST:PORT"
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
