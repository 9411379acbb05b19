"""Listening sockets: one port for every address and worker, ports in use are detected, refusals are one line."""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence
from pathlib import Path

import pytest

from shards import listening
from shards.listening import Address, CannotListen, ListenerKind, Listeners, ListenOn, Opened


def test_port_0_gives_every_worker_a_socket_per_address_on_one_port() -> None:
    addresses = listening.resolve(["127.0.0.1", "::1"])
    port, sockets = listening.listen(addresses, 0, 3)
    names = [[listener.getsockname()[:2] for listener in own] for own in sockets]
    assert names == [[("127.0.0.1", port), ("::1", port)]] * 3
    for own in sockets:
        for listener in own:
            assert not listener.getblocking()
            assert not listener.get_inheritable()
            assert listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    listening.close(sockets)


def test_the_kernel_spreads_connections_over_the_workers_and_nodelay_is_inherited() -> None:
    port, sockets = listening.listen(listening.resolve(["127.0.0.1"]), 0, 2)
    clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(64)]
    taken = [0, 0]
    for index, own in enumerate(sockets):
        while True:
            try:
                connection, _ = own[0].accept()
            except BlockingIOError:
                break
            with connection:
                assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            taken[index] += 1
    for client in clients:
        client.close()
    listening.close(sockets)
    assert sum(taken) == 64
    assert min(taken) > 8


def test_a_port_in_use_is_refused_even_when_it_is_shared() -> None:
    addresses = listening.resolve(["127.0.0.1"])
    port, sockets = listening.listen(addresses, 0, 2)
    with pytest.raises(CannotListen, match=rf"^cannot listen on 127.0.0.1:{port}: the port is in use$"):
        listening.listen(addresses, port, 2)
    listening.close(sockets)
    again, sockets = listening.listen(addresses, port, 2)
    assert again == port
    listening.close(sockets)


def test_port_0_looks_for_another_when_one_address_has_it_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    probe = listening.probe
    attempts = []

    def taken_twice(addresses: Sequence[Address], port: int) -> int:
        attempts.append(port)
        if len(attempts) < 3:
            raise CannotListen("the port is in use")
        return probe(addresses, port)

    monkeypatch.setattr(listening, "probe", taken_twice)
    _, sockets = listening.listen(listening.resolve(["127.0.0.1"]), 0, 1)
    listening.close(sockets)
    assert len(attempts) == 3


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (errno.EACCES, "no permission (ports below 1024 need root or CAP_NET_BIND_SERVICE)"),
        (errno.EADDRNOTAVAIL, "this machine has no such address"),
        (errno.ENOBUFS, "No buffer space available"),
    ],
)
def test_refusals_say_why(number: int, reason: str) -> None:
    address = listening.resolve(["::1"])[0]
    assert str(listening._explain(OSError(number, "x"), address, 80)) == f"cannot listen on [::1]:80: {reason}"


def test_an_address_of_another_machine() -> None:
    assert not listening.available("192.0.2.1")
    assert listening.available("127.0.0.1")
    with pytest.raises(CannotListen, match=r"this machine has no such address"):
        listening.listen(listening.resolve(["192.0.2.1"]), 0, 1)


def test_addresses_named_twice_count_once() -> None:
    assert len(listening.resolve(["127.0.0.1", "127.0.0.1"])) == 1


def test_a_name_that_does_not_resolve() -> None:
    with pytest.raises(CannotListen, match=r"^cannot listen on no\.such\.invalid: "):
        listening.resolve(["no.such.invalid"])


def test_every_worker_has_its_part_of_every_listener_in_the_order_of_the_configuration() -> None:
    asked = [ListenOn("default", "tcp", ("127.0.0.1", "::1"), 0), ListenOn("plant", "tcp", ("127.0.0.1",), 0)]
    opened = Listeners(asked, 3)
    for worker in range(3):
        own = opened.of(worker)
        assert [(each.name, each.kind, len(each.sockets)) for each in own] == [
            ("default", "tcp", 2),
            ("plant", "tcp", 1),
        ]
        ports = [[each.getsockname()[1] for each in listener.sockets] for listener in own]
        assert [[address.rpartition(":")[2] for address in each] for each in opened.addresses] == [
            [str(port) for port in each] for each in ports
        ]
    assert opened.sockets() == 3
    opened.close_of(0)
    assert [each.fileno() for listener in opened.of(0) for each in listener.sockets] == [-1, -1, -1]
    assert all(each.fileno() >= 0 for listener in opened.of(1) for each in listener.sockets)
    opened.close()
    opened.close()


def test_one_that_cannot_be_opened_is_named_and_nothing_stays_open() -> None:
    first = Listeners([ListenOn("default", "tcp", ("127.0.0.1",), 0)], 1)
    taken = int(first.addresses[0][0].rpartition(":")[2])
    both = [ListenOn("default", "tcp", ("127.0.0.1",), 0), ListenOn("plant", "tcp", ("127.0.0.1",), taken)]
    why = rf"^listener plant: cannot listen on 127.0.0.1:{taken}: the port is in use$"
    with pytest.raises(CannotListen, match=why):
        listening.probe_all(both)
    with pytest.raises(CannotListen, match=why):
        Listeners(both, 2)
    with pytest.raises(CannotListen, match=rf"^cannot listen on 127.0.0.1:{taken}: the port is in use$"):
        Listeners(both[1:], 2)  # the only one needs no name
    first.close()
    Listeners(both, 2).close()


def test_a_kind_is_one_function(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A listener of another kind, on a unix socket that all workers share."""

    def open_unix(asked: ListenOn, workers: int) -> Opened:
        path = str(tmp_path / asked.hosts[0])
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            try:
                listener.bind(path)
            except OSError as error:
                raise CannotListen(f"cannot listen on {path}: {error.strerror}") from None
            listener.listen()
            listener.setblocking(False)
            return Opened([path], [[listener.dup()] for _ in range(workers)])

    monkeypatch.setitem(listening.KINDS, "unix", ListenerKind(open_unix, lambda _asked: None))
    opened = Listeners([ListenOn("tcp", "tcp", ("127.0.0.1",), 0), ListenOn("local", "unix", ("s",), 0)], 2)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.connect(opened.addresses[1][0])
        accepted, _ = opened.of(1)[1].sockets[0].accept()
        accepted.close()
    with pytest.raises(CannotListen, match=r"^listener other: cannot listen on .*/s: Address already in use$"):
        Listeners([ListenOn("one", "tcp", ("127.0.0.1",), 0), ListenOn("other", "unix", ("s",), 0)], 1)
    opened.close()
