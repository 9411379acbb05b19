"""The settings of what is recorded of connections, sessions, subscriptions and drops; docs/operations.md says what that
is, `broker.persistence.recording` does it.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["Events"]

_MIB = 1 << 20


class Events(BaseModel):
    """What happens is recorded in the store: see [events](../operations.md#events)."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    enabled: bool = Field(
        default=True,
        json_schema_extra={"restart": True},
        description="Whether events are recorded; only with `leveldb` there is a place for them.",
    )
    bytes_max: int = Field(
        default=64 * _MIB,
        ge=64 * 1024,
        json_schema_extra={"restart": True},
        description="Bytes of events that are kept, per worker, before compression; the oldest are deleted.",
    )
    events_per_second_max: int = Field(
        default=500,
        ge=1,
        json_schema_extra={"restart": True},
        description="Events of connections, sessions and subscriptions that a worker records in a second; the rest is "
        "counted (`events_suppressed`), by kind.",
    )
    clients_max: int = Field(
        default=1000,
        ge=0,
        le=100_000,
        json_schema_extra={"restart": True},
        description="Clients whose drops a worker counts by themselves in a minute; those of the rest are counted "
        "together (`events_unlisted`).",
    )
    topic_levels: int = Field(
        default=0,
        ge=0,
        le=8,
        json_schema_extra={"restart": True},
        description="First levels of a topic by which deliveries and drops are counted per minute; 0: they are not, "
        "because each publish would pay for it.",
    )
    topics_max: int = Field(
        default=1000,
        ge=1,
        le=100_000,
        json_schema_extra={"restart": True},
        description="Different such beginnings that a worker counts by themselves in a minute; what is of others is "
        "counted together (`events_unlisted`).",
    )
