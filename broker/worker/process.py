"""A worker: one event loop, its sockets, its clock, its mesh; `run` is what the supervisor forks into.

The tick: the reactor polls its sockets and ends each round with the router's end of tick
(`pyx.delivery.router.Router.finish_tick`), which commits, lets sessions read on, and calls `Peering.forward` when
siblings get something. What comes over the mesh is treated the same way: drained within a budget, routed, committed,
acknowledged.

When a batch leaves: at once when the mesh was quiet, else after up to mesh_coalesce_microseconds_max, by a timerfd
(the loop's own timers are too coarse): one message per wake-up makes three threads wake for each crossing, and
gathering pays.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import logging
import os
import signal
import struct
import sys
import time
import traceback
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvloop

from broker.auth.pool import HashPool
from broker.clients.closing import AT_ONCE
from broker.config.settings import ConfigError
from broker.logs import Log, StandardLibrary
from broker.persistence.handoff_log import kept_links
from broker.replay.scheduler import Scheduler
from broker.worker.background_thread import BackgroundThread
from broker.worker.core import Node
from broker.worker.starting import Starting
from leveldb_store.contract import DamagedStoreError, StoreError
from pyx.core import counters as count
from pyx.core import work
from pyx.core.allocator import trim_memory, tune_allocator
from pyx.core.peer import sibling
from pyx.core.work import STEP, callback, spend
from pyx.io.reactor import Reactor
from pyx.protocol.wire import refuse_disallowed
from shards import handoff, stacks
from shards.descriptors import left_for_connections
from shards.signals import ignore_with_a_line
from shards.worker_channel import WorkerChannel
from zmq_mesh.links import LinkLimits
from zmq_mesh.sockets import Mesh

if TYPE_CHECKING:
    from broker.config.settings import Settings
    from pyx.delivery.connection import Connection

__all__ = ["run"]

_TIMER_SECONDS = 0.1
_ALL_AT_ONCE = 1 << 62
"""ns: nobody is served any more between the ends of all connections."""
_REFUSED_AT_ONCE = 256
_TRIM_SECONDS_FIRST = 1.0  # recovery has used more than what it left
_TRIM_SECONDS = 10.0
_MEASURE_SECONDS = 1.0
_MEMORY_ROOM_AGAIN = 0.95  # of worker_memory_bytes_max: from there on all is as before
_NO_STORE = 1
_CLOSING = 3
_LAST_COMMIT_SECONDS = 1.0
_PAGE_BYTES = os.sysconf("SC_PAGESIZE")
_SPEC = struct.Struct("qqqq")
_libc = ctypes.CDLL(None, use_errno=True)
_TFD_NONBLOCK = 0o4000
_TFD_CLOEXEC = 0o2000000


def _anonymous_bytes() -> int:
    """Resident memory of this process that is no file's: its own, not the code it shares."""
    resident, shared = Path("/proc/self/statm").read_text().split()[1:3]
    return (int(resident) - int(shared)) * _PAGE_BYTES


def run(channel: WorkerChannel) -> int:
    """Serve until told to stop; returns the exit status."""
    uvloop.install()
    return asyncio.run(_serve(channel))


async def _serve(channel: WorkerChannel) -> int:
    try:
        worker = _recovered(channel)
    except StoreError as error:
        channel.failed(str(error))
        return _NO_STORE
    try:
        worker.start()
        return await worker.stopped
    finally:
        worker.close()


def _recovered(channel: WorkerChannel) -> Worker:
    """A worker with what its store has, which is repaired, once, if it shows to be damaged. Raises StoreError."""
    books = bytes(channel.row)
    try:
        return Worker(channel)
    except DamagedStoreError as error:
        channel.row[:] = books  # what half a recovery has counted is counted again
        return Worker(channel, repair=str(error))


class _Waiting:
    """A connection whose home did not take it yet."""

    __slots__ = ("conn", "deadline", "raw", "worker")

    def __init__(self, conn: Connection, worker: int, raw: bytes, deadline: float) -> None:
        self.conn = conn
        self.worker = worker
        self.raw = raw
        self.deadline = deadline


class Worker:
    """Sockets, time and mesh around one Node."""

    def __init__(self, channel: WorkerChannel, repair: str | None = None) -> None:
        """`repair`: why the store is to be repaired first. Raises StoreError."""
        settings: Settings = channel.settings
        self.channel = channel
        self.settings = settings
        self.loop = asyncio.get_running_loop()
        self.stopped: asyncio.Future[int] = self.loop.create_future()
        self.log = Log.of(settings).bind(worker=channel.index)
        logging.getLogger().handlers[:] = [StandardLibrary(self.log)]  # asyncio and uvloop speak there
        tune_allocator()
        self._starting = Starting(channel, self.log)
        self.store = self._starting.open_store(repair)
        now = time.monotonic()
        self.node = Node(
            channel.index,
            channel.workers,
            settings,
            self.store,
            self.log,
            int(now * 1000),
            int(now * 1000) + channel.clock.ahead_ms,
            channel.row,
            self._hand_over,
            channel.clock.cell,
        )
        self.node.counters.set(count.INCARNATION, channel.incarnation)
        self.node.recording.started()
        self.node.sys_topics.over([count.Row(row) for row in channel.rows], int(channel.began * 1000))
        self.reactor = Reactor(self.node.router, self.node.dispatch)
        self._tell_reactor()
        refuse_disallowed(settings.refuse_disallowed_characters)
        self.reactor.stays = True
        self.reactor.schedule = self._poll_soon
        self._polls_soon = False
        self.node.opened = self.reactor.start_keep_alive
        self.node.peers_changed = self._peers_changed
        self.hashes = HashPool(settings.limits.auth_threads_max)
        self.node.authenticating.submit = self.hashes.submit
        self.mesh: Mesh | None = None
        self._listening = False
        self._stopping = False
        self._waiting: list[_Waiting] = []
        self._trim_at = now + _TRIM_SECONDS_FIRST
        self._measure_at = now
        self._drain_soon = False
        self._over_bound: dict[str, tuple[int, str | None]] = {}
        # coalescing
        self._timerfd = -1
        self._armed = False
        self._sent_at = 0.0
        self._coalesce = settings.limits.mesh_coalesce_microseconds_max * 1e-6
        self._schedulers = (Scheduler(self.reactor, self.node.replaying), Scheduler(self.reactor, self.node.retaining))
        self._background = BackgroundThread(self.reactor, "archive-reader")
        try:
            recovered = self._starting.recover(self.node.recovery, self.node.set_aside, self.store)
        except StoreError:
            self.hashes.close()
            self.store.close()
            raise
        self.node.capacity.share(channel.rows)
        self._beginning = recovered.begin() if recovered is not None else iter(())

    # ------------------------------------------------------------ start and stop

    def start(self) -> None:
        """Watch everything; accept connections when every sibling was heard."""
        loop, channel = self.loop, self.channel
        loop.set_exception_handler(self._on_exception)
        self.reactor.watch(channel.control.fileno(), self._on_control)
        self.reactor.watch(self.hashes.fileno(), self._on_hashes)
        if self.store.fileno() >= 0:
            self.reactor.watch(self.store.fileno(), self._on_stored)
        if self.node.replaying.sources is not None:
            self._background.start()
            self.node.replaying.sources.background = self._background
        for each in self._schedulers:
            each.start()
        loop.add_signal_handler(signal.SIGTERM, self._on_sigterm)
        loop.add_signal_handler(signal.SIGINT, lambda: None)  # the supervisor decides
        ignore_with_a_line(loop, frozenset({stacks.SIGNAL}), self._on_other_signal)
        loop.add_reader(self.reactor.fileno(), self._poll)
        if channel.workers > 1:
            self._start_mesh()
        else:
            self._listen()
        self._on_timer()
        gc.collect()
        gc.freeze()

    @callback("stored")
    def _on_stored(self) -> None:
        """Something that was written is durable, or the disk is full or fails, or is well again."""
        self._starting.log_store()
        self.node.router.durable(self.store.collect())
        self.node.disk.look()
        self.reactor.finish()

    def _on_exception(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        # a defect of ours outside of one connection's packets: what is in memory cannot be trusted; the supervisor
        # starts anew
        error = context.get("exception")
        text = "".join(traceback.format_exception(error)) if error is not None else str(context.get("message"))
        self.log.error("worker_failed", traceback=text)
        self.channel.failed(f"internal error: {error!r}")
        os._exit(70)

    def _start_mesh(self) -> None:
        limits = self.settings.limits
        assert self.node.interest is not None
        self._timerfd = _libc.timerfd_create(1, _TFD_NONBLOCK | _TFD_CLOEXEC)
        if self._timerfd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self.reactor.watch(self._timerfd, self._on_timerfd)
        kept = kept_links(self.node.context, self.node.set_aside, self.node.peering)
        self.node.set_aside.tell()
        self.mesh = Mesh(
            self.node.context.own,
            self.node.siblings,
            self.channel.runtime_dir,
            self.channel.incarnation,
            self.node.interest,
            self.node.peering,
            LinkLimits(
                peer_outbox_bytes_max=limits.peer_outbox_bytes_max,
                handoff_log_bytes_max=limits.handoff_log_bytes_max,
                link_silence_seconds_max=limits.link_silence_seconds_max,
                peer_stall_seconds_max=limits.peer_stall_seconds_max,
            ),
            time.monotonic(),
            handoffs=kept.handoffs,
            received=kept.received,
            refusals=kept.refusals,
            drain_bytes_max=limits.tick_peer_bytes_max,
        )
        self.node.links = self.mesh.links
        self.mesh.is_busy = self.node.router.is_round_over
        self.mesh.is_full = self.node.peering.is_full
        self.node.router.forward_now = self._forward_soon
        self.node.flush_mesh = self._flush_mesh
        for fd in self.mesh.filenos():
            self.reactor.watch(fd, partial(self._on_mesh, fd))

    def _listen(self) -> None:
        if self._listening or self._stopping:
            return
        for _ in self._beginning:  # a step of it; the others in later turns of the loop
            self.reactor.finish()
            self.loop.call_soon(self._listen)
            return
        self._listening = True
        self.reactor.finish()
        for number, listener in enumerate(self.channel.listeners):
            for each in listener.sockets:
                self.reactor.listen(each.fileno(), number)
        # Not earlier: siblings hand over to a worker that starts, and it must not ack what nobody has heard.
        self.reactor.watch(self.channel.handoff_receive.fileno(), self._on_handoff)
        self.channel.ready()

    def _peers_changed(self) -> None:
        if self._waiting:
            self.loop.call_soon(self._retry_handoffs)
        if not self._listening and self.mesh is not None and all(link.ready for link in self.mesh.links.values()):
            self._listen()

    @callback("control")
    def _on_control(self) -> None:
        for message in self.channel.messages():
            event = message["event"]
            if event == "stop":
                self._stop(float(message.get("seconds", 5.0)))
            elif event == "sibling_down" and self.mesh is not None:
                self.mesh.down(sibling(int(message["worker"])), int(message["incarnation"]))
                self.reactor.finish()
            elif event == "reload":
                self.channel.tell("reloaded", number=message["number"], reason=self._reload(message["settings"]))
            elif event == "ask":
                number = message["number"]
                self.node.administration.asked(message["ask"], partial(self._answer, number))
                self.reactor.finish()
            elif event == "closed":
                os._exit(1)  # the supervisor is gone

    def _answer(self, number: int, answer: dict[str, Any]) -> None:
        self.channel.tell("answer", number=number, answer=answer)

    @callback("watched")
    def _on_hashes(self) -> None:
        self.hashes.collect()
        self.reactor.finish()

    def _reload(self, message: dict[str, Any]) -> str | None:
        """Go on with these settings. Why not, if not."""
        try:
            settings = self.settings.reloaded(message)
        except ConfigError as error:  # the supervisor has found no error: the password file has changed since
            return str(error)
        self.settings = settings
        self.hashes.resize(settings.limits.auth_threads_max)
        self.node.reload(settings)
        self._tell_reactor()
        refuse_disallowed(settings.refuse_disallowed_characters)
        self.log.configure(settings.log_level, settings.limits.log_lines_per_second_max)
        self._coalesce = settings.limits.mesh_coalesce_microseconds_max * 1e-6
        self.log.info("reloaded")
        return None

    def _tell_reactor(self) -> None:
        limits = self.settings.limits
        self.reactor.connect_ms_max = int(limits.connect_seconds_max * 1000)
        # those above it are told so by CONNACK (connecting), unless they are many at once
        listening = sum(len(listener.sockets) for listener in self.channel.listeners)
        possible = left_for_connections(self.channel.workers, listening, self.settings.tables_open_max)
        self.reactor.connections_max = min(possible, (limits.connections_max or possible) + _REFUSED_AT_ONCE)
        sources = self.reactor.sources
        sources.half_open_max = limits.half_open_per_address_max
        sources.per_second_max = -(-limits.connections_per_address_per_second_max // self.channel.workers)

    def _on_sigterm(self) -> None:
        self._stop(5.0)

    def _on_other_signal(self, name: str) -> None:
        self.log.warning("signal_ignored", signal=name)

    def _stop(self, seconds: float) -> None:
        """Accept nothing more, answer what was accepted, say DISCONNECT 0x8B to v5 clients, end."""
        if self._stopping:
            return
        self._stopping = True
        self.log.info("stopping", connections=len(self.reactor))
        self.reactor.stop_listening()
        for listener in self.channel.listeners:
            listener.close()
        self._poll()  # what lies in the sockets is answered
        if self.store.immediate:
            self._say_goodbye(seconds)
            return
        # and when the disk has it
        late = self.loop.call_later(min(_LAST_COMMIT_SECONDS, seconds / 4), self._say_goodbye, seconds)

        def durable() -> None:
            late.cancel()
            self.loop.call_soon(self._say_goodbye, seconds)  # the acks leave first

        self.node.router.when_durable(durable)

    def _say_goodbye(self, seconds: float) -> None:
        reason, why = self.node.closing.farewell()
        self.reactor.slice = _ALL_AT_ONCE
        for conn in self.reactor.all_connections():
            if conn.state == 2:
                self.node.guard(conn, self.node.closing.end_connection, conn, reason, why)
            else:
                self.node.router.close(conn, AT_ONCE, "server is shutting down")
        self.reactor.finish()
        deadline = self.loop.time() + min(2.0, seconds / 2)
        self._wait_for_last(deadline)

    def _wait_for_last(self, deadline: float) -> None:
        if len(self.reactor) and self.loop.time() < deadline:
            self.loop.call_later(0.02, self._wait_for_last, deadline)
        elif not self.stopped.done():
            self.stopped.set_result(0)

    def close(self) -> None:
        """Let go of what the process holds; the loop still turns for a moment, and nothing of it comes here."""
        self.loop.remove_reader(self.reactor.fileno())
        self.reactor.unwatch(self.channel.control.fileno())
        self.reactor.unwatch(self.hashes.fileno())
        self.hashes.close()
        for each in self._schedulers:
            each.close()
        self._background.close()
        self.reactor.unwatch(self.channel.handoff_receive.fileno())
        if self.store.fileno() >= 0:
            self.reactor.unwatch(self.store.fileno())
        self.node.recording.close()
        self.node.router.commit(True)
        self.store.close()
        self._starting.log_store()
        if self.mesh is not None:
            for fd in (self._timerfd, *self.mesh.filenos()):
                self.reactor.unwatch(fd)
            self.mesh.close()
            self.mesh = None

    # ------------------------------------------------------------ the tick

    def _poll(self) -> None:
        if self.stopped.done():
            return
        if self.mesh is not None and not self.mesh.awake(time.monotonic()):
            self._on_mesh(self.mesh.fileno)
            return
        self.reactor.poll()

    def _poll_soon(self) -> None:
        """Once, however often it is asked for: the loop does all that is due before it looks at its timers again."""
        if not self._polls_soon:
            self._polls_soon = True
            self.loop.call_soon(self._poll_on)

    def _poll_on(self) -> None:
        self._polls_soon = False
        self._poll()

    @callback("timer")
    def _on_timer(self) -> None:
        if self.stopped.done():
            return
        now = time.monotonic()
        self.channel.heartbeat[0] += 1
        if self.mesh is not None:
            self.mesh.tick(now)
            self._mesh_state()
        self.reactor.run_timers()
        if self._waiting:
            self._retry_handoffs()
        if now >= self._trim_at:
            self._trim_at = now + _TRIM_SECONDS
            trim_memory()
        if now >= self._measure_at:
            self._measure_at = now + _MEASURE_SECONDS
            self._measure_memory()
            if work.COUNTED:
                self._tell_work()
            self.node.gauges.update(len(self.reactor), self.mesh.frames_malformed if self.mesh is not None else 0)
        self.loop.call_later(_TIMER_SECONDS, self._on_timer)

    def _tell_work(self) -> None:
        """In test builds: the kinds of callbacks that have done more work than any may (pyx/core/work.pxd)."""
        over = work.over()
        if over != self._over_bound:
            self._over_bound = over
            for kind, (ns, what) in over.items():
                self.log.error("callback_over_bound", callback=kind, milliseconds=ns / 1_000_000, what=what)

    def _measure_memory(self) -> None:
        most = self.settings.limits.worker_memory_bytes_max
        was_full = self.node.router.is_memory_full
        if not most:
            if was_full:
                self.log.warning("memory_has_room")
                self.node.set_memory_full(False)
            return
        used = _anonymous_bytes()
        if used >= most:
            trim_memory()  # what is free but not given back is no reason
            used = _anonymous_bytes()
        if used >= most:
            self.node.counters.add(count.MEMORY_SECONDS)
        if used >= most and not was_full:
            self.log.warning("memory_full", bytes=used, worker_memory_bytes_max=most)
            self.node.set_memory_full(True)
        elif was_full and used < most * _MEMORY_ROOM_AGAIN:
            self.log.warning("memory_has_room", bytes=used)
            self.node.set_memory_full(False)

    # ------------------------------------------------------------ the mesh

    @callback("mesh")
    def _on_mesh(self, fd: int) -> None:
        mesh = self.mesh
        assert mesh is not None
        now = time.monotonic()
        if mesh.readable(fd, now) and not self._drain_soon:
            self._drain_soon = True
            self.node.counters.add(count.TICK_PEER_CARRIED)
            self.reactor.leave = True
            self.loop.call_soon(self._drain_again)
        self._mesh_state()
        self.reactor.finish()
        # Once the clients are gone a sibling must not tell its publishers that their messages have been taken here.
        if not self._stopping and self.node.peering.commit():
            self._forward_soon()

    def _drain_again(self) -> None:
        self._drain_soon = False
        if self.mesh is None:
            return
        self._on_mesh(self.mesh.fileno)

    def _mesh_state(self) -> None:
        router = self.node.router
        assert self.mesh is not None
        for peer, link in self.mesh.links.items():
            router.peer_full(peer, link.full)

    def _forward_soon(self) -> None:
        """Send what siblings get: at once when nothing left for a while, else with what comes.

        Under load the ticks themselves come often enough, and each new deadline replaces the timer's last: it fires in
        a lull.
        """
        wait = self._sent_at + self._coalesce - time.monotonic()
        if wait <= 0:
            self._armed = False
            self.node.forward()
            if self.node.store.keeps:
                self.reactor.finish()  # a link may have stored something
        elif not self._armed:
            self._armed = True
            _libc.timerfd_settime(self._timerfd, 0, _SPEC.pack(0, 0, 0, max(1000, int(wait * 1e9))), None)

    @callback("forward")
    def _on_timerfd(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._timerfd, 8)
        if self._armed:
            self._armed = False
            self.node.forward()

    def _flush_mesh(self) -> None:
        assert self.mesh is not None
        self._sent_at = now = time.monotonic()
        self.mesh.flush(now)

    # ------------------------------------------------------------ connections that live elsewhere

    def _hand_over(self, conn: Connection, worker: int, raw: bytes) -> None:
        deadline = time.monotonic() + min(
            self.settings.limits.handoff_seconds_max,
            max(0.0, self.settings.limits.connect_seconds_max - (self.node.router.now_ms - conn.opened) / 1000),
        )
        waiting = _Waiting(conn, worker, raw, deadline)
        if not self._pass_on(waiting):
            if len(self._waiting) >= self.settings.limits.handoff_pending_max:
                self.node.counters.add(count.HANDOFFS_REFUSED)
                self.node.closing.unavailable(conn, "its worker is busy")
            else:
                self._waiting.append(waiting)

    def _pass_on(self, waiting: _Waiting) -> bool:
        conn = waiting.conn
        if not self.node.is_ready(sibling(waiting.worker)):  # down, stopped, or not heard yet: it may never take it
            return False
        host, _, port = conn.address.rpartition(":")
        try:
            sent = handoff.send(
                self.channel.handoff_send[waiting.worker],
                conn.fd,
                waiting.raw + conn.unread(),
                waiting.deadline - time.monotonic(),
                (host.strip("[]"), int(port or 0)),
                conn.listener,
            )
        except OSError as error:
            self.log.error("handoff_failed", worker_to=waiting.worker, reason=str(error))
            return False
        if sent:
            self.node.counters.add(count.CONNECTIONS_HANDED_OVER)
            self.reactor.release(conn)
        return sent

    @callback("handoff")
    def _retry_handoffs(self) -> None:
        now = time.monotonic()
        kept = []
        spend(len(self._waiting) * STEP)
        for waiting in self._waiting:
            if waiting.conn.fd < 0:
                continue
            self.node.guard(waiting.conn, self._try_again, waiting, now >= waiting.deadline)
            if waiting.conn.fd >= 0 and waiting.conn.state < _CLOSING:
                kept.append(waiting)
        self._waiting = kept
        self.reactor.finish()

    def _try_again(self, waiting: _Waiting, is_late: bool) -> None:
        if is_late:
            self.node.counters.add(count.HANDOFF_TIMEOUTS)
            self.node.closing.unavailable(waiting.conn, "its worker did not take it in time")
        else:
            self._pass_on(waiting)

    @callback("handoff")
    def _on_handoff(self) -> None:
        if self.mesh is not None and not self.mesh.awake(time.monotonic()):
            self._on_mesh(self.mesh.fileno)
            return
        for _ in range(64):
            try:
                came = handoff.receive(self.channel.handoff_receive)
            except handoff.HandoffLost as lost:
                self.log.error("handoff_lost", reason=str(lost))
                continue
            if came is None:
                break
            try:
                self._take_in(came)
            except OSError as error:  # the descriptor is closed: it cannot be watched
                self.log.error("handoff_lost", reason=str(error))
        self.reactor.finish()

    def _take_in(self, came: handoff.HandedOver) -> None:
        self.node.counters.add(count.CONNECTIONS_TAKEN_IN)
        if self._stopping or len(self.reactor) >= self.reactor.connections_max:
            if not self._stopping:
                self.node.counters.add(count.CONNECTIONS_REFUSED)
                self.node.too_many_connections()
            os.close(came.fd)
            return
        conn = self.reactor.adopt(came.fd, b"", max(0, int(came.remaining_seconds * 1000)), came.listener)
        self.node.guard(conn, self._go_on, conn, came)

    def _go_on(self, conn: Connection, came: handoff.HandedOver) -> None:
        if came.remaining_seconds <= 0:
            self.node.counters.add(count.HANDOFF_TIMEOUTS)
            self.node.dispatch.learn_version(conn, came.unread)
            self.node.closing.unavailable(conn, "its worker did not take it in time")
        else:
            self.node.dispatch.feed(conn, came.unread, True)


if sys.platform != "linux":  # pragma: no cover
    raise ImportError("mqttd runs on Linux")
