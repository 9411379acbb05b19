"""Survey of the old stores: finds what they have and where it goes, before any log is written to a new store."""

from __future__ import annotations

import json
from typing import Final

from broker.repartition.old_store import SHARED, OldMember, OldStore, OldStores, RepartitionError, TakenUpTo
from broker.repartition.position_map import Needed
from leveldb_store.format import link_schema, schema, windows
from leveldb_store.format.subscription_schema import decode_subscription
from pyx.protocol.topics import parse_share
from pyx.storage.stored import block_messages
from shards.placement import home
from zmq_mesh.envelope import decode_entries

__all__ = ["Survey"]

_HIGHEST: Final = 2**64 - 1


class Survey:
    """The survey of the old stores of this epoch, for a new number of workers."""

    def __init__(self, old: OldStores, epoch: str, workers: int) -> None:
        self._old = old
        self._epoch = epoch
        self._workers = workers

    def begin(self) -> None:
        """Check that each store is the expected one; find the end of its log and what hand-off logs have for it. Raises
        RepartitionError.
        """
        for source in self._old.stores:
            self._identify(source)
            self._find_last(source)
            self._expect(source)

    def _identify(self, source: OldStore) -> None:
        own = {"worker": source.index, "workers": len(self._old.stores), "epoch": self._epoch}
        for _, value in self._old.scan(source, schema.STORE):
            found = json.loads(value)
            if found != own:
                raise RepartitionError(f"the store of worker {source.index} says that it is another one: {found}")

    def _find_last(self, source: OldStore) -> None:
        for _, value in self._old.scan(source, schema.POSITION):
            source.log.last = schema.decode_u64(value)
        for key, _ in self._old.scan(source, schema.COUNTERS):  # only checked: the new worker counts anew
            self._old.count(key)
        with source.database.db.iterator(prefix=schema.BLOCK, reverse=True, verify_checksums=True) as blocks:
            for key, block in blocks:
                self._old.where = f"the store {source.database.path}, record {key!r}"
                is_whole = self._old.is_record(source, key, block)
                behind = block_messages(block) if is_whole else 1
                source.log.last = max(source.log.last, schema.key_position(key) + behind - 1)
                if is_whole:
                    break

    def _expect(self, source: OldStore) -> None:
        for key, value in self._old.scan(source, schema.PEER):
            if schema.is_refusals(key):  # follows the position of its peer
                at = schema.key_position(key)
                source.taken[schema.peer_of_key(key)].refused.update(
                    (at, position) for position, _ in link_schema.decode_refusals(value)
                )
                continue
            found = link_schema.decode_peer(value)
            refused = {(at, position) for at, position, _ in found.inside}
            refused.update((found.number + 1, position) for position, _ in found.refused)
            source.taken[schema.peer_of_key(key)] = TakenUpTo(found.stream, found.number, found.taken, refused)
        for key, value in self._old.scan(source, schema.HANDOFF):
            peer = schema.peer_of_key(key)
            if schema.key_position(key) and peer < len(self._old.stores):
                entries, part, payloads = link_schema.decode_handoff(value)
                many = entries if entries >= 0 else sum(1 for _ in decode_entries(part, payloads))
                self._old.stores[peer].expected += many

    def of(self, source: OldStore) -> None:
        """Find its sessions, their new homes, and the parts of its log that they need."""
        for key, _ in self._old.scan(source, schema.SESSION):
            client_id = key[1:].decode()
            source.target_of[client_id] = home(client_id, self._workers)
        for key, value in self._old.scan(source, schema.WINDOW_PAGE):
            source.pages.setdefault(windows.split_page(key)[0], []).append((key, value))
        cursors: dict[str, tuple[int, int, list[tuple[int, int]]]] = {}
        for key, value in self._old.scan(source, schema.WINDOW):
            client_id = key[1:].decode()
            window = windows.decode_window(value, source.pages.get(client_id, ()))
            source.log.last = max(source.log.last, window.cursor)
            in_flight = (at for _, flags, _, at in window.out if at and not flags & schema.OWN_RECORD)
            cursors[client_id] = window.cursor, min(in_flight, default=_HIGHEST), window.holes
        for key, value in self._old.scan(source, schema.SUBSCRIPTION):
            client_id, named = schema.split_subscription(key)
            target = source.target_of.get(client_id)
            if target is None:
                continue
            options, identifier, since, formers = decode_subscription(value)
            source.log.last = max(source.log.last, since)
            if named.startswith(SHARED):
                share = parse_share(named)
                if share is None:
                    raise schema.SchemaError("no Topic Filter")
                member = OldMember(source.index, client_id, options, identifier)
                source.members.setdefault(b"/".join(share), []).append(member)
                continue
            if formers:
                since = formers[0][1]
            if source.expected and options & schema.QOS:
                source.filters.add(named)
            cursor, in_flight_at, holes = cursors.get(client_id, (0, _HIGHEST, []))
            wanted = source.wanted.setdefault(target, {}).setdefault(named, Needed())
            wanted.add(min(max(cursor, since), in_flight_at - 1), holes)
