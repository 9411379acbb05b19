"""The store's size on disk and its costs of writing: the tables of docs/store.md.

    python -m tests.benchmarks.on_disk                 both tables, printed
    python -m tests.benchmarks.on_disk --write         and put into docs/store.md
    python -m tests.benchmarks.on_disk --seconds 5     a short run

One worker without sockets (tests.sansio) on a real store.

*Bytes.* Records of one kind are made in a store. Then they are copied, by the key families of the schema, into a
database of their own with the same settings, which is compacted: its tables are their size at rest, with keys,
compression and LevelDB's own data. `plain` is the length of keys and values. Client ids have 23 bytes, Topic Names and
Filters 30, payloads are random, so that compression does not shorten them.

*Writing.* For a while ten publishers send a number of messages each second, 100 bytes each, with fsync. Counted are
the bytes given to LevelDB (its write batches), the bytes that its threads write into files, and the CPU time of the
store's threads: the writer's, and that of all others, LevelDB's own for tables and compactions.
"""

from __future__ import annotations

import argparse
import os
import select
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import plyvel

from leveldb_store.engine.database import DatabaseOptions
from leveldb_store.format import schema
from leveldb_store.store import LevelStore
from loadtest.document import write
from loadtest.host import commit, machine
from tests import wire
from tests.benchmarks.ruler import ROOT
from tests.sansio import Host, Peer
from tests.waiting import wait_until

BEGIN = "<!-- measured: python -m tests.benchmarks.on_disk -->"
DOCUMENT = ROOT / "docs" / "store.md"

PAYLOAD_BYTES = 100
TOPIC = "building-07/floor-03/room-1024"
FILTER = "building-07/floor-03/#"
PUBLISHERS = 10
IN_FLIGHT = 50
TICK_SECONDS = 0.001
_LIMITS = {"queue_messages_max": 50_000_000, "queue_bytes_max": 1 << 40, "receive_maximum": 65_535}
_LAG_SECONDS = 0.3
"""Seconds after which lazy windows are stored."""


class Worker:
    """A worker on a store in a directory, and its clients."""

    def __init__(self, path: Path, fsync: bool = False) -> None:
        self.path = path
        self.store = LevelStore(path, fsync=fsync)
        self.host = Host(stores=[self.store], limits=_LIMITS)

    def connect(self, client_ids: Iterable[str]) -> list[Peer]:
        """Connect clients with lasting sessions."""
        peers = []
        for client_id in client_ids:
            peers.append(self.host.open())
            peers[-1].client_id = client_id
            peers[-1].send(wire.connect(4, client_id, clean=False))
        self.settle()
        return peers

    def subscribe(self, peers: Iterable[Peer], topic_filter: str, qos: int) -> None:
        """Subscribe all of them with the same filter."""
        for peer in peers:
            peer.send(wire.subscribe(4, peer.packet_id(), (topic_filter, qos)))
        self.settle()

    def leave(self, peers: Iterable[Peer]) -> None:
        """Disconnect clients; their sessions stay."""
        for peer in peers:
            peer.send(wire.disconnect(4))
        self.settle()

    def publish(self, publisher: Peer, count: int, each_tick: int, qos: int = 1) -> None:
        """Publish `count` messages, `each_tick` of them in a tick."""
        for number in range(count):
            publisher.publish(TOPIC, os.urandom(PAYLOAD_BYTES), qos=qos)
            if (number + 1) % each_tick == 0:
                self.host.turn()
                publisher.packets.clear()
        self.settle()
        publisher.packets.clear()

    def settle(self) -> None:
        """Run until everything is on disk and nothing moves."""

        def rests() -> bool:
            self.host.settle()
            return self.host.node.router.journal.durable_ticket >= self.store.flush()

        wait_until(rests, 120, "everything is durable")

    def close(self) -> None:
        """Store the lazy windows, and close the worker."""
        self.host.pass_time(_LAG_SECONDS)
        self.settle()
        self.host.node.router.abandon()
        self.store.close()


# ---------------------------------------------------------------- bytes


class Sizes(NamedTuple):
    """Bytes of records."""

    plain: float
    """Bytes of keys and values."""
    tables: float
    """Bytes of LevelDB's tables at rest."""

    def less(self, other: Sizes) -> Sizes:
        return Sizes(self.plain - other.plain, self.tables - other.tables)

    def of_each(self, count: int, beside: int = 0) -> Sizes:
        """Return the bytes of one of `count` records, without `beside` bytes that are counted elsewhere."""
        return Sizes(self.plain / count - beside, self.tables / count - beside)


class Row(NamedTuple):
    """A line of the table of bytes."""

    what: str
    sizes: Sizes
    most: int
    """Maximum bytes allowed; 0: no maximum."""


def at_rest(path: Path, *families: bytes) -> Sizes:
    """Return the sizes of these families of a closed store, alone and compacted."""
    options, plain = DatabaseOptions(), 0
    with TemporaryDirectory(dir=path.parent) as alone:
        target = plyvel.DB(alone, create_if_missing=True, write_buffer_size=options.write_buffer_bytes,
                           bloom_filter_bits=options.bloom_bits, compression=options.compression)  # fmt: skip
        source = plyvel.DB(str(path))
        try:
            for family in families:
                for key, value in source.iterator(prefix=family):
                    plain += len(key) + len(value)
                    target.put(key, value)
            target.compact_range()
        finally:
            source.close()
            target.close()
        tables = sum(file.stat().st_size for file in Path(alone).glob("*.ldb"))
    return Sizes(plain, tables)


def names(count: int) -> list[str]:
    """Return client ids of 23 bytes, the longest that every server must accept [MQTT-3.1.3-5]."""
    return [f"sensor-{number:016x}" for number in range(count)]


def of_sessions(path: Path, count: int) -> list[Row]:
    """Measure offline sessions with a subscription each, and their messages in flight."""
    worker = Worker(path)
    peers = worker.connect(names(count))
    worker.subscribe(peers, FILTER, 1)
    worker.leave(peers)
    worker.close()
    cursors = at_rest(path, schema.WINDOW).of_each(count)
    rows = [
        Row("session, with its cursor", at_rest(path, schema.SESSION, schema.WINDOW).of_each(count), 1000),
        Row("its cursor alone: where it is in the log", cursors, 40),
        Row("subscription", at_rest(path, schema.SUBSCRIPTION).of_each(count), 150),
    ]
    for qos in (1, 2):
        busy = path.with_name(f"{path.name}-busy{qos}")
        worker = Worker(busy)
        peers = worker.connect(names(count // 10))
        worker.subscribe(peers, FILTER, qos)
        [publisher] = worker.connect(["publisher"])
        worker.publish(publisher, IN_FLIGHT, 10, qos)
        worker.close()
        windows = at_rest(busy, schema.WINDOW).of_each(len(peers)).less(cursors).of_each(IN_FLIGHT)
        rows.append(Row(f"in flight at QoS {qos}, each message", windows, 30))
    return rows


def of_messages(path: Path, count: int) -> list[Row]:
    """Measure queued messages, without their payloads."""
    rows = []
    for sessions, each_tick in ((1, 1), (1, 10), (1, 100), (1000, 10)):
        here = path.with_name(f"{path.name}-{sessions}-{each_tick}")
        worker = Worker(here)
        peers = worker.connect(names(sessions))
        worker.subscribe(peers, FILTER, 1)
        worker.leave(peers)
        [publisher] = worker.connect(["publisher-0123456789012"])
        worker.publish(publisher, count, each_tick)
        worker.close()
        log = at_rest(here, schema.BLOCK, schema.PART, schema.NAME).of_each(count, PAYLOAD_BYTES)
        waiting = "one session" if sessions == 1 else f"{sessions:,} sessions with one filter"
        rows.append(Row(f"queued message for {waiting}, {each_tick} in a tick, beside its payload", log, 60))
    return rows


def of_copies(path: Path, count: int) -> list[Row]:
    """Measure messages stored for one session, and retained ones, without their payloads."""
    worker = Worker(path)
    [member, publisher] = worker.connect(["member-0123456789012345", "publisher-0123456789012"])
    worker.subscribe([member], f"$share/group/{FILTER}", 1)
    worker.leave([member])
    worker.publish(publisher, count, 10)
    for number in range(count):
        topic = f"{TOPIC[:-5]}{number:05}"
        publisher.send(wire.publish(4, topic, os.urandom(PAYLOAD_BYTES), qos=1, packet_id=1 + number, retain=True))
        worker.host.turn()
    worker.settle()
    worker.close()
    shares = at_rest(path, schema.QUEUED).of_each(2 * count, PAYLOAD_BYTES)  # the session got the retained ones as well
    retained = at_rest(path, schema.RETAINED).of_each(count, PAYLOAD_BYTES)
    return [
        Row("message of one session alone (share of a group), beside its payload", shares, 0),
        Row("retained message, beside its payload", retained, 0),
    ]


def given(path: Path, sessions: int, count: int) -> int:
    """Return the bytes given to LevelDB for this number of messages to offline sessions with one filter."""
    worker = Worker(path)
    peers = worker.connect(names(sessions))
    worker.subscribe(peers, FILTER, 1)
    worker.leave(peers)
    [publisher] = worker.connect(["publisher"])
    worker.host.pass_time(_LAG_SECONDS)
    worker.settle()
    meter = Meter(worker)
    worker.publish(publisher, count, 10)
    return meter.read("", count, 1.0).given


Measure = Callable[[Path, int], list[Row]]


def bytes_table(rows: Iterable[Row]) -> list[str]:
    lines = ["| each | at rest | keys and values | at most |", "|---|---:|---:|---:|"]
    for row in rows:
        most = f"{row.most:,} B" if row.most else ""
        lines.append(f"| {row.what} | {row.sizes.tables:,.1f} B | {row.sizes.plain:,.1f} B | {most} |")
    return lines


# ---------------------------------------------------------------- writing


class Written(NamedTuple):
    """The costs of some seconds of traffic."""

    what: str
    messages: int
    seconds: float
    given: int
    """Bytes of the batches given to LevelDB."""
    log_bytes: int
    """Bytes that the writer's thread wrote into files: LevelDB's log."""
    table_bytes: int
    """Bytes that LevelDB's own threads wrote: tables."""
    writer_seconds: float
    """CPU time of the writer's thread."""
    compaction_seconds: float
    """CPU time of LevelDB's own threads."""
    commits: int


class Traffic:
    """Publishers at a rate, and subscribers that answer at once; packets are inspected only as far as that requires."""

    def __init__(self, worker: Worker, qos: int) -> None:
        self.worker = worker
        self.sent = 0
        self.publishers = worker.connect(f"publisher-{number:013}" for number in range(PUBLISHERS))
        self._qos = qos
        self._bodies = [os.urandom(PAYLOAD_BYTES) for _ in range(1000)]

    def send(self, count: int) -> None:
        """Send this number of messages, from all publishers in turn."""
        parts: list[list[bytes]] = [[] for _ in self.publishers]
        for _ in range(count):
            at = self.sent % PUBLISHERS
            body = self._bodies[self.sent % len(self._bodies)]
            packet_id = self.publishers[at].packet_id()
            parts[at].append(wire.publish(4, TOPIC, body, qos=self._qos, packet_id=packet_id))
            self.sent += 1
        for publisher, packets in zip(self.publishers, parts, strict=True):
            if packets:
                publisher.send(*packets)

    def answer(self, peers: Iterable[Peer]) -> None:
        """Acknowledge everything that the clients have received, and finish the handshakes."""
        for peer in peers:
            while peer.packets:
                packet = peer.packets.popleft()
                if packet.kind == "PUBLISH":
                    peer.ack("PUBACK" if packet.qos == 1 else "PUBREC", packet.packet_id)
                elif packet.kind == "PUBREC":
                    peer.ack("PUBREL", packet.packet_id)
                elif packet.kind == "PUBREL":
                    peer.ack("PUBCOMP", packet.packet_id)


def written(path: Path, what: str, qos: int, is_online: bool, rate: int, seconds: float) -> Written:
    """Measure traffic for a number of seconds."""
    worker = Worker(path, fsync=True)
    [subscriber] = worker.connect(["subscriber-012345678901"])
    worker.subscribe([subscriber], FILTER, qos)
    if not is_online:
        worker.leave([subscriber])
    traffic = Traffic(worker, qos)
    everybody = [*traffic.publishers, *([subscriber] if is_online else [])]
    for each in everybody:
        each.packets.clear()
    meter = Meter(worker)
    host, began = worker.host, time.monotonic()
    first_ms = host.now_ms
    while (passed := time.monotonic() - began) < seconds:
        traffic.send(min(int(passed * rate) - traffic.sent, rate // 10))
        host.now_ms = first_ms + int(passed * 1000)
        host.node.router.state.set_time(host.now_ms)
        host.node.timers.advance(host.now_ms)
        host.turn()
        traffic.answer(everybody)
        select.select([worker.store], [], [], TICK_SECONDS)
    traffic.send(int(seconds * rate) - traffic.sent)  # the rest, if the machine was busy
    worker.settle()
    return meter.read(what, traffic.sent, time.monotonic() - began)


class Meter:
    """Counts the work of a worker's store threads from its creation."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._writer = worker.store._writer
        self._database = worker.store._database
        self._given = 0
        self._write = self._database.write
        self._database.write = self._counting  # type: ignore[method-assign]
        self._began = self._now()

    def _counting(self, batches: list[plyvel.WriteBatch], fsync: bool) -> None:
        self._given += sum(batch.approximate_size() for batch in batches)
        self._write(batches, fsync)

    def _now(self) -> tuple[int, int, int, float, float]:
        # bytes given, bytes written by the writer, by all threads; CPU time of the writer, of all threads but this one
        thread = self._writer._thread
        assert thread.ident is not None
        by_writer = written_bytes(Path(f"/proc/self/task/{thread.native_id}/io"))
        writer = time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
        return self._given, by_writer, written_bytes(OWN_IO), writer, time.process_time() - time.thread_time()

    def read(self, what: str, messages: int, seconds: float) -> Written:
        """Return the counts until now, with the work that LevelDB had begun; the worker is closed."""
        commits = self._writer.commits
        given, log_bytes, _, writer, _ = self._now()
        given, log_bytes, writer = given - self._began[0], log_bytes - self._began[1], writer - self._began[3]
        self._worker.close()
        everything = written_bytes(OWN_IO) - self._began[2]
        compaction = time.process_time() - time.thread_time() - self._began[4] - writer
        return Written(what, messages, seconds, given, log_bytes, everything - log_bytes, writer, compaction, commits)


OWN_IO = Path("/proc/self/io")


def written_bytes(io: Path) -> int:
    """Return the bytes that a process or thread has passed to write calls."""
    words = io.read_text().split()
    return int(words[words.index("wchar:") + 1])


def writing_table(rows: Iterable[Written]) -> list[str]:
    lines = [
        "| traffic | messages/s | given to LevelDB | its log | its tables | write amplification | "
        "CPU: writer | LevelDB's threads | messages each commit |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        given, log, tables = (each / row.messages for each in (row.given, row.log_bytes, row.table_bytes))
        cells = [
            row.what,
            f"{row.messages / row.seconds:,.0f}",
            *(f"{each:,.0f} B" for each in (given, log, tables)),
            f"{(row.log_bytes + row.table_bytes) / row.given:.2f}",
            *(f"{100 * each / row.seconds:.1f} %" for each in (row.writer_seconds, row.compaction_seconds)),
            f"{row.messages / row.commits:.0f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


# ---------------------------------------------------------------- the document


def document(sizes: Sequence[Row], writing: Sequence[Written], command: str) -> str:
    """Return the text between the marks."""
    parts = [
        f"Machine: {machine()}; {time.strftime('%Y-%m-%d')}, commit {commit()}.", "", f"    {command}", "",
        *bytes_table(sizes), "", *writing_table(writing),
    ]  # fmt: skip
    return "\n".join(parts)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; --write puts the result into the document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20_000, help="things of each kind (default: 20,000)")
    parser.add_argument("--rate", type=int, default=10_000, help="messages per second (default: 10,000)")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each traffic (default: 60)")
    parser.add_argument("--directory", help="where the stores are made (default: build)")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/store.md")
    options = parser.parse_args(arguments)
    base = Path(options.directory or ROOT / "build")
    base.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=base, prefix="on-disk-") as name:
        here = Path(name)
        sizes = [
            *of_sessions(here / "sessions", options.count),
            *of_messages(here / "messages", options.count),
            *of_copies(here / "copies", options.count // 10),
        ]
        print("\n".join(bytes_table(sizes)), flush=True)
        writing = []
        for what, qos, is_online in TRAFFIC:
            writing.append(written(here / f"{qos}-{is_online}", what, qos, is_online, options.rate, options.seconds))
            print("\n".join(writing_table(writing[-1:])[0 if len(writing) == 1 else 2 :]), flush=True)
    if options.write:
        rest = [f"--{name} {getattr(options, name)}" for name in ("count", "rate", "seconds")
                if getattr(options, name) != parser.get_default(name)]  # fmt: skip
        write(DOCUMENT, document(sizes, writing, " ".join(["python -m tests.benchmarks.on_disk", *rest])), BEGIN)
    return 0


TRAFFIC = (
    ("QoS 1 to a session that is away", 1, False),
    ("QoS 1 to one that answers at once", 1, True),
    ("QoS 2 to one that answers at once", 2, True),
)

if __name__ == "__main__":
    raise SystemExit(main())
