"""Peers over sockets and in memory: foreign bytes, wrong keys, names that change, memory that is gone, and limits."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
import zmq
import zmq.asyncio
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.cluster.contract import Denied, Entry, KeyCondition, LeaseEnded, Put, Unreachable
from broker.cluster.peers.addresses import DnsPeers, resolve
from broker.cluster.peers.kept_file import KeptFile, KeptFileDamaged
from broker.cluster.peers.leading import GroupRules
from broker.cluster.peers.messages import (
    ASK_BYTES_MAX,
    MESSAGE_BYTES_MAX,
    Acked,
    Append,
    Ask,
    Hello,
    MalformedPeerMessage,
    MessageHead,
    Page,
    Paged,
    PeerAnswer,
    PeerMessage,
    PeerQuestion,
    Poll,
    Polled,
    decode,
    encode,
    size_of,
)
from broker.cluster.peers.records import NOWHERE, Ballot, EndLease, GrantLease, Position, Record
from broker.cluster.peers.replica import Replica
from broker.cluster.peers.transport import keys_of_secret
from tests.cluster.peer_groups import SECRET, Network, led, majority, passing, socket_group

HEAD = MessageHead("r" * 32, "n1", "10.0.0.1:7390", "10.0.0.2:7390", True, False, 7)
AT = Position(Ballot(3, "r"), 1 << 60)
EVERYTHING = bytes(range(256))
ENTRY = Entry(EVERYTHING, EVERYTHING, 1, (1 << 63) - 1, 5)
MESSAGES: list[PeerMessage] = [
    Hello(),
    Poll(AT.ballot, AT, NOWHERE, True, False),
    Polled(AT.ballot, True, True, False),
    Append(
        AT.ballot,
        AT,
        [Record(AT, (Put(EVERYTHING, b"", 3), GrantLease(10), EndLease(4)), 3)],
        5,
        6,
        7,
        True,
    ),
    Acked(AT.ballot, AT.ballot, 1, AT, 2, 3, 4),
    Page(AT.ballot, AT, NOWHERE, 0, [ENTRY], [(1, 10)], True),
    Paged(AT.ballot, 1, 2),
    Ask(1, PeerQuestion("transact", 0, [KeyCondition(EVERYTHING, 4)], [Put(b"k", EVERYTHING, 1)])),
    Ask(2, PeerQuestion("renew", 5)),
    PeerAnswer(1, "refused", 7, [ENTRY, None]),
]


# ------------------------------------------------------------ messages


@pytest.mark.parametrize("message", MESSAGES, ids=lambda each: type(each).__name__)
def test_what_is_said_is_understood(message: PeerMessage) -> None:
    assert decode(encode(HEAD, message)) == (HEAD, message)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda each: type(each).__name__)
def test_whatever_is_changed_in_a_message_is_read_or_refused(message: PeerMessage) -> None:
    """At every byte: nothing but MalformedPeerMessage is raised."""
    packet, chance = bytearray(encode(HEAD, message)), random.Random(1)
    refused = 0
    for at in range(len(packet)):
        changed = bytearray(packet)
        changed[at] = chance.randrange(256)
        for each in (changed, packet[:at]):
            try:
                decode(bytes(each))
            except MalformedPeerMessage:
                refused += 1
    assert refused > len(packet)


@given(st.binary(max_size=300))
def test_random_bytes_are_refused(packet: bytes) -> None:
    with pytest.raises(MalformedPeerMessage):
        decode(packet)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda each: st.lists(each, max_size=4),
    max_leaves=9,
)


@given(st.sampled_from(MESSAGES), st.data())
def test_fields_of_any_type_are_read_or_refused(message: PeerMessage, data: st.DataObject) -> None:
    import orjson

    read = orjson.loads(encode(HEAD, message))
    read[data.draw(st.sampled_from(sorted(read)))] = data.draw(_JSON)
    try:
        packet = orjson.dumps(read)
    except TypeError:
        return  # a number that JSON here does not have
    with contextlib.suppress(MalformedPeerMessage):
        assert decode(packet)[0].run


def test_a_later_version_and_a_large_message_are_refused() -> None:
    with pytest.raises(MalformedPeerMessage, match="its version is 2"):
        decode(encode(HEAD, Hello()).replace(b'"version":1', b'"version":2'))
    padded = encode(HEAD, Hello()) + b" " * MESSAGE_BYTES_MAX
    assert decode(padded[:MESSAGE_BYTES_MAX]) == (HEAD, Hello())
    with pytest.raises(MalformedPeerMessage, match="are allowed"):
        decode(padded[: MESSAGE_BYTES_MAX + 1])


# ------------------------------------------------------------ over sockets


def test_foreign_bytes_end_nothing() -> None:
    """Somebody with the secret sends what is no message; somebody without it gets no connection."""

    async def test() -> None:
        with contextlib.ExitStack() as outlets:
            await send_foreign(outlets)

    async def send_foreign(outlets: contextlib.ExitStack) -> None:
        async with socket_group(1) as (peer,):
            (address,) = peer.member.addresses
            context = outlets.enter_context(zmq.asyncio.Context())
            for secret in (SECRET, b"another secret of many bytes"):
                keys = keys_of_secret(secret, "test")
                outlet = outlets.enter_context(context.socket(zmq.PUSH))
                for option, value in (
                    (zmq.LINGER, 0),
                    (zmq.CURVE_SERVERKEY, keys.public),
                    (zmq.CURVE_PUBLICKEY, keys.public),
                    (zmq.CURVE_SECRETKEY, keys.secret),
                ):
                    outlet.setsockopt(option, value)
                outlet.connect(f"tcp://{address}")
                for packet in (b"", b"\0", b"[]", b"x" * 100_000, encode(HEAD, Hello()), encode(HEAD, MESSAGES[3])):
                    await outlet.send(packet)
                await outlet.send_multipart([encode(HEAD, Hello()), b"and more"])
            report = peer.report()
            async with asyncio.timeout(20):
                while report["messages_malformed"] < 5 or report["connections_refused"] < 1:
                    await asyncio.sleep(0.05)
                    report = peer.report()
            assert report["messages_malformed"] == 5
            assert peer.member.unlisted == 2
            assert (await peer.transact([], [Put(b"/k", b"v")])).done

    asyncio.run(test())


def test_keys_depend_on_the_secret_and_the_cluster() -> None:
    made = {keys_of_secret(secret, name) for secret in (b"a" * 16, b"b" * 16) for name in ("x", "y")}
    assert len(made) == 4
    assert keys_of_secret(b"a" * 16, "x") in made


def test_the_size_of_a_transaction() -> None:
    """At the most that is allowed, of bytes that take the most room; and one byte more."""

    async def test() -> None:
        async with socket_group(3) as peers:
            one = next(each for each in peers if not each.member.leads)
            frame = size_of(PeerQuestion("transact", 0, [], [Put(b"/large", b"", 0)]))
            count, rest = divmod(ASK_BYTES_MAX - frame, len("\\u0001"))
            value = b"\1" * count + b"x" * rest
            outcome = await one.transact([], [Put(b"/large", value)])
            assert outcome.done
            found = await one.read(b"/large")
            assert found is not None
            assert found.value == value
            refused = await one.transact([KeyCondition(b"/large", 0)], [])
            assert refused.found[0] == found
            with pytest.raises(Denied, match="are allowed"):
                await one.transact([], [Put(b"/large", value + b"x")])

    asyncio.run(test())


# ------------------------------------------------------------ in memory


def in_network(rules: GroupRules, size: int, test: Any, seed: int = 1) -> None:
    async def with_network() -> None:
        network = Network(seed, rules, size)
        try:
            await test(network)
        finally:
            await network.close()

    passing(with_network)


async def all_vote(network: Network) -> None:
    """Start all peers, and wait until each of them counts."""
    peers = [network.start(at) for at in range(len(network.addresses))]
    await led(*peers)
    await until(lambda: all(each.member.votes for each in peers))


async def until(condition: Any, seconds: float = 60.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.05)


def test_peers_that_start_together_wait_for_nobody_and_others_for_those_that_are_missing() -> None:
    """Fresh ones that are all there: seconds. Without the third one, which may have a lease: settle seconds."""

    async def all_there(network: Network) -> None:
        began = asyncio.get_running_loop().time()
        await led(*(network.start(at) for at in range(3)))
        assert asyncio.get_running_loop().time() - began < network.rules.timing.settle

    async def one_missing(network: Network) -> None:
        began = asyncio.get_running_loop().time()
        await led(*(network.start(at) for at in range(2)))
        assert asyncio.get_running_loop().time() - began >= network.rules.timing.settle

    async def one_with_a_lease(network: Network) -> None:
        began = asyncio.get_running_loop().time()
        await led(*(network.start(at, is_fresh=at > 0) for at in range(3)))
        assert asyncio.get_running_loop().time() - began >= network.rules.timing.settle

    for test in (all_there, one_missing, one_with_a_lease):
        in_network(majority(3), 3, test)


def test_a_minority_says_why() -> None:
    async def test(network: Network) -> None:
        peer = network.start(0)
        await until(lambda: peer.member.own_addresses)
        with pytest.raises(Unreachable, match="1 of 3 peers reach each other, 2 are needed"):
            await peer.grant(10)

    in_network(majority(3), 3, test)


def test_a_process_that_has_forgotten_everything_does_not_vote_until_it_is_led() -> None:
    """Of three, one was cut off and one restarts without the leader: these two do not go on with old keys, but begin
    anew, when nobody relies on a lease any more.
    """

    async def test(network: Network) -> None:
        await all_vote(network)
        (leader,) = (at for at, each in network.peers.items() if each.member.leads)
        away, restarted = (at for at in range(3) if at != leader)
        network.cut([away], [leader, restarted])
        lease = await network.peers[leader].grant(60)
        assert (await network.peers[leader].transact([], [Put(b"/k", b"new", lease)])).done
        network.heal()
        network.cut([leader], [away, restarted])
        await network.stop(restarted)
        began = asyncio.get_running_loop().time()
        peer = network.start(restarted, is_fresh=False)
        await until(lambda: network.peers[away].member.leader == peer.member.leader != "")
        assert asyncio.get_running_loop().time() - began >= network.rules.timing.settle
        assert await peer.read(b"/k") is None, "whoever knew of it is away, or has forgotten it"
        network.heal()
        former = network.peers[leader]
        await until(lambda: former.member.leader == peer.member.leader)
        with pytest.raises(LeaseEnded):
            await former.keep_alive(lease)
        assert await former.read(b"/k") is None

    in_network(majority(3), 3, test)


def test_what_is_kept_outlives_all_processes(tmp_path: Path) -> None:
    """What is bound to no lease is on disk before it is acknowledged; leases are gone."""

    async def test(network: Network) -> None:
        files = [KeptFile(folder, "test") for folder in folders]
        peers = [network.start(at, file=files[at]) for at in range(3)]
        await led(*peers)
        lease = await peers[0].grant(10)
        await peers[0].transact([], [Put(b"/number", b"1"), Put(b"/owner", b"n0", lease)])
        assert sum(file.path.exists() for file in files) >= 2
        for at in range(3):
            await network.stop(at)
        # the last one to be there at the founding has it, too
        peers = [network.start(at, is_fresh=False, file=files[at]) for at in (1, 2)]
        await led(*peers)
        found = await peers[0].read(b"/number")
        assert found is not None
        assert found.value == b"1"
        assert await peers[1].read(b"/owner") is None
        with pytest.raises(LeaseEnded):
            await peers[1].keep_alive(lease)
        assert (await peers[0].transact([], [Put(b"/new", b"")])).revision > found.changed

    folders = [tmp_path / str(at) for at in range(3)]
    for each in folders:
        each.mkdir()
    in_network(majority(3), 3, test)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b'{"format": 2}', b'{"format":1,"cluster":"test"}'])
def test_a_file_that_is_damaged(tmp_path: Path, content: bytes) -> None:
    """It is set aside and said; the peer begins without it."""
    file = KeptFile(tmp_path, "test")
    file.path.write_bytes(content)
    with pytest.raises(KeptFileDamaged, match="damaged"):
        file.read()

    async def test(network: Network) -> None:
        peer = network.start(0, file=file)
        await led(peer)
        await peer.transact([], [Put(b"/k", b"v")])

    in_network(majority(1), 1, test)
    assert (tmp_path / "peers.damaged").read_bytes() == content
    read = file.read()
    assert read is not None
    assert [each.key for each in read[1]] == [b"/k"]


def test_a_file_of_another_cluster(tmp_path: Path) -> None:
    KeptFile(tmp_path, "one").write(AT, [ENTRY])
    assert KeptFile(tmp_path, "other").read() is None
    read = KeptFile(tmp_path, "one").read()
    assert read is not None
    assert read[0] == AT


def test_a_peer_that_was_away_for_long_gets_everything_in_pages() -> None:
    """More keys than a page and a history have."""

    async def test(network: Network) -> None:
        await all_vote(network)
        (leader,) = (at for at, each in network.peers.items() if each.member.leads)
        away = (leader + 1) % 3
        for each in network.peers.values():
            each.member.replica._changes_kept = 100
        network.cut([away], [at for at in range(3) if at != away])
        one = network.peers[leader]
        for begin in range(0, 5000, 100):
            await one.transact([], [Put(b"/many/%05d" % at, bytes(200)) for at in range(begin, begin + 100)])
        network.heal()
        behind = network.peers[away]
        await until(lambda: behind.member.replica.keys.at == one.member.replica.keys.at)
        assert behind.member.replica.keys.entries == one.member.replica.keys.entries
        view = await behind.read_all(b"/many/")
        assert len(view.entries) == 5000

    in_network(majority(3), 3, test)


@pytest.mark.parametrize("kept", [0, 1, 10, 11])
def test_the_history_is_bounded(kept: int) -> None:
    """By CHANGES_KEPT; the last record stays."""
    replica = Replica(changes_kept=kept)
    for revision in range(1, 100):
        replica.append(Record(Position(Ballot(1, "r"), revision), (Put(b"%d" % revision, b""),)))
        replica.commit(revision)
        assert replica._changes <= max(kept, 2)
    assert replica.changes_behind(99) == (99, [])
    assert len(replica.keys.entries) == 99


# ------------------------------------------------------------ DNS


class Resolver:
    """What a test says that a name has."""

    def __init__(self, *addresses: str) -> None:
        self.addresses: Collection[str] | None = addresses
        self.asked = 0

    async def __call__(self, name: str, port: int) -> Collection[str]:
        self.asked += 1
        await asyncio.sleep(0.01)
        if self.addresses is None:
            raise OSError(f"{name}:{port} is not known")
        return self.addresses


ALONE = GroupRules(1, waits_for_all=True)


def test_a_name_that_gets_more_addresses() -> None:
    """A peer that comes later is found when it is heard, long before the name is looked up by itself."""

    async def test(network: Network) -> None:
        resolver = Resolver(*network.addresses[:2])
        first = [network.start(at, addresses=DnsPeers("x", 1, resolver)) for at in range(2)]
        await led(*first)
        await first[0].transact([], [Put(b"/k", b"v")])
        resolver.addresses = network.addresses
        third = network.start(2, addresses=DnsPeers("x", 1, resolver))
        began = asyncio.get_running_loop().time()
        await until(lambda: third.member.leader == first[0].member.leader)
        assert asyncio.get_running_loop().time() - began < 12
        found = await third.read(b"/k")
        assert found is not None

    in_network(ALONE, 3, test)


def test_a_name_that_is_not_known_for_a_while() -> None:
    """A peer says so once, founds nothing meanwhile, and joins when it is known. Later failures change nothing."""

    async def test(network: Network) -> None:
        resolver = Resolver()
        resolver.addresses = None
        peer = network.start(0, addresses=DnsPeers("x", 1, resolver))
        await asyncio.sleep(60)
        assert not peer.member.leader
        with pytest.raises(Unreachable, match="addresses of the peers are not known"):
            await peer.read(b"/k")
        assert len(network.logs[0].named("peers_not_resolved")) == 1
        resolver.addresses = network.addresses[:1]
        await led(peer)
        resolver.addresses, asked = None, resolver.asked
        await asyncio.sleep(120)
        assert resolver.asked > asked
        assert peer.member.leads
        assert (await peer.transact([], [Put(b"/k", b"v")])).done

    in_network(ALONE, 1, test)


@pytest.mark.parametrize(("count", "is_right"), [(0, False), (1, True), (256, True), (257, False)])
def test_the_number_of_addresses_of_a_name(count: int, is_right: bool) -> None:
    source = DnsPeers("x", 1, Resolver(*(f"h{at}:1" for at in range(count))))
    if is_right:
        assert len(asyncio.run(source.look())) == count
    else:
        with pytest.raises(OSError, match="address"):
            asyncio.run(source.look())


def test_the_resolver_of_the_system() -> None:
    assert "127.0.0.1:7" in asyncio.run(resolve("127.0.0.1", 7))
    assert "[::1]:7" in asyncio.run(resolve("::1", 7))
    with pytest.raises(OSError, match=r"label|known|resolution|Name|encod"):
        asyncio.run(resolve("a" * 64 + ".invalid", 7))


def test_two_processes_at_one_address() -> None:
    """They are heard in turns: it is said once."""

    async def test(network: Network) -> None:
        peers = [network.start(at) for at in range(2)]
        await until(lambda: all(each.member.own_addresses for each in peers))
        member, address = peers[0].member, network.addresses[1]
        for at in range(6):
            head = MessageHead(f"run {at % 2}", "twin", address, network.addresses[0], False, False, 0)
            member.receive(head, Hello())
        assert len(network.logs[0].named("peer_address_shared")) == 1

    in_network(majority(2), 2, test)


def test_a_lease_of_a_former_process_does_not_count_where_each_side_decides_alone() -> None:
    async def test(network: Network) -> None:
        await led(*(network.start(at) for at in range(2)))
        lease = await network.peers[0].grant(10)
        await network.peers[0].transact([], [Put(b"/host", b"", lease)])
        await network.stop(0)
        await asyncio.sleep(1)
        peer = network.start(0, is_fresh=False)
        await led(*network.peers.values())
        with pytest.raises(LeaseEnded):
            await peer.keep_alive(lease)
        assert await network.peers[1].read(b"/host") is None

    in_network(ALONE, 2, test)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(seed=st.integers(0, 1 << 32))
def test_the_next_leader_has_what_counted(seed: int) -> None:
    """The leader is killed again and again, with messages lost: no transaction that was acknowledged is missing."""

    async def test(network: Network) -> None:
        network.lost = 0.02
        await led(*(network.start(at) for at in range(3)))
        done: list[bytes] = []
        for turn in range(4):
            (leader,) = [at for at, each in network.peers.items() if each.member.leads][:1]
            for number in range(20):
                key = b"/%d/%d" % (turn, number)
                peer = network.chance.choice(list(network.peers.values()))
                try:
                    outcome = await peer.transact([KeyCondition(key, 0)], [Put(key, b"")])
                except Unreachable:
                    continue
                assert outcome.done
                done.append(key)
            await network.stop(leader)
            await asyncio.sleep(network.chance.uniform(0, 1))
            network.start(leader, is_fresh=False)
            await until(lambda: len({each.member.leader for each in network.peers.values()} - {""}) == 1)
            await until(lambda: all(each.member.leader for each in network.peers.values()))
        peer = network.peers[0]
        while True:
            try:
                view = await peer.read_all(b"/")
                break
            except Unreachable:
                continue
        assert set(done) <= {each.key for each in view.entries}
        assert len(done) > 40

    in_network(majority(3), 3, test, seed)
