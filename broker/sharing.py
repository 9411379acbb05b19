"""Which strategy a share group has: the first rule of the configuration (`[[shared]]`) that matches it.

Asked once in the life of a group, and again after a reload. Patterns are globs in which `*` matches `/` too; case
matters. MQTT's own wildcards in a filter (`+`, `#`) are ordinary characters to them.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from pyx.router import STRATEGIES, WAITS_FLAG

if TYPE_CHECKING:
    from broker.config import Shared

__all__ = ["DEFAULT", "strategy_of"]

DEFAULT = STRATEGIES["round_robin"]


def strategy_of(rules: Sequence[Shared], group: bytes, topic_filter: bytes) -> int:
    """What `pyx.sharing` knows the strategy by, for the group (ShareName) of a Topic Filter (without $share)."""
    name, text = group.decode(), topic_filter.decode()
    for rule in rules:
        if fnmatchcase(name, rule.group) and (rule.filter is None or fnmatchcase(text, rule.filter)):
            return STRATEGIES[rule.strategy] | (WAITS_FLAG if rule.when_full == "wait" else 0)
    return DEFAULT
