"""Advice about the number of hosts, by tables; and the records of advice and of loads."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.cluster.advice import ADVICE_BYTES_MAX, Advice, HostsNeeded, MalformedAdvice, advise
from broker.cluster.host_load import CHANGE_SHARE, LOAD_BYTES_MAX, HostLoad, MalformedLoad


def full(clients: int, sessions: int = 0, cpu: float | None = None) -> HostLoad:
    """Return a host that takes 1,000 clients and any number of sessions."""
    return HostLoad(clients, sessions, 1000, 0, cpu)


@pytest.mark.parametrize(
    ("loads", "verdict", "host", "reason"),
    [
        ({}, HostsNeeded.UNKNOWN, "", "the load of all hosts is not known, or it is not ready"),
        ({"a": full(1), "b": None}, HostsNeeded.UNKNOWN, "", "the load of b is not known, or it is not ready"),
        (
            {"a": HostLoad(5, 5)},
            HostsNeeded.UNKNOWN,
            "",
            "no limit of connections or sessions is set on all hosts, and no CPU time known",
        ),
        (
            {"a": full(5), "b": HostLoad(5, 5)},
            HostsNeeded.UNKNOWN,
            "",
            "no limit of connections or sessions is set on all hosts, and no CPU time known",
        ),
        ({"a": full(0)}, HostsNeeded.FINE, "", "0 of 1000 connections are used"),
        ({"a": full(700)}, HostsNeeded.FINE, "", "700 of 1000 connections are used"),
        ({"a": full(701)}, HostsNeeded.ADD, "", "701 of 1000 connections are used, more than 70%"),
        ({"a": full(500), "b": full(500)}, HostsNeeded.FINE, "", "1000 of 2000 connections are used"),
        ({"a": full(501), "b": full(500)}, HostsNeeded.ADD, "", "without a there would be 1001 of 1000 connections"),
        (
            {"a": HostLoad(10, 10, 1000), "b": HostLoad(80, 80, 100)},  # b alone cannot take those of a
            HostsNeeded.FINE,
            "",
            "90 of 1100 connections are used",
        ),
        (
            {"a": HostLoad(30, 30, 1000), "b": HostLoad(80, 80, 100)},
            HostsNeeded.ADD,
            "",
            "without a there would be 110 of 100 connections",
        ),
        (
            {"a": HostLoad(1, 800, 0, 1000), "b": HostLoad(1, 700, 0, 1000)},
            HostsNeeded.ADD,
            "",
            "1500 of 2000 sessions are used, more than 70%",
        ),
        (
            {"a": full(1, cpu=0.9), "b": full(1, cpu=0.51)},
            HostsNeeded.ADD,
            "",
            "70% of the CPU time of the workers are used, more than 70%",
        ),
        ({"a": full(1, cpu=0.9), "b": full(1)}, HostsNeeded.FINE, "", "2 of 2000 connections are used"),
        # a host can be drained
        ({"a": full(1), "b": full(1)}, HostsNeeded.FINE, "", "2 of 2000 connections are used"),  # two are the least
        (
            {"a": full(300), "b": full(200), "c": full(500)},
            HostsNeeded.DRAIN,
            "b",
            "without it 1000 of 2000 connections would be used, not more than 50%",
        ),
        (
            {"a": full(300), "b": full(201), "c": full(500)},
            HostsNeeded.FINE,
            "",
            "1001 of 3000 connections are used",
        ),
        (
            {"a": full(10, cpu=0.5), "b": full(9, cpu=0.4), "c": full(11, cpu=0.1)},
            HostsNeeded.DRAIN,
            "b",
            "without it 50% of the CPU time of the workers would be used, not more than 50%",
        ),
        (
            {"a": full(10, cpu=0.5), "b": full(9, cpu=0.41), "c": full(11, cpu=0.1)},
            HostsNeeded.FINE,
            "",
            "34% of the CPU time of the workers are used",
        ),
        (  # a can go, but after that c could not, because b has no room for its clients
            {"a": HostLoad(0, 0, 100), "b": HostLoad(60, 0, 200), "c": HostLoad(200, 0, 1000)},
            HostsNeeded.FINE,
            "",
            "260 of 1300 connections are used",
        ),
    ],
)
def test_what_is_advised(loads: dict[str, HostLoad | None], verdict: HostsNeeded, host: str, reason: str) -> None:
    assert advise(loads, dict.fromkeys(loads, 1)) == Advice(verdict, reason, host)


def test_the_cpu_time_of_a_larger_host_counts_more() -> None:
    loads: dict[str, HostLoad | None] = {"small": full(0, cpu=1.0), "large": full(0, cpu=0.6)}
    assert advise(loads, {"small": 1, "large": 15}).verdict is HostsNeeded.FINE
    assert advise(loads, {"small": 15, "large": 1}).verdict is HostsNeeded.ADD


_LOADS = st.builds(
    HostLoad,
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**63 - 1),
    st.none() | st.floats(0, 1),
)


@given(st.dictionaries(st.sampled_from("abcdef"), st.none() | _LOADS))
def test_any_loads_have_an_advice(loads: dict[str, HostLoad | None]) -> None:
    advice = advise(loads, dict.fromkeys(loads, 2))
    assert bool(advice.host) == (advice.verdict is HostsNeeded.DRAIN)
    assert advice.reason
    assert Advice.decode(advice.encode()) == advice


@given(_LOADS)
def test_a_load_comes_back_from_its_record(load: HostLoad) -> None:
    assert HostLoad.decode(load.encode()) == load


_WHOLE = b'{"format":1,"clients":1,"sessions":1,"clients_max":1,"sessions_max":1,"cpu":0.5'


def test_a_later_release_may_add_fields() -> None:
    assert HostLoad.decode(_WHOLE + b',"disk":0.5}') == HostLoad(1, 1, 1, 1, 0.5)


@pytest.mark.parametrize(
    "record",
    [
        b"",
        b"1",
        b"{}",
        _WHOLE.replace(b'"format":1', b'"format":2') + b"}",
        _WHOLE.replace(b'"clients":1', b'"clients":-1') + b"}",
        _WHOLE.replace(b'"clients":1', b'"clients":true') + b"}",
        _WHOLE.replace(b'"clients":1', b'"clients":9223372036854775808') + b"}",
        _WHOLE.replace(b"0.5", b"1.1") + b"}",
        _WHOLE.replace(b"0.5", b'"1"') + b"}",
        _WHOLE + b"}" + b" " * LOAD_BYTES_MAX,
    ],
)
def test_a_load_that_cannot_be_read_is_refused(record: bytes) -> None:
    with pytest.raises(MalformedLoad, match="the load of a host is malformed"):
        HostLoad.decode(record)


@pytest.mark.parametrize(
    "record",
    [
        b"",
        b"[]",
        b'{"format":2,"verdict":"fine","reason":"","host":""}',
        b'{"format":1,"verdict":"other","reason":"","host":""}',
        b'{"format":1,"verdict":"fine","reason":1,"host":""}',
        b'{"format":1,"verdict":"fine","reason":""}',
        b'{"format":1,"verdict":"fine","reason":"","host":""}' + b" " * ADVICE_BYTES_MAX,
    ],
)
def test_an_advice_that_cannot_be_read_is_refused(record: bytes) -> None:
    with pytest.raises(MalformedAdvice, match="the advice of the leader is malformed"):
        Advice.decode(record)


@pytest.mark.parametrize(
    ("former", "now", "is_worth_it"),
    [
        (HostLoad(0, 0), HostLoad(0, 0), False),
        (HostLoad(0, 0), HostLoad(1, 0), True),
        (HostLoad(100, 0), HostLoad(105, 0), False),
        (HostLoad(100, 0), HostLoad(106, 0), True),
        (HostLoad(100, 0), HostLoad(95, 0), False),
        (HostLoad(100, 0), HostLoad(94, 0), True),
        (HostLoad(0, 100), HostLoad(0, 106), True),
        (HostLoad(5, 5, 10, 10), HostLoad(5, 5, 10, 11), True),
        (HostLoad(5, 5, cpu=None), HostLoad(5, 5, cpu=0.0), True),
        (HostLoad(5, 5, cpu=0.5), HostLoad(5, 5, cpu=0.5 + CHANGE_SHARE - 0.001), False),
        (HostLoad(5, 5, cpu=0.5), HostLoad(5, 5, cpu=0.56), True),
    ],
)
def test_which_changes_are_written(former: HostLoad, now: HostLoad, is_worth_it: bool) -> None:
    assert now.differs_from(former) is is_worth_it
