"""The control socket of the supervisor: questions go to workers, answers come back."""

from __future__ import annotations

import json
import os
import select
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from shards import console as module
from shards.console import QUESTION_BYTES_MAX, Console, Written
from shards.worker_channel import Message

SECONDS_MAX = 5.0
PIECE_BYTES = 65_536


@pytest.fixture
def console(tmp_path: Path) -> Iterator[Console]:
    opened = Console(str(tmp_path))
    yield opened
    opened.close()


@pytest.fixture
def asked(console: Console) -> list[tuple[int, Message]]:
    """What the workers were asked; worker 9 does not run."""
    seen: list[tuple[int, Message]] = []

    def ask(worker: int, message: Message) -> bool:
        seen.append((worker, message))
        return worker != 9

    console.ask = ask
    return seen


def connected(console: Console) -> socket.socket:
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    client.settimeout(SECONDS_MAX)
    client.connect(console.path)
    turn(console)
    return client


def turn(console: Console) -> None:
    """What is readable is read."""
    while ready := select.select(console.sockets(), [], [], 0)[0]:
        for each in ready:
            console.readable(each.fileno())


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
        client.sendall(b': "b"}\n')
        turn(console)
        ((worker, message),) = asked
        assert (worker, message["event"], message["ask"]) == (1, "ask", {"a": 1})
        console.answered(message["number"] + 1, "not this one")
        console.answered(message["number"], {"x": "y"})
        assert line(client) == {"worker": 1, "answer": {"x": "y"}}
        assert asked[1][0] == 2
        assert asked[1][1]["ask"] == "b"
        console.answered(asked[1][1]["number"], None)
        assert line(client) == {"worker": 2, "answer": None}


def test_a_worker_that_is_down_or_dies_is_told(console: Console, asked: list[tuple[int, Message]]) -> None:
    with connected(console) as client, connected(console) as other:
        client.sendall(b'{"worker": 9, "ask": 0}\n{"worker": 3, "ask": 0}\n')
        turn(console)
        assert line(client) == {"worker": 9, "error": "worker 9 does not run"}
        assert asked[-1][0] == 3
        other.sendall(b'{"worker": 4, "ask": 0}\n')
        turn(console)
        console.gone(3)
        assert line(client) == {"worker": 3, "error": "worker 3 has died"}
        console.answered(asked[-1][1]["number"], 1)
        assert line(other) == {"worker": 4, "answer": 1}


def say(console: Console, client: socket.socket, said: bytes) -> None:
    """All of it, as fast as it is taken."""
    for at in range(0, len(said), PIECE_BYTES):
        client.sendall(said[at : at + PIECE_BYTES])
        turn(console)


def test_the_longest_client_id_is_asked_for(console: Console, asked: list[tuple[int, Message]]) -> None:
    """Each of its characters takes six in JSON."""
    ask = {"session": "\x01" * 65_535}
    with connected(console) as client:
        say(console, client, json.dumps({"worker": 1, "ask": ask}).encode() + b"\n")
        ((_, message),) = asked
        assert message["ask"] == ask
        console.answered(message["number"], None)
        assert line(client) == {"worker": 1, "answer": None}


@pytest.mark.parametrize("said", [b"hello\n", b"[]\n", b'{"worker": 1}\n', b"x" * (QUESTION_BYTES_MAX + 1)])
def test_what_is_no_question_ends_it(console: Console, asked: list[tuple[int, Message]], said: bytes) -> None:
    with connected(console) as client:
        say(console, client, said)
        assert client.recv(1) == b""
    assert not asked
    assert len(console.sockets()) == 1


def test_a_client_that_leaves_is_forgotten(console: Console, asked: list[tuple[int, Message]]) -> None:
    with connected(console) as client:
        client.sendall(b'{"worker": 1, "ask": 0}\n')
        turn(console)
    turn(console)
    assert len(console.sockets()) == 1
    console.answered(asked[0][1]["number"], 0)


def test_there_are_not_too_many(console: Console) -> None:
    clients = [connected(console) for _ in range(module._CLIENTS_MAX + 1)]
    assert clients[-1].recv(1) == b""
    for each in clients:
        each.close()
    turn(console)
    assert len(console.sockets()) == 1


def test_broker_json_says_where_it_is(tmp_path: Path) -> None:
    written = Written(str(tmp_path), "/run/console", 3)
    assert Written.read(str(tmp_path)) == {"pid": os.getpid(), "control": "/run/console", "workers": 3}
    assert stat.S_IMODE((tmp_path / "broker.json").stat().st_mode) == 0o600
    Written(str(tmp_path), "/run/other", 1).remove()  # in the place of one that was killed
    assert not (tmp_path / "broker.json").exists()
    written.remove()
