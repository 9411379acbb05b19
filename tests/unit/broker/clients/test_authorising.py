"""All actions of clients pass one check: publishes, subscriptions, wills, replays, retained messages. The verdict on a
publish is cached for each connection and topic until the rules change.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from broker import auth
from broker.auth.rules import Client
from broker.worker.core import Node
from tests import wire
from tests.kept_host import kept
from tests.sansio import START_WALL_MS, Host, KeptLog, Peer
from tests.unit.broker.auth.test_chain import Fixed
from tests.unit.broker.clients.test_authenticating import Hashes, offer
from tests.unit.broker.replay.test_replaying import archived, ask, publish

NOT_AUTHORIZED = 0x87


class Denying:
    """Rules that deny as the test says, and record the questions they were asked."""

    def __init__(self, deny: Callable[..., bool] = lambda *_: False) -> None:
        self.deny = deny
        self.asked: list[tuple[object, ...]] = []

    def _may(self, *what: object) -> bool:
        self.asked.append(what)
        return not self.deny(*what)

    def may_take(self, client: Client, username: str | None) -> bool:
        return self._may("take", client, username)

    def may_publish(self, client: Client, topic: bytes, qos: int, retain: bool) -> bool:
        return self._may("publish", client, topic, qos, retain)

    def may_subscribe(self, client: Client, topic_filter: bytes, qos: int, group: bytes | None) -> bool:
        return self._may("subscribe", client, topic_filter, qos, group)

    def may_replay(self, client: Client, topic_filter: bytes) -> bool:
        return self._may("replay", client, topic_filter)

    def may_receive(self, client: Client, topic: bytes) -> bool:
        return self._may("receive", client, topic)


def denied(action: str, topic: bytes = b"") -> Callable[..., bool]:
    """Return rules that deny this action, for all topics or for one."""
    return lambda what, _client, about, *_: what == action and topic in (b"", about)


def ruled(deny: Callable[..., bool] = lambda *_: False, workers: int = 1) -> tuple[Host, Denying]:
    host = Host(workers)
    rules = Denying(deny)
    for node in host.nodes:
        node.authorising.rules = rules
    return host, rules


def asked_for(rules: Denying, action: str) -> list[tuple[object, ...]]:
    return [what[1:] for what in rules.asked if what[0] == action]


def received(peer: Peer) -> list[bytes]:
    return [packet.payload for packet in peer.receive()]


# ---------------------------------------------------------------- users


USERS = {"ann": b"a", "bea": b"b"}


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Peer]:
    """``known(host, client_id, user, **options)``: a client that has sent CONNECT with the right password, answered."""
    monkeypatch.setitem(auth.BACKENDS, "password_file", lambda _: Fixed(USERS))

    def come(host: Host, client_id: str, user: str | None, version: int = 5, **options: Any) -> Peer:
        if user is None:
            peer = host.open(version)
            peer.send(wire.connect(version, client_id, **options))
            host.settle()
            return peer
        hashes = Hashes(host)
        peer = offer(host, version, client_id, user, USERS[user], **options)
        if hashes.waiting:  # its first connection
            hashes.compute()
        return peer

    return come


def with_users(**settings: Any) -> Host:
    return Host(password_file="users", allow_anonymous=True, **settings)


LASTING = {"clean": False, "properties": {"session_expiry_interval": 100}}


@pytest.mark.parametrize(("version", "code"), [(4, 5), (5, NOT_AUTHORIZED)])
@pytest.mark.parametrize("connected", [False, True])
@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("user", ["bea", None])
def test_another_user_does_not_get_a_session_that_the_rules_deny(
    known: Callable[..., Peer], version: int, code: int, connected: bool, clean: bool, user: str | None
) -> None:
    """Another user can neither take over nor end the session; its own user can do both."""
    host = with_users()
    rules = host.node.authorising.rules = Denying(denied("take"))
    owner = known(host, "c", "ann", **LASTING)
    assert owner.next("CONNACK").reason == 0
    owner.subscribe(("secret/#", 1))
    if not connected:
        owner.disconnect()
    other = known(host, "c", user, version, clean=clean)
    assert other.next("CONNACK").reason == code
    assert other.closed
    assert asked_for(rules, "take") == [(Client("c", user, "default"), "ann")]
    if connected:
        assert not owner.closed
    publisher = host.connect("publisher")
    publisher.publish("secret/1", b"x", 1)
    host.settle()
    back = known(host, "c", "ann", **LASTING)
    connack = back.next("CONNACK")
    assert (connack.reason, connack.session_present) == (0, True)
    assert b"x" in received(owner) + received(back)
    assert len(asked_for(rules, "take")) == 1


def test_rules_may_let_another_user_have_a_session(known: Callable[..., Peer]) -> None:
    host = with_users()
    host.node.authorising.rules = Denying()
    known(host, "c", "ann", **LASTING).disconnect()
    other = known(host, "c", "bea", **LASTING)
    assert other.next("CONNACK").session_present
    assert other.session.details.username == "bea"


def test_rules_know_a_user_that_a_back_end_has_found_and_no_other(known: Callable[..., Peer]) -> None:
    host = with_users()
    rules = host.node.authorising.rules = Denying()
    for user in ("ann", None):
        peer = known(host, f"c-{user}", user)
        peer.next("CONNACK")
        peer.subscribe(("t", 0))
        peer.publish("t", b"x")
        host.settle()
    assert [what[0] for what in asked_for(rules, "subscribe") + asked_for(rules, "publish")] == [
        Client("c-ann", "ann", "default"), Client("c-None", None, "default"),
    ] * 2  # fmt: skip
    host, rules = ruled()
    host.connect("c", 5, username="ann", password=b"whatever").subscribe(("t", 0))
    assert asked_for(rules, "subscribe")[0][0] == Client("c", None, "default")


# ---------------------------------------------------------------- publishes


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_publish_that_is_denied_is_answered_and_reaches_nobody(version: int, qos: int) -> None:
    """A v5 client gets 0x87; a v3 client cannot be notified, and gets the ack of a success [MQTT-3.3.5-2]."""
    host, _ = ruled(denied("publish", b"no"))
    watcher = host.connect("watcher")
    watcher.subscribe(("#", 0))
    publisher = host.connect("publisher", version)
    publisher.publish("no", b"denied", qos)
    host.settle()
    if qos:
        ack = publisher.next("PUBACK" if qos == 1 else "PUBREC")
        assert ack.reason == (NOT_AUTHORIZED if version == 5 else 0)
        if qos == 2 and version < 5:
            publisher.send(wire.ack(version, "PUBREL", ack.packet_id))
            host.settle()
            publisher.next("PUBCOMP")
    publisher.publish("yes", b"allowed", 0)
    host.settle()
    assert received(watcher) == [b"allowed"]
    assert host.counters()["publish_refused"] == 1
    assert not publisher.closed
    host.check_books()


def test_rules_are_asked_once_for_each_topic_qos_and_retain() -> None:
    host, rules = ruled()
    publisher = host.connect("publisher", username="u", password=b"p")
    for _ in range(3):
        for topic in ("a", "b"):
            for qos in (0, 1):
                for retain in (False, True):
                    publisher.publish(topic, b"x", qos, retain=retain)
        host.settle()
    client = Client("publisher", None, "default")  # without a back-end a user name is ignored
    expected = {(client, topic, qos, retain) for topic in (b"a", b"b") for qos in (0, 1) for retain in (False, True)}
    assert len(asked_for(rules, "publish")) == 8
    assert set(asked_for(rules, "publish")) == expected


def test_another_generation_of_rules_is_asked_anew_and_no_rules_are_not_asked() -> None:
    host, _ = ruled()
    publisher = host.connect("publisher")
    watcher = host.connect("watcher")
    watcher.subscribe(("t", 0))
    publisher.publish("t", b"1")
    host.node.authorising.rules = Denying(denied("publish"))
    publisher.publish("t", b"2")
    host.node.authorising.rules = None
    publisher.publish("t", b"3")
    host.settle()
    assert received(watcher) == [b"1", b"3"]


@pytest.mark.parametrize("count", [1, 7, 8, 9, 255, 256, 257, 3000])
def test_verdicts_of_many_topics_are_right_whether_they_are_kept_or_not(count: int) -> None:
    """Every other topic is denied: no topic gets the verdict of another one in the same cache slot."""
    host, _ = ruled(lambda what, _client, topic, *_: what == "publish" and topic[-1:] in b"13579")
    watcher = host.connect("watcher")
    watcher.subscribe(("#", 0))
    publisher = host.connect("publisher")
    for _ in range(2):
        for number in range(count):
            publisher.publish(f"topic/{number}", b"%d" % number)
            if number % 200 == 199:
                host.settle()
        host.settle()
    assert sorted(received(watcher)) == sorted([b"%d" % number for number in range(0, count, 2)] * 2)
    assert host.counters()["publish_refused"] == count // 2 * 2


@pytest.mark.parametrize("length", [16_383, 16_384, 16_385, 65_535])
def test_long_topics_are_forgotten_before_they_fill_the_memory_or_not_kept_at_all(length: int) -> None:
    host = Host(limits={"topic_bytes_max": 65535})
    rules = Denying(lambda what, _client, topic, *_: what == "publish" and topic[:1] in b"13579")
    host.node.authorising.rules = rules
    watcher = host.connect("watcher")
    watcher.subscribe(("#", 0))
    publisher = host.connect("publisher")
    for _ in range(2):
        for number in range(10):
            publisher.publish(f"{number}".ljust(length, "x"), b"%d" % number)
            host.settle()
    assert received(watcher) == [b"0", b"2", b"4", b"6", b"8"] * 2


def test_a_topic_alias_stands_for_its_topic() -> None:
    host, _ = ruled(denied("publish", b"no"))
    publisher = host.connect("publisher", 5)
    publisher.publish("no", b"1", 1, properties={"topic_alias": 1})
    publisher.publish("", b"2", 1, properties={"topic_alias": 1})
    host.settle()
    assert [publisher.next("PUBACK").reason for _ in range(2)] == [NOT_AUTHORIZED] * 2


def test_an_identifier_that_is_taken_already_is_answered_again_whatever_the_rules_are_now() -> None:
    host, _ = ruled()
    publisher = host.connect("publisher", 5)
    packet_id = publisher.publish("t", b"x", 2)
    host.settle()
    publisher.next("PUBREC")
    host.node.authorising.rules = Denying(denied("publish"))
    publisher.send(wire.publish(5, "t", b"x", qos=2, packet_id=packet_id, dup=True))
    host.settle()
    assert publisher.next("PUBREC").reason == 0


# ---------------------------------------------------------------- subscriptions, replays, retained messages


@pytest.mark.parametrize(("version", "code"), [(3, 0x80), (4, 0x80), (5, NOT_AUTHORIZED)])
def test_a_subscription_that_is_denied_is_refused_in_its_place(version: int, code: int) -> None:
    host, rules = ruled(denied("subscribe", b"no/#"))
    client = host.connect("client", version)
    assert client.subscribe(("yes/#", 1), ("no/#", 2), ("$share/g/no/#", 1)) == [1, code, code]
    assert [what[1:] for what in asked_for(rules, "subscribe")] == [
        (b"yes/#", 1, None), (b"no/#", 2, None), (b"no/#", 1, b"g"),
    ]  # fmt: skip
    assert client.session.subscriptions == 1
    assert host.counters()["subscriptions_not_authorised"] == 2


def test_v5_is_told_which_filter_is_not_authorised() -> None:
    host, _ = ruled(denied("subscribe"))
    client = host.connect("client", 5)
    client.send(wire.subscribe(5, 1, ("t", 0)))
    host.settle()
    assert client.next("SUBACK").properties["reason_string"] == "filter 1 is not authorised"


@pytest.mark.parametrize(("action", "code"), [("subscribe", NOT_AUTHORIZED), ("replay", NOT_AUTHORIZED), ("none", 1)])
def test_a_replay_needs_both(action: str, code: int) -> None:
    host = archived()
    publish(host, "a/b", [b"1", b"2"])
    rules = Denying(denied(action))
    host.node.authorising.rules = rules
    reader = host.connect("reader", 5)
    assert ask(reader, "earliest", ("a/#", 1)).codes == (code,)
    assert len(asked_for(rules, "replay")) == (action != "subscribe")


def test_a_replay_of_a_filter_that_stands_twice_is_judged_with_each_qos() -> None:
    """A denied subscription leaves the other one unchanged, in either order."""
    host = archived()
    publish(host, "a/b", [b"1"])
    rules = Denying(lambda what, _client, _filter="", qos=0, *_: what == "subscribe" and qos > 0)
    host.node.authorising.rules = rules
    for number, (asked, codes) in enumerate([
        ((0, 2), (0, NOT_AUTHORIZED)), ((2, 0), (NOT_AUTHORIZED, 0)), ((0, 0, 1, 0, 2), (0, 0, 0x87, 0, 0x87)),
    ]):  # fmt: skip
        reader = host.connect(f"reader{number}", 5)
        assert ask(reader, "earliest", *(("a/#", qos) for qos in asked)).codes == codes
        host.pass_time(1)
        assert [(packet.payload, packet.qos) for packet in reader.receive()] == [(b"1", 0)]


def test_sys_topics_are_judged_like_what_is_retained() -> None:
    host = Host(sys_interval_seconds=10)
    rules = host.node.authorising.rules = Denying(denied("receive"))
    host.pass_time(11)
    client = host.connect("client")
    client.subscribe(("$SYS/broker/version", 0))
    host.settle()
    assert received(client) == []
    assert [what[1] for what in asked_for(rules, "receive")] == [b"$SYS/broker/version"]


@pytest.mark.parametrize("among", [1, 4])
def test_retained_messages_that_it_may_not_have_are_left_out(among: int) -> None:
    host, rules = ruled(denied("receive", b"t/3"), among)
    publisher = host.connect("publisher")
    for number in range(6):
        publisher.publish(f"t/{number}", b"%d" % number, 1, retain=True)
    host.settle()
    reader = host.connect("reader")
    reader.subscribe(("t/#", 1))
    host.pass_time(1)
    assert sorted(received(reader)) == [b"0", b"1", b"2", b"4", b"5"]
    assert len(asked_for(rules, "receive")) == 6
    host.check_books()


# ---------------------------------------------------------------- wills


@pytest.mark.parametrize(("version", "code"), [(4, 5), (5, NOT_AUTHORIZED)])
def test_a_will_that_is_denied_refuses_its_connect(version: int, code: int) -> None:
    host, rules = ruled(denied("publish", b"no"))
    peer = host.open(version)
    peer.send(wire.connect(version, "client", will=wire.Will("no", b"x", qos=1, retain=True)))
    host.settle()
    assert peer.next("CONNACK").reason == code
    assert peer.closed
    assert asked_for(rules, "publish") == [(Client("client", None, "default"), b"no", 1, True)]
    assert "client" not in {session.client_id for session in host.node.sessions}


@pytest.mark.parametrize("delay", [0, 5])
def test_a_will_is_judged_again_when_it_is_due(delay: int) -> None:
    host, _ = ruled()
    watcher = host.connect("watcher")
    watcher.subscribe(("will", 0))
    properties = {"will_delay_interval": delay} if delay else {}
    client = host.connect("client", 5, will=wire.Will("will", b"x", properties=properties), expiry=100)
    host.node.authorising.rules = Denying(denied("publish"))
    host.lose(client)
    host.pass_time(delay + 1)
    assert received(watcher) == []
    assert host.counters()["wills_refused"] == 1
    assert [line["client"] for line in host.logs[0].named("will_refused")] == ["client"]


@pytest.mark.parametrize(("expiry", "is_asked"), [(100, True), (0, False)])
def test_after_a_crash_a_will_is_judged_by_the_user_or_not_published(expiry: int, is_asked: bool) -> None:
    """The user of a session that did not last is unknown after the crash."""
    host, store = kept()
    host.connect("client", 5, will=wire.Will("will", b"x", 1), expiry=expiry)
    host.settle()
    node = Node(0, 1, host.settings, store.after_crash(), KeptLog(), host.now_ms, START_WALL_MS)
    recovered = node.recovery.run()
    rules = node.authorising.rules = Denying()
    for _ in recovered.begin():
        pass
    assert [what[1] for what in asked_for(rules, "publish")] == ([b"will"] if is_asked else [])
    assert node.counters["wills_refused"] == (not is_asked)
    node.router.abandon()


# ---------------------------------------------------------------- defects of rules


def fails(*_: object) -> bool:
    raise RuntimeError("a rule fails")


def test_rules_that_fail_allow_nothing_and_the_worker_goes_on() -> None:
    host, _ = ruled()
    reader = host.connect("reader", 5)
    publisher = host.connect("publisher", 5)
    publisher.publish("kept", b"x", 1, retain=True)
    host.settle()
    publisher.next("PUBACK")
    host.node.authorising.rules = Denying(fails)
    assert reader.subscribe(("t", 0)) == [NOT_AUTHORIZED]
    publisher.publish("t", b"x", 1)
    host.settle()
    assert publisher.next("PUBACK").reason == NOT_AUTHORIZED
    assert host.counters()["internal_errors"] == 2
    assert not publisher.closed
    host.node.authorising.rules = Denying(lambda what, *_: fails() if what == "receive" else False)
    assert reader.subscribe(("kept", 0)) == [0]
    host.settle()
    assert received(reader) == []
