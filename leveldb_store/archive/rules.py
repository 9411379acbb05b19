"""Rules of the archive over changes of the configuration: which of them have what of a Topic Filter, and since when.

A rule speaks for the topics that it archives. Of a Topic Filter that a table before it covers it has nothing since that
table stands there: what it removes since is nobody's loss. And a Topic Filter is archived without a gap as far back as
one table after the other has covered it, each from the start at which the one before was taken out. `Rule.since` and
`Rule.changed` are the numbers that say so; those of a store of an older release are not known, and count as the start
that has found it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from leveldb_store.archive.ends import Found
from leveldb_store.filters import covers, overlaps
from leveldb_store.format.archive_schema import HIGHEST, NOT_CONFIGURED, Rule

__all__ = ["GONE_MAX", "Concerned", "Table", "concerned", "settle"]

GONE_MAX: Final = 256
"""Rules that are not configured and hold nothing, of which it is known what was removed. Of those beyond that, what was
removed longest ago may have had any topic.
"""


class Table(NamedTuple):
    """An `[[archive]]` table."""

    topic_filter: bytes
    age_ms: int
    bytes_max: int
    """Of this store."""


class Concerned(NamedTuple):
    """What a Topic Filter has to do with the rules."""

    rules: list[tuple[int, int]]
    """(number, no message of it with a higher number than this has such a topic)."""
    since: int
    """It is archived without a gap behind this number."""


def settle(found: Found, tables: Sequence[Table], now: int) -> list[Rule]:
    """The rules of the configuration, then others that were. `now`: new messages have higher numbers. `found.removed`
    may be changed, for those forgotten.
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


def _remembered(gone: list[Rule], found: Found) -> list[Rule]:
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
    # as one that is not configured any more; of an older release and not for long: as if it had never been
    if rule.place != NOT_CONFIGURED:
        return rule._replace(place=NOT_CONFIGURED, changed=now)
    return rule if rule.changed != HIGHEST else rule._replace(changed=rule.since)


def _unbroken(rules: Sequence[Rule], since: int) -> int:
    # how far back one of them was there until the next one began, the last one behind `since`
    while True:
        further = min((rule.since for rule in rules if rule.changed >= since), default=since)
        if further >= since:
            return since
        since = further


def concerned(topic_filter: bytes, rules: Sequence[Rule]) -> Concerned:
    """Of these rules, what concerns a Topic Filter."""
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
