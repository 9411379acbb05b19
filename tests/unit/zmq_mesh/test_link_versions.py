"""Two releases communicate in the newest version that both know: a rolling restart mixes them."""

from __future__ import annotations

from typing import Any

import pytest

from pyx.core.peer import sibling
from pyx.mesh.contract import EnvelopeError
from tests import mesh_messages
from tests.mesh_messages import GREETING, VERSION_AT, Kind, pack_versions, unpack_versions
from tests.unit.zmq_mesh.link_world import World
from zmq_mesh import envelope
from zmq_mesh.envelope import VERSION

NEXT = VERSION + 1


class Watched(World):
    """A world that records the version and the kind of each message."""

    def __init__(self, *options: dict[str, Any]) -> None:
        self.options = list(options)
        super().__init__(len(options))
        self.seen: set[tuple[int, int, int]] = set()

    def start(self, index: int, incarnation: int, **options: Any) -> Any:
        return super().start(index, incarnation, **self.options[index], **options)

    def speak(self) -> None:
        """Exchange batches both ways until all is quiet."""
        self.run(0.5, self._look)
        for source, target in ((0, 1), (1, 0)):
            self.workers[source].publisher.change(b"f%d" % source)
            for _ in range(5):
                self.submit(source, target, entries=3, volatile=2)
        self.run(1.0, self._look)
        self.check_quiet()
        for source, target in ((0, 1), (1, 0)):
            assert self.workers[target].sequenced[source] == self.submitted[source, target]
            assert (b"f%d" % source, None) in self.workers[target].wants[source]

    def _look(self) -> None:
        for (source, _), channel in self.network.channels.items():
            for _, frames in channel:
                self.seen.add((source, frames[0][VERSION_AT], mesh_messages.unpack_head(frames[0]).kind))

    def versions(self, greetings: bool) -> set[int]:
        return {version for _, version, kind in self.seen if (kind <= Kind.WELCOME) == greetings}


def test_versions_in_a_greeting() -> None:
    assert unpack_versions(0) == (2, 2)
    assert unpack_versions(pack_versions(7, 8)) == (7, 8)
    assert envelope.OLDEST_VERSION <= VERSION <= envelope.OLDEST_VERSION + 1  # this release and the one before it


@pytest.mark.parametrize(
    ("one", "other", "spoken"),
    [
        ({}, {}, VERSION),
        ({"versions": (VERSION, NEXT)}, {}, VERSION),
        ({"versions": (VERSION, NEXT)}, {"versions": (VERSION, NEXT)}, NEXT),
        ({"versions": (VERSION, NEXT + 1)}, {"versions": (VERSION, NEXT)}, NEXT),
        ({}, {"former": True}, 2),
        ({"versions": (2, NEXT)}, {"former": True}, 2),
    ],
)
def test_the_newest_version_that_both_speak(one: dict[str, Any], other: dict[str, Any], spoken: int) -> None:
    """Greetings have the form of version 2, whatever that version is."""
    for options in ((one, other), (other, one)):
        world = Watched(*options)
        world.speak()
        assert {world.workers[0].links[1].version, world.workers[1].links[0].version} == {spoken}
        assert world.versions(greetings=True) == {2}
        assert world.versions(greetings=False) == {spoken}


def test_a_worker_is_restarted_with_the_next_release_and_back() -> None:
    """Unacknowledged messages are sent again, in the other version."""
    world = Watched({}, {})
    world.speak()
    for incarnation, options, spoken in (
        (2, {"versions": (VERSION, NEXT)}, VERSION),
        (3, {"versions": (VERSION, NEXT + 1)}, VERSION),
        (4, {"former": True}, VERSION),
    ):
        world.kill(1)
        world.options[1] = options
        world.workers[0].links[1].down(incarnation - 1)
        world.workers[1] = world.start(1, incarnation)
        world.run(0.5)
        begin = len(world.submitted[0, 1])
        world.submit(0, 1)
        world.run(1.0)
        assert world.workers[1].sequenced[0] == world.submitted[0, 1][begin:]
        assert world.workers[0].links[1].version == spoken


def test_a_release_that_speaks_no_common_version_is_named_once() -> None:
    """Both links log the versions of the other one; a batch for it is lost, as for a peer that does not exist."""
    world = Watched({}, {"versions": (NEXT, NEXT + 1)})
    world.run(3.0)
    for worker, said in zip(world.workers, ((1, NEXT, NEXT + 1), (0, VERSION, VERSION)), strict=True):
        assert worker.log.count(("incompatible", *said)) == 1
        assert ("ready", said[0]) not in worker.log
        assert worker.links[said[0]].version == 0
    world.submit(0, 1)
    world.run(1.0)
    assert not world.workers[1].sequenced[0]
    assert world.workers[0].losses == [(1, 3, 0)]


def test_what_is_no_greeting_of_an_unknown_incarnation_is_refused_whatever_its_version() -> None:
    world = Watched({}, {})
    world.speak()
    link = world.workers[0].links[1]
    before = link.traffic.frames_refused
    prefix = mesh_messages.pack_prefix(sibling(1), sibling(0), 99, 1, 0, NEXT)
    link.receive([prefix + mesh_messages.HEAD.pack(Kind.HELLO, *[0] * 13) + bytes(GREETING.size)], world.network.now)
    assert link.traffic.frames_refused == before + 1
    with pytest.raises(EnvelopeError):
        link.receive([b"\0" + prefix[1:] + bytes(200)], world.network.now)
