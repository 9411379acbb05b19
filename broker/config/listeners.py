"""What the broker listens on: the tables `[[listener]]` of the configuration."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from broker.config.addresses import is_loopback

LISTENERS_MAX = 16
"""A row of counters has places for so many (pyx.core.counters)."""

DEFAULT = "default"
"""Name of the one that `host` and `port` say."""


def listed(value: object) -> object:
    """One text is a list of one."""
    return [value] if isinstance(value, str) else value


class Listener(BaseModel):
    """Another address and port to listen on, beside `host` and `port`, which are the listener `default`. Its name
    stands in the log lines and metrics of its connections.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: str = Field(
        pattern=r"^[A-Za-z0-9_.-]{1,32}$",
        description="Of letters, digits, `_`, `.` and `-`, at most 32; each name once, and not `default`.",
    )
    kind: Literal["tcp"] = Field(default="tcp", description="What its clients speak; tcp: MQTT on plain TCP.")
    host: Annotated[list[str], BeforeValidator(listed)] = Field(
        default=["127.0.0.1", "::1"], min_length=1, description="As `host`."
    )
    port: int = Field(ge=0, le=65535, description="As `port`.")

    @property
    def key(self) -> str:
        """What the configuration calls its addresses, for errors."""
        return "host" if self.name == DEFAULT else f"listener.host (of {self.name!r})"


def all_listeners(host: list[str], port: int, others: Sequence[Listener]) -> list[Listener]:
    """The default one, unless `host` is empty, and the others: their order is their number."""
    default = [Listener.model_construct(name=DEFAULT, kind="tcp", host=host, port=port)] if host else []
    return [*default, *others]


def listener_errors(listeners: Sequence[Listener], others: Sequence[Listener]) -> Iterator[str]:
    """What is wrong with all of them together. `others`: those of them that are tables."""
    if not listeners:
        yield "host: it may be empty only where there is a [[listener]]"
    if any(each.name == DEFAULT for each in others):
        yield f"listener.name: {DEFAULT!r} is the one that host and port say"
        return
    seen: set[str] = set()
    for each in listeners:
        if each.name in seen:
            yield f"listener.name: {each.name!r} is there already"
        seen.add(each.name)
        for host in each.host:
            if not _may_be_host(host):
                yield f"{each.key}: {host!r} is neither an address nor a name"


def reachable(listener: Listener) -> list[str]:
    """Its addresses that other machines reach."""
    return [host for host in listener.host if _may_be_host(host) and not is_loopback(host)]


def _may_be_host(host: str) -> bool:
    return bool(host) and host == host.strip()
