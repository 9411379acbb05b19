"""Selection of a share group's strategy: the first rule of the configuration (`[[shared]]`) that matches the group.

Evaluated once in the life of a group, and again after a reload. Patterns are globs in which `*` matches `/` too; case
matters. MQTT's own wildcards in a filter (`+`, `#`) are ordinary characters to them.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["ShareGroupRule", "rule_of"]


class ShareGroupRule(BaseModel):
    """Strategy by which members of share groups (`$share/GROUP/FILTER`) are chosen. The first table that matches a
    group applies; the default is `round_robin`. [shared-subscriptions.md](../shared-subscriptions.md) has their
    guarantees.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    group: str = Field(
        min_length=1, description="Glob for the ShareName: `*` any characters, `?` one, `[ab]` one of these."
    )
    filter: str | None = Field(
        default=None,
        min_length=1,
        description="Glob for the Topic Filter behind the ShareName; not set: any. `+` and `#` are ordinary characters "
        "in it.",
    )
    strategy: Literal["round_robin", "least_inflight", "hash_topic", "hash_client", "sticky"] = Field(
        description="The member that gets a message: each in turn; the one with the fewest in flight; always the same "
        "one for a topic, or for a publisher's client id; one member until it leaves.",
    )
    when_full: Literal["next", "wait"] = Field(
        default="next",
        description="hash_topic, hash_client, sticky: whether a message whose member is online and has no room goes "
        "to the next one, or waits for it (which keeps the order).",
    )
    hosts: Literal["local", "even"] = Field(
        default="local",
        description="round_robin, least_inflight, in a cluster: whether members on the publisher's host get a message "
        "if one is online there, or all members of all hosts alike, which sends more between hosts.",
    )
    spread: bool = Field(
        default=False,
        description="In a cluster: whether members are sent to other hosts (MQTT 5: DISCONNECT 0x9D with a Server "
        "Reference; MQTT 3: closed) where a host has more of them online than others, so that the numbers differ by "
        "one at most. The same on all hosts.",
    )


def rule_of(rules: Sequence[ShareGroupRule], group: bytes, topic_filter: bytes) -> ShareGroupRule | None:
    """Return the rule for the group (ShareName) of a Topic Filter (without $share); None: round robin."""
    name, text = group.decode(), topic_filter.decode()
    for rule in rules:
        if fnmatchcase(name, rule.group) and (rule.filter is None or fnmatchcase(text, rule.filter)):
            return rule
    return None
