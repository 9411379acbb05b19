"""Authentication without sockets and threads: the test decides when hashes are computed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from broker.auth import scram
from broker.auth.contract import Backend
from broker.auth.password_file import PasswordFile
from broker.auth.pool import Done
from broker.config.settings import Settings
from shards.placement import home
from tests import wire
from tests.sansio import CLOSED, CLOSING, Host, Peer
from tests.scram_client import METHOD, ScramClient
from tests.unit.broker.auth.test_password_file import PBKDF2, SHA512

DECIDING = 1
KEEP = {"session_expiry_interval": 60}
SCRAM = scram.text_of(scram.make("pencil", 4096))


class Hashes:
    """A hash pool that the test runs by hand."""

    def __init__(self, host: Host, worker: int = 0) -> None:
        self.host = host
        self.waiting: list[tuple[Callable[[], bool], Done]] = []
        host.nodes[worker].authenticating.submit = self.submit

    def submit(self, work: Callable[[], bool], done: Done) -> Callable[[], None]:
        self.waiting.append((work, done))
        return lambda: self.waiting.remove((work, done))

    def compute(self, which: int = 0) -> None:
        work, done = self.waiting.pop(which)
        done(work())
        self.host.settle()

    def fail(self, error: Exception) -> None:
        _, done = self.waiting.pop(0)
        done(error)
        self.host.settle()


@pytest.fixture
def users(tmp_path: Path) -> Path:
    """alice has "secret" and bob "secret2", hashed by mosquitto; carl has "pencil" for SCRAM, and "secret"."""
    path = tmp_path / "users"
    path.write_text(f"alice:{PBKDF2}\nbob:{SHA512}\ncarl:{SCRAM}:{PBKDF2}\n")
    return path


def host_of(users: Path, workers: int = 1, **settings: Any) -> Host:
    return Host(workers, password_file=str(users), **settings)


def reload(host: Host, users: Path, **settings: Any) -> None:
    for node in host.nodes:
        node.reload(
            Settings(workers=len(host.nodes), limits=host.settings.limits, password_file=str(users), **settings)
        )


def offer(host: Host, version: int, client_id: str, user: str, password: bytes, **options: Any) -> Peer:
    """Send a CONNECT that is not answered yet."""
    peer = host.open(version, home(client_id, len(host.nodes)))
    peer.client_id = client_id
    peer.send(wire.connect(version, client_id, username=user, password=password, **options))
    host.settle()
    return peer


def refused(peer: Peer, reason: int) -> dict[str, Any]:
    assert peer.next("CONNACK").reason == reason
    assert peer.closed
    (line,) = [each for log in peer.host.logs for each in log.named("connection_refused")][-1:]
    assert line["address"] == peer.conn.address
    return line


@pytest.mark.parametrize("version", [3, 4, 5])
def test_packets_behind_connect_wait_for_the_hash(users: Path, version: int) -> None:
    host = host_of(users)
    hashes = Hashes(host)
    peer = offer(host, version, "c", "alice", b"secret")
    peer.send(wire.subscribe(version, 1, ("a", 0)), wire.publish(version, "a", b"x"))
    peer.silent()
    assert peer.conn.state == DECIDING
    assert host.node.authenticating.pending == 1
    hashes.compute()
    assert [packet.kind for packet in peer.packets] == ["CONNACK", "SUBACK", "PUBLISH"]
    assert host.node.authenticating.pending == 0
    assert peer.session.details.username == "alice"


def test_what_follows_a_refusal_for_want_of_room_is_not_looked_at(users: Path) -> None:
    """The password was right, but connections_max was reached meanwhile: the packets behind CONNECT are discarded."""
    host = host_of(users, limits={"connections_max": 1}, allow_anonymous=True)
    hashes = Hashes(host)
    late = offer(host, 5, "late", "alice", b"secret")
    late.send(wire.subscribe(5, 1, ("a", 0)), wire.publish(5, "a", b"x", retain=True), wire.connect(5, "again"))
    host.connect("early", 5)
    hashes.compute()
    refused(late, 0x97)
    assert host.counters()["internal_errors"] == host.counters()["retained_messages"] == 0


def test_the_second_login_costs_no_hash_until_a_reload(users: Path) -> None:
    host = host_of(users)
    hashes = Hashes(host)
    for client_id in ("a", "b", "c"):
        offer(host, 4, client_id, "alice", b"secret")
        if client_id == "a":
            hashes.compute()
    assert hashes.waiting == []
    assert (host.counters()["credentials_hashed"], host.counters()["credentials_cached"]) == (1, 2)
    offer(host, 4, "d", "alice", b"wrong")
    hashes.compute()
    offer(host, 4, "d", "alice", b"wrong")  # wrong passwords are not cached
    hashes.compute()
    reload(host, users)
    offer(host, 4, "e", "alice", b"secret")
    hashes.compute()
    assert host.counters()["credentials_hashed"] == 4


def test_the_cache_forgets_by_age_and_number(users: Path) -> None:
    host = host_of(users, limits={"auth_cache_entries_max": 1})
    for user, password in (("alice", b"secret"), ("bob", b"secret2"), ("alice", b"secret"), ("alice", b"secret")):
        assert offer(host, 4, "c", user, password).next("CONNACK").reason == 0
    assert (host.counters()["credentials_hashed"], host.counters()["credentials_cached"]) == (3, 1)
    aged = host_of(users, limits={"auth_cache_seconds_max": 0.0})
    for _ in range(2):
        assert offer(aged, 4, "c", "alice", b"secret").next("CONNACK").reason == 0
    assert aged.counters()["credentials_hashed"] == 2


def test_many_that_wait_for_one_password_cost_one_hash(users: Path) -> None:
    host = host_of(users)
    hashes = Hashes(host)
    peers = [offer(host, 5, f"c{i}", "alice", b"secret") for i in range(20)]
    assert len(hashes.waiting) == 1
    hashes.compute()
    assert [peer.next("CONNACK").reason for peer in peers] == [0] * 20


@pytest.mark.parametrize(("version", "reason"), [(3, 3), (4, 3), (5, 0x97)])
def test_beyond_auth_pending_max_connections_are_refused(users: Path, version: int, reason: int) -> None:
    host = host_of(users, limits={"auth_pending_max": 2})
    hashes = Hashes(host)
    first = offer(host, version, "a", "alice", b"secret")
    offer(host, version, "b", "alice", b"wrong")
    refused(offer(host, version, "c", "bob", b"secret2"), reason)
    assert host.counters()["authentications_refused"] == 1
    hashes.compute()
    assert first.next("CONNACK").reason == 0
    assert offer(host, version, "d", "alice", b"secret").next("CONNACK").reason == 0  # cached: needs no place
    offer(host, version, "e", "bob", b"secret2")
    assert len(hashes.waiting) == 2


def test_a_client_that_goes_while_its_password_is_checked_leaves_nothing(users: Path) -> None:
    host = host_of(users)
    hashes = Hashes(host)
    one = offer(host, 4, "a", "alice", b"secret")
    two = offer(host, 4, "b", "alice", b"secret")
    three = offer(host, 4, "c", "bob", b"secret2")
    host.lose(one)
    assert len(hashes.waiting) == 2
    host.lose(three)
    assert len(hashes.waiting) == 1  # no client waited for it any more
    assert host.node.authenticating.pending == 1
    hashes.compute()
    assert two.next("CONNACK").reason == 0
    assert not one.packets
    assert len(host.node.sessions) == 1
    assert host.node.authenticating.pending == 0


@pytest.mark.parametrize(("version", "reason"), [(3, 3), (4, 3), (5, 0x88)])
def test_the_connect_timer_ends_a_check_that_takes_too_long(users: Path, version: int, reason: int) -> None:
    host = host_of(users)
    hashes = Hashes(host)
    peer = offer(host, version, "a", "alice", b"secret")
    host.node.connect_timeout(peer.conn)  # as the reactor calls it
    host.settle()
    refused(peer, reason)
    assert hashes.waiting == []
    assert host.node.authenticating.pending == 0


def test_an_error_of_ours_refuses_and_is_logged(users: Path) -> None:
    host = host_of(users)
    hashes = Hashes(host)
    peer = offer(host, 5, "a", "alice", b"secret")
    hashes.fail(MemoryError("19 MiB"))
    refused(peer, 0x88)
    (line,) = host.logs[0].named("password_check_failed")
    assert (line["username"], line["reason"]) == ("alice", "MemoryError('19 MiB')")
    assert host.counters()["internal_errors"] == 1


def test_nobody_is_taken_over_by_wrong_credentials(users: Path, workers: int) -> None:
    host = host_of(users, workers)
    for worker in range(workers):
        Hashes(host, worker)
    at = home("same", workers)
    hashes = Hashes(host, at)
    old = offer(host, 5, "same", "alice", b"secret", properties=KEEP)
    hashes.compute()
    assert old.next("CONNACK").reason == 0
    old.subscribe(("a", 1))
    thief = offer(host, 5, "same", "bob", b"secret")
    old.silent()
    hashes.compute()
    line = refused(thief, 0x86)
    assert (line["username"], line["client"]) == ("bob", "same")
    assert host.counters()["authentications_failed"] == 1
    old.publish("a", b"still here", qos=1)
    assert [packet.payload for packet in old.receive()] == [b"still here"]
    heir = offer(host, 5, "same", "alice", b"secret", clean=False, properties=KEEP)
    assert heir.next("CONNACK").session_present
    assert old.next("DISCONNECT").reason == 0x8E


def test_the_newer_of_two_that_wait_stays_whoever_is_decided_first(users: Path) -> None:
    host = host_of(users)
    hashes = Hashes(host)
    older = offer(host, 5, "same", "alice", b"secret")
    newer = offer(host, 5, "same", "bob", b"secret2")
    hashes.compute(1)
    assert newer.next("CONNACK").reason == 0
    assert older.closed
    assert not older.packets  # closed without a packet [MQTT-3.2.0-1]
    assert hashes.waiting == []
    newer.silent()
    # in the other order
    older = offer(host, 5, "other", "alice", b"secret")
    newer = offer(host, 5, "other", "alice", b"wrong")
    hashes.compute(1)
    refused(newer, 0x86)
    hashes.compute()
    assert older.next("CONNACK").reason == 0


def test_two_of_one_client_that_wait_for_one_hash(users: Path) -> None:
    host = host_of(users)
    hashes = Hashes(host)
    older = offer(host, 5, "same", "alice", b"secret")
    newer = offer(host, 5, "same", "alice", b"secret")
    hashes.compute()
    assert newer.next("CONNACK").reason == 0
    assert older.closed
    newer.silent()
    assert len(host.node.sessions) == 1


def test_a_reload_while_a_password_is_checked_decides_by_the_new_file(users: Path) -> None:
    host = host_of(users)
    hashes = Hashes(host)
    peer = offer(host, 4, "a", "alice", b"secret")
    other = offer(host, 4, "b", "bob", b"secret2")
    users.write_text(f"bob:{SHA512}\n")
    reload(host, users)
    hashes.compute()
    assert not peer.packets
    hashes.compute()
    hashes.compute()
    refused(peer, 4)
    hashes.compute()
    assert other.next("CONNACK").reason == 0


def test_a_reload_adds_and_removes_users_and_ends_no_connection(users: Path) -> None:
    host = host_of(users)
    alice = offer(host, 4, "a", "alice", b"secret")
    assert alice.next("CONNACK").reason == 0
    users.write_text(f"dora:{PBKDF2}\n")
    reload(host, users)
    refused(offer(host, 4, "b", "alice", b"secret"), 4)
    assert offer(host, 4, "c", "dora", b"secret").next("CONNACK").reason == 0
    alice.send(wire.PINGREQ)
    alice.next("PINGRESP")


@pytest.mark.parametrize(("version", "reason"), [(3, 5), (4, 5), (5, 0x87)])
def test_anonymous_clients_need_a_word(users: Path, version: int, reason: int) -> None:
    host = host_of(users)
    peer = host.open(version)
    peer.send(wire.connect(version, "a"))
    host.settle()
    refused(peer, reason)
    assert host.counters()["authentications_failed"] == 1
    allowed = host_of(users, allow_anonymous=True)
    assert allowed.connect("a", version).session.details.username is None
    refused(offer(allowed, version, "b", "alice", b"wrong"), 0x86 if version == 5 else 4)
    assert offer(allowed, version, "b", "alice", b"secret").next("CONNACK").reason == 0


@pytest.mark.parametrize(("version", "reason"), [(3, 4), (4, 4), (5, 0x86)])
def test_no_password_is_a_wrong_password_and_costs_no_hash(users: Path, version: int, reason: int) -> None:
    host = host_of(users)
    hashes = Hashes(host)
    peer = host.open(version)
    peer.send(wire.connect(version, "a", username="alice"))
    host.settle()
    refused(peer, reason)
    assert hashes.waiting == []


@pytest.mark.parametrize("version", [3, 4, 5])
def test_without_a_password_file_any_credentials_are_fine(version: int) -> None:
    host = Host()
    peer = host.connect("a", version, username="who", password=b"ever")
    assert peer.session.details.username == "who"
    nobody = Host(allow_anonymous=False)
    refused(offer(nobody, version, "a", "who", b"ever"), 0x87 if version == 5 else 5)


def test_no_password_is_ever_logged(users: Path) -> None:
    host = host_of(users)
    offer(host, 5, "a", "alice", b"secret")
    offer(host, 4, "b", "alice", b"hidden")
    assert "secret" not in repr(host.logs[0].events)
    assert "hidden" not in repr(host.logs[0].events)


# ------------------------------------------------------------ AUTH without sockets


def begin_scram(host: Host, client_id: str, client: ScramClient) -> Peer:
    peer = host.open(5)
    peer.client_id = client_id
    properties = {"authentication_method": METHOD, "authentication_data": client.first()}
    peer.send(wire.connect(5, client_id, properties=properties))
    host.settle()
    return peer


def scram_answer(peer: Peer, client: ScramClient) -> bytes:
    data = client.final(peer.next("AUTH").properties["authentication_data"])
    return wire.auth(0x18, {"authentication_method": METHOD, "authentication_data": data})


def test_an_exchange_computes_no_hash_and_leaves_nothing_behind(users: Path) -> None:
    host = host_of(users)
    hashes = Hashes(host)
    client = ScramClient("carl", "pencil")
    peer = begin_scram(host, "a", client)
    assert host.node.authenticating.pending == 1
    answer = scram_answer(peer, client)
    # byte by byte, and with data behind it
    for byte in [answer[i : i + 1] for i in range(len(answer) - 1)]:
        peer.send(byte)
    peer.send(answer[-1:] + wire.subscribe(5, 1, ("a", 0)))
    connack = peer.next("CONNACK")
    client.check(connack.properties["authentication_data"])
    peer.next("SUBACK")
    assert hashes.waiting == []
    assert host.node.authenticating.pending == 0
    assert peer.session.details.username == "carl"
    gone = begin_scram(host, "b", ScramClient("carl", "pencil"))
    host.lose(gone)
    assert host.node.authenticating.pending == 0


def test_the_connect_timer_bounds_an_exchange(users: Path) -> None:
    host = host_of(users)
    peer = begin_scram(host, "a", ScramClient("carl", "pencil"))
    peer.next("AUTH")
    host.node.connect_timeout(peer.conn)
    host.settle()
    assert peer.closed
    assert not peer.packets
    assert host.logs[0].named("connection_refused")[-1]["reason"] == "no AUTH in time"
    assert host.node.authenticating.pending == 0


def test_take_over_waits_for_the_end_of_the_exchange(users: Path) -> None:
    host = host_of(users)
    old = offer(host, 5, "same", "alice", b"secret")
    old.next("CONNACK")
    client = ScramClient("carl", "pencil")
    peer = begin_scram(host, "same", client)
    old.silent()
    peer.send(scram_answer(peer, client))
    assert peer.next("CONNACK").reason == 0
    assert old.next("DISCONNECT").reason == 0x8E


def test_one_packet_per_tick_is_enough(users: Path) -> None:
    host = host_of(users, limits={"tick_connection_packets_max": 1})
    client = ScramClient("carl", "pencil")
    peer = begin_scram(host, "a", client)
    peer.send(scram_answer(peer, client) + wire.PINGREQ + wire.PINGREQ)
    peer.next("CONNACK")
    peer.next("PINGRESP")
    peer.next("PINGRESP")


def test_the_end_of_the_password_file_ends_re_authentication(users: Path) -> None:
    host = host_of(users)
    client = ScramClient("carl", "pencil")
    peer = begin_scram(host, "a", client)
    peer.send(scram_answer(peer, client))
    peer.next("CONNACK")
    for node in host.nodes:
        node.reload(Settings(workers=1))
    peer.send(wire.auth(0x19, {"authentication_method": METHOD, "authentication_data": client.first()}))
    assert peer.next("DISCONNECT").reason == 0x87
    assert peer.conn.state in (CLOSING, CLOSED)


def test_a_reload_during_an_exchange_ends_it(users: Path) -> None:
    host = host_of(users)
    client = ScramClient("carl", "pencil")
    peer = begin_scram(host, "a", client)
    users.write_text(f"alice:{PBKDF2}\n")
    reload(host, users)
    peer.send(scram_answer(peer, client))
    assert refused(peer, 0x87)["detail"] == "the users were read again meanwhile"


def test_an_unknown_user_is_led_through_the_whole_exchange(users: Path) -> None:
    host = host_of(users)
    salts = set()
    for number, user in enumerate(("nobody", "nobody", "alice")):
        client = ScramClient(user, "pencil")
        peer = begin_scram(host, f"c{number}", client)
        auth = peer.next("AUTH")
        salts.add((user, auth.properties["authentication_data"].decode().partition(",")[2]))
        data = client.final(auth.properties["authentication_data"])
        peer.send(wire.auth(0x18, {"authentication_method": METHOD, "authentication_data": data}))
        line = refused(peer, 0x87)
        assert (line["username"], line["detail"]) == (user, "wrong user name or password")
    assert len(salts) == 2
    assert all(text.endswith(",i=4096") for _, text in salts)


def test_backends_agree_with_their_contract(users: Path) -> None:
    backend: Backend = PasswordFile.load(str(users))
    assert len(backend) == 3
