"""Selection of the [[queue]] rule that applies when a session's queue is full.

A session has one queue, so it has one rule: the first one, in the order of the configuration, that covers one of its
subscriptions; without one, `queue_full`, `queue_messages_max` and `queue_bytes_max` apply. A rule covers a subscription
when its Topic Filter matches every topic that the subscription's can match (`alarm/#` covers `alarm/+/smoke`, not `#`).

Messages for one session alone (retained messages, messages of a share group) are not under a rule.
"""

from __future__ import annotations

from collections.abc import Sequence

from leveldb_store.filters import covers

__all__ = ["covers", "first_rule", "wrong_with"]


def wrong_with(filter: str) -> str:
    """Return why this is not a valid Topic Filter for a rule [MQTT-4.7.1-1, 4.7.1-2], or an empty text."""
    levels = filter.split("/")
    if "\0" in filter:
        return "contains U+0000"
    if any("#" in level for level in levels[:-1]) or ("#" in levels[-1] and levels[-1] != "#"):
        return "# must be the last level, and all of it"
    if any("+" in level and level != "+" for level in levels):
        return "+ must be a whole level"
    if levels[0] == "$share":
        return "a shared subscription cannot be under a rule"
    return ""


def first_rule(rules: Sequence[bytes], subscribed: bytes) -> int:
    """Return the number, from 1, of the first rule that covers this subscription; 0: none does."""
    return next((number for number, rule in enumerate(rules, 1) if covers(rule, subscribed)), 0)
