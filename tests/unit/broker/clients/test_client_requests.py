"""`$mqttd/owner`: a client asks which host owns a client id."""

from __future__ import annotations

import json
from typing import Any

import pytest

from broker.clients import client_requests
from broker.clients.client_requests import KnownOwner
from broker.cluster.owner_messages import RequestKind
from broker.worker.owner_looks import UNDER_WAY_MAX
from pyx.core import counters as count
from shards.placement import home
from tests.owning_host import HERE, THERE, OwningHost, owning
from tests.sansio import Host, Peer
from tests.unit.broker.clients.test_authorising import Denying
from tests.wire import Will, connect

__all__ = ["owning"]

TOPIC = "$mqttd/owner"
ANSWERS = "answers/me"
RULES_REFUSE = 0x87


def ask(peer: Peer, payload: bytes, qos: int = 1, **properties: Any) -> None:
    """Publish a request."""
    peer.publish(TOPIC, payload, qos, properties={"response_topic": ANSWERS, **properties})


def asker(host: Host, version: int = 5) -> Peer:
    """Return a client that hears the answers."""
    peer = host.connect("asker", version)
    peer.subscribe((ANSWERS, 1))
    return peer


def answer(peer: Peer) -> dict[str, Any]:
    """Take an answer."""
    packet = peer.next("PUBLISH")
    assert packet.topic == ANSWERS
    assert packet.properties["content_type"] == "application/json"
    read: dict[str, Any] = json.loads(packet.payload)
    return read


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("correlation_data", [None, b"", b"\0" * 65_535])
def test_a_question_and_its_answer(qos: int, correlation_data: bytes | None) -> None:
    """The answer has the Correlation Data of the question (4.10.1), which goes to nobody."""
    host = Host()
    host.node.client_requests.find = lambda client_id, then: then(KnownOwner("n1", f"{client_id}.example:1883", 7))
    peer = asker(host)
    listener = host.connect("listener", 5)
    listener.subscribe(("$mqttd/#", 0), ("#", 0))
    ask(
        peer, b'{"client_id": "c"}', qos, **({} if correlation_data is None else {"correlation_data": correlation_data})
    )
    got = peer.next("PUBLISH")
    assert json.loads(got.payload) == {"client_id": "c", "node": "n1", "address": "c.example:1883", "epoch": 7}
    assert got.properties.get("correlation_data") == correlation_data
    if qos:
        assert peer.next("PUBACK" if qos == 1 else "PUBREC").reason == 0
    assert listener.next("PUBLISH").topic == ANSWERS
    listener.silent()
    assert (host.counters()["owner_requests"], host.counters()["owner_requests_refused"]) == (1, 0)


def test_nobody_owns_it() -> None:
    host = Host()
    host.node.client_requests.find = lambda _client_id, then: then(KnownOwner("", "", 0))
    peer = asker(host)
    ask(peer, b'{"client_id": "c"}', 0)
    assert answer(peer) == {"client_id": "c", "node": None, "address": None, "epoch": None}


@pytest.mark.parametrize(
    "payload",
    [b"", b"c", b"[]", b"{}", b'{"client_id": 1}', b'{"client_id": ""}', b'{"client_id": "%s"}' % (b"x" * 1025),
     b'{"client_id": "\\ud800"}', b"[" * 100_000, b"\xff"],
)  # fmt: skip
def test_what_is_no_question(payload: bytes) -> None:
    host = Host()
    host.node.client_requests.find = lambda _client_id, _then: pytest.fail("not asked")
    peer = asker(host)
    ask(peer, payload, 0)
    assert answer(peer) == {"error": 'the payload is not {"client_id": ID} with 1 to 1024 bytes'}
    assert host.counters()["owner_requests_refused"] == 1


@pytest.mark.parametrize("size", [1, 1024])
def test_the_longest_client_id(size: int) -> None:
    host = Host()
    host.node.client_requests.find = lambda _client_id, then: then(KnownOwner("n", "", 1))
    peer = asker(host)
    ask(peer, b'{"client_id": "%s"}' % (b"x" * size), 0)
    assert answer(peer)["node"] == "n"


def test_no_cluster() -> None:
    host = Host()
    peer = asker(host)
    ask(peer, b'{"client_id": "c"}', 0)
    assert answer(peer) == {"client_id": "c", "error": "this broker is in no cluster"}
    assert host.counters()["owner_requests_refused"] == 1


@pytest.mark.parametrize(
    "response_topic", [None, "$SYS/broker/x", "$SYS", "$mqttd/owner", "$mqttd", "x" * 4097, "/" * 128, "/" * 65_535]
)
def test_a_question_that_cannot_be_answered(response_topic: str | None) -> None:
    """It is acknowledged, and nothing more."""
    host = Host()
    host.node.client_requests.find = lambda _client_id, _then: pytest.fail("not asked")
    peer = asker(host)
    properties = {} if response_topic is None else {"response_topic": response_topic}
    peer.publish(TOPIC, b'{"client_id": "c"}', 1, properties=properties)
    assert peer.next("PUBACK").reason == 0
    peer.silent()
    assert host.counters()["owner_requests_refused"] == 1


def test_mqtt_3_has_no_response_topic() -> None:
    host = Host()
    peer = asker(host, 4)
    peer.publish(TOPIC, b'{"client_id": "c"}', 1)
    peer.next("PUBACK")
    peer.silent()


@pytest.mark.parametrize("topic", ["$mqttd", "$mqttd/", "$mqttd/owners", "$mqttd/owner/x", "$mqttd/other"])
def test_other_topics_of_the_server(topic: str) -> None:
    peer = Host().connect("c", 5)
    peer.publish(topic, b"", 1)
    assert peer.next("PUBACK").reason == RULES_REFUSE


def test_topics_that_only_look_like_it() -> None:
    host = Host()
    peer = host.connect("c", 5)
    peer.subscribe(("$mqttdx/#", 0))
    peer.publish("$mqttdx/owner", b"", 1)
    assert {peer.next("PUBLISH").topic, peer.next("PUBACK").reason} == {"$mqttdx/owner", 0}


@pytest.mark.parametrize("outstanding", [0, 1, client_requests.ASKED_MAX - 1, client_requests.ASKED_MAX])
def test_so_many_wait_for_an_answer(outstanding: int) -> None:
    waiting: list[Any] = []
    host = Host()
    host.node.client_requests.find = lambda _client_id, then: waiting.append(then)
    peer = asker(host)
    for _ in range(outstanding):
        ask(peer, b'{"client_id": "c"}', 0)
    ask(peer, b'{"client_id": "last"}', 0)
    if outstanding == client_requests.ASKED_MAX:
        assert answer(peer) == {"client_id": "last", "error": "too many requests are not answered yet"}
    else:
        peer.silent()
    for then in waiting:
        then(None)
    host.settle()
    assert answer(peer)["error"] == "it cannot be found out now"
    assert host.counters()["owner_requests_refused"] == outstanding + 1
    ask(peer, b'{"client_id": "again"}', 0)
    assert len(waiting) == min(outstanding + 1, client_requests.ASKED_MAX) + 1


@pytest.mark.parametrize("topics", [(), (TOPIC.encode(),), (ANSWERS.encode(),), (TOPIC.encode(), ANSWERS.encode())])
def test_rules_have_to_allow_both_topics(topics: tuple[bytes, ...]) -> None:
    """A client cannot make the broker publish where it may not publish itself."""
    host = Host()
    host.node.client_requests.find = lambda _client_id, then: then(KnownOwner("n", "", 1))
    peer = asker(host)
    host.node.authorising.rules = Denying(lambda what, _client, topic, *_: what == "publish" and topic not in topics)
    ask(peer, b'{"client_id": "c"}', 1)
    if len(topics) == 2:
        assert answer(peer)["node"] == "n"
    assert peer.next("PUBACK").reason == (0 if TOPIC.encode() in topics else RULES_REFUSE)
    peer.silent()


# ---------------------------------------------------------------- in a cluster


@pytest.mark.parametrize("is_known", [True, False])
def test_the_control_process_is_asked(owning: OwningHost, is_known: bool) -> None:
    """Also for a session of this worker: another host may have taken it."""
    owning.serves("c", clean=False, expiry=600)
    peer = owning.serves("asker")
    peer.subscribe((ANSWERS, 1))
    ask(peer, b'{"client_id": "c"}', 0)
    question = owning.question()
    assert (question.kind, question.client_id, question.epoch) == (RequestKind.LOOK, "c", 0)
    owning.answer(question, THERE if is_known else "", 9 if is_known else 0, is_known)
    if is_known:
        assert answer(peer) == {"client_id": "c", "node": THERE, "address": "there.example:1883", "epoch": 9}
    else:
        assert answer(peer) == {"client_id": "c", "error": "it cannot be found out now"}
    assert owning.host.node.counters.get(count.OWNER_REQUESTS) == 1


@pytest.mark.parametrize("is_known", [True, False])
def test_few_are_asked_at_a_time(owning: OwningHost, is_known: bool) -> None:
    """Others follow; if there is no answer they are not asked. A CONNECT is decided meanwhile, whatever becomes of
    them.
    """
    peer = owning.serves("asker")
    peer.subscribe((ANSWERS, 1))
    for at in range(UNDER_WAY_MAX + 3):
        ask(peer, b'{"client_id": "c%d"}' % at, 0)
    questions = [owning.question() for _ in range(UNDER_WAY_MAX)]
    assert not owning.has_asked()
    owning.answer(questions[0], THERE if is_known else "", 9 if is_known else 0, is_known)
    assert owning.has_asked() == is_known
    if is_known:
        assert owning.question().client_id == f"c{UNDER_WAY_MAX}"
        assert answer(peer)["node"] == THERE
    else:
        assert [answer(peer)["client_id"] for _ in range(4)] == ["c0", "c16", "c17", "c18"]
    client = owning.connects("c", clean=False, expiry=600)
    claim = owning.question()
    assert (claim.kind, claim.client_id) == (RequestKind.CLAIM, "c")
    owning.answer(claim, HERE, 11)
    assert client.next("CONNACK").reason == 0


def test_a_full_sibling_makes_who_asks_wait() -> None:
    """As it does who publishes."""
    host = Host(2)
    names = {home(name, 2): name for name in ("c0", "c1", "c2", "c3", "c4", "c5")}
    host.connect(names[1], 5).subscribe((ANSWERS, 0))
    peer = host.connect(names[0], 5)
    node = host.nodes[0]
    node.client_requests.find = lambda _client_id, then: then(KnownOwner("n", "", 1))
    node.router.peers.peer_full(1, True)
    ask(peer, b'{"client_id": "c"}', 0)
    assert peer.conn.paused
    node.router.peers.peer_full(1, False)
    host.settle()
    assert not peer.conn.paused


@pytest.mark.parametrize("topic", ["$mqttd", "$mqttd/owner", "$mqttd/x", "$SYS/x"])
def test_no_will_to_topics_of_the_server(topic: str) -> None:
    peer = Host().open(5)
    peer.send(connect(5, "c", will=Will(topic, b"")))
    assert peer.next("CONNACK").reason == RULES_REFUSE
