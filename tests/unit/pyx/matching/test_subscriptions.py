"""Subscriptions against an obviously correct model: a dict of filters and the rule of MQTT-4.7 word by word."""

from __future__ import annotations

import gc
import os
import random
import resource
import time
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pyx.matching.interest import WholeInterest
from tests.unit.adapters.subscriptions_adapter import Session, SubscriptionsAdapter


def matches(filter_: bytes, topic: bytes) -> bool:
    """Apply the rule of MQTT-4.7, one level at a time."""
    wanted, levels = filter_.split(b"/"), topic.split(b"/")
    if topic.startswith(b"$") and wanted[0] in (b"+", b"#"):
        return False
    for i, level in enumerate(wanted):
        if level == b"#":
            return True
        if i == len(levels) or level not in (b"+", levels[i]):
            return False
    return len(wanted) == len(levels)


Member = tuple[str, int, int]


@dataclass
class ModelFilter:
    """Its subscribers: {(group or None, session): (options, identifier)}, siblings, {group: {sibling: members}}."""

    subscribers: dict[tuple[bytes | None, str], tuple[int, int]] = field(default_factory=dict)
    siblings: set[int] = field(default_factory=set)
    members: dict[bytes, dict[int, int]] = field(default_factory=dict)
    index: bool = False

    def used(self) -> bool:
        return bool(self.subscribers or self.siblings or any(self.members.values()) or self.index)

    def lists(self, group: bytes | None, online: set[str]) -> tuple[list[Member], list[Member]]:
        items = [(name, i, options) for (g, name), (options, i) in self.subscribers.items() if g == group]
        return sorted(x for x in items if x[0] in online), sorted(x for x in items if x[0] not in online)


LEVELS = st.sampled_from([b"", b"a", b"b", b"$s", b"long-level-of-more-than-sixteen-bytes", b"ab"])
TOPICS = st.lists(LEVELS, min_size=1, max_size=5).map(b"/".join).filter(lambda t: len(t) > 0)


@st.composite
def filters(draw: st.DrawFn) -> bytes:
    levels = draw(st.lists(LEVELS | st.just(b"+"), min_size=0, max_size=5))
    if draw(st.booleans()) or not any(levels):
        levels.append(b"#")
    return b"/".join(levels)


FILTERS = filters()
GROUPS = st.sampled_from([None, b"g", b"h"])
NAMES = st.sampled_from(["s1", "s2", "s3", "s4", "s5", "s6", "s7"])
SIBLINGS = st.sampled_from([0, 1, 63])


class Against(RuleBasedStateMachine):
    """The structure and the model run the same operations, and agree after every step."""

    def __init__(self) -> None:
        super().__init__()
        self.real = SubscriptionsAdapter()
        self.model: dict[bytes, ModelFilter] = {}
        self.online: set[str] = set()
        self.sessions: dict[str, Session] = {}
        for i in range(1, 8):
            self.sessions[f"s{i}"] = self.real.session(f"s{i}", i % 2 == 0)
            if i % 2 == 0:
                self.online.add(f"s{i}")
        self.before = (self.real.generation, frozenset(self.model))

    def entry(self, text: bytes) -> ModelFilter:
        return self.model.setdefault(text, ModelFilter())

    def settle(self) -> None:
        self.model = {text: entry for text, entry in self.model.items() if entry.used()}

    @rule(name=NAMES, text=FILTERS | TOPICS, group=GROUPS, options=st.integers(0, 63), identifier=st.integers(0, 9))
    def add(self, name: str, text: bytes, group: bytes | None, options: int, identifier: int) -> None:
        new = self.real.add(self.sessions[name], text, group, options, identifier)
        assert new == ((group, name) not in self.entry(text).subscribers)
        self.entry(text).subscribers[group, name] = (options, identifier)

    @rule(name=NAMES, data=st.data())
    def remove(self, name: str, data: st.DataObject) -> None:
        text = data.draw(st.sampled_from(sorted(self.model)) if self.model else FILTERS)
        group = data.draw(GROUPS)
        gone = self.model.get(text, ModelFilter()).subscribers.pop((group, name), None)
        assert self.real.remove(self.sessions[name], text, group) == (gone is not None)
        self.settle()

    @rule(name=NAMES)
    def remove_all(self, name: str) -> None:
        self.real.remove_all(self.sessions[name])
        for entry in self.model.values():
            entry.subscribers = {k: v for k, v in entry.subscribers.items() if k[1] != name}
        self.settle()

    @rule(name=NAMES)
    def set_online(self, name: str) -> None:
        self.real.set_online(self.sessions[name])
        self.online.add(name)

    @rule(name=NAMES)
    def set_offline(self, name: str) -> None:
        self.real.set_offline(self.sessions[name])
        self.online.discard(name)

    @rule(text=FILTERS | TOPICS, sibling=SIBLINGS, wanted=st.booleans())
    def set_sibling(self, text: bytes, sibling: int, wanted: bool) -> None:
        self.real.set_sibling(text, sibling, wanted)
        entry = self.entry(text)
        entry.siblings = entry.siblings | {sibling} if wanted else entry.siblings - {sibling}
        self.settle()

    @rule(text=FILTERS | TOPICS, group=st.sampled_from([b"g", b"h"]), sibling=SIBLINGS, members=st.integers(0, 3))
    def set_sibling_members(self, text: bytes, group: bytes, sibling: int, members: int) -> None:
        self.real.set_sibling_members(text, group, sibling, members)
        elsewhere = self.entry(text).members.setdefault(group, {})
        elsewhere[sibling] = members
        if not members:
            del elsewhere[sibling]
        self.settle()

    @rule(sibling=SIBLINGS, wants=st.dictionaries(st.tuples(FILTERS | TOPICS, GROUPS), st.integers(1, 3), max_size=5))
    def tell_anew(self, sibling: int, wants: dict[tuple[bytes, bytes | None], int]) -> None:
        whole = WholeInterest(sibling, 1)
        for (text, group), members in wants.items():
            self.real.name_sibling(whole, text, group, members)
        while self.real.forget_some(whole):
            pass
        for entry in self.model.values():
            entry.siblings.discard(sibling)
            for elsewhere in entry.members.values():
                elsewhere.pop(sibling, None)
        for (text, group), members in wants.items():
            if group is None:
                self.entry(text).siblings.add(sibling)
            else:
                self.entry(text).members.setdefault(group, {})[sibling] = members
        self.settle()

    @rule(text=FILTERS | TOPICS, wanted=st.booleans())
    def set_index(self, text: bytes, wanted: bool) -> None:
        self.real.set_index(text, wanted)
        self.entry(text).index = wanted
        self.settle()

    @rule(topic=TOPICS)
    def match(self, topic: bytes) -> None:
        expected = sorted(text for text in self.model if matches(text, topic))
        cached = self.real.cached(topic)
        assert cached is None or sorted(cached) == expected
        assert sorted(self.real.match(topic)) == expected
        assert sorted(self.real.cached(topic) or []) == expected
        assert self.real.cached(topic) is not None

    @invariant()
    def same(self) -> None:
        self.real.check()
        assert self.real.filters == len(self.model)
        for text, entry in self.model.items():
            described = self.real.describe(text)
            assert described is not None
            plain, siblings, offline_durable, groups = described
            assert plain == entry.lists(None, self.online)
            assert siblings == entry.siblings
            assert offline_durable == sum(
                1 for (_, name), (options, _) in entry.subscribers.items() if options & 3 and name not in self.online
            )
            names = {g for g, _ in entry.subscribers if g is not None} | {g for g, m in entry.members.items() if m}
            assert groups == {g: (entry.lists(g, self.online), entry.members.get(g, {})) for g in names}

    @invariant()
    def generation_follows_the_set_of_filters(self) -> None:
        now = (self.real.generation, frozenset(self.model))
        if now[1] != self.before[1]:
            assert now[0] != self.before[0]
        self.before = now


TestAgainst = Against.TestCase
TestAgainst.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)


@given(st.sets(FILTERS, max_size=40), st.lists(TOPICS, max_size=10), st.randoms())
@settings(max_examples=300, deadline=None)
def test_trie_matches_as_the_model_while_filters_come_and_go(
    wanted: set[bytes], topics: list[bytes], chance: random.Random
) -> None:
    real, alive = SubscriptionsAdapter(), set[bytes]()
    session = real.session("s")
    for text in sorted(wanted) * 2:
        if text in alive and chance.random() < 0.5:
            real.remove(session, text)
            alive.discard(text)
        else:
            real.add(session, text)
            alive.add(text)
        for topic in topics:
            assert sorted(real.match(topic)) == sorted(t for t in alive if matches(t, topic))
    real.remove_all(session)
    assert (real.filters, real.count) == (0, 0)


@pytest.mark.parametrize(
    ("text", "topic", "expected"),
    [
        (b"sport/tennis/player1/#", b"sport/tennis/player1", True),
        (b"sport/tennis/player1/#", b"sport/tennis/player1/score/wimbledon", True),
        (b"sport/#", b"sport", True),
        (b"sport/+", b"sport", False),
        (b"sport/+", b"sport/", True),
        (b"+/+", b"/finance", True),
        (b"/+", b"/finance", True),
        (b"+", b"/finance", False),
        (b"#", b"/", True),
        (b"#", b"$SYS/a", False),
        (b"+/monitor/Clients", b"$SYS/monitor/Clients", False),
        (b"$SYS/#", b"$SYS/a", True),
        (b"$SYS/monitor/+", b"$SYS/monitor/Clients", True),
        (b"a/$b/+", b"a/$b/c", True),
        (b"+/$b", b"a/$b", True),
        (b"ACCOUNTS", b"Accounts", False),
    ],
)
def test_mqtt_4_7_examples_of_the_standard(text: bytes, topic: bytes, expected: bool) -> None:
    real = SubscriptionsAdapter()
    session = real.session("s")
    for other in (None, b"sport/tennis/x/#", b"+/monitor/x", b"a/$b/+/x", b"$SYS/monitor/y"):  # folded, then unfolded
        if other is not None:
            real.add(session, other)
        real.add(session, text)
        assert (text in real.match(topic)) == expected


@pytest.mark.parametrize("wildcard", [False, True])
def test_a_result_is_cached_until_the_set_of_filters_changes(wildcard: bool) -> None:
    real = SubscriptionsAdapter()
    one, two = real.session("one"), real.session("two")
    if wildcard:
        real.add(one, b"other/+")
    assert real.cached(b"a") is None
    assert real.match(b"a") == []
    assert real.cached(b"a") == []  # an empty result is cached, too
    real.add(one, b"a")
    assert real.cached(b"a") == (None if wildcard else [b"a"])
    assert real.match(b"a") == [b"a"]
    generation = real.generation
    real.add(two, b"a")
    real.remove(one, b"a")
    assert (real.generation, real.cached(b"a")) == (generation, [b"a"])
    real.remove(two, b"a")
    assert real.cached(b"a") is None


def test_the_cache_is_bounded_and_right_for_more_topics_than_it_holds() -> None:
    real = SubscriptionsAdapter()
    session = real.session("s")
    for i in range(30000):
        real.add(session, b"t/%d" % i)
    real.add(session, b"t/+")
    for _ in range(2):
        for i in range(0, 30000, 3):
            assert sorted(real.match(b"t/%d" % i)) == [b"t/+", b"t/%d" % i]
    assert sum(real.cached(b"t/%d" % i) is not None for i in range(30000)) <= 8192


def test_results_too_large_for_the_cache_are_made_anew() -> None:
    real = SubscriptionsAdapter()
    session = real.session("s")
    for i in range(140000):  # over 1 MB of pointers
        real.add(session, b"/".join(b"+" if i >> bit & 1 else b"a" for bit in range(17)) + (b"/#" if i >> 17 else b""))
    topic = b"/".join([b"a"] * 17)
    assert real.match_count(topic) == 140000
    assert real.cached(topic) is None
    assert real.match_count(topic) == 140000


def test_the_bytes_of_the_cache_are_bounded() -> None:
    """40 results of 256 KB exceed the cache: old ones are evicted, and all results stay correct."""
    real = SubscriptionsAdapter()
    session = real.session("s")
    for i in range(2**15):
        real.add(session, b"/".join([b"+"] + [b"+" if i >> bit & 1 else b"a" for bit in range(15)]))
    topics = [b"/".join([b"%d" % i] + [b"a"] * 15) for i in range(40)]
    for topic in topics * 2:
        assert real.match_count(topic) == 2**15
    kept = [topic for topic in topics if real.cached(topic) is not None]
    assert 0 < len(kept) <= 32


def test_memberships_of_somebody_else_are_refused() -> None:
    real = SubscriptionsAdapter()
    one, two = real.session("one"), real.session("two")
    real.add(one, b"a")
    with pytest.raises(ValueError, match="field of the session"):
        real.add_foreign(one, two, b"a")
    real.check()


@pytest.mark.parametrize("text", [b"", b"x" * 65536])
def test_filters_of_impossible_length_are_refused(text: bytes) -> None:
    real = SubscriptionsAdapter()
    with pytest.raises(ValueError):
        real.hold(text)
    with pytest.raises(ValueError):
        real.match(text)


def test_65535_levels_cost_neither_stack_nor_exponential_time() -> None:
    """Filters and topics of 65,535 bytes, every second one a slash or all of them, in the worst shapes known."""
    real = SubscriptionsAdapter()
    session = real.session("s")
    slashes = b"/" * 65535
    pluses = b"+/" * 32767 + b"+"
    deep = b"a/" * 32767 + b"a"
    hostile = [slashes, pluses, deep, b"+/" * 32766 + b"x", b"a/" * 32766 + b"x", b"a/+/" * 16383 + b"#", b"#"]
    hostile += [b"+/" * n + b"#" for n in range(1, 300)]
    hostile += [b"/" * 65533 + b"+", b"/" * 65533 + b"#"]
    elapsed = 0.0
    started = time.process_time()
    for text in hostile:
        real.add(session, text)
    elapsed += time.process_time() - started
    for topic in (slashes, deep, b"a", b"/" * 65534 + b"a", b"a/" * 30000 + b"b"):
        started = time.process_time()
        found = real.match(topic)
        elapsed += time.process_time() - started
        assert sorted(found) == sorted(text for text in hostile if matches(text, topic))
    started = time.process_time()
    real.remove_all(session)
    elapsed += time.process_time() - started
    assert real.filters == 0
    assert elapsed < 1, "some 15 ms on an idle machine"


def test_time_of_a_match_is_bounded_by_the_filters_and_not_by_their_combinations() -> None:
    """{+,a}^10 before a level that never matches: a match visits the 2^11 nodes there are, however deep the topic."""
    real = SubscriptionsAdapter()
    session = real.session("s")
    for i in range(1024):
        real.add(session, b"/".join(b"+" if i >> bit & 1 else b"a" for bit in range(10)) + b"/x")
    started = time.process_time()
    for i in range(100):
        assert real.match_count(b"a/" * (20000 + i) + b"b") == 0
    assert time.process_time() - started < 1


def test_what_a_sibling_wants_is_told_anew_while_filters_come_and_go() -> None:
    """The table grows and shrinks between the pieces: named filters stay, all others are removed."""
    real, chance = SubscriptionsAdapter(), random.Random(3)
    session = real.session("s")
    former = WholeInterest(1, 1)
    for i in range(20_000):
        real.name_sibling(former, b"%d/%d" % (i % 7, i), b"g" if i % 5 == 0 else None)
    whole, pieces = WholeInterest(1, 2), 0
    for i in range(10_000, 20_000):
        real.name_sibling(whole, b"%d/%d" % (i % 7, i), b"g" if i % 5 == 0 else None)
    others = set[bytes]()
    while real.forget_some(whole):
        pieces += 1
        for _ in range(2_000 if pieces < 8 else 0):
            other = b"other/%d" % chance.randrange(100_000)
            others.add(other)
            real.add(session, other)
        if pieces == 8:
            for other in sorted(others)[1000:]:
                real.remove(session, other)
                others.remove(other)
        # a delta that arrives meanwhile
        real.name_sibling(whole, b"late/%d" % pieces)
    assert pieces > 8
    assert real.filters == 10_000 + len(others) + pieces
    assert real.count == len(others)
    real.check()


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["put", "put", "put", "strike", "forget"]),
            st.integers(0, 90).map(lambda n: n | n % 3 << 7 | n % 2 << 60),
            st.integers(0, 2),
            st.integers(0, 2),
        ),
        max_size=400,
    )
)
@settings(max_examples=200, deadline=None)
def test_enrolled_members_of_any_number_are_a_table(steps: list[tuple[str, int, int, int]]) -> None:
    real, model = SubscriptionsAdapter(), dict[tuple[int, int], tuple[int, int]]()
    real.add(real.session("s"), b"f", b"g")  # so that the group stays
    for since, (what, identity, worker, told) in enumerate(steps):
        if what == "put":
            real.put_member(b"f", b"g", identity, since, worker, told)
            model[identity, worker] = (since, told)
        elif what == "strike":
            real.strike_member(b"f", b"g", identity, worker)
            model.pop((identity, worker), None)
        elif identity % 10 == 0:
            real.forget_members(b"f", b"g", worker, told)
            model = {
                member: state for member, state in model.items() if member[1] != worker or (told and state[1] == told)
            }
        assert sorted(real.enrolled(b"f", b"g")) == sorted((*member, *state) for member, state in model.items())


def resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as fields:
        return int(fields.read().split()[1]) * resource.getpagesize()


@pytest.mark.skipif("asan" in os.environ.get("LD_PRELOAD", ""), reason="AddressSanitizer keeps what is freed")
def test_everything_is_given_back() -> None:
    """Grow to 100,000 filters and shrink, five times: memory stays at the level of the first time."""
    real = SubscriptionsAdapter()
    sessions = [real.session(f"s{i}") for i in range(100)]
    after = []
    for _ in range(5):
        for i in range(100000):
            text = b"device/%d/%s/state" % (i // 2, b"+" if i & 1 else b"x")
            real.add(sessions[i % 100], text, b"g" if i % 7 == 0 else None)
        real.set_sibling_members(b"device/1/+/state", b"g", 3, 7)
        whole = WholeInterest(3, 1)
        while real.forget_some(whole):
            pass
        for session in sessions:
            real.remove_all(session)
        assert (real.filters, real.count) == (0, 0)
        gc.collect()
        after.append(resident_bytes())
    assert after[-1] - after[0] < 2 << 20
