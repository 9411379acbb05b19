"""Requests to workers: their form as JSON, and how the control process waits for the answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from dataclasses import is_dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.admin import requests
from broker.admin.requests import (
    UNKNOWN,
    BridgeStates,
    DeleteSession,
    Drain,
    ListEvents,
    ListSessions,
    MoveClients,
    NoAnswer,
    Request,
    ShowSession,
    StoreStats,
    WorkDone,
    decode,
    encode,
)
from broker.admin.workers import Workers

_NUMBERS = st.integers(0, 2**64 - 1)
_REQUESTS: st.SearchStrategy[Request] = st.one_of(
    st.builds(ListSessions, _NUMBERS),
    st.builds(ShowSession, st.text(), st.integers(0, 2**32 - 1)),
    st.builds(DeleteSession, st.text()),
    st.builds(ListEvents, _NUMBERS),
    st.just(StoreStats()),
    st.builds(Drain, st.sampled_from(["begin", "end", None])),
    st.just(BridgeStates()),
    st.just(WorkDone()),
    st.builds(
        MoveClients,
        _NUMBERS,
        st.lists(st.tuples(st.text(min_size=1), st.integers(1, 2**31)), max_size=3).map(tuple),
        st.floats(0, 1e6),
    ),
)


@given(_REQUESTS)
def test_a_request_comes_back_from_its_json(request: Request) -> None:
    assert decode(json.loads(json.dumps(encode(request)))) == request


def test_their_form_is_what_other_releases_know() -> None:
    """A command can query a broker that is one release older or newer."""
    assert [encode(each) for each in (ListSessions(5), ShowSession("c", 6), DeleteSession("c"), ListEvents(7))] == [
        {"sessions": "list", "from": 5},
        {"sessions": "show", "client": "c", "from": 6},
        {"sessions": "delete", "client": "c"},
        {"events": "list", "from": 7},
    ]
    assert encode(StoreStats()) == {"store": "stats"}


@pytest.mark.parametrize(
    "said",
    [None, 0, "store", [], {}, {"sessions": "list"}, {"sessions": "list", "from": "0"}, {"store": "verify"},
     {"sessions": "show", "client": 1, "from": 0}, {"sessions": "drop", "client": "c"}, {"work": 1},
     {"drain": "now"}, {"drain": 1}, {"drain": True}, {"move": 1, "to": []}, {"move": -1, "to": [], "per_second": 1},
     {"move": 2**64, "to": [], "per_second": 1}, {"move": 1, "to": [], "per_second": -1},
     {"move": 1, "to": [], "per_second": float("inf")}, {"move": 1, "to": [], "per_second": float("nan")},
     {"move": 1, "to": [["", 1]], "per_second": 1}, {"move": 1, "to": [["a", 0]], "per_second": 1},
     {"move": 1, "to": [["a"]], "per_second": 1}, {"move": 1, "to": ["a"], "per_second": 1}],
)  # fmt: skip
def test_what_is_no_request_is_none(said: object) -> None:
    """A request may come from another release."""
    assert decode(said) is None


@pytest.mark.parametrize("at", [-1, -(2**70), 2**64, 10**30])
def test_a_page_that_cannot_be_is_no_request(at: int) -> None:
    assert decode({"sessions": "list", "from": at}) is None
    assert decode({"events": "list", "from": at}) is None


@pytest.mark.parametrize("at", [-1, 2**32, 2**64])
def test_nor_is_one_of_filters_that_no_session_has(at: int) -> None:
    assert decode({"sessions": "show", "client": "c", "from": at}) is None


Asked = list[dict[str, Any]]


def run(test: Callable[[Workers, Asked], Coroutine[Any, Any, None]]) -> None:
    """Run with the messages that the supervisor gets; every request is forgotten in the end."""

    async def main() -> None:
        asked: Asked = []
        workers = Workers(lambda event, **fields: asked.append({"event": event, **fields}))
        await asyncio.wait_for(test(workers, asked), 10)
        assert not workers._waiting

    asyncio.run(main())


async def until_asked(asked: Asked, count: int) -> dict[str, Any]:
    """Return the `count`th request."""
    while len(asked) < count:
        await asyncio.sleep(0)
    return asked[count - 1]


def test_answers_reach_those_who_asked() -> None:
    async def test(workers: Workers, asked: Asked) -> None:
        first, second = (asyncio.ensure_future(workers.ask(worker, StoreStats())) for worker in (0, 1))
        await until_asked(asked, 2)
        assert [each["worker"] for each in asked] == [0, 1]
        assert all((each["event"], each["ask"]) == ("ask", encode(StoreStats())) for each in asked)
        workers.answered({"event": "answered", "number": asked[1]["number"], "worker": 1, "answer": {"of": 1}})
        workers.answered({"event": "answered", "number": 999, "worker": 1, "answer": {}})
        assert await second == {"of": 1}
        assert not first.done()
        workers.answered({"event": "answered", "number": asked[0]["number"], "worker": 0, "error": "worker 0 has died"})
        with pytest.raises(NoAnswer, match=r"^worker 0 has died$"):
            await first
        workers.answered({"event": "answered", "number": asked[0]["number"], "worker": 0, "answer": {}})

    run(test)


def test_a_request_of_another_release_has_no_answer() -> None:
    async def test(workers: Workers, asked: Asked) -> None:
        asking = asyncio.ensure_future(workers.ask(0, StoreStats()))
        said = await until_asked(asked, 1)
        workers.answered({"number": said["number"], "answer": UNKNOWN})
        with pytest.raises(NoAnswer, match=r"^worker 0 does not know this request: the broker is of another release$"):
            await asking

    run(test)


def test_what_a_worker_could_not_answer_is_said() -> None:
    async def test(workers: Workers, asked: Asked) -> None:
        asking = asyncio.ensure_future(workers.ask(3, StoreStats()))
        said = await until_asked(asked, 1)
        workers.answered({"number": said["number"], "answer": {"error": "the request has failed"}})
        with pytest.raises(NoAnswer, match=r"^worker 3: the request has failed$"):
            await asking

    run(test)


def test_a_list_comes_page_by_page() -> None:
    """A page is requested once the previous one has been processed."""

    async def test(workers: Workers, asked: Asked) -> None:
        pages = workers.pages(3, ShowSession("c"))
        for count, (at, following) in enumerate([(0, 40), (40, 70), (70, None)], 1):
            page = asyncio.ensure_future(anext(pages))
            said = await until_asked(asked, count)
            assert decode(said["ask"]) == ShowSession("c", at)
            await asyncio.sleep(0)
            assert len(asked) == count
            workers.answered({"number": said["number"], "answer": {"next": following}})
            assert await page == {"next": following}
        with pytest.raises(StopAsyncIteration):
            await anext(pages)

    run(test)


def test_a_supervisor_that_says_nothing_is_not_waited_for_for_ever() -> None:
    async def test(workers: Workers, asked: Asked) -> None:
        with pytest.raises(NoAnswer, match=r"^worker 2 has not answered in 0\.01 s$"):
            await workers.ask(2, StoreStats(), seconds=0.01)
        workers.answered({"number": asked[0]["number"], "answer": {}})

    run(test)


def test_whoever_does_not_wait_any_more_is_forgotten() -> None:
    async def test(workers: Workers, asked: Asked) -> None:
        asking = asyncio.ensure_future(workers.ask(0, StoreStats()))
        said = await until_asked(asked, 1)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        workers.answered({"number": said["number"], "answer": {}})

    run(test)


def test_every_request_is_tried_here() -> None:
    named = {name for name in requests.__all__ if is_dataclass(getattr(requests, name))}
    assert named == {
        "BridgeStates",
        "DeleteSession",
        "Drain",
        "ListEvents",
        "ListSessions",
        "MoveClients",
        "ShowSession",
        "StoreStats",
        "WorkDone",
    }
