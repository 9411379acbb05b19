"""The stores of N workers become those of M: `repartition` reads the old ones and writes new ones beside them.

Which worker has a session or a retained message depends on how many there are (`shards.placement`,
`pyx.core.placement`). So sessions go to their new homes with all that is theirs, retained messages to their new owners,
wills with their clients, and of each log what the sessions that leave it for one new worker have subscribed to.

    old worker 0   | 31 ....... 100 |           new worker 0   | its own 1 .. 70 | those of worker 2: 71 .. 110 |
    old worker 2   | 1 .. 20 | 51 .. 70 |                                            (111 .. are new messages)

A new log is made of *stretches*, one for each old worker that sends sessions there, its own first: the blocks that
somebody there still needs, one behind the other. Every position that a session names moves with the block it lies in,
and what lies in the stretches behind its own is a *hole* for it (family V), as if its queue had been full. So each
session reads what it would have read, in that order, and nothing else. A message that several old workers had stored
may stand in several stretches until their sessions have read it.

Hand-off logs are given out first: what old worker A kept for C is matched with the subscriptions of C, and stands
behind all else in C's stretch; what C has taken already is left out. Share groups: a member at C, else any other.
Links begin anew, without numbers, under a new epoch: hand-off logs and link positions are not carried over. Archives
are, as they are: `broker.repartition.archives`.

Why stretches, and what that costs: docs/adr/0020-stretches.md.
"""

from __future__ import annotations

import json
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import plyvel

from broker.persistence.record_checks import CHECKS
from broker.persistence.set_aside import UNREADABLE
from broker.repartition.archives import carry_archives
from broker.repartition.events import carry_events
from broker.repartition.filter_tree import FilterTree
from broker.repartition.new_store import Moved, NewStore, empty, opened
from broker.repartition.position_map import Log, Stretch, Wanted
from leveldb_store.contract import StoreError
from leveldb_store.engine.database import Database, told
from leveldb_store.format import schema, windows
from leveldb_store.format.queued_messages import message_of
from leveldb_store.format.replay_schema import split_replay
from leveldb_store.format.subscription_schema import decode_owed, decode_subscription, encode_subscription
from pyx.core.peer import sibling
from pyx.core.placement import group_number, owner
from pyx.protocol.topics import parse_share
from pyx.storage.stored import block_messages, part_before, part_ends, part_running
from shards.placement import home
from zmq_mesh.envelope import PUBLISHER, Entry, decode_entries

__all__ = ["Moved", "RepartitionError", "repartition"]

_BLOCK_MESSAGES: Final = 512  # of hand-off logs that become one block
_BLOCK_BYTES: Final = 1 << 20
_EVERY: Final = 1000  # records between two calls of `progress`
_SHARED: Final = b"$share/"
_PROPERTY_IDENTIFIER: Final = 0x0B  # Subscription Identifier [MQTT 5, 2.2.2.2]
_NO_WORKER: Final = 0xFF  # in the low byte of the numbers that are drawn here
_HIGHEST: Final = 2**64 - 1


class RepartitionError(Exception):
    """It cannot be done; the old stores are as they were. One line."""


class _Member(NamedTuple):
    source: int
    client_id: str
    options: int
    identifier: int


@dataclass
class _Taken:
    """What an old worker has taken of the stream of a sibling."""

    stream: int = 0
    number: int = 0
    """Of the last batch taken in whole."""
    entries: int = 0
    """Of the next one."""
    refused: set[tuple[int, int]] = field(default_factory=set)
    """(number, position) of entries that count as taken, and were refused."""

    def has(self, number: int, position: int) -> bool:
        return number <= self.number or (number == self.number + 1 and position < self.entries)


@dataclass(slots=True)
class _Source:
    """An old store."""

    index: int
    database: Database
    log: Log = field(default_factory=Log)
    expected: int = 0
    """Messages that hand-off logs have for it, at most."""
    target_of: dict[str, int] = field(default_factory=dict)
    """By client id: the new home of its session."""
    wanted: dict[int, dict[bytes, Wanted]] = field(default_factory=dict)
    """By new worker: indexes that sessions there read, and what of them."""
    filters: FilterTree = field(default_factory=FilterTree)
    """Those that somebody wants at QoS 1 or 2; if anything is expected."""
    members: dict[bytes, list[_Member]] = field(default_factory=dict)
    """By b"group/filter": likewise."""
    pages: dict[str, list[windows.Page]] = field(default_factory=dict)
    """By client id: the pages of its window."""
    unread: set[bytes] = field(default_factory=set)
    """Keys of records that nobody can read."""
    unread_sessions: set[str] = field(default_factory=set)
    """Client ids whose session nobody can read: what belongs to it is set aside with it."""
    taken: dict[int, _Taken] = field(default_factory=dict)
    """By sibling."""
    listed: dict[int, list[tuple[NewStore, bytes, Wanted]]] = field(default_factory=dict)
    """By number of an index: who wants it, its name, what of it."""
    listing: dict[int, array[int]] = field(default_factory=dict)
    """By new worker: how many indexes there will list each block."""
    waiting: dict[int, set[int]] = field(default_factory=dict)
    """By number of a message that has a record of its own: the new workers where it is queued."""

    def waits_there(self, target: int, queued: bytes) -> None:
        """A queued message goes to this new worker, and so does its message."""
        number = message_of(queued)
        if number is not None:
            self.waiting.setdefault(number, set()).add(target)


def repartition(
    old: Sequence[Path],
    new: Sequence[Path],
    old_epoch: str,
    epoch: str,
    progress: Callable[[int], None] = lambda _: None,
    say: Callable[[str], None] = lambda _: None,
    strict: bool = False,
) -> Moved:
    """Make the stores `new`, in empty directories, of what is in `old`: a path for each worker. All of it is on the
    disk when this returns. `progress` is told how many records were handled; `say` is given lines about damage. What
    cannot be read is set aside in a new store, and an old one that shows to be damaged is repaired, unless `strict`.

    Raises RepartitionError.
    """
    repair: dict[Path, str] = {}
    while True:
        work = _Repartition(old_epoch, len(old), epoch, len(new), progress, say, strict)
        with ExitStack() as stack:
            try:
                for index, path in enumerate(old):
                    work.sources.append(_Source(index, opened(path, say, strict, repair.get(path))))
                    stack.callback(work.sources[-1].database.close)
                for index, path in enumerate(new):
                    work.targets.append(NewStore(index, path, work.moved))
                    stack.callback(work.targets[-1].database.close)
                work.run()
            except StoreError as error:
                raise RepartitionError(str(error)) from None
            except plyvel.CorruptionError as error:
                if strict or repair or not (repair := work.damaged()):
                    raise RepartitionError(f"{work.where}: {told(error)}") from None
            except (plyvel.Error, *UNREADABLE) as error:
                raise RepartitionError(f"{work.where}: {told(error)}") from None
            except OSError as error:
                raise RepartitionError(f"{error.filename or new[0].parent}: {error.strerror or error}") from None
            else:
                return work.moved
        for path in new:  # once more, with what the repair leaves
            empty(path)


class _Repartition:
    def __init__(
        self,
        old_epoch: str,
        old_workers: int,
        epoch: str,
        workers: int,
        progress: Callable[[int], None],
        say: Callable[[str], None],
        strict: bool,
    ) -> None:
        self._is_strict = strict
        self.sources: list[_Source] = []
        self.targets: list[NewStore] = []
        self.moved = Moved()
        self.where = ""
        """The record in hand, for an error."""
        self._old_epoch = old_epoch
        self._old_workers = old_workers
        self._epoch = epoch
        self._workers = workers
        self._progress = progress
        self._say = say
        self._handled = 0
        self._retained: dict[bytes, schema.StoredMessage] = {}
        """What hand-off logs have for their owners; an empty payload: none is to be retained."""
        self._turn = 0
        self._number = 0

    def damaged(self) -> dict[Path, str]:
        """The old stores in which LevelDB cannot read something, and what it says."""
        found = {}
        for source in self.sources:
            try:
                for _ in source.database.scan(b""):
                    pass
            except plyvel.CorruptionError as error:
                found[source.database.path] = told(error)
        return found

    def run(self) -> None:
        """All of it."""
        for source in self.sources:
            self._identify(source)
            self._find_last(source)
            self._expect(source)
        for source in self.sources:
            self._survey(source)
            self._survey_log(source)
        self._lay_out()
        for source in self.sources:
            self._copy_log(source)
        for source in self.sources:
            if source.expected:
                _HandOff(self, source).run()
        for source in self.sources:
            self._copy_sessions(source)
            self._copy_replays(source)
            self._copy_windows(source)
            self._copy_queued(source)
            self._copy_wills(source)
            self._copy_retained(source)
            self._copy_set_aside(source)
            self._copy_messages(source)
        self._finish_retained()
        self.moved.archived = carry_archives(
            [source.database for source in self.sources],
            [target.put for target in self.targets],
            self._count,
            self._say,
        )
        events = [self.scan(source, schema.EVENT) for source in self.sources]
        self.moved.events = carry_events(events, [target.put for target in self.targets])
        for target in self.targets:
            target.finish(self._workers, self._epoch)

    def scan(self, source: _Source, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """A family of an old store."""
        for key, value in source.database.scan(prefix):
            self.where = f"the store {source.database.path}, record {key!r}"
            if self._is_record(source, key, value):
                yield key, value
            self._count(key)

    def _count(self, _key: bytes) -> None:
        self._handled += 1
        if self._handled % _EVERY == 0:
            self._progress(self._handled)

    def _is_record(self, source: _Source, key: bytes, value: bytes) -> bool:
        # else it is set aside, once, though it is met several times
        if key in source.unread:
            return False
        check = CHECKS.get(key[:1])
        try:
            if check is not None:
                check(key, value)
        except UNREADABLE as error:
            self._set_aside(source, key, value, error)
            return False
        return True

    def _set_aside(self, source: _Source, key: bytes, value: bytes, problem: object) -> None:
        if self._is_strict:
            raise RepartitionError(f"{self.where}: {problem}")
        self._say(f"{self.where}: cannot be read ({problem}): it is set aside")
        source.unread.add(key)
        client_id = key[1:].partition(b"\0")[0].decode(errors="replace")
        if key[:1] == schema.SESSION:
            source.unread_sessions.add(client_id)
        index = home(client_id, self._workers)
        self.targets[index].put(schema.set_aside_key(key), value)
        self.moved.set_aside += 1
        if key[:1] == schema.QUEUED:
            source.waits_there(index, value)

    def _target_of(self, source: _Source, client_id: str, key: bytes, value: bytes) -> int | None:
        # None: it has no session, and its record no place, but beside a session that was set aside
        index = source.target_of.get(client_id)
        if index is None and client_id in source.unread_sessions:
            self._set_aside(source, key, value, "its session cannot be read")
        return index

    # ------------------------------------------------------------ what there is

    def _identify(self, source: _Source) -> None:
        own = {"worker": source.index, "workers": self._old_workers, "epoch": self._old_epoch}
        for _, value in self.scan(source, schema.STORE):
            found = json.loads(value)
            if found != own:
                raise RepartitionError(f"the store of worker {source.index} says that it is another one: {found}")

    def _find_last(self, source: _Source) -> None:
        for _, value in self.scan(source, schema.POSITION):
            source.log.last = schema.decode_u64(value)
        for key, _ in self.scan(source, schema.COUNTERS):  # the new worker counts anew; here it is only looked at
            self._count(key)
        with source.database.db.iterator(prefix=schema.BLOCK, reverse=True, verify_checksums=True) as blocks:
            for key, block in blocks:
                self.where = f"the store {source.database.path}, record {key!r}"
                is_whole = self._is_record(source, key, block)
                behind = block_messages(block) if is_whole else 1
                source.log.last = max(source.log.last, schema.key_position(key) + behind - 1)
                if is_whole:
                    break

    def _expect(self, source: _Source) -> None:
        for key, value in self.scan(source, schema.PEER):
            if schema.is_refusals(key):  # behind the position of its peer
                at = schema.key_position(key)
                source.taken[schema.peer_of_key(key)].refused.update(
                    (at, position) for position, _ in schema.decode_refusals(value)
                )
                continue
            found = schema.decode_peer(value)
            refused = {(at, position) for at, position, _ in found.inside}
            refused.update((found.number + 1, position) for position, _ in found.refused)
            source.taken[schema.peer_of_key(key)] = _Taken(found.stream, found.number, found.taken, refused)
        for key, value in self.scan(source, schema.HANDOFF):
            peer = schema.peer_of_key(key)
            if schema.key_position(key) and peer < len(self.sources):
                entries, part, payloads = schema.decode_handoff(value)
                many = entries if entries >= 0 else sum(1 for _ in decode_entries(part, payloads))
                self.sources[peer].expected += many

    def _survey(self, source: _Source) -> None:
        for key, _ in self.scan(source, schema.SESSION):
            client_id = key[1:].decode()
            source.target_of[client_id] = home(client_id, self._workers)
        for key, value in self.scan(source, schema.WINDOW_PAGE):
            source.pages.setdefault(windows.split_page(key)[0], []).append((key, value))
        cursors: dict[str, tuple[int, int, list[tuple[int, int]]]] = {}
        for key, value in self.scan(source, schema.WINDOW):
            client_id = key[1:].decode()
            window = windows.decode_window(value, source.pages.get(client_id, ()))
            source.log.last = max(source.log.last, window.cursor)
            in_flight = (at for _, flags, _, at in window.out if at and not flags & schema.OWN_RECORD)
            cursors[client_id] = window.cursor, min(in_flight, default=_HIGHEST), window.holes
        for key, value in self.scan(source, schema.SUBSCRIPTION):
            client_id, named = schema.split_subscription(key)
            target = source.target_of.get(client_id)
            if target is None:
                continue
            options, identifier, since, formers = decode_subscription(value)
            source.log.last = max(source.log.last, since)
            if named.startswith(_SHARED):
                share = parse_share(named)
                if share is None:
                    raise schema.SchemaError("no Topic Filter")
                member = _Member(source.index, client_id, options, identifier)
                source.members.setdefault(b"/".join(share), []).append(member)
                continue
            if formers:
                since = formers[0][1]
            if source.expected and options & schema.QOS:
                source.filters.add(named)
            cursor, in_flight_at, holes = cursors.get(client_id, (0, _HIGHEST, []))
            wanted = source.wanted.setdefault(target, {}).setdefault(named, Wanted())
            wanted.add(min(max(cursor, since), in_flight_at - 1), holes)

    def _lay_out(self) -> None:
        for target in self.targets:
            senders = {source.index for source in self.sources if target.index in source.target_of.values()}
            own_first = sorted(self.sources, key=lambda source: (source.index != target.index, source.index))
            for source in own_first:
                if source.index not in senders:
                    continue
                stretch = Stretch(source.log, source.listing.get(target.index), source.expected, target.end)
                target.stretches[source.index] = stretch
                target.end = stretch.end

    # ------------------------------------------------------------ the log

    def _survey_log(self, source: _Source) -> None:
        # which blocks go where: parts of indexes say it, and a part has to say how many list its block
        for key, value in self.scan(source, schema.NAME):
            name = key[1:]
            wanting = [
                (self.targets[index], name, wanted[name]) for index, wanted in source.wanted.items() if name in wanted
            ]
            if wanting:
                source.listed[schema.decode_u32(value)] = wanting
        for key, value in self.scan(source, schema.BLOCK):
            source.log.add(schema.key_position(key), schema.BLOCK_HEAD.unpack_from(value)[1])
        source.listing = {index: array("I", bytes(4 * len(source.log.firsts))) for index in source.wanted}
        for _, _, at, _, readers in self._parts(source):
            for target, _ in readers:
                source.listing[target.index][at] += 1

    def _copy_log(self, source: _Source) -> None:
        for first, value, at, behind_block, readers in self._parts(source):
            size = part_running(value, first, _HIGHEST)[1] - part_before(value)[1]
            for target, name in readers:
                placed = target.stretches[source.index].place(first)
                indexes = source.listing[target.index][at]
                target.put_part(name, placed, behind_block, indexes, value[schema.PART_HEAD.size :], size)
        for at, (key, value) in enumerate(self.scan(source, schema.BLOCK)):
            for index, listing in source.listing.items():
                if listing[at]:
                    target = self.targets[index]
                    placed = target.stretches[source.index].place(schema.key_position(key))
                    target.put(schema.block_key(placed), value)
                    self.moved.blocks += 1

    def _parts(self, source: _Source) -> Iterator[tuple[int, bytes, int, int, list[tuple[NewStore, bytes]]]]:
        # (first position, value, which block, how far behind its beginning, who reads it) of each part that is wanted
        for key, value in self.scan(source, schema.PART):
            first = schema.key_position(key)
            end, block, _ = part_ends(value, first)
            listed = source.listed.get(schema.key_number(key), ())
            wanting = [(target, name) for target, name, wanted in listed if wanted.overlaps(first, end)]
            at = source.log.at(block) if wanting else None
            if at is not None:
                yield first, value, at, first - block, wanting

    # ------------------------------------------------------------ sessions, wills, retained messages

    def _copy_sessions(self, source: _Source) -> None:
        for key, value in self.scan(source, schema.SESSION):
            self.targets[source.target_of[key[1:].decode()]].put(key, value)
            self.moved.sessions += 1
        for key, value in self.scan(source, schema.SUBSCRIPTION):
            client_id, named = schema.split_subscription(key)
            index = self._target_of(source, client_id, key, value)
            if index is None:
                continue
            options, identifier, since, formers = decode_subscription(value)
            target = self.targets[index]
            if not named.startswith(_SHARED):
                place = target.stretches[source.index].place
                since, formers = place(since), [(was, place(begin), place(end)) for was, begin, end in formers]
            owed = [topic for _, topic in decode_owed(value)]
            if owed:  # topics have other owners now: from the first one that was not given, some a second time
                owed = [min(owed, key=lambda topic: topic.split(b"/"))] * self._workers
            target.put(key, encode_subscription(options, identifier, since, formers, list(enumerate(owed))))
            self.moved.subscriptions += 1

    def _copy_replays(self, source: _Source) -> None:
        # positions are message numbers: they are the same for every number of workers
        for key, value in self.scan(source, schema.REPLAY):
            index = self._target_of(source, split_replay(key)[0], key, value)
            if index is not None:
                self.targets[index].put(key, value)
                self.moved.subscriptions += 1

    def _copy_windows(self, source: _Source) -> None:
        left = dict(source.target_of)
        for key, value in self.scan(source, schema.WINDOW):
            client_id = key[1:].decode()
            left.pop(client_id, None)
            index = self._target_of(source, client_id, key, value)
            if index is not None:
                window = windows.decode_window(value, source.pages.get(client_id, ()))
                self._put_window(source, self.targets[index], key, window)
        for key, value in self.scan(source, schema.WINDOW_PAGE):
            self._target_of(source, windows.split_page(key)[0], key, value)
        # of a session without one nothing was sent: what lies before its stretch was not for it either
        for client_id, index in left.items():
            self._put_window(source, self.targets[index], schema.window_key(client_id), windows.NEVER_SENT)

    def _put_window(self, source: _Source, target: NewStore, key: bytes, window: windows.Window) -> None:
        stretch = target.stretches[source.index]
        place, end = stretch.place, stretch.end
        out = [
            (packet_id, flags, state, at if flags & schema.OWN_RECORD else stretch.place_of_message(at))
            for packet_id, flags, state, at in window.out
        ]
        holes = [(place(behind), min(place(up_to), end)) for behind, up_to in window.holes]
        holes = [(behind, up_to) for behind, up_to in holes if behind < up_to]
        if end < target.end:
            holes.append((end, target.end))
        absences = [(place(behind), place(up_to)) for behind, up_to in window.absences]
        window = window._replace(out=out, cursor=place(window.cursor), holes=holes, absences=absences)
        target.put(key, windows.encode_window(window))

    def _copy_queued(self, source: _Source) -> None:
        for key, value in self.scan(source, schema.QUEUED):
            index = self._target_of(source, schema.split_queued(key)[0], key, value)
            if index is not None:
                self.targets[index].put(key, value)
                self.moved.queued += 1
                source.waits_there(index, value)

    def _copy_set_aside(self, source: _Source) -> None:
        index = source.index % self._workers
        for key, value in self.scan(source, schema.SET_ASIDE):
            self.targets[index].put(key, value)
            self.moved.set_aside += 1
            if key.startswith(schema.SET_ASIDE + schema.QUEUED):
                source.waits_there(index, value)

    def _copy_messages(self, source: _Source) -> None:
        for key, value in self.scan(source, schema.MESSAGE):
            for index in source.waiting.get(schema.key_position(key), ()):
                self.targets[index].put(key, value)

    def _copy_wills(self, source: _Source) -> None:
        for key, value in self.scan(source, schema.WILL):
            self.targets[home(key[1:].decode(), self._workers)].put(key, value)
            self.moved.wills += 1

    def _copy_retained(self, source: _Source) -> None:
        for key, value in self.scan(source, schema.RETAINED):
            topic = key[1:]
            message, _ = schema.decode_message(value)
            newer = self._retained.get(topic)
            if newer is not None and newer.number >= message.number:
                continue
            self._retained.pop(topic, None)
            self.targets[owner(topic, self._workers)].put(key, value)
            self.moved.retained += 1

    def _finish_retained(self) -> None:
        for topic, message in self._retained.items():
            if message.payload:
                target = self.targets[owner(topic, self._workers)]
                target.put(schema.retained_key(topic), schema.encode_message(message))
                self.moved.retained += 1

    def retain(self, message: schema.StoredMessage) -> None:
        """A hand-off log has it for the owner of its topic."""
        known = self._retained.get(message.topic)
        if known is None or known.number < message.number:
            self._retained[message.topic] = message

    # ------------------------------------------------------------ share groups

    def share(self, label: bytes, message: schema.StoredMessage, source: _Source) -> bool:
        """Queue it for a member of the group, of this old worker if there is one. False: nobody takes it."""
        everywhere = (other.members.get(label, ()) for other in self.sources if other is not source)
        for members in (source.members.get(label, ()), *everywhere):
            able = [member for member in members if member.options & schema.QOS]
            if able:
                self._turn += 1
                self._queue(able[self._turn % len(able)], label, message)
                return True
        return False

    def _queue(self, member: _Member, label: bytes, message: schema.StoredMessage) -> None:
        flags = min(member.options & schema.QOS, message.qos) | schema.SHARED_COPY
        if message.retain and member.options & 8:  # Retain As Published
            flags |= schema.RETAIN
        identifiers = b""
        if member.identifier:
            identifiers = bytes((_PROPERTY_IDENTIFIER,)) + _varint(member.identifier)
        queued = schema.StoredQueued(flags, group_number(label), identifiers, message)
        self._number = max(self._number + 1, time.time_ns() // 1000)
        key = schema.queued_key(member.client_id, self._number << 8 | _NO_WORKER)
        target = self.sources[member.source].target_of[member.client_id]
        self.targets[target].put(key, schema.encode_queued(queued))
        self.moved.queued += 1


class _HandOff:
    """What the hand-off logs have for one old worker."""

    def __init__(self, work: _Repartition, source: _Source) -> None:
        self._work = work
        self._source = source
        self._position = source.log.last
        self._messages: list[schema.StoredMessage] = []
        self._names: list[list[bytes]] = []
        self._bytes = 0

    def run(self) -> None:
        """Give all of it to its sessions."""
        for other in self._work.sources:
            self._from(other)
        self._put_block()

    def _from(self, other: _Source) -> None:
        taken = self._source.taken.get(other.index, _Taken())
        for key, value in self._work.scan(other, schema.handoff_prefix(sibling(self._source.index))):
            sequence = schema.key_position(key)
            if sequence == 0:
                if schema.decode_handoff_head(value)[0] != taken.stream:
                    taken = _Taken()
                continue
            _, part, payloads = schema.decode_handoff(value)
            publisher: str | None = None
            for position, entry in enumerate(decode_entries(part, payloads)):
                if entry.control:
                    if entry.topic == PUBLISHER:
                        publisher = entry.payload.decode("utf-8", "surrogatepass")
                    continue
                if not taken.has(sequence, position):
                    self._take(entry, publisher)
                elif (sequence, position) in taken.refused:
                    self._share(entry)
                publisher = None

    def _take(self, entry: Entry, publisher: str | None) -> None:
        source, work = self._source, self._work
        message = _message(entry, publisher)
        is_first = not (entry.shared is not None and entry.retained_only)  # else another entry has brought it
        if entry.retain and is_first and owner(entry.topic, len(work.sources)) == source.index:
            work.retain(message)
        if not entry.retained_only and entry.qos:
            names = source.filters.match(entry.topic)
            if names:
                self._append(message, names)
        self._share(entry)

    def _share(self, entry: Entry) -> None:
        if entry.shared is not None and entry.qos and self._work.share(entry.shared, _message(entry), self._source):
            self._work.moved.handed_on += 1

    def _append(self, message: schema.StoredMessage, names: list[bytes]) -> None:
        self._messages.append(message)
        self._names.append(names)
        self._bytes += message.content_bytes
        self._work.moved.handed_on += 1
        if len(self._messages) == _BLOCK_MESSAGES or self._bytes >= _BLOCK_BYTES:
            self._put_block()

    def _put_block(self) -> None:
        if not self._messages:
            return
        first, block = self._position + 1, schema.encode_block(self._messages)
        listed: dict[bytes, list[int]] = {}
        for at, names in enumerate(self._names):
            for name in names:
                listed.setdefault(name, []).append(at)
        for index, wanted in self._source.wanted.items():
            target = self._work.targets[index]
            lists = [(name, places) for name, places in listed.items() if name in wanted]
            start = target.stretches[self._source.index].place(first)
            for name, places in lists:
                sizes = [self._messages[at].content_bytes for at in places]
                entries = zip((at - places[0] for at in places), sizes, strict=True)
                packed = b"".join(schema.PART_ENTRY.pack(*entry) for entry in entries)
                target.put_part(name, start + places[0], places[0], len(lists), packed, sum(sizes))
            if lists:
                target.put(schema.block_key(start), block)
                self._work.moved.blocks += 1
        self._position += len(self._messages)
        self._messages, self._names, self._bytes = [], [], 0


def _message(entry: Entry, publisher: str | None = None) -> schema.StoredMessage:
    return schema.StoredMessage(
        entry.topic, entry.payload, entry.number, entry.qos, entry.retain, entry.properties, entry.expires, publisher
    )


def _varint(value: int) -> bytes:
    """A Variable Byte Integer [MQTT 5, 1.5.5]."""
    digits = bytearray()
    while True:
        value, digit = value >> 7, value & 0x7F
        digits.append(digit | (0x80 if value else 0))
        if not value:
            return bytes(digits)
