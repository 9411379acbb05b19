"""Retained messages against a dict, sorted by levels; paging while topics come and go."""

from __future__ import annotations

import gc
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pyx.matching.retained import Retained
from tests.unit.pyx.matching.test_subscriptions import FILTERS, TOPICS, matches


def in_order(topic: bytes) -> list[bytes]:
    return topic.split(b"/")


class Against(RuleBasedStateMachine):
    """{topic: (number, message or None when cleared)}; numbers decide, not the order of arrival."""

    def __init__(self) -> None:
        super().__init__()
        self.real = Retained()
        self.model: dict[bytes, tuple[int, str | None]] = {}

    def alive(self) -> dict[bytes, str]:
        return {topic: message for topic, (_, message) in self.model.items() if message is not None}

    @rule(topic=TOPICS, number=st.integers(1, 50))
    def set(self, topic: bytes, number: int) -> None:
        newer = number > self.model.get(topic, (0, None))[0]
        assert self.real.set(topic, number, f"{topic!r} {number}") == newer
        if newer:
            self.model[topic] = (number, f"{topic!r} {number}")

    @rule(topic=TOPICS, number=st.integers(1, 50))
    def clear(self, topic: bytes, number: int) -> None:
        newer = number > self.model.get(topic, (0, None))[0]
        assert self.real.clear(topic, number) == newer
        if newer:
            self.model[topic] = (number, None)

    @rule(filter_=FILTERS | TOPICS, after=st.none() | TOPICS, limit=st.integers(1, 20))
    def match(self, filter_: bytes, after: bytes | None, limit: int) -> None:
        topics = sorted((t for t in self.alive() if matches(filter_, t)), key=in_order)
        behind = [t for t in topics if after is None or in_order(t) > in_order(after)]
        assert self.real.match(filter_, after, limit) == [(t, self.alive()[t]) for t in behind[:limit]]

    @rule(filter_=FILTERS | TOPICS, limit=st.integers(1, 5), steps=st.integers(1, 5))
    def pages(self, filter_: bytes, limit: int, steps: int) -> None:
        expected = sorted((t for t in self.alive() if matches(filter_, t)), key=in_order)
        found: list[bytes] = []
        after: bytes | None = None
        for _ in range(5 * len(self.model) + 5):
            page, after = self.real.page(filter_, after, limit, steps)
            assert len(page) <= limit
            found += [topic for topic, _ in page]
            if after is None:
                break
        assert found == expected
        assert after is None, "every page makes progress"

    @invariant()
    def same(self) -> None:
        assert self.real.count == len(self.real) == len(self.alive())
        for topic, (number, message) in self.model.items():
            assert self.real.get(topic) == message
            assert self.real.number(topic) == number
        assert self.real.get(b"nobody/said/this") is None


TestAgainst = Against.TestCase
TestAgainst.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)


ODD_TOPICS = st.lists(st.text("ab!/$~\x01é", max_size=3), min_size=1, max_size=6).map("/".join).filter(bool)


@given(
    st.sets(ODD_TOPICS, max_size=60),
    st.lists(st.sampled_from(["a", "b", "a!", "", "+", "+", "$a"]), max_size=5).map("/".join),
    st.booleans(),
    st.integers(1, 10),
)
@settings(max_examples=500, deadline=None)
def test_match_jumps_over_nothing(names: set[str], head: str, multi: bool, steps: int) -> None:
    filter_ = (f"{head}/#" if head else "#") if multi else head or "a"
    real = Retained()
    for name in names:
        real.set(name.encode(), 1, name)
    expected = sorted((n.encode() for n in names if matches(filter_.encode(), n.encode())), key=in_order)
    assert [topic for topic, _ in real.match(filter_.encode(), None, 1000)] == expected
    found: list[bytes] = []
    after: bytes | None = None
    while True:
        page, after = real.page(filter_.encode(), after, 3, steps)
        found += [topic for topic, _ in page]
        if after is None:
            break
    assert found == expected


def test_pages_go_on_while_topics_come_and_go() -> None:
    """Topics present throughout are found once; the last topic of a page may be gone when the next one is requested."""
    real = Retained()
    for i in range(1000):
        real.set(b"t/%04d" % i, 1, i)
    found, after, number = list[bytes](), None, 2
    while True:
        page = real.match(b"t/#", after, 10)
        found += [topic for topic, _ in page]
        if len(page) < 10:
            break
        after = page[-1][0]
        real.clear(after, number)
        real.set(b"s/%d" % number, number, "before")
        number += 1
    assert found == [b"t/%04d" % i for i in range(1000)]


def test_an_older_message_that_comes_late_does_not_bring_a_topic_back() -> None:
    real = Retained()
    assert real.set(b"a", 10, "ten")
    assert not real.set(b"a", 9, "nine")
    assert not real.set(b"a", 10, "ten again")
    assert not real.clear(b"a", 9)
    assert real.clear(b"a", 11)
    assert real.get(b"a") is None
    assert not real.set(b"a", 10, "late")
    assert not real.clear(b"a", 10)
    assert real.clear(b"b", 5)  # before any message of b arrived
    assert not real.set(b"b", 4, "late")
    assert real.set(b"b", 6, "new")
    assert real.set(b"a", 12, "new")
    assert real.get(b"a") == "new"


def test_the_memory_of_clears_is_bounded() -> None:
    real = Retained()
    for i in range(5000):
        real.clear(b"t/%d" % i, 10)
    assert real.set(b"t/0", 5, "forgotten: 4096 later clears")
    assert not real.set(b"t/4999", 5, "late")
    for i in range(20):
        real.clear(b"%02d" % i + b"x" * 65000, 10)
    assert real.set(b"00" + b"x" * 65000, 5, "forgotten: 1 MB of later topics")
    assert not real.set(b"19" + b"x" * 65000, 5, "late")


def test_messages_are_held_and_let_go() -> None:
    class Message:
        alive = 0

        def __init__(self) -> None:
            Message.alive += 1

        def __del__(self) -> None:
            Message.alive -= 1

    real = Retained()
    for i in range(100):
        real.set(b"%d" % i, 1, Message())
    assert Message.alive == 100
    real.set(b"1", 2, Message())
    assert Message.alive == 100
    real.clear(b"1", 3)
    assert Message.alive == 99
    page = real.match(b"#", None, 10)
    del real
    gc.collect()
    assert Message.alive == 10
    del page
    assert Message.alive == 0


@pytest.mark.parametrize("topic", [b"", b"x" * 65536])
def test_topics_of_impossible_length_are_refused(topic: bytes) -> None:
    real = Retained()
    with pytest.raises(ValueError):
        real.set(topic, 1, None)
    with pytest.raises(ValueError):
        real.clear(topic, 1)
    assert real.get(topic) is None


def test_65535_levels() -> None:
    real = Retained()
    topics = [b"/" * 65535, b"a/" * 32767 + b"a", b"a/" * 32766 + b"b", b"/" * 65534 + b"x", b"a"]
    for topic in topics:
        real.set(topic, 1, topic)
    started = time.process_time()
    deep = (b"+/" * 32767 + b"+", b"a/+/" * 16383 + b"#", b"/" * 65534 + b"+", b"a/" * 32767 + b"+")
    for filter_ in (b"#", b"+/#", *deep):
        expected = sorted((t for t in topics if matches(filter_, t)), key=in_order)
        assert [t for t, _ in real.match(filter_, None, 10)] == expected
        assert [t for t, _ in real.page(filter_, None, 10, 10**6)[0]] == expected
    assert time.process_time() - started < 5


def test_a_filter_with_literal_levels_jumps() -> None:
    """One topic in 1,000 matches +/last: the 100 times as many topics that do not are jumped over, not visited."""
    real = Retained()
    for i in range(100):
        for j in range(1000):
            real.set(b"%03d/%04d" % (i, j), 1, None)
    page, after = real.page(b"+/0999", None, 1000, 310)
    assert (len(page), after) == (100, None)
