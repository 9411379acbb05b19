"""Messages that the router archives, and when their acks leave; the archive tables of the configuration."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from broker.cli import main as cli
from broker.config.archive import ArchiveRule, archive_errors, archive_options, size_of
from leveldb_store.contract import Archive, Page
from leveldb_store.format.archive_schema import NUMBER_WORKER_BITS, decode_head
from pyx.core import counters as count
from pyx.storage.archive import Archiver
from tests import wire
from tests.sansio import START_WALL_MS, Host
from tests.unit.pyx.delivery.test_commit import Ledger, commit, host_with

# ---------------------------------------------------------------- configuration


def rule(topic_filter: str, hours: float = 1, size: object = "1GB") -> ArchiveRule:
    return ArchiveRule.model_validate({"filter": topic_filter, "hours": hours, "bytes": size})


def test_sizes_are_numbers_with_units() -> None:
    sizes = ["10GB", "1.5 GiB", "512mb", "2TiB", "1048576", 1 << 21]
    assert [size_of(each) for each in sizes] == [
        10 * 10**9,
        3 << 29,
        512 * 10**6,
        2 << 40,
        1 << 20,
        1 << 21,
    ]
    for wrong in ("", "GB", "10 bytes", "-1GB", "1,5GB"):
        with pytest.raises(ValueError, match="10GB"):
            size_of(wrong)


def test_tables_that_cannot_be_archived_are_refused() -> None:
    said = list(
        archive_errors(
            [rule("a/#"), rule("b#"), rule("$share/g/a"), rule("$SYS/#"), rule("a/#"), rule("$SYSTEM/#")], "leveldb"
        )
    )
    assert [line.split(": ")[0] for line in said] == ["archive.filter"] * 4
    assert "'b#' (of table 2)" in said[0]
    assert "share" in said[1]
    assert "topics of $SYS are not archived" in said[2]
    assert "table 1 has the same" in said[3]
    assert list(archive_errors([], "memory")) == []
    [line] = archive_errors([rule("a")], "memory")
    assert line.startswith("archive: ")


def test_check_config_names_every_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mqttd.toml"
    good = '[[archive]]\nfilter = "a/#"\nhours = 0.5\nbytes = "10GB"\n'
    file.write_text(good)
    assert cli.main(["check-config", str(file)]) == 0
    file.write_text('store = "memory"\n' + good + '[[archive]]\nfilter = "a#"\nhours = 1\nbytes = 1000000\n')
    assert cli.main(["check-config", str(file)]) == 2
    said = capsys.readouterr().err
    assert 'store is "memory"' in said
    assert "archive.filter: 'a#' (of table 2): # must be the last level" in said
    file.write_text('[[archive]]\nfilter = "a/#"\nhours = 0\nbytes = "10 bytes"\n')
    assert cli.main(["check-config", str(file)]) == 2
    said = capsys.readouterr().err
    assert "archive.hours: " in said
    assert "archive.bytes: value error, should be a number of bytes" in said


def test_each_worker_has_its_part_of_the_bytes() -> None:
    options = archive_options([rule("a", 0.5, "4GB")], "e", 1, 4, 1 << 20)
    assert (options.epoch, options.worker, options.pending_bytes_max) == ("e", 1, 1 << 20)
    assert options.tables == ((b"a", 1_800_000, 10**9),)


# ---------------------------------------------------------------- the router


@dataclass
class Gathered:
    """An archive whose test decides what is durable."""

    archiver: Archiver
    highest: int = 0
    last: int = 0
    is_settled: bool = True
    epoch: str = "e"
    held_bytes: int = 0
    removed: tuple[int, int] = (0, 0)
    taken: list[int] = field(default_factory=list)
    """Messages of each commit."""

    def covers(self, topic_filter: bytes) -> bool:
        raise NotImplementedError

    def start(self, topic_filter: bytes) -> int:
        raise NotImplementedError

    def read(self, topic_filters: object, after: int, bytes_max: int, with_gaps: bool = False) -> Page:
        raise NotImplementedError

    def watch(self, is_watched: bool) -> None:
        raise NotImplementedError

    def noted(self, after: int) -> list[tuple[int, bytes]] | None:
        raise NotImplementedError


class ArchivingLedger(Ledger):
    """A ledger with an archive."""

    def __init__(self, *filters: bytes) -> None:
        super().__init__()
        self.gathered = Gathered(Archiver(list(filters)))
        self.archive: Archive | None = self.gathered

    def append_archived(self) -> None:
        """See the contract."""
        self.gathered.taken.append(sum(decode_head(block).messages for *_, block in self.gathered.archiver.take()))
        self._gathered_records = True


def archiving_host(*filters: bytes) -> tuple[Host, ArchivingLedger]:
    store = ArchivingLedger(*filters)
    host = host_with(store)
    host.node.router.journal.set_archive(store.archive)
    return host, store


def test_acks_of_archived_messages_wait_for_their_commit_and_others_do_not() -> None:
    host, store = archiving_host(b"kept/#")
    publisher = host.connect("publisher")
    for qos, packet in ((1, "PUBACK"), (2, "PUBREC")):
        publisher.publish("kept/a", b"", qos)
        publisher.silent()
        commit(host, store)
        publisher.next(packet)
        publisher.publish("other", b"", qos)
        publisher.next(packet)
    assert store.gathered.taken == [1, 1]
    assert store.synced == [True, True]
    assert host.node.counters.get(count.ARCHIVED_MESSAGES) == 2


def test_qos_0_is_gathered_for_a_while_and_no_ack_waits_for_it() -> None:
    host, store = archiving_host(b"#")
    host.node.router.state.limits.archive_gather_ms = 10
    publisher = host.connect("publisher")
    publisher.publish("a", b"", 0)
    host.settle()
    assert store.gathered.taken == [1]  # after a pause: at once
    assert store.synced == [False]
    for _ in range(3):
        publisher.publish("a", b"", 0)
        host.settle()
    publisher.send(wire.packet("PINGREQ", 0))
    publisher.next("PINGRESP")
    assert store.gathered.taken == [1]
    host.pass_time(10)
    assert store.gathered.taken == [1, 3]
    publisher.publish("a", b"", 0)
    publisher.publish("a", b"", 1)
    host.settle()
    assert store.gathered.taken == [1, 3, 2]  # together with the message whose ack waits
    publisher.silent()


def test_qos_0_is_dropped_from_the_archive_and_delivered_when_too_much_waits() -> None:
    """archive_pending_bytes_max, and a full store."""
    host, store = archiving_host(b"#")
    subscriber, publisher = host.connect("subscriber"), host.connect("publisher")
    subscriber.subscribe(("a", 0))
    archiver = store.gathered.archiver
    archiver.pending_bytes_max = 100
    for _ in range(3):
        publisher.publish("a", b"." * 80, 0)
        subscriber.next("PUBLISH")
    assert host.node.counters.get(count.ARCHIVED_MESSAGES) == 1
    assert host.node.counters.get(count.ARCHIVE_DROPPED) == 2
    publisher.publish("a", b"." * 80, 1)  # is not dropped: its ack says that it is archived
    assert host.node.counters.get(count.ARCHIVED_MESSAGES) == 2
    archiver.settled(archiver.pending_bytes)
    host.node.router.back_pressure.set_store_full(0, True)
    publisher.publish("a", b"", 0)
    subscriber.next("PUBLISH")
    subscriber.next("PUBLISH")
    assert host.node.counters.get(count.ARCHIVE_DROPPED) == 3


def test_a_publish_that_would_be_archived_is_refused_while_the_store_is_full() -> None:
    host, _ = archiving_host(b"kept")
    publisher = host.connect("publisher", version=5)
    host.node.router.back_pressure.set_store_full(0, True)
    publisher.publish("other", b"", 1)
    assert publisher.next("PUBACK").reason == 0x10
    publisher.publish("kept", b"", 1)
    assert publisher.next("PUBACK").reason == 0x97


def test_numbers_go_on_above_the_archive_and_what_was_promised() -> None:
    store = ArchivingLedger(b"#")
    store.gathered.highest = (START_WALL_MS + 1000) * 1000 << NUMBER_WORKER_BITS
    host = host_with(store)
    router = host.node.router
    router.journal.set_archive(store.archive)
    assert router.state.next_number() > store.gathered.highest
    promised = router.journal.archived_up_to()
    assert router.state.next_number() > promised
    assert int.from_bytes(store.records[b"\0number"], "little") > promised
    store.gathered.is_settled, store.gathered.last = False, 5
    assert router.journal.archived_up_to() == 5
