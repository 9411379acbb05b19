"""Bridges to other brokers: the tables `[bridges.NAME]` of the configuration (docs/bridges.md)."""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator, Mapping
from ipaddress import IPv6Address
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from broker.config.queues import wrong_with

__all__ = [
    "CONNECTIONS_MAX",
    "LOCAL_IDS",
    "TOPICS_MAX",
    "Bridge",
    "BridgeTopic",
    "bridge_errors",
    "local_ids",
    "remote_ids",
    "tls_of",
]

LOCAL_IDS = "$bridge/"
"""Client ids of bridges at this broker begin with it, and no others do."""

CONNECTIONS_MAX = 64
"""Of all bridges together: their states fit into one answer to an operator."""
TOPICS_MAX = 100  # they are tried one after the other for each message
_ADDRESS = re.compile(r"(mqtts?)://([A-Za-z0-9._-]+|\[[0-9a-fA-F:.]+\])(?::([0-9]{1,5}))?")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_PORTS = {"mqtt": 1883, "mqtts": 8883}


class BridgeTopic(BaseModel):
    """Topics that a bridge passes on. A message on `local_prefix` + T here is one on `remote_prefix` + T there, and the
    other way round, for all T that `pattern` matches. The first table that matches a topic says what it is at the other
    broker.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    pattern: str = Field(min_length=1, max_length=65535, description="Topic Filter, without the prefixes.")
    direction: Literal["out", "in", "both"] = Field(
        default="out", description="From this broker to the other one, from the other one to this one, or both."
    )
    qos: int = Field(
        default=1,
        ge=0,
        le=2,
        description="Highest QoS at which messages cross; those that were published lower stay so.",
    )
    local_prefix: str = Field(default="", max_length=65535, description="Beginning of the topics here.")
    remote_prefix: str = Field(default="", max_length=65535, description="Beginning of the topics there.")

    @property
    def local_filter(self) -> str:
        """Topic Filter here."""
        return self.local_prefix + self.pattern

    @property
    def remote_filter(self) -> str:
        """Topic Filter at the other broker."""
        return self.remote_prefix + self.pattern


class Bridge(BaseModel):
    """A connection to another MQTT broker, which passes on messages of some topics: see [bridges](../bridges.md)."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    address: str = Field(
        description="The other broker: `mqtt://HOST[:PORT]` (1883), or with TLS `mqtts://HOST[:PORT]` (8883)."
    )
    version: Literal["5", "3.1.1"] = Field(default="5", description="Version of MQTT that the other broker speaks.")
    client_id: str = Field(
        default="",
        max_length=65535,
        description="Client id at the other broker; empty: name of the host (in a cluster the `node_id`), `-`, name of "
        "the bridge.",
    )
    clean_start: bool = Field(
        default=False, description="Whether the session at the other broker begins anew with each connection."
    )
    connections: int = Field(
        default=1,
        ge=1,
        le=CONNECTIONS_MAX,
        description="Connections that share the topic tables, one after the other, so that several workers serve one "
        "bridge. The messages of a table stay in order.",
    )
    username: str | None = Field(default=None, min_length=1, description="User at the other broker.")
    password_file: str | None = Field(
        default=None, min_length=1, description="File with the password; read at each connection."
    )
    ca_file: str | None = Field(
        default=None,
        min_length=1,
        description="Certificates (PEM) that the other broker's is checked against; not set: those of the system.",
    )
    certificate: str | None = Field(default=None, min_length=1, description="Certificate (PEM) of this client.")
    key: str | None = Field(default=None, min_length=1, description="Its key (PEM).")
    keep_alive_seconds: int = Field(
        default=60, ge=5, le=65535, description="Keep Alive at the other broker; silence of 1.5 times that ends it."
    )
    reconnect_seconds_max: int = Field(
        default=30, ge=1, le=86400, description="Longest pause between two attempts to connect; the first is 1 s."
    )
    inflight_max: int | None = Field(
        default=None,
        ge=1,
        le=65535,
        description="Messages of QoS 1 and 2 that wait for their acknowledgement, in each direction; not set: 100, or "
        "with MQTT 3.1.1, in which a broker does not say how many it takes, 20.",
    )
    topic: Annotated[list[BridgeTopic], Field(min_length=1, max_length=TOPICS_MAX)] = Field(
        description="What it passes on."
    )

    @property
    def is_tls(self) -> bool:
        """Whether the connection uses TLS."""
        return self.address.startswith("mqtts:")

    @property
    def endpoint(self) -> tuple[str, int]:
        """Host and port of the other broker."""
        found = _ADDRESS.fullmatch(self.address)
        assert found is not None  # checked
        return found[2].strip("[]"), int(found[3] or _PORTS[found[1]])


def bridge_errors(bridges: Mapping[str, Bridge]) -> Iterator[str]:
    """Yield what is wrong."""
    total = sum(each.connections for each in bridges.values())
    if total > CONNECTIONS_MAX:
        yield f"bridges: {total} connections; at most {CONNECTIONS_MAX} of all bridges together"
    seen: set[tuple[tuple[str, int], str]] = set()
    for name, bridge in bridges.items():
        key = f"bridges.{name}"
        if not _NAME.fullmatch(name):
            yield (
                f"bridges: {name!r} is no name: 1 to 63 letters, digits, '.', '_' and '-', a letter or a digit first"
            )
        if not _is_address(bridge.address):
            yield f"{key}.address: {bridge.address!r} is neither mqtt://HOST[:PORT] nor mqtts://HOST[:PORT]"
        yield from _errors_of_access(key, bridge)
        for topic in bridge.topic:
            yield from _errors_of_topic(f"{key}.topic", topic)
        if _is_address(bridge.address):
            ids = {(bridge.endpoint, each) for each in remote_ids(bridge, name, "")}
            if ids & seen:
                yield f"{key}.client_id: another bridge has it at the same broker"
            seen |= ids


def _is_address(address: str) -> bool:
    found = _ADDRESS.fullmatch(address)
    if found is None or not 1 <= int(found[3] or _PORTS[found[1]]) <= 65535:
        return False
    host = found[2].strip("[]")
    try:
        if found[2].startswith("["):
            IPv6Address(host)
        host.encode("idna")
    except ValueError:
        return False
    return True


def _errors_of_access(key: str, bridge: Bridge) -> Iterator[str]:
    if bridge.password_file is not None and bridge.username is None:
        yield f"{key}.password_file: has no meaning without {key}.username"
    if (bridge.certificate is None) != (bridge.key is None):
        yield f"{key}: certificate and key go together"
    for name in ("ca_file", "certificate", "key"):
        if getattr(bridge, name) is not None and not bridge.is_tls:
            yield f"{key}.{name}: has no meaning without mqtts:// in {key}.address"
    for name, text in (("client_id", bridge.client_id), ("username", bridge.username or "")):
        if "\0" in text or len(text.encode(errors="replace")) > 65535:
            yield f"{key}.{name}: contains U+0000, or more than 65,535 bytes"
    if bridge.password_file is not None:
        yield from _errors_of_password(f"{key}.password_file", bridge.password_file)
    if bridge.is_tls:
        try:
            tls_of(bridge)
        except (OSError, ValueError) as error:  # ssl.SSLError is one
            named = [each for each in (bridge.ca_file, bridge.certificate, bridge.key) if each is not None]
            yield f"{key}: {', '.join(named)}: {getattr(error, 'strerror', None) or error}"


def _errors_of_password(key: str, file: str) -> Iterator[str]:
    try:
        if Path(file).stat().st_size > 65535:
            yield f"{key}: {file}: more than 65,535 bytes"
        Path(file).open("rb").close()
    except OSError as error:
        yield f"{key}: {file}: {error.strerror}"


def tls_of(bridge: Bridge) -> ssl.SSLContext:
    """Return what a connection by TLS needs. Raises OSError (ssl.SSLError), ValueError."""
    context = ssl.create_default_context(cafile=bridge.ca_file)
    if bridge.certificate is not None:
        context.load_cert_chain(bridge.certificate, bridge.key, password="")  # an encrypted key: nobody is there to ask
    return context


def _errors_of_topic(key: str, topic: BridgeTopic) -> Iterator[str]:
    for side, text in (("here", topic.local_filter), ("there", topic.remote_filter)):
        if text.startswith("$share/"):
            yield f"{key}.pattern: {text!r} ({side}): shared subscriptions are not bridged"
        elif len(text.encode()) > 65535:
            yield f"{key}.pattern: more than 65,535 bytes with its prefix ({side})"
        elif wrong := wrong_with(text):
            yield f"{key}.pattern: {text!r} ({side}): {wrong}"
    for name in ("local_prefix", "remote_prefix"):
        if set(getattr(topic, name)) & {"+", "#"}:
            yield f"{key}.{name}: {getattr(topic, name)!r} has a wildcard: those belong into the pattern"
    if topic.direction in ("in", "both") and topic.local_filter.startswith(("$SYS/", "$mqttd/")):
        yield f"{key}.local_prefix: {topic.local_filter!r} is this broker's own: nothing can come in there"


def remote_ids(bridge: Bridge, name: str, host: str) -> list[str]:
    """Return the client ids at the other broker, one for each connection. host: name of this host."""
    base = bridge.client_id or f"{host}-{name}"
    connections = min(bridge.connections, len(bridge.topic))
    return [base] if bridge.connections == 1 else [f"{base}-{number}" for number in range(connections)]


def local_ids(bridges: Mapping[str, Bridge], node_id: str) -> Iterator[tuple[str, int, str]]:
    """Yield name and number of each connection of the bridges, and its client id here, which no other client may have.
    node_id: of this host in its cluster; "": it is alone.
    """
    for name, bridge in bridges.items():
        for number in range(min(bridge.connections, len(bridge.topic))):
            yield name, number, f"{LOCAL_IDS}{node_id}{'/' if node_id else ''}{name}/{number}"
