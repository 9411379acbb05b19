"""Plans to spread clients: what they move, that they settle, and that a plan of another release is refused."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.cluster.balance import (
    CLIENTS_LEAST,
    PLAN_BYTES_MAX,
    UNEVEN_SHARE,
    HostClients,
    MalformedPlan,
    Trials,
    above_share,
    decode_moves,
    encode_moves,
    pace_of,
    plan_moves,
    seconds_of,
    split,
)
from broker.cluster.host_load import CHANGE_SHARE

Counts = dict[str, int]


def places(**clients: int) -> dict[str, HostClients]:
    """Return hosts of one worker each."""
    return {node: HostClients(count, 1) for node, count in clients.items()}


@pytest.mark.parametrize(
    ("hosts", "moves"),
    [
        ({}, {}),
        (places(a=1000), {}),
        (places(a=0, b=0), {}),
        (places(a=100, b=100), {}),
        (places(a=120, b=80), {}),  # by 20 % of its share: no more
        (places(a=121, b=79), {"a": {"b": 21}}),
        (places(a=9, b=0), {}),
        (places(a=19, b=0), {}),  # above by 9 clients only
        (places(a=20, b=0), {"a": {"b": 10}}),
        (places(a=300, b=0, c=0), {"a": {"b": 100, "c": 100}}),
        (places(a=200, b=160, c=0), {"a": {"c": 80}, "b": {"c": 40}}),
        (places(a=100, b=101, c=102, d=0), {"a": {"d": 24}, "b": {"d": 25}, "c": {"d": 26}}),
        (
            {"a": HostClients(100, 3), "b": HostClients(100, 1)},
            {"b": {"a": 50}},
        ),  # three workers, three shares
        ({"a": HostClients(100, 1), "b": HostClients(0, 1, can_take=False)}, {}),  # clients cannot be told where it is
        ({"a": HostClients(100, 1, can_take=False), "b": HostClients(0, 1)}, {"a": {"b": 50}}),
        ({"a": HostClients(100, 1), "b": HostClients(0, 1, room=20)}, {"a": {"b": 20}}),
        ({"a": HostClients(100, 1), "b": HostClients(0, 1, room=9)}, {}),  # not worth it
        ({"a": HostClients(100, 1), "b": HostClients(0, 1, room=0)}, {}),
    ],
)
def test_what_is_moved(hosts: dict[str, HostClients], moves: dict[str, dict[str, int]]) -> None:
    assert plan_moves(hosts) == moves


@st.composite
def clusters(draw: st.DrawFn) -> dict[str, HostClients]:
    host = st.builds(
        HostClients, st.integers(0, 5000), st.integers(1, 16), st.none() | st.integers(0, 500), st.booleans()
    )
    return {f"n{at}": draw(host) for at in range(draw(st.integers(1, 12)))}


def carried_out(hosts: dict[str, HostClients], moves: dict[str, dict[str, int]]) -> dict[str, HostClients]:
    counts = {node: each.clients for node, each in hosts.items()}
    for source, to in moves.items():
        for target, count in to.items():
            counts[source] -= count
            counts[target] += count
    return {
        node: replace(
            each,
            clients=counts[node],
            room=None if each.room is None else each.room - max(0, counts[node] - each.clients),
        )
        for node, each in hosts.items()
    }


@given(clusters())
def test_a_plan_never_overshoots(hosts: dict[str, HostClients]) -> None:
    """Whoever gives stays at its share at least, whoever takes at most; no limit is passed; nobody does both."""
    moves = plan_moves(hosts)
    after = carried_out(hosts, moves)
    total, workers = sum(each.clients for each in hosts.values()), sum(each.workers for each in hosts.values())
    takers = {target for each in moves.values() for target in each}
    assert not takers & moves.keys()
    assert sum(each.clients for each in after.values()) == total
    for node, each in after.items():
        share = total * each.workers / workers
        if node in moves:
            assert each.clients >= share
        if node in takers:
            assert each.clients <= share
            assert hosts[node].can_take
            assert each.room is None or each.room >= 0
    assert all(count > 0 for each in moves.values() for count in each.values())


@given(clusters())
def test_what_was_carried_out_is_enough(hosts: dict[str, HostClients]) -> None:
    """The next plan moves nobody."""
    assert plan_moves(carried_out(hosts, plan_moves(hosts))) == {}


class Fleet:
    """Hosts with clients, of which the leader knows reports that may be out of date. obeys: whether a client goes where
    it is told.
    """

    def __init__(self, chance: random.Random, obeys: Callable[[], bool] = lambda: True) -> None:
        self.chance = chance
        self.obeys = obeys
        self.clients: Counts = {}
        self.reported: Counts = {}
        self.moved = 0

    def report(self) -> None:
        """As `HostLoad.differs_from` decides."""
        for node, count in self.clients.items():
            former = self.reported.get(node)
            if former is None or abs(count - former) > CHANGE_SHARE * former:
                self.reported[node] = count

    def join(self, node: str) -> None:
        self.clients[node] = 0

    def leave(self, node: str) -> None:
        """Its clients connect to any of the others."""
        for _ in range(self.clients.pop(node)):
            self.clients[self.chance.choice(sorted(self.clients))] += 1
        self.reported.pop(node, None)

    def churn(self, share: float) -> None:
        """Of each host's clients so many go away, and as many come to any host."""
        gone = {node: sum(self.chance.random() < share for _ in range(count)) for node, count in self.clients.items()}
        for node, count in gone.items():
            self.clients[node] -= count
        for _ in range(sum(gone.values())):
            self.clients[self.chance.choice(sorted(self.clients))] += 1

    def round(self) -> int:
        """Plan and carry out; return how many clients were told to go."""
        self.report()
        told = 0
        for source, to in plan_moves({node: HostClients(count, 1) for node, count in self.reported.items()}).items():
            for target, count in to.items():
                for _ in range(min(count, self.clients[source])):
                    told += 1
                    if self.obeys():
                        self.clients[source] -= 1
                        self.clients[target] += 1
        self.moved += told
        return told


@pytest.mark.parametrize("seed", range(20))
def test_it_settles_over_joins_and_leaves(seed: int) -> None:
    """After each change of the hosts clients are moved in few rounds, about as many as have to be, and then nobody is
    told to go any more, however long it goes on and although reports are out of date.
    """
    chance = random.Random(seed)
    fleet = Fleet(chance)
    for at in range(3):
        fleet.join(f"n{at}")
        fleet.clients[f"n{at}"] = chance.randrange(5000)
    joined = 3
    for _ in range(12):
        if len(fleet.clients) > 2 and chance.random() < 0.5:
            fleet.leave(chance.choice(sorted(fleet.clients)))
        else:
            fleet.join(f"n{joined}")
            joined += 1
        need = above_share({node: HostClients(count, 1) for node, count in fleet.clients.items()})
        told = [fleet.round() for _ in range(30)]
        assert told[4:] == [0] * 26, told
        assert sum(told) <= 1.25 * need + CLIENTS_LEAST, (told, need)
        shares = sum(fleet.clients.values()) / len(fleet.clients)
        most = max(abs(count - shares) for count in fleet.clients.values())
        assert most <= (UNEVEN_SHARE + 3 * CHANGE_SHARE) * shares + CLIENTS_LEAST, fleet.clients


@pytest.mark.parametrize("seed", range(5))
def test_clients_that_come_and_go_move_nobody(seed: int) -> None:
    """Where they connect by chance, counts differ by less than what a plan is made for."""
    fleet = Fleet(random.Random(seed))
    for at in range(5):
        fleet.join(f"n{at}")
        fleet.clients[f"n{at}"] = 1000
    for _ in range(100):
        fleet.churn(0.1)
        assert fleet.round() == 0


def test_clients_that_do_not_do_what_they_are_told_are_told_ever_less_often() -> None:
    """Two hosts, of which all clients want one: in a day there are few plans."""
    fleet, trials = Fleet(random.Random(1), lambda: False), Trials()
    fleet.join("a")
    fleet.join("b")
    fleet.clients["a"] = 1000
    assert trials.of_hosts(frozenset("ab"))
    now, plans = 0.0, 0
    while now < 86_400:
        before = above_share({node: HostClients(count, 1) for node, count in fleet.clients.items()})
        planned = fleet.round()
        assert planned == 500
        plans += 1
        trials.over(planned, before, before)
        now += 30 + trials.seconds
    assert plans == 28
    assert trials.seconds == Trials.SECONDS_MAX


def test_the_pause_after_a_plan() -> None:
    trials = Trials()
    assert trials.of_hosts(frozenset("ab"))
    assert not trials.of_hosts(frozenset("ab"))
    trials.over(100, 100, 51)
    assert trials.seconds == 2 * Trials.SECONDS, "49 of 100 are fewer than half"
    trials.over(100, 100, 50)
    assert trials.seconds == Trials.SECONDS
    for _ in range(10):
        trials.over(100, 100, 100)
    assert trials.seconds == Trials.SECONDS_MAX
    assert trials.of_hosts(frozenset("abc"))
    assert trials.seconds == Trials.SECONDS


def test_no_host_takes_more_than_the_pace() -> None:
    moves = {"a": {"d": 100, "e": 10}, "b": {"d": 100}, "c": {"d": 100}, "f": {"g": 1000}}
    assert pace_of(moves, "f", 500) == 500
    assert sum(pace_of(moves, each, 500) for each in "abc") <= 500.001
    assert pace_of(moves, "z", 500) == 500
    assert seconds_of(moves, 500) == pytest.approx(2.0)
    assert seconds_of({}, 500) == 0


@given(st.integers(0, 10_000), st.lists(st.integers(0, 1000), min_size=1, max_size=16))
def test_parts_are_the_whole(count: int, weights: list[int]) -> None:
    parts = split(count, weights)
    if not any(weights):
        assert not any(parts)
        return
    assert sum(parts) == count
    assert all(abs(part - count * weight / sum(weights)) < 1 for part, weight in zip(parts, weights, strict=True))


def test_a_plan_comes_back_from_its_record() -> None:
    moves = {"a": {"b": 1, "c": (1 << 31) - 1}, "x" * 63: {"d": 5}}
    assert decode_moves(encode_moves(moves)) == moves
    assert decode_moves(encode_moves({})) == {}


@pytest.mark.parametrize(
    "record",
    [
        b"",
        b"[]",
        b"{}",
        b'{"format":1}',
        b'{"format":2,"moves":{}}',
        b'{"format":1,"moves":[]}',
        b'{"format":1,"moves":{"a":[]}}',
        b'{"format":1,"moves":{"a/b":{"c":1}}}',
        b'{"format":1,"moves":{"a":{"":1}}}',
        b'{"format":1,"moves":{"a":{"b":0}}}',
        b'{"format":1,"moves":{"a":{"b":true}}}',
        b'{"format":1,"moves":{"a":{"b":2147483648}}}',
        b'{"format":1,"moves":{}}' + b" " * PLAN_BYTES_MAX,
    ],
)
def test_a_plan_that_cannot_be_read_is_refused(record: bytes) -> None:
    with pytest.raises(MalformedPlan, match="the plan of the leader is malformed"):
        decode_moves(record)


def test_the_largest_plan_fits() -> None:
    """64 hosts, each with a name of 63 characters: one of them is new, or all but one are empty."""
    nodes = [f"{at:063d}" for at in range(64)]
    for counts in ([10_000_000] + [0] * 63, [10_000_000] * 63 + [0]):
        moves = plan_moves({node: HostClients(count, 1) for node, count in zip(nodes, counts, strict=True)})
        assert sum(len(each) for each in moves.values()) == 63
        assert decode_moves(encode_moves(moves)) == moves
