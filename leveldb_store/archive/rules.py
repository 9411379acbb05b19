"""Rules of the archive over changes of the configuration: which rules have which topics of a Topic Filter, since when.

A rule is responsible for the topics that it archives. If an earlier table covers a Topic Filter, a rule gets no
messages for it while that table exists: what the rule removes from then on does not concern the filter. A Topic Filter
is archived without a gap as far back as successive tables have covered it, each from the start at which the previous
one was removed. `Rule.since` and `Rule.changed` are the numbers for this; a store of an older release has none, and
they count as the number of the start that has found the rule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from leveldb_store.archive.ends import ArchiveSurvey
from leveldb_store.filters import covers, overlaps
from leveldb_store.format.archive_schema import HIGHEST, NOT_CONFIGURED, Rule

__all__ = ["GONE_MAX", "ArchiveTable", "Concerned", "concerned", "settle"]

GONE_MAX: Final = 256
"""Rules that are not configured and hold nothing, whose removals are remembered. Beyond that, the ones removed longest
ago may have had any topic.
"""


class ArchiveTable(NamedTuple):
    """An `[[archive]]` table."""

    topic_filter: bytes
    age_ms: int
    bytes_max: int
    """Bytes of this store."""


class Concerned(NamedTuple):
    """The relation of a Topic Filter to the rules."""

    rules: list[tuple[int, int]]
    """(number, the highest number that a message of this rule with a matching topic may have)."""
    since: int
    """The filter is archived without a gap behind this number."""


def settle(found: ArchiveSurvey, tables: Sequence[ArchiveTable], now: int) -> list[Rule]:
    """Return the configured rules, then formerly configured ones. `now`: new messages have higher numbers.
    `found.removed` may be changed, for rules that are forgotten.
    """
    known = found.rules
    places = {table.topic_filter: place for place, table in enumerate(tables)}
    numbers = {rule.number for rule in known.values()} | found.aside
    ended = {text: _ended(rule, now) for text, rule in known.items()}
    rules = []
    for place, table in enumerate(tables):
        before = known.get(table.topic_filter)
        number = before.number if before is not None else next(n for n in range(1, NOT_CONFIGURED) if n not in numbers)
        numbers.add(number)
        changed = now
        if before is None or before.place == NOT_CONFIGURED:
            since = _unbroken([rule for text, rule in ended.items() if covers(text, table.topic_filter)], now)
        else:
            since = before.since
            if before.changed != HIGHEST and not _has_moved_up(before, place, known, places):
                changed = before.changed
        rules.append(Rule(table.topic_filter, number, place, table.age_ms, table.bytes_max, since, changed))
    gone: list[Rule] = []
    for text, rule in sorted(ended.items()):
        if text not in places:
            (rules if rule.number in found.sequences else gone).append(rule)
    return rules + _remembered(gone, found)


def _has_moved_up(before: Rule, place: int, known: Mapping[bytes, Rule], places: Mapping[bytes, int]) -> bool:
    return any(
        other.place < before.place and places.get(other.topic_filter, NOT_CONFIGURED) > place
        for other in known.values()
    )


def _remembered(gone: list[Rule], found: ArchiveSurvey) -> list[Rule]:
    removed: dict[int, int] = {}
    for (number, _), up_to in found.removed.items():
        removed[number] = max(up_to, removed.get(number, 0))
    gone.sort(key=lambda rule: removed.get(rule.number, 0))
    while len(gone) > GONE_MAX:
        number = gone.pop(0).number
        for each, origin in [key for key in found.removed if key[0] == number]:
            up_to = found.removed.pop((each, origin))
            found.removed[0, origin] = max(up_to, found.removed.get((0, origin), 0))
    return gone


def _ended(rule: Rule, now: int) -> Rule:
    # as a rule no longer configured; one of an older release and not for long: as if it had never existed
    if rule.place != NOT_CONFIGURED:
        return rule._replace(place=NOT_CONFIGURED, changed=now)
    return rule if rule.changed != HIGHEST else rule._replace(changed=rule.since)


def _unbroken(rules: Sequence[Rule], since: int) -> int:
    # how far back the rules follow each other without a gap, the last one behind `since`
    while True:
        further = min((rule.since for rule in rules if rule.changed >= since), default=since)
        if further >= since:
            return since
        since = further


def concerned(topic_filter: bytes, rules: Sequence[Rule]) -> Concerned:
    """Return which of these rules concern a Topic Filter."""
    covering = [rule for rule in rules if covers(rule.topic_filter, topic_filter)]
    configured = [rule for rule in covering if rule.place != NOT_CONFIGURED]
    since = _unbroken(covering, min((rule.since for rule in configured), default=0))
    return Concerned(
        [
            (rule.number, min((other.changed for other in configured if other.place < rule.place), default=HIGHEST))
            for rule in rules
            if overlaps(rule.topic_filter, topic_filter)
        ],
        since,
    )
