"""`mqttd store stats` and `mqttd store verify`: their part for the archive."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from leveldb_store.format import archive_schema, schema
from leveldb_store.format.archive_schema import unix_ms

__all__ = ["FAMILIES", "ArchiveCheck", "ArchiveTally", "archive_as_text"]

FAMILIES = {
    schema.ARCHIVE_RULE: "rules of the archive",
    schema.ARCHIVED: "blocks of the archive",
    schema.ARCHIVE_REMOVED: "removed from the archive",
    schema.ARCHIVE_SUMMARY: "summaries of the archive",
}


@dataclass(slots=True)
class _Rule:
    messages: int = 0
    blocks: int = 0
    bytes: int = 0
    first: int = 0
    last: int = 0


class ArchiveTally:
    """Counts the contents of a store's archive: takes every record, in order of keys."""

    def __init__(self) -> None:
        self._found: dict[int, _Rule] = {}
        self._rules: dict[int, archive_schema.Rule] = {}

    def add(self, key: bytes, value: bytes) -> None:
        """Take one record of any family. SchemaError: damaged."""
        if key[:1] == schema.ARCHIVED:
            number, _, last = archive_schema.split_block(key)
            head = archive_schema.decode_head(value)
            rule = self._found.setdefault(number, _Rule())
            rule.messages += head.messages
            rule.blocks += 1
            rule.bytes += len(key) + len(value)
            rule.first = min(rule.first or head.first, head.first)
            rule.last = max(rule.last, last)
        elif key[:1] == schema.ARCHIVE_RULE:
            known = archive_schema.decode_rule(key, value)
            self._rules[known.number] = known

    def rules(self) -> list[dict[str, Any]]:
        """Return the contents by rule, in the order of the configuration, rules no longer in it last."""
        found = []
        for rule in sorted(self._rules.values(), key=lambda rule: rule.place):
            held = self._found.get(rule.number, _Rule())
            found.append({
                "filter": rule.topic_filter.decode(errors="replace"),
                "configured": rule.place != archive_schema.NOT_CONFIGURED,
                "hours": rule.age_ms / 3_600_000, "bytes_max": rule.bytes_max,
                "messages": held.messages, "blocks": held.blocks, "bytes": held.bytes,
                "first": _time(held.first), "last": _time(held.last),
            })  # fmt: skip
        return found


def _time(number: int) -> str | None:
    """Return the time of a number in RFC 3339, UTC."""
    if not number:
        return None
    seconds, ms = divmod(unix_ms(number), 1000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{ms:03}Z"


def archive_as_text(rule: dict[str, Any]) -> str:
    """Return a rule's statistics as a line of text."""
    said = f"  archive {rule['filter']}: {rule['messages']} messages, {rule['bytes']} bytes in {rule['blocks']} blocks"
    if rule["messages"]:
        said += f", {rule['first']} to {rule['last']}"
    return said if rule["configured"] else said + " (not configured any more)"


class ArchiveCheck:
    """Checks every record of a store's archive, families in the order of `checks`. Raises what it finds wrong."""

    def __init__(self) -> None:
        self._rules: dict[int, bytes] = {}
        self._ends: dict[tuple[int, int], tuple[int, int, int]] = {}
        """(rule, origin) -> last number, running messages and bytes."""

    def checks(self) -> dict[bytes, Callable[[bytes, bytes], object]]:
        """Return the check of each family."""
        return {
            schema.ARCHIVE_RULE: self._rule,
            schema.ARCHIVED: self._block,
            schema.ARCHIVE_REMOVED: self._removed,
            schema.ARCHIVE_SUMMARY: lambda key, value: (
                archive_schema.split_block(key),
                archive_schema.decode_summary(value),
            ),
        }

    def _rule(self, key: bytes, value: bytes) -> None:
        rule = archive_schema.decode_rule(key, value)
        if rule.number in self._rules:
            raise ValueError(f"another rule has number {rule.number}, too")
        self._rules[rule.number] = rule.topic_filter

    def _block(self, key: bytes, value: bytes) -> None:
        number, origin, last = archive_schema.split_block(key)
        if number not in self._rules:
            raise ValueError(f"there is no rule {number}")
        head = archive_schema.decode_head(value)
        before = self._ends.get((number, origin))
        at = head.first - 1 if before is None else before[0]
        # (after a power cut blocks of QoS 0 may be missing between two that are there)
        if before is not None and (head.messages_before < before[1] or head.bytes_before < before[2]):
            raise ValueError("does not fit to the block before it")
        for each in archive_schema.decode_block(value):
            if each.message.number <= at:
                raise ValueError("its numbers do not rise")
            at = each.message.number
        if at != last:
            raise ValueError(f"its last number is {at}")
        self._ends[number, origin] = (
            last, head.messages_before + head.messages, head.bytes_before + len(key) + len(value),
        )  # fmt: skip

    def _removed(self, key: bytes, value: bytes) -> None:
        archive_schema.split_removed(key)
        schema.decode_u64(value)
