"""The links of a worker together: which messages go to which link, and how much of a sibling is taken in a round."""

from __future__ import annotations

from typing import Any

import pytest

from pyx.core.peer import sibling
from pyx.mesh.contract import LinkLimits
from pyx.mesh.link import Link
from pyx.mesh.links import Links
from tests import mesh_messages
from tests.rounds import Worked
from zmq_mesh.interest import Publisher

NOW = 100.0


class Events:
    """Events of a link: what is called is noted."""

    def __init__(self) -> None:
        self.called: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *_: self.called.append(name)


class Worker:
    """The links of worker 0 to workers 1 and 2, with all that was sent."""

    def __init__(self, drain_bytes_max: int = 1000) -> None:
        self.events = Events()
        self.publisher = Publisher()
        self.batches = Worked(self.events)
        self.together = Links(self.publisher, drain_bytes_max, self.batches)
        self.sent: list[tuple[int, list[bytes]]] = []
        self.flushed = 0
        for peer in (1, 2):
            link = Link(
                sibling(0), sibling(peer), 7, self.publisher, self.events, self._sender(peer), LinkLimits(), NOW
            )
            self.together.add(link, None, self._flush)
        self.together.begin(NOW)

    def _sender(self, peer: int) -> Any:
        def send(frames: list[bytes]) -> bool:
            self.sent.append((peer, frames))
            return True

        return send

    def _flush(self) -> None:
        self.flushed += 1


def hello(sender: int, receiver: int = 0) -> bytes:
    head = mesh_messages.HEAD.pack(
        mesh_messages.HELLO, 0, 0, mesh_messages.pack_versions(2, 2), 0, 0, 0, 1, 0, 0, 0, 0, 0, 0
    )  # fmt: skip
    prefix = mesh_messages.pack_prefix(sibling(sender), sibling(receiver), 9, 0)
    return prefix + head + mesh_messages.GREETING.pack(5, 0, 1, 1)


def test_each_message_goes_to_the_link_of_its_sender() -> None:
    worker = Worker()
    assert not worker.together.received([hello(2)])
    assert {peer for peer, _ in worker.sent} == {2}
    assert worker.together.by_peer[sibling(2)].peer_incarnation == 9
    assert worker.together.by_peer[sibling(1)].peer_incarnation == 0
    assert worker.together.malformed == 0


@pytest.mark.parametrize(
    "message",
    [
        [b""],
        [bytes(27)],
        [bytes(28)],
        [hello(3)],
        [hello(0)],
        [hello(1, 2)],
        [hello(1)[:-1]],
        [b"\x00" + hello(1)[1:]],
        [b"\xb5\x01" + hello(1)[2:]],
        [hello(1)[:4] + b"\xff\xff\xff\xff" + hello(1)[8:]],
    ],
    ids=["empty", "short", "zeros", "unknown", "own", "for another", "cut off", "magic", "version", "host"],
)
def test_what_is_no_message_is_counted(message: list[bytes]) -> None:
    worker = Worker()
    assert not worker.together.received(message)
    assert (worker.together.malformed, worker.sent) == (1, [])


def test_a_sibling_has_its_share_of_each_round() -> None:
    one = len(hello(1))
    worker = Worker(drain_bytes_max=2 * one)
    assert not worker.together.received([hello(1)])
    assert worker.together.received([hello(1)]), "its share is used up"
    assert not worker.together.received([hello(2)]), "the other has its own"
    went_on: list[bool] = []
    worker.together.go_on = lambda: went_on.append(True)
    assert worker.together.begin(NOW)
    assert went_on == [True]
    assert not worker.together.received([hello(1)])
    assert not worker.together.begin(NOW), "nothing was left in that round"
    assert went_on == [True]


def test_a_round_that_is_over_ends_for_all() -> None:
    worker = Worker()
    worker.batches.sated = True
    assert worker.together.received([hello(1)])
    assert worker.together.received([hello(2)])


def test_a_worker_with_enough_to_do_does_not_read_and_takes_nobody_for_silent() -> None:
    worker = Worker()
    worker.batches.full = True
    worker.together.begin(NOW + 5)
    assert not worker.together.may_receive()
    assert [link.heard_at for link in worker.together.by_peer.values()] == [NOW + 5] * 2
    assert worker.together.begin(NOW + 5), "it is tried again"
    worker.batches.full = False
    assert worker.together.may_receive()


def test_the_end_of_a_round_seals_and_sends() -> None:
    worker = Worker()
    worker.together.received([hello(1)])
    assert worker.together.end_reading()
    assert not worker.together.end_reading(), "nothing since"
    worker.sent.clear()
    number = worker.publisher.change(b"a")
    worker.together.flush(NOW)
    assert worker.publisher.number == number
    assert {peer for peer, _ in worker.sent} == {1}, "the other has not been heard"
    assert worker.flushed == 2
