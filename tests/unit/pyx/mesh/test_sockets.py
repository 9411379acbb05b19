"""The mesh's sockets: every split of every byte, limits, peers that do not read, peers that end in the middle."""

from __future__ import annotations

import os
import random
import socket
import struct
from pathlib import Path

import pytest

from pyx.mesh.connection import ZmtpConnection
from pyx.mesh.sockets import SOCKET_PATH_BYTES_MAX, Pull, Push
from tests.rounds import Keeps
from tests.unit.pyx.mesh.world import Heard, Rounds, connected

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"NULL".ljust(20, b"\0") + bytes(32)
PART = 32 * 1024
STEP = 100_000
"""Less than the kernel's buffer."""


def frame(body: bytes, flags: int = 0) -> bytes:
    """Return a frame as ZMTP writes it."""
    if len(body) < 256:
        return bytes((flags, len(body))) + body
    return bytes((flags | 2,)) + struct.pack(">Q", len(body)) + body


def command(name: bytes, data: bytes = b"") -> bytes:
    return frame(bytes((len(name),)) + name + data, 4)


def ready(kind: bytes, name: bytes = b"Socket-Type") -> bytes:
    return command(b"READY", bytes((len(name),)) + name + struct.pack(">I", len(kind)) + kind)


def message(*frames: bytes) -> bytes:
    return b"".join(frame(each, 1 if i < len(frames) - 1 else 0) for i, each in enumerate(frames))


class Conversation:
    """One of our connections, and the socket at its other end."""

    def __init__(self, own: bytes = b"PULL", peer: bytes = b"PUSH") -> None:
        self.rounds = Rounds()
        ours, self.peer = socket.socketpair()
        ours.setblocking(False)
        self.peer.settimeout(10)
        self.kept = Keeps()
        self.messages = self.kept.messages
        self.events: list[str] = []
        self.connection = ZmtpConnection(
            ours.detach(), own, peer, self.rounds.buffer, self.rounds, self.kept,
            lambda: self.events.append("ready"), lambda: self.events.append("sent"), self._lost,
        )  # fmt: skip
        self.connection.flush()

    def _lost(self, reason: str, malformed: bool) -> None:
        self.events.append(f"{'malformed' if malformed else 'lost'}: {reason}")

    def say(self, data: bytes) -> None:
        """Send bytes to our connection, and let it read them."""
        for at in range(0, len(data), STEP):
            self.peer.sendall(data[at : at + STEP])
            self.rounds.settle()

    def close(self) -> None:
        self.connection.close()
        self.peer.close()


WORDS = [
    GREETING,
    ready(b"PUSH"),
    message(b""),
    message(b"a", b"", bytes(300)),
    command(b"PING", b"\0\1context"),
    message(bytes(9000), b"end"),
    command(b"PONG", b"context"),
    command(b"JOIN", b"unknown commands are ignored"),
    message(b"last"),
]
SAID = b"".join(WORDS)
HEARD = [[b""], [b"a", b"", bytes(300)], [bytes(9000), b"end"], [b"last"]]
PONG = command(b"PONG", b"context")


@pytest.mark.parametrize("step", [1, 2, 3, 7, 64, 65, 1000])
def test_in_small_steps(step: int) -> None:
    one = Conversation()
    for at in range(0, len(SAID), step):
        one.say(SAID[at : at + step])
    assert one.messages == HEARD
    assert one.events == ["ready"]
    said = one.peer.recv(1000, socket.MSG_DONTWAIT)
    assert said == GREETING + ready(b"PULL") + PONG
    one.close()


def test_split_anywhere() -> None:
    ends = [len(b"".join(WORDS[:count])) for count in range(len(WORDS) + 1)]
    splits = {at for end in ends for at in range(end - 12, end + 12) if 0 <= at <= len(SAID)}
    for at in sorted(splits):
        one = Conversation()
        one.say(SAID[:at])
        one.say(SAID[at:])
        assert (one.messages, one.events) == (HEARD, ["ready"]), f"split at {at}"
        one.close()


@pytest.mark.parametrize("size", [PART - 1, PART, PART + 1, 262_143, 262_144, 700_000, 3_000_000])
@pytest.mark.parametrize("seed", range(3))
def test_large_frames_in_any_steps(size: int, seed: int) -> None:
    chosen = random.Random(seed)
    body = chosen.randbytes(size)
    said = GREETING + ready(b"PUSH") + message(body, b"x", body) + message(b"after")
    one = Conversation()
    at = 0
    while at < len(said):
        step = chosen.choice((1, 9, 100, 5000, 70_000, 200_000))
        one.say(said[at : at + step])
        at += step
    assert one.messages == [[body, b"x", body], [b"after"]]
    assert one.events == ["ready"]
    one.close()


WRONG = {
    "another protocol": b"GET / HTTP/1.1\r\n",
    "signature": GREETING[:9] + b"\0" + GREETING[10:],
    "version": GREETING[:10] + b"\2" + GREETING[11:],
    "mechanism": GREETING[:12] + b"CURVE" + GREETING[17:],
    "longer name of the mechanism": GREETING[:16] + b"X" + GREETING[17:],
    "message first": GREETING + message(b"early"),
    "another command first": GREETING + command(b"PING", b"\0\0"),
    "no type": GREETING + command(b"READY"),
    "wrong type": GREETING + ready(b"SUB"),
    "own type": GREETING + ready(b"PULL"),
    "property cut off in its name": GREETING + command(b"READY", b"\x0bSocket"),
    "property cut off in its length": GREETING + command(b"READY", b"\x0bSocket-Type\0\0"),
    "property cut off in its value": GREETING + command(b"READY", b"\x0bSocket-Type\0\0\0\5PUSH"),
    "length of a property": GREETING + command(b"READY", b"\x0bSocket-Type\xff\xff\xff\xffPUSH"),
    "refused": GREETING + command(b"ERROR", b"\x04away"),
    "error cut off": GREETING + command(b"ERROR", b"\x09away"),
    "error of nothing": GREETING + command(b"ERROR"),
    "no name": GREETING + frame(b"", 4),
    "name cut off": GREETING + frame(b"\x06READY", 4),
    "flags": GREETING + ready(b"PUSH") + b"\x08\x00",
    "command with MORE": GREETING + ready(b"PUSH") + b"\x05\x00",
    "command of 4097 bytes": GREETING + ready(b"PUSH") + frame(b"\x01X" + bytes(4095), 4),
    "frame of 4 GiB": GREETING + ready(b"PUSH") + b"\x02" + struct.pack(">Q", 1 << 32),
    "frame of the highest length": GREETING + ready(b"PUSH") + b"\x02" + b"\xff" * 8,
    "PING without its time": GREETING + ready(b"PUSH") + command(b"PING", b"\0"),
    "PING with a long context": GREETING + ready(b"PUSH") + command(b"PING", b"\0\0" + bytes(17)),
}


@pytest.mark.parametrize("said", WRONG.values(), ids=WRONG.keys())
@pytest.mark.parametrize("is_split", [False, True])
def test_what_is_no_zmtp_ends_the_connection(said: bytes, is_split: bool) -> None:
    one = Conversation()
    if is_split:
        for at in range(len(said)):
            if one.connection.fd >= 0:
                one.say(said[at : at + 1])
    else:
        one.say(said)
    assert one.messages == []
    assert one.events[-1].startswith("malformed: ")
    assert one.connection.fd == -1
    assert not one.rounds.watched
    one.close()


def test_a_command_of_4096_bytes_and_other_properties() -> None:
    one = Conversation()
    other = b"\x08Identity" + struct.pack(">I", 3) + b"abc"
    kind = b"\x0bsocket-TYPE" + struct.pack(">I", 4) + b"PUSH"
    one.say(GREETING + command(b"READY", other + kind + other) + frame(b"\x01X" + bytes(4094), 4) + message(b"x"))
    assert (one.messages, one.events) == ([[b"x"]], ["ready"])
    one.close()


def test_the_peer_ends_in_the_middle() -> None:
    """Of a message with two frames and the greeting before it: at every byte, and nothing of it is passed on."""
    said = GREETING + ready(b"PUSH") + message(b"first", b"last" * 100)
    for at in range(len(said)):
        one = Conversation()
        one.say(said[:at])
        one.peer.close()
        one.rounds.settle()
        assert one.messages == []
        assert one.events[-1].startswith("lost: "), f"at {at}"
        one.close()


def test_the_peer_ends_in_the_middle_of_a_large_frame() -> None:
    one = Conversation()
    one.say(GREETING + ready(b"PUSH") + message(bytes(PART), bytes(1_000_000))[:-1])
    one.peer.close()
    one.rounds.settle()
    assert one.messages == []
    assert one.events[-1].startswith("lost: ")
    one.close()


def test_messages_left_for_later_are_taken_in_order(rounds: Rounds, tmp_path: Path) -> None:
    """When the receiver wants no more for now, nothing is lost, reordered or read; also with a large frame."""
    heard = Heard(rounds, tmp_path / "own")
    push = connected(rounds, tmp_path / "own")
    sent = [[b"%d" % i, bytes(40_000 if i in (3, 20) else i * 97 % 1500)] for i in range(30)]  # the kernel takes all
    heard.most = 1
    for each in sent:
        assert push.send(each)
        push.flush()
        rounds.until(lambda: not push.pending, "it was sent")
    while len(heard.messages) < len(sent):
        before = len(heard.messages)
        heard.most = before + 1
        heard.pull.go_on()
        rounds.once()
        assert len(heard.messages) == before + 1
    assert heard.messages == sent


def test_a_read_out_of_turn_says_whether_it_was_all(rounds: Rounds, tmp_path: Path) -> None:
    """It was not where a frame took all that was read, and more may be behind it."""
    heard = Heard(rounds, tmp_path / "own")
    said = GREETING + ready(b"PUSH") + message(b"hello") + message(bytes(2 * PART))
    end = len(said) - 1000
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(str(tmp_path / "own"))
        peer.sendall(said[:end])
        rounds.until(lambda: len(heard.messages) > 0, "the first message")
        assert heard.messages == [[b"hello"]]
        heard.pull.receive()  # the rest of what is there
        heard.trust()
        assert heard.pull.receive()
        peer.sendall(said[end:] + message(b"behind it"))
        assert not heard.pull.receive()
        assert heard.messages[1:] == [[bytes(2 * PART)]]
        assert heard.pull.receive()
        assert heard.messages[2:] == [[b"behind it"]]


def test_a_peer_that_does_not_read_makes_it_refuse(rounds: Rounds, tmp_path: Path) -> None:
    theirs = Rounds()
    writable: list[int] = []
    heard = Heard(theirs, tmp_path / "own")
    push = rounds.push(tmp_path / "own", lambda: writable.append(len(heard.messages)))
    while not push.is_connected:
        rounds.once(1)
        theirs.once(1)
    assert writable == []
    sent = 0
    while push.send([b"%d" % sent, bytes(10_000)]):
        sent += 1
        push.flush()
    assert push.is_refused
    assert 256 * 1024 < push.pending < 256 * 1024 + 11_000
    assert not push.send([b"refused again"])
    rounds.settle()
    assert writable == []
    for _ in range(1000):
        theirs.once()
        rounds.once()
    assert [int(first) for first, _ in heard.messages] == list(range(sent))
    assert len(writable) == 1
    assert push.send([b"taken"])
    theirs.close()


def test_a_large_message_is_taken_when_nothing_waits(rounds: Rounds, tmp_path: Path) -> None:
    heard = Heard(rounds, tmp_path / "own")
    push = connected(rounds, tmp_path / "own")
    body = bytearray(random.Random(1).randbytes(5_000_000))
    assert push.send([memoryview(body), b"x"])
    push.flush()
    assert not push.send([b"refused"])
    rounds.until(lambda: bool(heard.messages), "it was heard")
    assert heard.messages == [[bytes(body), b"x"]]
    body.extend(b"it is not held any more: else this raises BufferError")


def test_a_sibling_that_dies_when_it_has_greeted(tmp_path: Path) -> None:
    """What its greeting lets us send finds the connection broken, while it is read out of turn."""
    path = tmp_path / "mesh.1"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        rounds = Rounds()
        push: Push

        def when_writable() -> None:
            assert push.send([b"x" * 200])
            push.flush()

        push = rounds.push(path, when_writable)
        sibling, _ = listening.accept()
        assert not push.send([b"early"])
        sibling.sendall(GREETING + ready(b"PULL"))
        sibling.recv(1000)
        sibling.close()
        push.receive()
        assert not push.is_connected
        rounds.close()


def test_a_frame_is_held_until_it_was_sent(rounds: Rounds, tmp_path: Path) -> None:
    Heard(rounds, tmp_path / "own")
    push = connected(rounds, tmp_path / "own")
    body = bytearray(3_000_000)
    push.send([body])
    push.flush()
    with pytest.raises(BufferError):
        body.extend(b"x")
    push.close()
    body.extend(b"x")


def test_one_push_after_the_other(rounds: Rounds, tmp_path: Path) -> None:
    """A successor displaces a dead worker's socket, and its siblings find it; what waited for the dead one is lost."""
    first = Heard(rounds, tmp_path / "own")
    push = connected(rounds, tmp_path / "own")
    first.pull.close()
    rounds.until(lambda: not push.is_connected, "the end was noticed")
    assert not push.send([b"lost"])
    push.tick(0)
    assert not push.is_connected, "it is not time"
    second = Heard(rounds, tmp_path / "own")
    push.reconnect()
    rounds.until(lambda: push.is_connected, "it is connected again")
    assert push.send([b"for the second"])
    push.flush()
    rounds.until(lambda: bool(second.messages), "it was heard")
    assert (first.messages, second.messages) == ([], [[b"for the second"]])


def test_a_silent_peer_that_has_promised_to_speak() -> None:
    one = Conversation()
    one.say(GREETING + ready(b"PUSH") + command(b"PING", b"\0\3"))
    one.connection.tick(1000)
    one.connection.tick(1300)
    one.say(message(b"not silent"))
    one.connection.tick(1301)
    one.connection.tick(1601)
    assert one.events == ["ready"]
    one.connection.tick(1602)
    assert one.events == ["ready", "lost: the peer is silent"]
    one.close()


def test_a_silent_peer_without_a_promise() -> None:
    one = Conversation()
    one.say(GREETING + ready(b"PUSH"))
    for now in (1000, 2000, 1 << 40):
        one.connection.tick(now)
    assert one.events == ["ready"]
    one.close()


@pytest.mark.parametrize("length", [SOCKET_PATH_BYTES_MAX, SOCKET_PATH_BYTES_MAX + 1])
def test_the_longest_path(length: int, rounds: Rounds, tmp_path: Path) -> None:
    path = str(tmp_path / "x")
    path += "x" * (length - len(path))
    if length > SOCKET_PATH_BYTES_MAX:
        with pytest.raises(ValueError, match="longer than 107 bytes"):
            Pull(path, rounds, Keeps(), rounds.buffer)
        with pytest.raises(ValueError, match="longer than 107 bytes"):
            Push(path, rounds, lambda: None, rounds.buffer)
        return
    heard = Heard(rounds, Path(path))
    push = connected(rounds, Path(path))
    push.send([b"x"])
    push.flush()
    rounds.until(lambda: bool(heard.messages), "it was heard")


def test_pings_of_a_peer_that_reads_nothing() -> None:
    """Their answers are bounded; what it says besides is heard."""
    conversation = Conversation()
    conversation.peer.sendall(GREETING + ready(b"PUSH"))
    conversation.rounds.until(lambda: conversation.events == ["ready"], "it has greeted")
    conversation.peer.setblocking(False)
    pings = command(b"PING", bytes(2) + bytes(16)) * 1000
    for _ in range(400):
        conversation.rounds.settle()
        sent = 0
        while sent < len(pings):
            try:
                sent += conversation.peer.send(pings[sent:])
            except BlockingIOError:
                conversation.rounds.settle()
    conversation.peer.sendall(message(b"heard"))
    conversation.rounds.until(lambda: conversation.messages == [[b"heard"]], "its message is heard")
    assert 0 < conversation.connection.pending < 2 * 64 * 1024
    conversation.connection.close()
    conversation.peer.close()


def test_a_refused_message_may_be_sent_after_a_flush_that_sent_all(tmp_path: Path) -> None:
    """Where the kernel's buffers are larger than what may wait, the flush itself makes room."""
    rounds = Rounds()
    heard = Heard(rounds, tmp_path / "own")
    told: list[int] = []
    push = rounds.push(tmp_path / "own", lambda: told.append(push.pending))
    connection = max(rounds.watched)
    rounds.until(lambda: push.is_connected, "the peer has greeted")
    with socket.socket(fileno=os.dup(connection)) as larger:
        larger.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * 1024 * 1024)
    sent = 0
    while push.send([b"x" * STEP]):
        sent += 1
    refused = [push.is_refused]
    push.flush()
    rounds.until(lambda: bool(told), "it may send again")
    refused.append(push.is_refused)
    assert refused == [True, False]
    rounds.until(lambda: len(heard.messages) == sent, "all has arrived")
    rounds.close()
