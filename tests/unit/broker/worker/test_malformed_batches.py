"""What a sibling says and nobody can read: it is dropped and counted, alone. The worker lives, and so does the link."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyx.core.peer import sibling
from pyx.storage.entries import without_sibling_messages
from tests import wire
from tests.sansio import Host
from tests.unit.broker.worker.test_no_python_for_batches import NAMES, Pair
from tests.unit.pyx.delivery.test_router import client_at
from tests.unit.pyx.io.test_reactor import taken
from zmq_mesh.contract import Undelivered
from zmq_mesh.envelope import CONTROL, ENTRY, OWN_FRAME, SHARED, Entry, Refusal, encode_entries
from zmq_mesh.interest import Change

GOOD = encode_entries([Entry(b"a/b", b"x" * 10, 1, 1)])[0]
HEAD = bytes(GOOD[: ENTRY.size])

MALFORMED = {
    "cut off in its head": GOOD[: ENTRY.size - 1],
    "cut off in its payload": GOOD[:-3],
    "QoS 3": bytes((3,)) + GOOD[1:],
    "a share group cut off": bytes((1 | SHARED,)) + GOOD[1:],
    "a payload frame that is not there": bytes((1 | OWN_FRAME,)) + GOOD[1:],
    "for the broker, with a frame of its own": ENTRY.pack(1 | CONTROL | OWN_FRAME, 1, 0, 1000, 1) + b"^",
}


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path)
    made.until(lambda: all(worker.mesh.is_idle for worker in made.workers), "nobody waits for anybody")
    yield made
    for worker in made.workers:
        worker.close()


@pytest.mark.parametrize("part", MALFORMED.values(), ids=MALFORMED.keys())
@pytest.mark.parametrize("is_volatile", [False, True])
def test_a_batch(pair: Pair, part: bytes, is_volatile: bool) -> None:
    """Those before and behind it are delivered."""
    one, two = pair.workers
    subscriber = one.open(wire.connect(4, NAMES[0]) + wire.subscribe(4, 1, ("a/#", 1)))
    got = b""

    def has(count: int) -> bool:
        nonlocal got
        got += taken(subscriber)
        return got.count(b"x" * 10) >= count

    pair.until(lambda: has(0) and len(got) == 4 + 5, "CONNACK and SUBACK have come")
    link = two.node.links[sibling(0)]
    for each in (GOOD, part, GOOD):
        parts = (bytes(each), None) if is_volatile else (None, bytes(each))
        link.submit(*parts, [], [], 1, 1, 1, False)
        link.flush(time.monotonic())
    pair.until(lambda: has(2), "what can be read is delivered")
    pair.until(lambda: not link.stream.kept, "all is acknowledged, also what nobody can read")
    assert one.mesh.frames_malformed == 1
    assert one.mesh.ready


def test_control_entries_with_frames_of_their_own_are_refused() -> None:
    with pytest.raises(ValueError, match="frame of its own"):
        without_sibling_messages(MALFORMED["for the broker, with a frame of its own"])


def test_a_change_of_interest() -> None:
    """The changes beside it count."""
    host = Host(workers=2)
    wrong = [
        Change(b"", None, 1, durable=False),
        Change(b"a/#/b", None, 1, durable=False),
        Change(b"a", b"", 1, durable=False),
        Change(b"b", None, 1 << 31, durable=False),
        Change(b"c", None, 1, durable=False, member=5),
    ]
    peering = host.node.peering
    after = Change(b"after", None, 1, durable=False)
    peering.interest(sibling(1), [Change(b"before", None, 1, durable=False), *wrong, after])
    assert peering.commit(), "it is answered all the same"
    publisher = host.connect(client_at(0, 2))
    for topic, wanted in (("before", 1), ("after", 2), ("b", 2)):
        publisher.publish(topic, b"", 1)
        assert host.counters(0)["mesh_entries_sent"] == wanted


def test_a_refusal_of_something_that_cannot_be_read() -> None:
    """It does not raise: the sibling would repeat it for ever, and nothing behind it would be taken."""
    peering = Host(workers=2).node.peering
    batch = Undelivered(1, bytes(GOOD[:-3]), [], 1, True)
    peering.refused(sibling(1), batch, [(0, Refusal.NO_MEMBER)])
    assert peering.commit() is False
