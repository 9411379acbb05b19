"""The tables `events`, `counters` and `drops`: family E."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from leveldb_store.format import events as records
from spark_etl.tables.catalogue import TABLES
from spark_etl.tables.frames import instant

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_etl.tables.opened import Reading

__all__ = ["counters", "drops", "events"]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_BY: Final = {records.BY_NOBODY: "nobody", records.BY_CLIENT: "client", records.BY_BROKER: "broker"}
_BOOLEANS: Final = {column.name for column in TABLES["events"].columns if column.type == "boolean"}
_KIND_AT: Final = 9  # offset, after u64 before and u8 format
_EVENTS: Final = TABLES["events"].own_names
_COUNTERS: Final = TABLES["counters"].own_names
_DROPS: Final = TABLES["drops"].own_names


def events(reading: Reading, start: bytes, stop: bytes) -> Iterator[pa.RecordBatch]:
    """Yield all events. Raises SchemaError."""
    wanted = [name for name in _EVENTS if reading.frames.wants(name)]
    kinds = [kind for kind in records.KINDS if reading.conditions.allow("kind", kind.name)]
    return reading.frames.of_rows(wanted, (_row(each, wanted) for each in _found(reading, start, stop, kinds)))


def _row(event: records.Event, wanted: list[str]) -> tuple[Any, ...]:
    fields = {
        "worker": event.worker,
        "number": event.number,
        "time": _EPOCH + timedelta(microseconds=event.microseconds),
        "kind": event.kind.name,
        **event.fields,
    }
    for name in _BOOLEANS & fields.keys():
        fields[name] = bool(fields[name])
    if "by" in fields:
        fields["by"] = _BY[fields["by"]]
    if "minute" in fields:
        fields["minute"] = instant(fields["minute"])
    if event.kind.table:
        fields["rows"] = list(fields.pop(event.kind.table).items())
    return tuple(fields.get(name) for name in wanted)


def counters(reading: Reading, start: bytes, stop: bytes) -> Iterator[pa.RecordBatch]:
    """Yield a row for each counter of each sample. Raises SchemaError."""
    return reading.frames.of_rows(
        _COUNTERS,
        (
            (*_when(event), name, value)
            for event in _found(reading, start, stop, [records.COUNTERS])
            for name, value in event.fields[records.COUNTERS.table].items()
        ),
    )


def drops(reading: Reading, start: bytes, stop: bytes) -> Iterator[pa.RecordBatch]:
    """Yield dropped copies. Raises SchemaError."""
    return reading.frames.of_rows(
        _DROPS,
        (
            (*_when(event), event.fields["client"], event.fields["reason"], event.fields["messages"])
            for event in _found(reading, start, stop, [records.DROPPED])
        ),
    )


def _when(event: records.Event) -> tuple[int, int, datetime, datetime]:
    # worker, number, time, minute
    time = _EPOCH + timedelta(microseconds=event.microseconds)
    return event.worker, event.number, time, instant(event.fields["minute"])


def _found(
    reading: Reading, start: bytes, stop: bytes, kinds: Iterable[records.EventKind] = records.KINDS
) -> Iterator[records.Event]:
    # events of these kinds that may match the conditions
    conditions = reading.conditions
    start = max(start, records.event_key(conditions.first))
    stop = min(stop, records.event_key(conditions.last + 1))
    codes = {bytes((kind.code,)) for kind in records.KINDS} - {bytes((kind.code,)) for kind in kinds}
    for key, value in reading.scan(start, stop):
        if value[_KIND_AT : _KIND_AT + 1] not in codes:
            yield records.decode_event(key, value)
