"""A worker's answers to its operator: sessions listed, shown, deleted."""

from __future__ import annotations

import json
from typing import Any

import pytest

from broker.admin.requests import LISTS_MAX
from broker.worker import administration
from pyx.core import work
from tests import wire
from tests.kept_host import commit, families, kept, lasting
from tests.sansio import Host


def ask(host: Host, question: dict[str, Any]) -> dict[str, Any]:
    answers: list[dict[str, Any]] = []
    host.node.administration.asked(question, answers.append)
    host.settle()
    (answer,) = answers
    return answer


def test_every_session_is_listed_once_though_pages_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(administration, "_PAGE_ROWS_MAX", 3)
    host, _ = kept()
    for number in range(8):
        peer = lasting(host, f"c{number}", 5)
        if number % 2:
            host.lose(peer)
    asked = host.node.administration
    listed: list[tuple[str, bool]] = []
    at: int | None = 0
    while at is not None:
        pages: list[dict[str, Any]] = []
        asked.asked({"sessions": "list", "from": at}, pages.append)
        listed += [(row["client"], row["connected"]) for row in pages[0]["sessions"]]
        at = pages[0]["next"]
        if at is not None and at % (1 << 32) == 3:
            host.connect("c4", 5)  # clean start: another session of that name
            host.lose(host.peers[-1])
    assert sorted({client for client, _ in listed}) == [f"c{number}" for number in range(8) if number != 4]
    assert len(listed) == 7
    assert dict(listed)["c0"]
    assert not dict(listed)["c1"]


def test_a_session_is_shown_with_what_waits_for_it() -> None:
    host, _ = kept()
    client = lasting(host, "c", 5, username="u", will=wire.Will("will/topic", b"x"))
    client.subscribe(("a/#", 1), ("$share/g/b", 1))
    host.lose(client)
    host.connect("p").publish("a/b", b"body", qos=1)
    host.settle()
    answer = ask(host, {"sessions": "show", "client": "c", "from": 0})
    shown = answer["session"]
    assert (shown["connected"], shown["username"], shown["version"]) == (False, "u", 5)
    assert (shown["backlog_messages"], shown["backlog_bytes"], shown["subscriptions"]) == (1, 7, 2)
    assert sorted(answer["subscriptions"]) == ["$share/g/b", "a/#"]
    assert answer["next"] is None
    assert ask(host, {"sessions": "show", "client": "nobody", "from": 0})["session"] is None


def test_long_names_stay_within_a_message() -> None:
    host, _ = kept()
    client = lasting(host, "\u2603" * 3_000, 5)
    assert set(client.subscribe(*((f"{number}/" + "\u2603" * 300, 1) for number in range(20)))) == {1}
    at: int | None = 0
    told: list[str] = []
    while at is not None:
        answer = ask(host, {"sessions": "show", "client": "\u2603" * 3_000, "from": at})
        assert len(json.dumps(answer)) < 60_000
        told += answer["subscriptions"]
        at = answer["next"]
    assert len(told) == 20
    assert len(json.dumps(ask(host, {"sessions": "list", "from": 0}))) < 60_000


@pytest.mark.parametrize("connected", [True, False])
def test_a_session_that_is_deleted_leaves_nothing(connected: bool) -> None:
    host, store = kept()
    client = lasting(host, "c", 5)
    client.subscribe(("a", 1))
    store.manual = True
    if not connected:
        host.lose(client)
        commit(host)
    answers: list[dict[str, Any]] = []
    host.node.administration.asked({"sessions": "delete", "client": "c"}, answers.append)
    host.settle()
    assert not answers  # not on the disk yet
    commit(host)
    assert answers == [{"deleted": True}]
    assert not families(host)
    assert host.node.sessions.get("c") is None
    if connected:
        assert client.next("DISCONNECT").reason == 0x98
    assert ask(host, {"sessions": "delete", "client": "c"}) == {"deleted": False}


def test_what_it_does_not_know_it_says() -> None:
    host, _ = kept()
    assert ask(host, {"sessions": "burn"}) == {"unknown": True}


@pytest.mark.parametrize("pages_of", [3, 500])
def test_a_session_of_many_filters_is_shown_in_pages(monkeypatch: pytest.MonkeyPatch, pages_of: int) -> None:
    """A page costs as much as its content, not as much as the session has."""
    monkeypatch.setattr(administration, "_PAGE_ROWS_MAX", pages_of)
    host, _ = kept()
    client = lasting(host, "c", 5)
    filters = [f"t/{number:05}" for number in range(20 if pages_of < 20 else 2000)]
    for first in range(0, len(filters), 500):
        client.send(wire.subscribe(5, client.packet_id(), *((text, 1) for text in filters[first : first + 500])))
        host.settle()
    told: list[str] = []
    at: int | None = 0
    while at is not None:
        before = work.total()
        page = ask(host, {"sessions": "show", "client": "c", "from": at})
        assert work.total() - before < (pages_of + 100) * 300
        told += page["subscriptions"]
        assert page["session"]["subscriptions"] == len(filters)
        at = page["next"]
    assert sorted(told) == filters
    assert ask(host, {"sessions": "show", "client": "c", "from": 10_000})["subscriptions"] == []


def test_lists_of_several_who_ask_do_not_disturb_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """With too many lists the oldest is dropped, and its caller is notified."""
    monkeypatch.setattr(administration, "_PAGE_ROWS_MAX", 3)
    host, _ = kept()
    for number in range(8):
        lasting(host, f"c{number}", 5)
    first = ask(host, {"sessions": "list", "from": 0})
    for _ in range(LISTS_MAX - 1):
        last = ask(host, {"sessions": "list", "from": 0})
    names = [row["client"] for row in first["sessions"]]
    again = first
    while again["next"] is not None:
        again = ask(host, {"sessions": "list", "from": again["next"]})
        names += [row["client"] for row in again["sessions"]]
    assert sorted(names) == [f"c{number}" for number in range(8)]
    for _ in range(LISTS_MAX):
        ask(host, {"sessions": "list", "from": 0})
    said = f"this list is not kept any more: {LISTS_MAX} others were begun"
    assert ask(host, {"sessions": "list", "from": last["next"]}) == {"error": said}
    assert ask(host, {"sessions": "list", "from": 3}) == {"error": said}


@pytest.mark.parametrize("at", [0, 1, 2**31 - 1, 2**31, 2**32 - 1])
def test_filters_from_anywhere(at: int) -> None:
    host, _ = kept()
    lasting(host, "c", 5).subscribe(("a", 0))
    found = ask(host, {"sessions": "show", "client": "c", "from": at})
    assert (found["subscriptions"], found["next"]) == (["a"] if at == 0 else [], None)


def test_a_request_that_fails_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    host, _ = kept()
    lasting(host, "c", 5)

    def fails(*_: object) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(host.node.sessions, "clients", fails)
    said = "the request has failed: the log of the broker has the details"
    assert ask(host, {"sessions": "list", "from": 0}) == {"error": said}
    assert host.counters()["internal_errors"] == 1
    assert "a defect" in host.logs[0].named("internal_error")[0]["traceback"]
