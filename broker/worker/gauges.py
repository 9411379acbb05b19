"""Gauges of a worker's counter row, which are not counted where things happen: present amounts, and the counts of the
links and of the store.

Links and store count from zero in every incarnation; the row continues where the former incarnation ended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyx.core import counters as count

if TYPE_CHECKING:
    from broker.context.context import Context
    from broker.context.sessions import Sessions
    from broker.replay.replaying import Replaying

_TOTALS = len(count.LINK_TOTALS)


class Gauges:
    """The gauges of one node; its worker calls `update` every second, or the node itself where there is no worker."""

    def __init__(self, context: Context, sessions: Sessions, replaying: Replaying) -> None:
        self._context = context
        self._sessions = sessions
        self._replaying = replaying
        row = context.counters
        self._links = {peer: row.link(peer)[:_TOTALS] for peer in context.siblings}
        self._bytes_received = row.get(count.MESH_BYTES_RECEIVED)
        self._frames_refused = row.get(count.MESH_FRAMES_REFUSED)
        self._batches_behind = row.get(count.MESH_BATCHES_BEHIND)
        self._blocks_read = row.get(count.STORE_BLOCKS_READ)
        self._reads_shared = row.get(count.STORE_READS_SHARED)
        self._left_out = row.get(count.STORE_BLOCKS_LEFT_OUT)
        self._archived_bytes = row.get(count.ARCHIVED_BYTES)
        self._removed = row.get(count.ARCHIVE_REMOVED_MESSAGES), row.get(count.ARCHIVE_REMOVED_BYTES)

    def update(self, connections: int | None = None, frames_malformed: int = 0) -> None:
        """Write the gauges. `connections`: sockets of clients; `frames_malformed`: from siblings, since the start."""
        context, store = self._context, self._context.store
        row = context.counters
        subscriptions = context.router.state.subscriptions
        if connections is not None:
            row.set(count.CONNECTIONS, connections)
        row.set(count.SESSIONS, len(self._sessions))
        row.set(count.SUBSCRIPTIONS, subscriptions.count)
        row.set(count.SHARED_SUBSCRIPTIONS, subscriptions.shared)
        row.set(count.FILTERS, subscriptions.filters)
        row.set(count.REPLAYS, self._replaying.count)
        messages, size = store.held()
        row.set(count.LOG_MESSAGES, messages)
        row.set(count.LOG_BYTES, size)
        read, shared, left_out = store.reads()
        row.set(count.STORE_BLOCKS_READ, self._blocks_read + read)
        row.set(count.STORE_READS_SHARED, self._reads_shared + shared)
        row.set(count.STORE_BLOCKS_LEFT_OUT, self._left_out + left_out)
        archive = store.archive
        if archive is not None:
            messages, size = archive.removed
            row.set(count.ARCHIVE_BYTES, archive.held_bytes)
            row.set(count.ARCHIVED_BYTES, self._archived_bytes + archive.archiver.record_bytes)
            row.set(count.ARCHIVE_REMOVED_MESSAGES, self._removed[0] + messages)
            row.set(count.ARCHIVE_REMOVED_BYTES, self._removed[1] + size)
        if context.links:
            self._update_links(frames_malformed)

    def _update_links(self, frames_malformed: int) -> None:
        context = self._context
        row = context.counters
        now = context.router.state.now_ms / 1000
        received = self._bytes_received
        refused = self._frames_refused + frames_malformed
        behind = self._batches_behind
        for peer, link in context.links.items():
            if peer not in self._links:  # a rail, which has come since
                self._links[peer] = row.link(peer)[:_TOTALS]
            batches, messages, size, resent, dropped = self._links[peer]
            traffic = link.traffic
            row.set_link(
                peer,
                (
                    batches + traffic.batches_sent,
                    messages + traffic.messages_sent,
                    size + traffic.bytes_sent,
                    resent + traffic.resent,
                    dropped + traffic.volatile_dropped,
                    link.unacknowledged,
                    max(0, int(link.oldest_seconds(now) * 1000)),
                    link.outbox_bytes + link.handoff_bytes,
                ),
            )
            received += traffic.bytes_received
            refused += traffic.frames_refused
            behind += traffic.batches_behind
        row.set(count.MESH_BYTES_RECEIVED, received)
        row.set(count.MESH_FRAMES_REFUSED, refused)
        row.set(count.MESH_BATCHES_BEHIND, behind)
