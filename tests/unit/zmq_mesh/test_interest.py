"""Interest: numbered deltas and snapshots against a plain dictionary; every follower has the same table."""

import tracemalloc
from collections.abc import Iterator
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyx.mesh.contract import EnvelopeError
from zmq_mesh import interest
from zmq_mesh.interest import (
    CHANGES_MAX,
    PARTS_AT_ONCE,
    Change,
    InterestUpdate,
    Publisher,
    decode_changes,
    encode_change,
)


class Follower:
    """A peer that applies what it receives."""

    def __init__(self) -> None:
        self.number = 0
        self.table: dict[tuple[bytes, bytes | None, int], Change] = {}

    def follow(self, publisher: Publisher) -> list[InterestUpdate]:
        steps = publisher.since(self.number)
        for told in steps:
            if told.snapshot:
                entries = chain.from_iterable(map(decode_changes, told.parts))
                self.table = {(*entry[:2], entry.member): entry for entry in entries}
            else:
                assert told.number == self.number + 1
                for change in decode_changes(told.parts[0]):
                    if change.members:
                        self.table[*change[:2], change.member] = change
                    else:
                        self.table.pop((*change[:2], change.member), None)
            self.number = told.number
        return steps


def test_golden_change() -> None:
    assert encode_change(Change(b"a/+", None, 3, True)).hex() == "0300ffff030000000000000001" + b"a/+".hex()
    assert encode_change(Change(b"a", b"g", 0, False)).hex() == "01000100000000000000000000" + b"ag".hex()


def test_golden_change_of_a_group_and_of_a_member() -> None:
    assert encode_change(Change(b"a", b"g", 3, False, 2, True)).hex() == "01000100030000000200000002" + b"ag".hex()
    member = Change(b"a", b"g", 1, False, 0, False, 0x0102030405060708, 9)
    golden = "01000100010000000000000004" + "08070605040302010900000000000000" + b"ag".hex()
    assert encode_change(member).hex() == golden
    assert list(decode_changes(bytes.fromhex(golden))) == [member]


def test_members_of_a_group_are_entries_of_their_own() -> None:
    """A snapshot and the deltas agree on each of them; a member that left is in neither."""
    publisher = Publisher()
    early, late = Follower(), Follower()
    early.follow(publisher)
    publisher.change(b"a", b"g", 2, False, 2)
    publisher.member(b"a", b"g", 5, True, 100)
    publisher.member(b"a", b"g", 6, True, 101)
    publisher.seal()
    early.follow(publisher)
    publisher.member(b"a", b"g", 5, False, 0)
    publisher.member(b"a", b"g", 6, True, 0)
    publisher.change(b"a", b"g", 1)
    publisher.seal()
    early.follow(publisher)
    late.follow(publisher)
    assert early.table == late.table
    assert [change for change in late.table.values() if change.member] == [Change(b"a", b"g", 1, False, member=6)]


def test_a_new_follower_gets_a_snapshot_even_of_nothing() -> None:
    publisher = Publisher()
    follower = Follower()
    assert [told.snapshot for told in follower.follow(publisher)] == [True]
    assert follower.number == publisher.number == 1
    assert follower.follow(publisher) == []


def test_changes_of_one_tick_are_one_delta_with_the_announced_number() -> None:
    publisher = Publisher()
    follower = Follower()
    follower.follow(publisher)
    number = publisher.change(b"a")
    assert publisher.change(b"b", b"g", 4, True) == number
    assert publisher.change(b"a", None, 2) == number
    assert follower.follow(publisher) == []  # not sealed yet
    assert publisher.seal() == number
    assert publisher.seal() == number
    assert [told.number for told in follower.follow(publisher)] == [number]
    assert set(follower.table.values()) == {Change(b"a", None, 2, False), Change(b"b", b"g", 4, True)}


def test_filter_and_group_of_the_same_filter_are_separate() -> None:
    publisher = Publisher()
    publisher.change(b"a")
    publisher.change(b"a", b"")
    publisher.change(b"a", b"g")
    publisher.change(b"a", members=0)
    publisher.seal()
    follower = Follower()
    follower.follow(publisher)
    assert set(follower.table) == {(b"a", b"", 0), (b"a", b"g", 0)}


def test_who_missed_too_much_gets_a_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interest, "HISTORY_BYTES_MAX", 10 * interest.TOLD_BYTES)
    publisher = Publisher()
    near, far = Follower(), Follower()
    far.follow(publisher)
    for i in range(50):
        publisher.change(b"%d" % i)
        publisher.seal()
        if i == 45:
            near.follow(publisher)
    assert [told.snapshot for told in near.follow(publisher)] == [False] * 4
    assert [told.snapshot for told in far.follow(publisher)] == [True]
    assert near.table == far.table
    assert near.number == far.number


def test_history_of_small_deltas_is_bounded_with_all_that_they_take() -> None:
    """A client that connects and leaves makes two deltas of some 15 bytes: Python's overhead for them counts too."""
    publisher = Publisher()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(20_000):
            publisher.change(b"a/b/c")
            publisher.seal()
            publisher.change(b"a/b/c", members=0)
            publisher.seal()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before <= interest.HISTORY_BYTES_MAX


def test_big_snapshot_has_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interest, "SNAPSHOT_PART_BYTES_MAX", 100)
    publisher = Publisher()
    for i in range(50):
        publisher.change(b"filter/%d" % i)
    publisher.seal()
    told = publisher.since(0)[0]
    assert len(told.parts) > 5
    assert max(map(len, told.parts)) <= 100
    assert sum(len(list(decode_changes(part))) for part in told.parts) == 50
    assert publisher.since(0)[0] is told  # made once for all followers


def test_a_large_snapshot_is_made_in_pieces_while_the_table_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The snapshot has the number at which it was begun; all later deltas, however many, are kept for followers."""
    monkeypatch.setattr(interest, "HISTORY_BYTES_MAX", 10 * interest.TOLD_BYTES)
    rest: list[Iterator[None]] = []
    publisher = Publisher(in_pieces=rest.append)
    table = {b"filter/%d" % i for i in range(3 * PARTS_AT_ONCE * CHANGES_MAX)}
    for text in sorted(table):
        publisher.change(text)
    publisher.seal()
    early = [Follower(), Follower()]
    assert [follower.follow(publisher) for follower in early] == [[], []]
    for piece, _ in enumerate(rest[0]):
        for number in range(20):
            gone, new = b"filter/%d" % (20 * piece + number), b"new/%d/%d" % (piece, number)
            publisher.change(gone, members=0)
            publisher.change(new)
            publisher.seal()
            table = table - {gone} | {new}
        told = [[step.snapshot for step in follower.follow(publisher)] for follower in early]
        assert told == [[[True] + [False] * 40] * 2, [[]] * 2][piece == 0]
    late = Follower()
    assert late.follow(publisher) == []  # the first snapshot is not kept for it
    for _ in rest[1]:
        late.follow(publisher)
    assert len(rest) == 2
    for follower in (*early, late):
        assert {text for text, _, _ in follower.table} == table


def test_source_is_asked_for_snapshots() -> None:
    """A snapshot of a source is its current state, so its number includes unsealed changes."""
    table = [Change(b"a", None, 1, False)]
    publisher = Publisher(source=lambda: table)
    number = publisher.change(b"b")
    table.append(Change(b"b", None, 1, False))
    follower = Follower()
    follower.follow(publisher)
    assert follower.number == number == publisher.number
    assert list(follower.table.values()) == table


@given(
    st.lists(
        st.tuples(
            st.integers(0, 5), st.sampled_from([None, b"", b"g"]), st.integers(0, 3), st.booleans(), st.integers(0, 3)
        ),
        max_size=60,
    )
)
def test_followers_agree_with_the_table(steps: list[tuple[int, bytes | None, int, bool, int]]) -> None:
    publisher = Publisher()
    followers = [Follower(), Follower()]
    model: dict[tuple[bytes, bytes | None, int], Change] = {}
    for name, group, members, durable, what in steps:
        key = (b"f%d" % name, group)
        publisher.change(*key, members, durable)
        if members:
            model[*key, 0] = Change(*key, members, durable)
        else:
            model.pop((*key, 0), None)
        if what:
            publisher.seal()
        if what > 1:
            followers[what - 2].follow(publisher)
    publisher.seal()
    for follower in followers:
        follower.follow(publisher)
        assert follower.table == model
        assert follower.number == publisher.number


@given(st.binary(max_size=60))
def test_any_bytes_decode_or_raise_envelope_error(part: bytes) -> None:
    try:
        changes = list(decode_changes(part))
    except EnvelopeError:
        return
    again = b"".join(map(encode_change, changes))
    assert len(again) == len(part)


def test_a_number_without_a_change() -> None:
    publisher = Publisher()
    publisher.since(0)
    number = publisher.seal()
    assert publisher.touch() == publisher.touch() == number + 1
    assert publisher.seal() == number + 1
    (told,) = publisher.since(number)
    assert (told.number, told.snapshot, told.parts) == (number + 1, False, [b""])
    assert list(decode_changes(told.parts[0])) == []
    assert publisher.seal() == number + 1, "it is given out once"


@pytest.mark.parametrize("changes", [1, CHANGES_MAX, CHANGES_MAX + 1])
def test_a_change_needs_no_number_beside_its_own(changes: int) -> None:
    publisher = Publisher()
    publisher.since(0)
    number = publisher.seal()
    for each in range(changes):
        publisher.change(b"%d" % each)
    promised = publisher.touch()
    assert promised == publisher.seal() == number + -(-changes // CHANGES_MAX)
    told = publisher.since(number)
    assert sum(len(list(decode_changes(each.parts[0]))) for each in told) == changes


def test_before_any_peer_has_asked() -> None:
    publisher = Publisher()
    promised = publisher.touch()
    assert publisher.seal() == promised
    assert publisher.next == promised
