"""The control socket of the supervisor: requests are passed to workers, and answers or their absence are reported."""

from __future__ import annotations

import json
import os
import select
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shards import console as module
from shards.console import REQUEST_BYTES_MAX, BrokerFile, Console
from shards.worker_channel import Message
from shards.worker_requests import REQUEST_SECONDS_MAX, REQUESTS_MAX, WorkerRequests

SECONDS_MAX = 60.0
PIECE_BYTES = 65_536


@pytest.fixture
def console(tmp_path: Path) -> Iterator[Console]:
    opened = Console(str(tmp_path))
    yield opened
    opened.close()


@pytest.fixture
def asked(console: Console) -> list[tuple[int, Message]]:
    """Return the requests that workers got; worker 9 does not run."""
    seen: list[tuple[int, Message]] = []

    def ask(worker: int, message: Message) -> bool:
        seen.append((worker, message))
        return worker != 9

    console.requests = WorkerRequests(ask)
    return seen


def connected(console: Console) -> socket.socket:
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    client.settimeout(SECONDS_MAX)
    client.connect(console.path)
    turn(console)
    return client


def turn(console: Console) -> None:
    """Read every readable socket, then expire requests, as a supervisor does."""
    while ready := select.select(console.sockets(), [], [], 0)[0]:
        for each in ready:
            console.readable(each.fileno())
    expire(console.requests)


def expire(requests: WorkerRequests, ahead: float = 0.0) -> None:
    """Expire the requests due within `ahead` seconds, and those that follow from them."""
    now = time.monotonic() + ahead
    while requests.due() <= now:
        requests.expire(now)


def line(client: socket.socket) -> Message:
    data = b""
    while not data.endswith(b"\n"):
        got = client.recv(1)
        assert got, "closed"
        data += got
    said: Message = json.loads(data)
    return said


def test_it_is_for_its_owner_alone(console: Console) -> None:
    assert stat.S_IMODE(os.stat(console.path).st_mode) == 0o600


def test_questions_reach_their_worker_one_at_a_time(console: Console, asked: list[tuple[int, Message]]) -> None:
    with connected(console) as client:
        client.sendall(b'{"worker": 1, "ask": {"a": 1}}\n{"worker": 2, "ask"')
        turn(console)
        client.sendall(b': {"b": 2}}\n')
        turn(console)
        ((worker, message),) = asked
        assert (worker, message["event"], message["ask"]) == (1, "ask", {"a": 1})
        console.requests.answered(1, message["number"] + 1, "not this one")
        console.requests.answered(1, message["number"], {"x": "y"})
        assert line(client) == {"worker": 1, "answer": {"x": "y"}}
        assert asked[1][0] == 2
        assert asked[1][1]["ask"] == {"b": 2}
        console.requests.answered(2, asked[1][1]["number"], None)
        assert line(client) == {"worker": 2, "answer": None}


def test_a_worker_that_is_down_or_dies_is_told(console: Console, asked: list[tuple[int, Message]]) -> None:
    with connected(console) as client, connected(console) as other:
        client.sendall(b'{"worker": 9, "ask": {}}\n{"worker": 3, "ask": {}}\n')
        turn(console)
        assert line(client) == {"worker": 9, "error": "worker 9 does not run"}
        assert asked[-1][0] == 3
        other.sendall(b'{"worker": 4, "ask": {}}\n')
        turn(console)
        console.requests.gone(3)
        assert line(client) == {"worker": 3, "error": "worker 3 has died"}
        console.requests.answered(4, asked[-1][1]["number"], 1)
        assert line(other) == {"worker": 4, "answer": 1}


def test_a_worker_that_says_nothing_is_answered_for(console: Console, asked: list[tuple[int, Message]]) -> None:
    with connected(console) as client:
        client.sendall(b'{"worker": 1, "ask": {}}\n{"worker": 2, "ask": {}}\n')
        turn(console)
        expire(console.requests, REQUEST_SECONDS_MAX - 1)
        client.setblocking(False)
        with pytest.raises(BlockingIOError):
            client.recv(1)
        client.settimeout(SECONDS_MAX)
        console.requests.expire(time.monotonic() + REQUEST_SECONDS_MAX)
        assert line(client) == {"worker": 1, "error": f"worker 1 has not answered in {REQUEST_SECONDS_MAX:g} s"}
        console.requests.answered(1, asked[0][1]["number"], "late")
        console.requests.answered(2, asked[1][1]["number"], "in time")
        assert line(client) == {"worker": 2, "answer": "in time"}


@pytest.mark.usefixtures("asked")
def test_ten_thousand_questions_for_one_that_is_down_are_answered(console: Console) -> None:
    """Requests are answered one after the other, not recursively."""
    answered: list[Message] = []

    def again(said: Message) -> None:
        answered.append(said)
        if len(answered) < 10_000:
            console.requests.ask(9, 0, again)

    console.requests.ask(9, 0, again)
    expire(console.requests)
    assert answered == [{"worker": 9, "error": "worker 9 does not run"}] * 10_000
    assert console.requests.due() == float("inf")


@pytest.mark.parametrize("waits", [True, False])
def test_a_worker_that_pauses_has_a_bounded_number_of_questions(
    console: Console, asked: list[tuple[int, Message]], waits: bool
) -> None:
    """The bound holds also when nobody waits for the answers any more: the requests are still in its socket."""
    requests, said = console.requests, list[Message]()
    for _ in range(REQUESTS_MAX + 3):
        number = requests.ask(1, {}, said.append)
        if not waits:
            requests.forget(number)
    assert len(asked) == REQUESTS_MAX
    expire(requests)
    busy = {"worker": 1, "error": f"worker 1 is busy: it has not answered {REQUESTS_MAX} requests"}
    assert said == ([busy] * 3 if waits else [])
    expire(requests, REQUEST_SECONDS_MAX + 1)
    assert len(said) == (REQUESTS_MAX + 3 if waits else 0)
    requests.ask(1, {}, said.append)
    expire(requests)
    assert said[-1] == busy
    requests.ask(2, {}, said.append)
    assert asked[-1][0] == 2, "the others are asked"
    requests.answered(1, asked[0][1]["number"], "at last")
    requests.ask(1, {}, said.append)
    assert (asked[-1][0], len(asked)) == (1, REQUESTS_MAX + 2)
    requests.gone(1)
    for _ in range(REQUESTS_MAX):
        requests.ask(1, {}, said.append)
    assert len(asked) == 2 * REQUESTS_MAX + 2


def say(console: Console, client: socket.socket, said: bytes) -> None:
    """Send all of it, as fast as it is taken."""
    for at in range(0, len(said), PIECE_BYTES):
        client.sendall(said[at : at + PIECE_BYTES])
        turn(console)


def test_the_longest_client_id_is_asked_for(console: Console, asked: list[tuple[int, Message]]) -> None:
    """Each character of the client id takes six in JSON."""
    ask = {"session": "\x01" * 65_535}
    with connected(console) as client:
        say(console, client, json.dumps({"worker": 1, "ask": ask}).encode() + b"\n")
        ((_, message),) = asked
        assert message["ask"] == ask
        console.requests.answered(1, message["number"], None)
        assert line(client) == {"worker": 1, "answer": None}


@pytest.mark.parametrize(
    "said",
    [
        b"hello\n", b"[]\n", b'{"worker": 1}\n', b'{"worker": 1, "ask": 0}\n', b'{"worker": "1", "ask": {}}\n',
        b'{"worker": -1, "ask": {}}\n', b'{"worker": 256, "ask": {}}\n', b'{"worker": 1e999, "ask": {}}\n',
        b'{"worker": 1, "ask": {"a": {}}}\n', b'{"worker": 1, "ask": {"a": []}}\n', b"[" * 200_000 + b"\n",
        b'{"worker": 1, "ask": {"a": ' + 978 * b"[" + 978 * b"]" + b"}}\n", b"\xff\n", b'{"worker": 1, "ask": {\n',
        b'{"worker": ' + b"9" * 5000 + b', "ask": {}}\n', b"x" * (REQUEST_BYTES_MAX + 1),
    ],
    ids=lambda said: said[:24].decode(errors="replace"),
)  # fmt: skip
def test_what_is_no_question_ends_it(console: Console, asked: list[tuple[int, Message]], said: bytes) -> None:
    with connected(console) as client:
        say(console, client, said)
        assert client.recv(1) == b""
    assert not asked
    assert len(console.sockets()) == 1


def test_a_client_that_leaves_is_forgotten(console: Console, asked: list[tuple[int, Message]]) -> None:
    with connected(console) as client:
        client.sendall(b'{"worker": 1, "ask": {}}\n')
        turn(console)
    turn(console)
    assert len(console.sockets()) == 1
    console.requests.answered(1, asked[0][1]["number"], 0)


def test_there_are_not_too_many(console: Console) -> None:
    clients = [connected(console) for _ in range(module._CLIENTS_MAX + 1)]
    assert clients[-1].recv(1) == b""
    for each in clients:
        each.close()
    turn(console)
    assert len(console.sockets()) == 1


def test_broker_json_says_where_it_is(tmp_path: Path) -> None:
    written = BrokerFile(str(tmp_path), "/run/console", 3)
    assert BrokerFile.read(str(tmp_path)) == {"pid": os.getpid(), "control": "/run/console", "workers": 3}
    assert stat.S_IMODE((tmp_path / "broker.json").stat().st_mode) == 0o600
    BrokerFile(str(tmp_path), "/run/other", 1).remove()  # replaces one that was killed
    assert not (tmp_path / "broker.json").exists()
    written.remove()
