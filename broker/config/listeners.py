"""Listeners of the broker: the tables `[[listener]]` of the configuration."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from broker.config.addresses import is_loopback

LISTENERS_MAX = 16
"""A counter row has room for this many (pyx.core.counters)."""

DEFAULT = "default"
"""Name of the listener that `host` and `port` define."""


def listed(value: object) -> object:
    """Turn a single text into a list of one."""
    return [value] if isinstance(value, str) else value


class Listener(BaseModel):
    """Another address and port to listen on, beside `host` and `port`, which are the listener `default`. Log lines and
    metrics of its connections have its name.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: str = Field(
        pattern=r"^[A-Za-z0-9_.-]{1,32}$",
        description="At most 32 letters, digits, `_`, `.` and `-`; unique, and not `default`.",
    )
    kind: Literal["tcp"] = Field(default="tcp", description="Transport of its clients; tcp: MQTT on plain TCP.")
    host: Annotated[list[str], BeforeValidator(listed)] = Field(
        default=["127.0.0.1", "::1"], min_length=1, description="As `host`."
    )
    port: int = Field(ge=0, le=65535, description="As `port`.")

    @property
    def key(self) -> str:
        """Return the configuration key of its addresses, for errors."""
        return "host" if self.name == DEFAULT else f"listener.host (of {self.name!r})"


def all_listeners(host: list[str], port: int, others: Sequence[Listener]) -> list[Listener]:
    """Return the default listener, unless `host` is empty, and the others: their order is their number."""
    default = [Listener.model_construct(name=DEFAULT, kind="tcp", host=host, port=port)] if host else []
    return [*default, *others]


def listener_errors(listeners: Sequence[Listener], others: Sequence[Listener]) -> Iterator[str]:
    """Yield the errors in all listeners together. `others`: those of them that are tables."""
    if not listeners:
        yield "host: may be empty only with a [[listener]] table"
    if any(each.name == DEFAULT for each in others):
        yield f"listener.name: {DEFAULT!r} is reserved for host and port"
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
    """Return its addresses that other machines can reach."""
    return [host for host in listener.host if _may_be_host(host) and not is_loopback(host)]


def _may_be_host(host: str) -> bool:
    return bool(host) and host == host.strip()
