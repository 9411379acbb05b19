"""Messages between hosts over ZeroMQ with keys: who is heard, and who is not."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator

import pytest
import zmq

from pyx.core.peer import Peer, peer_of
from tests.rounds import Keeps, Rounds
from tests.waiting import wait_until
from zmq_mesh.contract import Buffer, Outlet
from zmq_mesh.curve import Curve, KeyPair, new_keys
from zmq_mesh.zeromq import ZeroMq


def free_address() -> str:
    with socket.socket() as tried:
        tried.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{tried.getsockname()[1]}"


FRAME_BYTES_MAX = 100_000


class Host:
    """A worker of a host of its own, with what it believes of the others."""

    def __init__(self, number: int, addresses: dict[int, str], keys: KeyPair) -> None:
        self.peer = peer_of(number, 0)
        self.rounds = Rounds()
        self.hosts: dict[bytes, int] = {}
        self.curve = Curve(keys, self.hosts, FRAME_BYTES_MAX)
        self.heard = Keeps()
        self._addresses = addresses
        self.transport = ZeroMq(self.peer, lambda peer: addresses[peer >> 8], self.rounds, self.curve)

    def listen(self) -> None:
        self.transport.listen(self.heard)

    def connect(self, peer: Peer) -> Outlet:
        return self.transport.connect(peer, lambda: None)

    def message(self, text: bytes, sender: Peer | None = None) -> list[Buffer]:
        """Return a message as the transport sees it: of one frame, with its sender."""
        return [b"\0\0\0\0" + (self.peer if sender is None else sender).to_bytes(4, "little") + bytes(96) + text]

    @property
    def texts(self) -> list[bytes]:
        return [bytes(frames[0])[104:] for frames in self.heard.messages]


Two = tuple[Host, Host]


@pytest.fixture
def make() -> Iterator[Callable[..., Host]]:
    with contextlib.ExitStack() as stack:
        addresses: dict[int, str] = {}

        def make(number: int, keys: KeyPair | None = None) -> Host:
            addresses.setdefault(number, free_address())
            host = Host(number, addresses, keys or new_keys())
            stack.callback(host.transport.close)
            return host

        make.addresses = addresses  # type: ignore[attr-defined]
        yield make


def turn(*hosts: Host) -> bool:
    for each in hosts:
        each.rounds.once(1)
    return True


def until(condition: Callable[[], object], what: str, *hosts: Host) -> None:
    wait_until(lambda: turn(*hosts) and condition(), 30, what)


def introduce(one: Host, other: Host) -> None:
    one.hosts[other.curve.own.public] = other.peer >> 8
    other.hosts[one.curve.own.public] = one.peer >> 8


def send(outlet: Outlet, message: list[Buffer], *hosts: Host) -> None:
    until(lambda: outlet.send(message), "it is taken", *hosts)


def send_until_heard(outlet: Outlet, text: bytes, one: Host, other: Host) -> None:
    """Send it again and again: what the old connection has taken is lost."""

    def is_heard() -> bool:
        outlet.send(one.message(text))
        return text in other.texts

    until(is_heard, f"{text!r} arrives", one, other)


def test_hosts_that_know_each_other(make: Callable[..., Host]) -> None:
    one, two = make(1), make(2)
    introduce(one, two)
    two.listen()
    outlet = one.connect(two.peer)
    send(outlet, one.message(b"hello"), one, two)
    until(lambda: two.texts == [b"hello"], "it arrives", one, two)
    assert (two.curve.refused, two.transport.malformed) == (0, 0)


def test_a_host_that_is_not_known_yet_comes_in_when_it_is(make: Callable[..., Host]) -> None:
    one, two = make(1), make(2)
    one.hosts[two.curve.own.public] = 2
    two.listen()
    outlet = one.connect(two.peer)
    until(lambda: two.curve.refused >= 2, "it is refused, again and again", one, two)
    assert not outlet.send(one.message(b"too early"))
    introduce(one, two)
    send(outlet, one.message(b"now"), one, two)
    until(lambda: two.texts == [b"now"], "it arrives", one, two)


def test_a_host_speaks_for_its_own_workers_alone(make: Callable[..., Host]) -> None:
    one, two, three = make(1), make(2), make(3)
    introduce(one, two)
    introduce(three, two)
    two.listen()
    outlet = one.connect(two.peer)
    for sender in (three.peer, Peer(0), peer_of(2, 0), peer_of(1 << 23, 0)):
        send(outlet, one.message(b"as another", sender), one, two)
    send(outlet, one.message(b"as another worker of its own", peer_of(1, 7)), one, two)
    until(lambda: two.texts, "what it may say arrives", one, two)
    assert two.texts == [b"as another worker of its own"]
    assert two.transport.malformed == 4


def test_a_host_that_has_left_is_not_heard_over_its_old_connection(make: Callable[..., Host]) -> None:
    one, two = make(1), make(2)
    introduce(one, two)
    two.listen()
    outlet = one.connect(two.peer)
    send(outlet, one.message(b"before"), one, two)
    until(lambda: two.texts, "it arrives", one, two)
    two.hosts.clear()
    send(outlet, one.message(b"after"), one, two)
    until(lambda: two.transport.malformed == 1, "it is dropped", one, two)
    assert two.texts == [b"before"]


def test_short_messages(make: Callable[..., Host]) -> None:
    one, two = make(1), make(2)
    introduce(one, two)
    two.listen()
    outlet = one.connect(two.peer)
    for length in range(8):
        send(outlet, [bytes(length)], one, two)
    until(lambda: two.transport.malformed == 8, "they are dropped", one, two)


def test_a_listener_with_another_key_gets_nothing(make: Callable[..., Host]) -> None:
    one, two, thief = make(1), make(2), make(2)
    introduce(one, two)
    introduce(one, thief)
    one.hosts.pop(thief.curve.own.public)
    thief.listen()
    outlet = one.connect(two.peer)
    for _ in range(100):
        turn(one, thief)
        assert not outlet.send(one.message(b"secret"))
    assert thief.texts == []


@pytest.mark.parametrize("mechanism", ["NULL", "PLAIN"])
def test_who_has_no_key(make: Callable[..., Host], mechanism: str) -> None:
    two = make(2)
    two.listen()
    with zmq.Context() as context, context.socket(zmq.PUSH) as pushing:
        pushing.setsockopt(zmq.LINGER, 0)
        pushing.setsockopt(zmq.IMMEDIATE, 1)
        if mechanism == "PLAIN":
            pushing.plain_username, pushing.plain_password = b"me", b"x"
        monitor = pushing.get_monitor_socket(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL)
        pushing.connect(make.addresses[2])  # type: ignore[attr-defined]
        until(lambda: monitor.poll(0), "the handshake fails", two)
        with pytest.raises(zmq.Again):
            pushing.send(b"", zmq.NOBLOCK)
        pushing.disable_monitor()
        monitor.close()
    assert two.texts == []


def test_a_host_at_another_address_with_another_key(make: Callable[..., Host]) -> None:
    one, two = make(1), make(2)
    introduce(one, two)
    two.listen()
    outlet = one.connect(two.peer)
    send(outlet, one.message(b"1"), one, two)
    until(lambda: two.texts, "it arrives", one, two)
    make.addresses[2] = free_address()  # type: ignore[attr-defined]
    again = make(2)
    one.hosts.pop(two.curve.own.public)
    introduce(one, again)
    again.listen()
    outlet.reconnect()
    send_until_heard(outlet, b"2", one, again)


def test_a_host_without_a_key(make: Callable[..., Host]) -> None:
    one = make(1)
    with pytest.raises(LookupError, match="host 2"):
        one.connect(peer_of(2, 0))


def test_a_host_that_has_left_and_comes_back(make: Callable[..., Host]) -> None:
    one, two = make(1), make(2)
    introduce(one, two)
    two.listen()
    outlet = one.connect(two.peer)
    send(outlet, one.message(b"1"), one, two)
    one.hosts.clear()
    for _ in range(2):
        with pytest.raises(LookupError, match="host 2"):
            outlet.reconnect()
    introduce(one, two)
    outlet.reconnect()
    send_until_heard(outlet, b"2", one, two)


def test_an_address_in_use(make: Callable[..., Host]) -> None:
    """It is said, and the transport can be closed."""
    one, again = make(1), make(1)
    one.listen()
    with pytest.raises(zmq.ZMQError, match="in use"):
        again.listen()


@pytest.mark.parametrize("length", [FRAME_BYTES_MAX, FRAME_BYTES_MAX + 1])
def test_how_large_a_frame_may_be(make: Callable[..., Host], length: int) -> None:
    one, two = make(1), make(2)
    introduce(one, two)
    two.listen()
    outlet = one.connect(two.peer)
    overhead = 104 + 33  # of our message, and of CurveZMQ's
    send(outlet, one.message(bytes(length - overhead)), one, two)
    if length <= FRAME_BYTES_MAX:
        until(lambda: bool(two.texts), "it arrives", one, two)
    else:
        for _ in range(100):
            turn(one, two)
        assert two.texts == []


def test_a_stranger_that_announces_much(make: Callable[..., Host]) -> None:
    """Its connection is closed before anything is kept for it, as is one that says nothing at all."""
    two = make(2)
    two.listen()
    host, _, port = make.addresses[2].removeprefix("tcp://").rpartition(":")  # type: ignore[attr-defined]
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"CURVE".ljust(20, b"\0") + bytes(32)
    for said in (greeting + b"\x06" + (400 << 20).to_bytes(8, "big"), b""):
        with socket.create_connection((host, int(port)), 30) as stranger:
            stranger.settimeout(30)
            stranger.sendall(said)
            received = b""
            with contextlib.suppress(ConnectionResetError):
                while chunk := stranger.recv(1000):
                    received += chunk
            assert len(received) <= 64
    assert two.curve.refused == 0
