"""Sixteen replays at once: they take turns at the disk of each worker, whatever their Topic Filters match."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator

import pytest

from pyx.protocol.message import Message
from tests.unit.broker.replay.test_replaying import Aside, archive_of, archived, ask, subscriber
from tests.unit.pyx.delivery.test_router import client_at

#: each matches all but a few messages; each of RARE matches one of each worker, at the end
COMMON = ["/".join(["a", *levels]) for levels in itertools.product("x+", repeat=3)]
RARE = [f"a/rare/{number}" for number in range(8)]
MESSAGES, MESSAGE_BYTES, PAGE_BYTES = 200, 400, 4096
#: pages to the end of a worker's archive
PAGES = (MESSAGES + len(RARE)) * (MESSAGE_BYTES + 80) // PAGE_BYTES + 2
READ_SECONDS = 0.25
"""For a page. Sixteen take longer than a request may go without a sign of life."""


class Readers:
    """One reader of each Topic Filter, over all workers in turn; all begin with the earliest message."""

    def __init__(self, workers: int) -> None:
        self.host = archived(workers, limits={"replay_page_bytes": PAGE_BYTES * (1 + workers) // 2})
        self.archives = [archive_of(self.host, worker) for worker in range(workers)]
        topics = [b"a/x/x/x"] * MESSAGES + [text.encode() for text in RARE]
        for topic in topics:  # at all workers at the same time: their numbers rise together
            for archive, node in zip(self.archives, self.host.nodes, strict=True):
                archive.add(Message.create(topic, bytes(MESSAGE_BYTES), number=node.router.state.next_number()))
            self.host.pass_time(0.001)
        self._disks = [Aside(self.host, worker) for worker in range(workers)]
        self.wanted = {text: workers * (MESSAGES if text in COMMON else 1) for text in [*COMMON, *RARE]}
        self.got: Counter[str] = Counter()
        self._peers = {}
        for number, text in enumerate(itertools.chain(*zip(COMMON, RARE, strict=True))):
            peer = self._peers[text] = subscriber(self.host, client_at(number % workers, workers, f"r{number}-"))
            assert ask(peer, "earliest", (text, 0)).codes == (0,)

    def read(self) -> None:
        """Let each disk read one page, and take the messages that result."""
        self.host.pass_time(READ_SECONDS)
        for disk in self._disks:
            disk.turn()
        for text, peer in self._peers.items():
            self.got[text] += sum(packet.kind == "PUBLISH" for packet in peer.packets)
            peer.packets.clear()

    def turns(self) -> Iterator[None]:
        """Read until all are done: at most as many pages as needed if none is read twice."""
        for _ in range(len(COMMON + RARE) * PAGES):
            if self.unfinished:
                self.read()
                yield

    @property
    def unfinished(self) -> set[str]:
        return {text for text, wanted in self.wanted.items() if self.got[text] < wanted}

    def pages(self, texts: set[str]) -> list[dict[str, int]]:
        """Return the number of pages read for these readers, by worker."""
        return [{text: archive.pages[text.encode()] for text in texts} for archive in self.archives]

    def leave(self, text: str) -> None:
        self.host.lose(self._peers.pop(text))
        del self.wanted[text]


@pytest.mark.parametrize("many", [1, 2, 3])
def test_readers_of_rare_and_of_common_filters_come_to_their_end(many: int) -> None:
    """Nothing is read twice, however long a reader waits for its turn and however few messages match."""
    readers = Readers(many)
    for _ in readers.turns():
        pass
    assert readers.got == readers.wanted
    assert all(count <= PAGES for of_worker in readers.pages(set(readers.wanted)) for count in of_worker.values())
    readers.host.check_books()


@pytest.mark.parametrize("leave", [[], [COMMON[0], COMMON[3], RARE[0], RARE[3]]])
@pytest.mark.parametrize("many", [1, 2, 3])
def test_no_reader_is_read_for_more_than_one_page_ahead_of_another(many: int, leave: list[str]) -> None:
    """No reader gets ahead while neither is done, also when others leave meanwhile."""
    readers = Readers(many)
    for turn, _ in enumerate(readers.turns()):
        for of_worker in readers.pages(readers.unfinished):
            assert max(of_worker.values(), default=0) - min(of_worker.values(), default=0) <= 1, of_worker
        if turn == len(COMMON + RARE) * 5:
            for text in leave:
                readers.leave(text)
    assert not readers.unfinished


@pytest.mark.parametrize("many", [1, 2, 3])
def test_nothing_is_read_for_readers_that_have_left(many: int) -> None:
    """Only the page in progress is still read."""
    readers = Readers(many)
    gone = {COMMON[0], COMMON[3], RARE[0], RARE[3]}
    before = []
    for turn, _ in enumerate(readers.turns()):
        if turn == len(COMMON + RARE) * 5:
            for text in gone:
                readers.leave(text)
            before = readers.pages(gone)
    for was, now in zip(before, readers.pages(gone), strict=True):
        assert all(0 < now[text] <= was[text] + 1 for text in gone), (was, now)
    assert not readers.unfinished
