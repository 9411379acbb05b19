"""A worker process: one event loop with its sockets, clock and mesh; `run` is called after the supervisor's fork.

The tick: the reactor polls its sockets and ends each round with the router's end of tick
(`pyx.delivery.router.Router.finish_tick`), which lets sessions continue reading, commits, and calls `Batches.forward`
when there are entries for siblings (`broker.worker.mesh`).
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
import time
import traceback
from functools import partial
from typing import TYPE_CHECKING, Any

import uvloop

from broker.auth.pool import HashPool
from broker.bridges.bridges import Bridges
from broker.clients.closing import AT_ONCE
from broker.config.settings import ConfigError
from broker.logs import Log, StandardLibrary
from broker.replay.scheduler import Scheduler
from broker.worker.background_thread import BackgroundThread
from broker.worker.core import Node
from broker.worker.handoffs import Handoffs
from broker.worker.memory import Memory
from broker.worker.mesh import WorkerMesh
from broker.worker.starting import Starting
from leveldb_store.contract import DamagedStoreError, StoreError
from pyx.core import counters as count
from pyx.core import work
from pyx.core.allocator import tune_allocator
from pyx.core.peer import sibling
from pyx.core.work import callback
from pyx.io.reactor import Reactor
from pyx.protocol.wire import refuse_disallowed
from shards import stacks
from shards.descriptors import left_for_connections
from shards.signals import ignore_with_a_line
from shards.worker_channel import HEARTBEAT_SECONDS, WorkerChannel

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.config.settings import Settings

__all__ = ["run"]

_TIMER_SECONDS = 0.1
"""Or a tenth of link_silence_seconds_max, as the mesh demands."""
_ALL_AT_ONCE = 1 << 62
"""ns of work per turn while all connections are ended, when clients are no longer served."""
_REFUSED_AT_ONCE = 256
_MEASURE_SECONDS = 1.0
_NO_STORE = 1
_LAST_COMMIT_SECONDS = 1.0


def run(channel: WorkerChannel) -> int:
    """Serve until told to stop; return the exit status."""
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
    """Return a worker recovered from its store, which is repaired, once, if it is damaged. Raises StoreError."""
    books = bytes(channel.row)
    try:
        return Worker(channel)
    except DamagedStoreError as error:
        channel.row[:] = books  # a half-done recovery has counted what will be counted again
        return Worker(channel, repair=str(error))


class Worker:
    """Sockets, clock and mesh around one Node."""

    def __init__(self, channel: WorkerChannel, repair: str | None = None) -> None:
        """`repair`: why the store is to be repaired first. Raises StoreError."""
        settings: Settings = channel.settings
        self.channel = channel
        self.settings = settings
        self.loop = asyncio.get_running_loop()
        self.stopped: asyncio.Future[int] = self.loop.create_future()
        self.log = Log.of(settings).bind(worker=channel.index)
        logging.getLogger().handlers[:] = [StandardLibrary(self.log)]  # asyncio and uvloop log there
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
            clock_cell=channel.clock.cell,
        )
        node = self.node
        self._router, self._closing, self._recording, self._replaying = (
            node.router, node.closing, node.recording, node.replaying,
        )  # fmt: skip
        self._disk, self._wills, self._gauges, self._administration = (
            node.disk, node.wills, node.gauges, node.administration,
        )  # fmt: skip
        counters, sys_topics = node.counters, node.sys_topics
        authenticating, capacity = node.authenticating, node.capacity
        counters.set(count.INCARNATION, channel.incarnation)
        self._recording.started()
        sys_topics.over([count.Row(row) for row in channel.rows], int(channel.began * 1000))
        self.reactor = Reactor(self._router, node.dispatch)
        self._tell_reactor()
        refuse_disallowed(settings.refuse_disallowed_characters)
        self.reactor.stays = True
        self.reactor.schedule = self._poll_soon
        self.reactor.hurry = self._schedule_timer
        node.opened = self.reactor.start_keep_alive
        node.may_rest = True
        node.peers_changed = self._peers_changed
        self.hashes = HashPool(settings.limits.auth_threads_max)
        authenticating.submit = self.hashes.submit
        self._mesh: WorkerMesh | None = None
        self._listening = self._stopping = self._polls_soon = False
        self._ends: asyncio.Task[None] | None = None
        self._handoffs = Handoffs(channel, node.context, node.connecting, self._closing, node.dispatch, self.reactor)
        node.hand_over = self._handoffs.hand_over
        self._bridges = Bridges(node.context, node.sessions, authenticating, self._closing, self.reactor)
        self._administration.bridges_report = self._bridges.report
        self._memory = Memory(node.context, node.sibling_messages, self.log, now)
        self._plan_timer(now)
        self._after_round: Callable[[], None] = _nothing
        self._over_bound: dict[str, tuple[int, str | None]] = {}
        self._schedulers = (Scheduler(self.reactor, self._replaying), Scheduler(self.reactor, node.retaining))
        self._background = BackgroundThread(self.reactor, "archive-reader")
        try:
            recovered = self._starting.recover(node.recovery, node.set_aside, self.store)
        except StoreError:
            self.hashes.close()
            self.store.close()
            raise
        capacity.share(channel.rows)
        self._beginning = recovered.begin() if recovered is not None else iter(())

    def _plan_timer(self, now: float) -> None:
        self._measure_at = now
        self._timer_seconds = min(_TIMER_SECONDS, self.settings.limits.link_silence_seconds_max / 10)
        most = min(HEARTBEAT_SECONDS, self.settings.limits.worker_hang_seconds_max / 4)
        self._idle_seconds = max(self._timer_seconds, most)
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0

    # ------------------------------------------------------------ start and stop

    def start(self) -> None:
        """Watch all descriptors; accept connections once every sibling was heard."""
        loop, channel = self.loop, self.channel
        loop.set_exception_handler(self._on_exception)
        self.reactor.watch(channel.control.fileno(), self._on_control)
        self.reactor.watch(self.hashes.fileno(), self._on_hashes)
        if self.store.fileno() >= 0:
            self.reactor.watch(self.store.fileno(), self._on_stored)
            self._after_round = self.reactor.after_round = self.store.gather()
        if self._replaying.sources is not None:
            self._background.start()
            self._replaying.sources.background = self._background
        for each in self._schedulers:
            each.start()
        loop.add_signal_handler(signal.SIGTERM, self._on_sigterm)
        loop.add_signal_handler(signal.SIGINT, lambda: None)  # the supervisor decides
        ignore_with_a_line(loop, frozenset({stacks.SIGNAL}), self._on_other_signal)
        loop.add_reader(self.reactor.fileno(), self.reactor.poll)
        if channel.workers > 1 or self.settings.cluster.is_on:
            self._mesh = WorkerMesh(channel, self.node, self.reactor)
        else:
            self._listen()
        self._on_timer()
        gc.collect()
        gc.freeze()

    @callback("stored")
    def _on_stored(self) -> None:
        """React to the store: writes became durable, or the disk is full, fails or has recovered."""
        self._router.state.is_active = True
        self._router.journal.durable(self.store.collect())
        self.reactor.finish()  # acks leave
        self._starting.log_store()
        self._disk.look()
        self.reactor.finish()

    def _on_exception(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        # an internal error outside of one connection's packets: the state in memory cannot be trusted; the supervisor
        # restarts the worker
        error = context.get("exception")
        text = "".join(traceback.format_exception(error)) if error is not None else str(context.get("message"))
        self.log.error("worker_failed", traceback=text)
        self.channel.failed(f"internal error: {error!r}")
        os._exit(70)

    def _listen(self) -> None:
        if self._listening or self._stopping:
            return
        for _ in self._beginning:  # one step of it; the others in later turns of the loop
            self.reactor.finish()
            self.loop.call_soon(self._listen)
            return
        self._listening = True
        self.reactor.finish()
        for number, listener in enumerate(self.channel.listeners):
            for each in listener.sockets:
                self.reactor.acceptor.listen(each.fileno(), number)
        # Not earlier: siblings hand over connections to a worker that starts, and it must not ack before all are heard.
        self.reactor.watch_in_round(self.channel.handoff_receive.fileno(), self._handoffs.take_in)
        self.channel.ready()
        self._bridges.start()

    def _peers_changed(self) -> None:
        if self._handoffs.waits:
            self.loop.call_soon(self._handoffs.retry)
        if not self._listening and self._mesh is not None and self._mesh.ready:
            self.loop.call_soon(self._listen)

    @callback("control")
    def _on_control(self) -> None:
        self._router.state.is_active = True
        for message in self.channel.messages():
            event = message["event"]
            if event == "stop":
                self._stop(float(message.get("seconds", 5.0)))
            elif event == "sibling_down" and self._mesh is not None:
                self._mesh.down(sibling(int(message["worker"])), int(message["incarnation"]))
            elif event == "hosts" and self._mesh is not None:
                self._mesh.hosts(message)
            elif event == "reload":
                self.channel.tell("reloaded", number=message["number"], reason=self._reload(message["settings"]))
            elif event == "ask":
                number = message["number"]
                self._administration.asked(message["ask"], partial(self._answer, number))
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
        """Apply new settings; return the error if that fails."""
        try:
            settings = self.settings.reloaded(message)
        except ConfigError as error:  # the supervisor found no error: the password file has changed since
            return str(error)
        self.settings = settings
        self.hashes.resize(settings.limits.auth_threads_max)
        self.node.reload(settings)
        self._tell_reactor()
        self._handoffs.reload()
        refuse_disallowed(settings.refuse_disallowed_characters)
        self.log.configure(settings.log_level, settings.limits.log_lines_per_second_max)
        self.log.info("reloaded")
        return None

    def _tell_reactor(self) -> None:
        limits = self.settings.limits
        self.reactor.acceptor.connect_ms_max = int(limits.connect_seconds_max * 1000)
        # connections above it are refused by CONNACK (connecting), unless they are many at once
        listening = sum(len(listener.sockets) for listener in self.channel.listeners)
        possible = left_for_connections(self.channel.workers, listening, self.settings.tables_open_max)
        self.reactor.acceptor.connections_max = min(possible, (limits.connections_max or possible) + _REFUSED_AT_ONCE)
        sources = self.reactor.connections.sources
        sources.half_open_max = limits.half_open_per_address_max
        sources.per_second_max = -(-limits.connections_per_address_per_second_max // self.channel.workers)

    def _on_sigterm(self) -> None:
        self._stop(5.0)

    def _on_other_signal(self, name: str) -> None:
        self.log.warning("signal_ignored", signal=name)

    def _stop(self, seconds: float) -> None:
        """Accept nothing more, answer what was accepted, send DISCONNECT 0x8B to v5 clients, end."""
        if self._stopping:
            return
        self._stopping = True
        self._ends = self.loop.create_task(self._bridges.stop())
        self._handoffs.stop()
        if self._mesh is not None:
            self._mesh.stop_acknowledging()
        self.log.info("stopping", connections=len(self.reactor))
        self.reactor.acceptor.stop()
        for listener in self.channel.listeners:
            listener.close()
        self._poll()  # packets still in the sockets are answered
        if self.store.immediate:
            self._say_goodbye(seconds)
            return
        # and when the disk has their messages
        late = self.loop.call_later(min(_LAST_COMMIT_SECONDS, seconds / 4), self._say_goodbye, seconds)

        def durable() -> None:
            late.cancel()
            self.loop.call_soon(self._say_goodbye, seconds)  # the acks are sent first

        self._router.journal.when_durable(durable)

    def _say_goodbye(self, seconds: float) -> None:
        self._wills.stop()
        reason, why = self._closing.farewell()
        self.reactor.connections.slice = _ALL_AT_ONCE
        for conn in self.reactor.all_connections():
            if conn.state == 2:
                self.node.guard(conn, self._closing.end_connection, conn, reason, why)
            else:
                self._router.state.close(conn, AT_ONCE, "server is shutting down")
        self.reactor.finish()
        deadline = self.loop.time() + min(2.0, seconds / 2)
        self._wait_for_last(deadline)

    def _wait_for_last(self, deadline: float) -> None:
        if len(self.reactor) and self.loop.time() < deadline:
            self.loop.call_later(0.02, self._wait_for_last, deadline)
        elif not self.stopped.done():
            self.stopped.set_result(0)

    def close(self) -> None:
        """Release the process's resources; the loop still runs for a moment, and calls nothing of it."""
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
        self._recording.close()
        self._router.commit(True)
        self.store.close()
        self._starting.log_store()
        if self._mesh is not None:
            self._mesh.close()
            self._mesh = None

    # ------------------------------------------------------------ the tick

    def _poll(self) -> None:
        if not self.stopped.done():
            self.reactor.poll()

    def _poll_soon(self) -> None:
        """Poll once, however often this is called: the loop runs all due callbacks before it looks at timers again."""
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
        if not self._rests(now):
            self._advance(now)
        self._after_round()  # whatever was stored outside of a round
        self._timer = None
        self._schedule_timer()

    def _rests(self, now: float) -> bool:
        """Whether nothing has happened since the last sweep, and nothing is due."""
        state = self._router.state
        if state.is_active or self._handoffs.waits:
            return False
        if self._mesh is not None and (not self._mesh.is_idle or self._mesh.ask_late_siblings(now)):
            return False
        return state.timers.deadline is None or state.timers.deadline / 1000 > now

    def _advance(self, now: float) -> None:
        if self._mesh is not None:
            self._mesh.tick(now)
        if self._is_awake():  # wills, too, are published by the present interest of siblings
            self.reactor.run_timers()
        if self._handoffs.waits:
            self._handoffs.retry()
        self._memory.trim(now)
        if now >= self._measure_at:
            self._measure_at = now + _MEASURE_SECONDS
            self._memory.measure()
            if work.COUNTED:
                self._tell_work()
            self._gauges.update(len(self.reactor), self._mesh.frames_malformed if self._mesh is not None else 0)

    def _schedule_timer(self) -> None:
        """Call `_on_timer` when it is needed, which may be earlier than was planned: an idle worker sleeps."""
        now, seconds = time.monotonic(), self._timer_seconds
        if self._router.state.is_active:
            self.node.wake()
        self._router.state.needs_timer = needed = self._mesh is not None and not self._mesh.is_idle
        if not needed and not self._handoffs.waits:
            deadline = self._router.state.timers.deadline
            if deadline is None:
                seconds = self._idle_seconds
            else:  # what is due shortly after it is late by no more than usual
                seconds = max(seconds, min(deadline / 1000 - now + seconds, self._idle_seconds))
        if self._timer is not None:
            if now + seconds >= self._timer_at:  # postponed again and again it would never come
                return
            self._timer.cancel()
        self._timer_at = now + seconds
        self.reactor.timer_ms = int(self._timer_at * 1000)
        self._timer = self.loop.call_later(seconds, self._on_timer)

    def _tell_work(self) -> None:
        """In test builds: log the kinds of callbacks that did more work than allowed (pyx/core/work.pxd)."""
        over = work.over()
        if over != self._over_bound:
            self._over_bound = over
            for kind, (ns, what) in over.items():
                self.log.error("callback_over_bound", callback=kind, milliseconds=ns / 1_000_000, what=what)

    def _is_awake(self) -> bool:
        """Whether clients may be served; else siblings are heard, whose interest must be known first."""
        return self._mesh is None or self._mesh.is_awake()


def _nothing() -> None:
    pass


if sys.platform != "linux":  # pragma: no cover
    raise ImportError("mqttd runs on Linux")
