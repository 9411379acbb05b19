"""How many members of a share group each host is to have, and who sends how many where: the same on all hosts."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.cluster.spread import Move, moves_of, part_of, targets_of

NODES = st.text("abcdefghijklmnopqrstuvwxyz0123456789.-", min_size=1, max_size=63)
ONLINE = st.dictionaries(NODES, st.integers(0, 5000), min_size=1, max_size=64)
GROUPS = st.binary(min_size=1, max_size=100)


def after(online: Mapping[str, int], moves: list[Move]) -> dict[str, int]:
    """Return the members of each host when all have moved."""
    left = dict(online)
    for move in moves:
        left[move.source] -= move.members
        left[move.target] += move.members
    return left


@given(GROUPS, ONLINE)
def test_targets_differ_by_one_at_most_and_nobody_is_lost(group: bytes, online: dict[str, int]) -> None:
    targets = targets_of(group, online)
    assert targets.keys() == online.keys()
    assert sum(targets.values()) == sum(online.values())
    assert max(targets.values()) - min(targets.values()) <= 1


@given(GROUPS, ONLINE)
def test_the_moves_lead_to_the_targets(group: bytes, online: dict[str, int]) -> None:
    """No host is sent more than it lacks, by all together, and none both sends and is sent."""
    moves = moves_of(group, online)
    assert after(online, moves) == targets_of(group, online)
    assert all(move.members > 0 for move in moves)
    assert not {move.source for move in moves} & {move.target for move in moves}
    assert len(moves) < max(2, len(online))


@given(GROUPS, ONLINE)
def test_no_fewer_moves_would_do(group: bytes, online: dict[str, int]) -> None:
    """Whoever has one more than the others: at least so many have to leave hosts that have too many."""
    each, extra = divmod(sum(online.values()), len(online))
    over = sorted((count - each for count in online.values() if count > each), reverse=True)
    least = sum(over) - min(extra, len(over))
    assert sum(move.members for move in moves_of(group, online)) == least


@given(GROUPS, ONLINE)
def test_then_there_is_nothing_to_move(group: bytes, online: dict[str, int]) -> None:
    assert moves_of(group, targets_of(group, online)) == []


@given(GROUPS, ONLINE, st.randoms(use_true_random=False))
def test_all_hosts_come_to_the_same(group: bytes, online: dict[str, int], chance: random.Random) -> None:
    """In whatever order a host knows the others."""
    nodes = list(online)
    chance.shuffle(nodes)
    assert moves_of(group, {node: online[node] for node in nodes}) == moves_of(group, online)


@given(GROUPS, ONLINE, st.data())
def test_the_workers_of_a_host_make_up_its_moves(group: bytes, online: dict[str, int], data: st.DataObject) -> None:
    """Each has its part, and the members for it."""
    source = data.draw(st.sampled_from(sorted(online)))
    cuts = sorted(data.draw(st.lists(st.integers(0, online[source]), max_size=7)))
    workers = [end - begin for begin, end in zip([0, *cuts], [*cuts, online[source]], strict=True)]
    moves = moves_of(group, online)
    parts = [part_of(moves, source, workers, worker) for worker in range(len(workers))]
    assert sum((Counter(part) for part in parts), Counter()) == Counter(
        {move.target: move.members for move in moves if move.source == source}
    )
    for part, members in zip(parts, workers, strict=True):
        assert sum(part.values()) <= members


def test_one_host_and_none() -> None:
    assert targets_of(b"g/t", {}) == {}
    assert moves_of(b"g/t", {}) == []
    assert targets_of(b"g/t", {"a": 7}) == {"a": 7}
    assert moves_of(b"g/t", {"a": 7}) == []


def test_hosts_without_members() -> None:
    assert moves_of(b"g/t", {"a": 60, "b": 0, "c": 0}) == [Move("a", "b", 20), Move("a", "c", 20)]
    assert moves_of(b"g/t", {"a": 0, "b": 0}) == []
    assert moves_of(b"g/t", {"a": 1, "b": 0, "c": 0}) == []
    assert [move.members for move in moves_of(b"g/t", {"a": 2, "b": 0, "c": 0})] == [1]


def test_two_hosts_do_not_overfill_a_third_one() -> None:
    assert moves_of(b"g/t", {"a": 40, "b": 20, "c": 0}) == [Move("a", "c", 20)]
    assert moves_of(b"g/t", {"a": 45, "b": 45, "c": 0}) == [Move("a", "c", 15), Move("b", "c", 15)]


def test_less_than_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="less than 0"):
        targets_of(b"g/t", {"a": 1, "b": -1})


@pytest.mark.parametrize("members", [3999, 4000, 4001])
def test_four_thousand_members_over_six_hosts(members: int) -> None:
    online = {f"n{at}": 0 for at in range(6)} | {"n3": members}
    left = after(online, moves_of(b"g/t", online))
    assert sorted(left.values()) == sorted(members // 6 + (at < members % 6) for at in range(6))


def test_the_extra_members_of_many_groups_do_not_meet_on_one_host() -> None:
    """10,000 groups of seven members over six hosts: each host has the seventh of about a sixth of them."""
    extra: Counter[str] = Counter()
    moves = 0
    for number in range(10_000):
        online = {f"n{at}": 7 * (at == number % 6) for at in range(6)}
        for move in moves_of(b"group-%d/t" % number, online):
            moves += move.members
            extra[move.target] += move.members
        extra[f"n{number % 6}"] += 7 - sum(move.members for move in moves_of(b"group-%d/t" % number, online))
    assert sum(extra.values()) == 70_000
    assert max(extra.values()) - min(extra.values()) < 1000
    assert moves == 50_000  # the seventh member stays where it is: that saves a move


def test_who_has_one_more_is_drawn_where_no_move_is_saved() -> None:
    """All members come from a host that does not count any more: four hosts have two, two have one, differently for
    each group.
    """
    drawn = Counter(
        node
        for number in range(3000)
        for node, members in targets_of(b"%d/t" % number, {"a": 1, "b": 1, "c": 1, "d": 1, "e": 5, "f": 1}).items()
        if members == 2
    )
    assert drawn["e"] == 3000
    others = [drawn[node] for node in "abcdf"]
    assert sum(others) == 3 * 3000
    assert max(others) - min(others) < 300
