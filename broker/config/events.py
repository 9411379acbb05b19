"""Settings of recorded events (connections, sessions, subscriptions, drops), which docs/operations.md describes and
`broker.persistence.recording` records.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["Events"]

_MIB = 1 << 20


class Events(BaseModel):
    """Events are recorded in the store: see [events](../operations.md#events)."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    enabled: bool = Field(
        default=True,
        json_schema_extra={"restart": True},
        description='Whether events are recorded; requires `store = "leveldb"`.',
    )
    bytes_max: int = Field(
        default=64 * _MIB,
        ge=64 * 1024,
        json_schema_extra={"restart": True},
        description="Size of the events kept, per worker, before compression; beyond it the oldest are deleted.",
    )
    events_per_second_max: int = Field(
        default=500,
        ge=1,
        json_schema_extra={"restart": True},
        description="Events of connections, sessions and subscriptions that a worker records per second; further ones "
        "are counted (`events_suppressed`), by kind.",
    )
    clients_max: int = Field(
        default=1000,
        ge=0,
        le=100_000,
        json_schema_extra={"restart": True},
        description="Clients whose drops a worker counts individually in a minute; those of the rest are counted "
        "together (`events_unlisted`).",
    )
    topic_levels: int = Field(
        default=0,
        ge=0,
        le=8,
        json_schema_extra={"restart": True},
        description="Number of topic levels by which deliveries and drops are counted per minute; 0: they are not "
        "counted, because the counting costs time for each publish.",
    )
    topics_max: int = Field(
        default=1000,
        ge=1,
        le=100_000,
        json_schema_extra={"restart": True},
        description="Different topic prefixes that a worker counts individually in a minute; the rest is counted "
        "together (`events_unlisted`).",
    )
