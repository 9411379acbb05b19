"""A defect of the broker while it handles anything of a client ends that client's connection with 0x83, and nothing
else: wherever it is raised, and at any stage of the handling.

Every method of the objects that decide, and of those they call (the log, the store, the interest for siblings), is made
to raise, one after the other, while one client performs one action. Then nothing has left the broker; where anything
was raised that connection has ended, as its version of MQTT allows; the clients beside it are served; the counters
balance; and the client can connect again.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from broker.worker.core import Node
from shards.placement import home
from tests import wire
from tests.kept_store import KeptStore
from tests.sansio import Host, KeptLog, Peer
from tests.scram_client import METHOD, ScramClient
from tests.unit.broker.auth.test_password_file import PBKDF2
from tests.unit.broker.clients.test_authenticating import SCRAM, Hashes

WORKERS = 2
VICTIM, PUBLISHER, SUBSCRIBER = (
    next(name for name in (f"{kind}-{i}" for i in range(99)) if home(name, WORKERS) == 0)
    for kind in ("victim", "publisher", "subscriber")
)
BOOM = 0x83
WILL = wire.Will("will/of/victim", b"gone", qos=1)
RETAINED = "kept", *(f"new/{i}" for i in range(9))  # their owners are on both workers
LASTING = {"session_expiry_interval": 1000}
LONG_SECONDS = 8 * 86400  # longer than a session of a v3 client


class Boom(Exception):
    """The simulated defect."""


@dataclass(frozen=True)
class Place:
    """A method of a Node, or of one of its objects."""

    path: str
    name: str

    def owner(self, node: Node) -> Any:
        return getattr(node, self.path) if self.path else node

    def __str__(self) -> str:
        return f"{self.path or 'node'}.{self.name}"


OWNERS = [
    "state_records", "recording", "subscribing", "retaining", "replaying", "opening", "authenticating", "connecting",
    "closing", "attachments", "sessions", "wills", "log", "store", "interest",
]  # fmt: skip
OF_THE_NODE = [
    "connect", "auth", "disconnect", "protocol_error", "connect_timeout", "keep_alive_timeout", "closed", "subscribe",
    "unsubscribe", "unstored", "drained", "publish_refused", "dropping", "dropping_ended", "queue_full", "queue_held",
    "hold_changed", "retained_full", "hand_over", "opened",
]  # fmt: skip
#: for no client in particular: the end of a tick, the sweeps of a second, messages of a sibling
OTHERS = {
    "state_records.retained_changed", "interest.seal", "interest.since", "interest._last", "interest._trim",
    "interest._make_snapshot", "interest._make_rest", "interest._make_parts", "connecting.sweep", "sessions.recount",
    "retaining.sweep", "retaining._live", "retaining.answered", "retaining.peer_ready", "authenticating._done",
    "replaying.sweep", "replaying.run", "retaining.run", "recording.sweep", "recording._tell_minute",
    "recording._tell_suppressed",
    "recording._count_unlisted", "recording._tell_drops", "recording._tell_times", "recording._tell_topics",
    "log.flush",
}  # fmt: skip
OF_THE_STORE = "put", "delete", "read", "backlog", "record"


class Said:
    """The log of a node, with replaceable methods."""

    def __init__(self, log: KeptLog) -> None:
        self._log = log

    def write(self, level: str, event: str, **fields: Any) -> None:
        self._log.write(level, event, **fields)

    def info(self, event: str, **fields: Any) -> None:
        self._log.info(event, **fields)

    def warning(self, event: str, **fields: Any) -> None:
        self._log.warning(event, **fields)

    def error(self, event: str, **fields: Any) -> None:
        self._log.error(event, **fields)

    def debug(self, event: str, **fields: Any) -> None:
        self._log.debug(event, **fields)

    def allows(self, event: str) -> bool:
        return self._log.allows(event)

    def flush(self) -> None:
        self._log.flush()


def places(node: Node) -> Iterator[Place]:
    """Return all methods that are made to raise."""
    for name in OF_THE_NODE:
        yield Place("", name)
    for path in OWNERS:
        kind = Said if path == "log" else type(getattr(node, path))
        names = [name for name, _ in inspect.getmembers(kind, inspect.isfunction) if not name.startswith("__")]
        for name in OF_THE_STORE if path == "store" else names:
            if f"{path}.{name}" not in OTHERS:
                yield Place(path, name)


class Scene:
    """A victim and the clients beside it."""

    def __init__(self, version: int, keeps: bool, users: Path, place: Place | None = None) -> None:
        self.version = version
        stores = [KeptStore() for _ in range(WORKERS)] if keeps else None
        self.host = Host(WORKERS, stores=stores, password_file=str(users), allow_anonymous=True)
        self.node = self.host.node
        self.node.log = Said(self.host.logs[0])  # type: ignore[assignment]
        self.place = place
        self.raised = 0
        self.seen: set[Place] | None = None
        """Places that are called; None: they are not recorded."""
        self.subscriber = self.host.connect(SUBSCRIBER, 5)
        self.subscriber.subscribe(("#", 1), ("$share/g/s", 1))
        self.publisher = self.host.connect(PUBLISHER, 5)
        for topic in RETAINED:
            self.publisher.publish(topic, b"kept", 1, retain=True)
        self.host.settle()

    @contextmanager
    def broken(self) -> Iterator[None]:
        """Make the place raise at each call, or record the places that are called."""
        watched = [self.place] if self.place is not None else PLACES if self.seen is not None else []
        own = [getattr(place.owner(self.node), place.name) for place in watched]
        for place, call in zip(watched, own, strict=True):
            setattr(place.owner(self.node), place.name, partial(self.called, place, call))
        try:
            yield
        finally:
            for place, call in zip(watched, own, strict=True):
                setattr(place.owner(self.node), place.name, call)

    def called(self, place: Place, call: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        """Raise, or record the place and call its method."""
        if self.seen is None:
            self.raised += 1
            raise Boom(str(place))
        self.seen.add(place)
        return call(*arguments, **keywords)

    def come(self, clean: bool = True, lasting: bool = False) -> Peer:
        """Send CONNECT, whatever the outcome."""
        peer = self.host.open(self.version)
        peer.client_id = VICTIM
        properties = LASTING if self.version == 5 and lasting else {}
        peer.send(wire.connect(self.version, VICTIM, clean=clean, will=WILL, properties=properties))
        self.host.settle()
        return peer

    def there(self) -> Peer:
        """Return a connected client with subscriptions, messages in flight both ways, and messages that wait."""
        peer = self.come(clean=False, lasting=True)
        peer.packets.clear()
        peer.subscribe(("t/#", 2), ("$share/g/s", 1), ("kept", 1))
        for topic, qos in (("t/1", 2), ("s", 1), ("s", 1), ("t/1", 1)):
            self.publisher.publish(topic, b"1", qos)
        peer.publish("t/2", b"2", 2)
        self.host.settle()
        for each in (peer, self.publisher, self.subscriber):
            each.packets.clear()
        return peer

    def sent(self, *packets: bytes) -> Peer:
        """Send these packets from a connected client."""
        peer = self.there()
        with self.broken():
            peer.send(*packets)
            self.host.settle()
        return peer


def connects(scene: Scene) -> Peer:
    with scene.broken():
        return scene.come()


def makes_a_session(scene: Scene) -> Peer:
    with scene.broken():
        return scene.come(clean=False, lasting=True)


def comes_back(scene: Scene, clean: bool = False) -> Peer:
    scene.host.lose(scene.there())
    for topic in ("t/1", "s", "t/9"):
        scene.publisher.publish(topic, b"waits", 1)
    scene.host.settle()
    with scene.broken():
        return scene.come(clean=clean, lasting=True)


def starts_clean(scene: Scene) -> Peer:
    return comes_back(scene, clean=True)


def takes_over(scene: Scene) -> Peer:
    scene.there()
    with scene.broken():
        return scene.come(clean=False, lasting=True)


def subscribes(scene: Scene) -> Peer:
    filters = ("kept", 1), ("$share/h/x", 1), ("t/#", 1), ("new/+", 2)
    return scene.sent(wire.subscribe(scene.version, 9, *filters))


def unsubscribes(scene: Scene) -> Peer:
    return scene.sent(wire.unsubscribe(scene.version, 9, "t/#", "$share/g/s", "none"))


def publishes(scene: Scene) -> Peer:
    version = scene.version
    return scene.sent(
        *(wire.publish(version, "beside/x", b"p", qos=qos, packet_id=20 + qos) for qos in range(3)),
        wire.publish(version, "kept", b"p", qos=1, packet_id=30, retain=True),
        wire.publish(version, "$SYS/no", b"p", qos=1, packet_id=31),
        wire.publish(version, "s", b"p", qos=1, packet_id=32),
        wire.ack(version, "PUBREL", 22),
    )


def answers(scene: Scene) -> Peer:
    kinds = "PUBACK", "PUBREC", "PUBCOMP", "PUBREL"
    return scene.sent(*(wire.ack(scene.version, kind, number) for number in (1, 2, 3) for kind in kinds))


def disconnects(scene: Scene) -> Peer:
    return scene.sent(wire.disconnect(scene.version))


def leaves_for_good(scene: Scene) -> Peer:
    if scene.version == 5:
        return scene.sent(wire.disconnect(5, 4, {"session_expiry_interval": 0}))
    return scene.sent(wire.disconnect(scene.version))


def says_nonsense(scene: Scene) -> Peer:
    return scene.sent(b"\x00\x00")


def is_lost(scene: Scene) -> Peer:
    peer = scene.there()
    with scene.broken():
        scene.host.lose(peer)
    return peer


def is_silent(scene: Scene) -> Peer:
    """The reactor's timer is simulated: there is no socket here."""
    peer = scene.there()
    with scene.broken():
        try:
            scene.node.keep_alive_timeout(peer.conn)
        except Boom as error:
            scene.node.router.state.fail(peer.conn, error)
        scene.host.settle()
    return peer


def expires(scene: Scene) -> Peer:
    peer = scene.there()
    scene.host.lose(peer)
    with scene.broken():
        scene.host.pass_time(1100 if scene.version == 5 else 10)
    return peer


def proves_itself(scene: Scene) -> Peer:
    """Authenticate with a password, which is checked later."""
    hashes = Hashes(scene.host)
    peer = scene.host.open(scene.version)
    peer.client_id = VICTIM
    peer.send(wire.connect(scene.version, VICTIM, clean=False, username="alice", password=b"secret"))
    with scene.broken():
        hashes.compute()
    return peer


def proves_itself_step_by_step(scene: Scene) -> Peer:
    """Authenticate by SCRAM."""
    if scene.version < 5:
        return proves_itself(scene)
    scram = ScramClient("carl", "pencil")
    peer = scene.host.open(5)
    peer.client_id = VICTIM
    method = {"authentication_method": METHOD}
    with scene.broken():
        peer.send(wire.connect(5, VICTIM, properties={**method, "authentication_data": scram.first()}))
        scene.host.settle()
        if peer.packets and peer.packets[0].kind == "AUTH":
            answer = scram.final(peer.packets.popleft().properties["authentication_data"])
            peer.send(wire.auth(0x18, {**method, "authentication_data": answer}))
            scene.host.settle()
    return peer


DEEDS: list[Callable[[Scene], Peer]] = [
    connects, makes_a_session, comes_back, starts_clean, takes_over, subscribes, unsubscribes, publishes, answers,
    disconnects, leaves_for_good, says_nonsense, is_lost, is_silent, expires, proves_itself,
    proves_itself_step_by_step,
]  # fmt: skip
PLACES = list(places(Host(WORKERS, stores=[KeptStore() for _ in range(WORKERS)]).node))


#: called when a minute passes there, which the events report
TOLD_EACH_MINUTE = {"recording._put", "store.record"}


def check(scene: Scene, peer: Peer, deed: str) -> None:
    """Check the conditions of the module's docstring."""
    host, node = scene.host, scene.node
    raised = f"{scene.place} during {deed}"
    host.settle()
    if scene.raised:
        # (if the end of the connection that was taken over raised it, that one has ended)
        assert peer.closed or deed == "takes_over", raised
        assert host.counters()["internal_errors"], raised
    # no other client is affected
    assert not scene.publisher.closed, raised
    assert not scene.subscriber.closed, raised
    scene.subscriber.packets.clear()
    scene.publisher.publish("beside/y", b"still there", 1)
    host.settle()
    assert [each.kind for each in scene.publisher.packets][-1:] == ["PUBACK"], raised
    assert b"still there" in [each.payload for each in scene.subscriber.receive()], raised
    host.check_books()
    # the remaining state is consistent
    sessions = list(node.sessions)
    assert node.router.state.subscriptions.count == sum(session.subscriptions for session in sessions), raised
    connected = [session for session in sessions if session.connection is not None]
    assert host.counters(0)["connections_opened"] - host.counters(0)["connections_closed"] == len(connected), raised
    assert all(session.connection.session is session for session in connected), raised
    assert not any(session.details.awaiting for session in sessions), raised
    # the client can connect again, twice
    for clean in (False, True):
        again = scene.come(clean=clean, lasting=True)
        connack = again.packets.popleft()
        assert (connack.kind, connack.reason) == ("CONNACK", 0), raised
        again.packets.clear()
        assert again.subscribe(("again", 1)) == [1], raised
        scene.publisher.publish("again", b"and again", 1)
        assert b"and again" in [each.payload for each in again.receive()], raised
        host.lose(again)
    host.check_books()


@pytest.fixture(scope="module")
def users(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """alice authenticates with a password, carl by SCRAM."""
    path = tmp_path_factory.mktemp("users") / "users"
    path.write_text(f"alice:{PBKDF2}\ncarl:{SCRAM}\n")
    return path


@pytest.mark.parametrize(
    ("version", "keeps"),
    [
        (4, False),
        pytest.param(4, True, marks=pytest.mark.long),
        pytest.param(5, False, marks=pytest.mark.long),
        (5, True),
    ],
    ids=["4-memory", "4-kept", "5-memory", "5-kept"],
)
@pytest.mark.parametrize("deed", DEEDS, ids=lambda deed: deed.__name__)
def test_a_defect_ends_the_connection_in_hand(
    deed: Callable[[Scene], Peer], version: int, keeps: bool, users: Path
) -> None:
    """Scenario: each method raises while a client performs this action."""
    whole = Scene(version, keeps, users)
    whole.seen = set()
    check(whole, deed(whole), deed.__name__)
    assert whole.host.counters()["internal_errors"] == 0
    for place in sorted(whole.seen, key=str):
        if deed is expires and str(place) in TOLD_EACH_MINUTE:
            continue
        scene = Scene(version, keeps, users, place)
        peer = deed(scene)
        check(scene, peer, deed.__name__)
