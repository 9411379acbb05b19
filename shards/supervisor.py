"""The supervisor: forks the workers, watches, restarts and stops them. No event loop library, no threads, no ZeroMQ, no
gRPC: one poll() over control sockets and a wake-up socket for signals, so that this process can always fork safely.

Resources made before the first fork, which outlive every worker, are in `shards.inherited`, a child's first steps in
`shards.forked`, and the state of each child in `shards.posts`. Made per fork: the control pair, for messages between
the two (`shards.worker_channel` lists them).

Beside the workers it may run one *control process*, which serves no messages: it gets the state of the workers whenever
that changes, its death disturbs no client and never ends the broker, and it ends after the last worker.

Events and reactions:
    a worker dies               siblings are told; forked again at once, then after 0.25 s doubling to 10 s, until one
                                has served 5 s; the control process likewise
    ... before it was ready, while the broker starts     the broker ends, exit status 1, with the worker's reason
    ... and it was the 10th death in 60 s                the broker ends, exit status 1
    its heartbeat is unchanged  its stack is taken (SIGUSR2, faulthandler) and logged; killed; then as above
    SIGTERM, SIGINT, SIGQUIT    listeners closed, "stop"; SIGTERM at 90 %, SIGKILL at 95 % of `stop_seconds_max`; exit 0
    a second one of these       SIGKILL at once
    SIGHUP                      `reload()`; its ReloadRefused keeps the old settings. The result is logged when every
                                worker and the control process have answered, with those that have not
    any other signal            ignored, with a line (`shards.signals`)
    the supervisor is killed    the kernel kills the workers (PR_SET_PDEATHSIG)
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from setproctitle import setproctitle

from shards import signals
from shards.clock import HostClock
from shards.console import Console
from shards.forked import live
from shards.inherited import Inherited
from shards.listening import Listeners, ListenOn
from shards.notify import Notifier
from shards.policy import Policy
from shards.posts import Post, Posts
from shards.reloads import Reload, Reloaded, ReloadRefused
from shards.runtime_dir import RuntimeDir
from shards.worker_channel import HEARTBEAT_SECONDS, ControlChannel, Message, WorkerChannel, messages
from shards.worker_requests import WorkerRequests

__all__ = [
    "HEARTBEAT_SECONDS",
    "ControlChannel",
    "Log",
    "ReloadRefused",
    "Reloaded",
    "Supervisor",
    "WorkerChannel",
]

Log = Callable[..., None]
"""log(level, event, **fields), level one of "debug", "info", "warning", "error"."""

_DEATHS_MAX = 10
_DEATHS_SECONDS = 60.0


class Supervisor:
    """One broker's processes. `serve()` runs until told to stop."""

    def __init__(
        self,
        run: Callable[[WorkerChannel], int],
        *,
        workers: int,
        listeners: Sequence[ListenOn],
        settings: Any,
        policy: Policy,
        log: Log,
        runtime_dir: RuntimeDir,
        on_ready: Callable[[], None] = lambda: None,
        reload: Callable[[], Reloaded] | None = None,
        pin_cpus: bool = False,
        row_bytes: int = 4096,
        heartbeat: int = 0,
        settle_row: Callable[[memoryview], dict[str, Any]] = lambda _row: {},
        control: Callable[[ControlChannel], int] | None = None,
        admin: Sequence[socket.socket] = (),
        console: Console | None = None,
        clock: HostClock | None = None,
        identity: Any = None,
    ) -> None:
        """Open the sockets.

        `run(channel)` is a worker's whole life, called in its own process; its result is the exit status. `settings`
        and `identity` are passed to it as they are. `row_bytes` is the size of a counter row, `heartbeat` the index of
        the heartbeat among its u64; `settle_row` settles the row of a dead worker and returns fields for the log.

        Raises listening.CannotListen.
        """
        self._run = run
        self._workers = workers
        self._settings = settings
        self._policy = policy
        self._log = log
        self._on_ready = on_ready
        self._reload = reload
        self._pin_cpus = pin_cpus
        self.runtime_dir = runtime_dir
        self._inherited = Inherited(
            workers,
            Listeners(listeners, workers),
            row_bytes,
            heartbeat,
            list(admin),
            clock or HostClock(),
            runtime_dir.path,
            identity,
        )
        self.listeners = self._inherited.listeners
        self._settle_row = settle_row
        self._run_control = control
        self._console = console
        self._requests = WorkerRequests(self._ask)
        if console is not None:
            console.requests = self._requests
        self._posts = Posts(self._inherited.heartbeats, self._inherited.control_heartbeat, control is not None, log)
        self._deaths: deque[float] = deque(maxlen=_DEATHS_MAX)
        self._serving = False  # set once every worker was ready
        self._stop_at = 0.0  # time when stopping began; 0: not stopping
        self._hosts: Message = {}  # the last that the control process has said of the cluster
        self._reloads = 0
        self._pending: Reload | None = None
        self._killed = False
        self.failure = ""
        """The reason, in one line, why `serve` did not return 0."""

    def listening_on(self) -> list[str]:
        """Return `HOST:PORT` of every address of every listener, IPv6 hosts in brackets."""
        return [address for addresses in self.listeners.addresses for address in addresses]

    # -- the loop

    def serve(self) -> int:
        """Fork the workers and watch them until told to stop; return the broker's exit status."""
        self._notifier = Notifier()
        self._watchdog_at = time.monotonic() + self._notifier.watchdog_seconds
        self._pid = os.getpid()
        self._began = time.monotonic()
        self._signals = signals.SignalWatch()
        setproctitle("mqttd: supervisor")
        gc.collect()
        gc.freeze()  # the workers' collectors then do not touch inherited objects, and their pages stay shared
        try:
            for post in self._posts.all:
                self._fork(post)
            while self._stop_at == 0 or not self._posts.are_empty:
                self._wait()
                self._inherited.beat[0] += 1
                self._inherited.clock.look()
                now = time.monotonic()
                self._posts.judge_heartbeats(
                    now, self._policy.worker_hang_seconds_max, self._stop_at != 0, self.runtime_dir.path
                )
                self._judge_reload(now)
                self._requests.expire(now)
                self._fork_what_is_due(now)
                self._enforce_stop(now)
                self._feed_watchdog(now)
            return 1 if self.failure else 0
        finally:
            self._posts.kill_all()
            self._inherited.clock.close()
            gc.unfreeze()
            self._signals.close()
            self.close()

    def close(self) -> None:
        """Close every socket and remove the runtime directory's contents."""
        self._inherited.close()
        if self._console is not None:
            self._console.close()
        self.runtime_dir.close()

    def _wait(self) -> None:
        poll = select.poll()
        poll.register(self._signals, select.POLLIN)
        posts = {}
        for post in self._posts.all:
            if post.control is not None:
                poll.register(post.control, select.POLLIN)
                posts[post.control.fileno()] = post
        for each in self._console.sockets() if self._console is not None else ():
            poll.register(each, select.POLLIN)
        began = time.monotonic()
        timeout = self._seconds_until_due(began)
        ready = poll.poll(timeout * 1000)
        late = time.monotonic() - began - timeout
        if late > 1.0:  # this process did not run itself (stopped, suspended, starved): the silence proves nothing
            for post in self._posts.all:
                post.beat_at += late
        for descriptor, _ in ready:
            if descriptor in posts:
                self._hear(posts[descriptor])
            elif self._console is not None:
                self._console.readable(descriptor)
        if came := self._signals.came():
            self._handle_signals(came)

    def _seconds_until_due(self, now: float) -> float:
        due = min(now + min(HEARTBEAT_SECONDS, self._policy.worker_hang_seconds_max / 4), self._requests.due())
        for post in self._posts.all:
            if post.fork_at:
                due = min(due, post.fork_at)
            if post.kill_at:
                due = min(due, post.kill_at)
        if self._stop_at:
            due = min(due, now + self._policy.stop_seconds_max / 100)
        if self._notifier.watchdog_seconds:
            due = min(due, self._watchdog_at)
        return max(0.0, due - now)

    def _feed_watchdog(self, now: float) -> None:
        if self._notifier.watchdog_seconds and now >= self._watchdog_at:
            self._watchdog_at = now + self._notifier.watchdog_seconds
            self._notifier.alive()

    # -- signals

    def _handle_signals(self, numbers: set[int]) -> None:
        if signal.SIGCHLD in numbers:
            self._reap()
        for number in numbers & signals.IGNORED:
            self._log("warning", "signal_ignored", signal=signals.name_of(number))
        if numbers & signals.STOPPING:
            if self._stop_at:
                self._posts.kill_all()
            else:
                self._log("info", "stopping", signal=signals.name_of(min(numbers & signals.STOPPING)))
                self._stop()
        if signal.SIGHUP in numbers and not self._stop_at:
            self._reload_settings()

    def _reload_settings(self) -> None:
        if self._reload is None:
            return
        if self._serving:
            self._notifier.reloading()
        try:
            reloaded = self._reload()
        except ReloadRefused as refused:
            self._log("error", "reload_refused", reason=str(refused))
            self._say_reloaded()
            return
        self._settings = reloaded.settings
        self._policy = reloaded.policy
        self._reloads += 1
        # processes that do not run now are forked with the new settings
        posts = [post for post in self._posts.all if post.pid]
        self._pending = Reload(self._reloads, {post.index: post.incarnation for post in posts}, time.monotonic())
        for post in posts:
            self._posts.tell(post, {"event": "reload", "number": self._reloads, "settings": reloaded.message})

    def _judge_reload(self, now: float) -> None:
        """Log the result of the last reload, when it is known for all."""
        if self._pending is None:
            return
        running = {post.index: (post.incarnation, post.ready_at) for post in self._posts.all if post.pid}
        if not self._pending.is_over(running, now, self._policy.worker_hang_seconds_max):
            return
        refused, self._pending = self._pending.refused, None
        for index, reason in sorted(refused.items()):
            self._log("error", "reload_refused", **self._posts.all[index].named, reason=reason)
        if not refused:
            self._log("info", "reloaded")
        self._say_reloaded()

    def _say_reloaded(self) -> None:
        if self._serving:
            self._notifier.ready(self._status())

    # -- life and death of a worker

    def _fork(self, post: Post) -> None:
        post.fork_at = 0.0
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        theirs.setblocking(False)
        incarnation = max(post.incarnation + 1, time.time_ns() // 1000)
        channel: WorkerChannel | ControlChannel
        if post.is_control:
            channel = self._inherited.control_channel(theirs, self._settings, self._began, self._pid, self._hosts)
        else:
            incarnations = [other.incarnation if other.pid else 0 for other in self._posts.workers]
            incarnations[post.index] = incarnation
            channel = self._inherited.worker_channel(post.index, incarnations, theirs, self._settings, self._began)
        live_on = partial(
            live,
            channel,
            life=partial(self._live, channel),
            leave=partial(self._leave, channel),
            failed=partial(self._failed, post),
            parent=self._pid,
            is_pinned=self._pin_cpus,
        )
        signals.hold_back()
        try:
            pid = os.fork()
            if pid == 0:
                ours.close()
                live_on()
        except OSError as error:  # no memory, no process ids left: treated like a death
            ours.close()
            self._log("error", "fork_failed", **post.named, reason=error.strerror)
            self._plan_successor(post, f"cannot fork: {error.strerror}", None)
            return
        finally:
            theirs.close()
            signals.let_come()
        post.fill(pid, incarnation, ours)
        if not post.is_control:
            for other in self._posts.workers:
                if other is not post and other.pid:
                    for told, up in ((other, post), (post, other)):
                        message = {"event": "sibling_up", "worker": up.index, "incarnation": up.incarnation}
                        self._posts.tell(told, message)
            self._tell_hosts(post)
        self._tell_state()

    def _reap(self) -> None:
        while True:
            try:
                # Any child: as process 1 of a container, we also reap orphans of other programs.
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for post in self._posts.all:
                if post.pid == pid:
                    self._child_ended(post, os.waitstatus_to_exitcode(status))

    def _child_ended(self, post: Post, exit_status: int) -> None:
        self._hear(post)  # its last messages
        death = post.leave(exit_status)
        self._requests.gone(post.index)
        named = post.named
        if not post.is_control:
            named |= self._settle_row(self._inherited.rows[post.index])
            down = {"event": "sibling_down", "worker": post.index, "incarnation": post.incarnation}
            for other in self._posts.workers:
                self._posts.tell(other, down)
            self._posts.tell(self._posts.control, {**down, "event": "linked", "linked": False, "hosts": []})
        self._tell_state()
        if self._stop_at:
            if exit_status != 0:
                self._log("warning", post.event("died_stopping"), **named, pid=death.pid, reason=death.reason)
            return
        self._log("error", post.event("died"), **named, pid=death.pid, reason=death.reason)
        self._plan_successor(post, death.reason, death.served)

    def _plan_successor(self, post: Post, reason: str, served: float | None) -> None:
        """`served` is the number of seconds for which the dead one was ready, None if it never was."""
        now = time.monotonic()
        if post.is_control or not self._give_up(post, reason, served, now):
            post.plan_successor(served, now)

    def _give_up(self, post: Post, reason: str, served: float | None, now: float) -> bool:
        """Whether this death of a worker ends the broker."""
        self._deaths.append(now)
        if not self._serving and served is None:
            self._fail(f"worker {post.index} cannot start: {reason}")
            return True
        if len(self._deaths) == _DEATHS_MAX and now - self._deaths[0] <= _DEATHS_SECONDS:
            self._fail(
                f"{_DEATHS_MAX} workers died within {_DEATHS_SECONDS:.0f} s, the last was worker {post.index}: {reason}"
            )
            return True
        return False

    def _fork_what_is_due(self, now: float) -> None:
        for post in self._posts.all:
            if post.fork_at and post.fork_at <= now and not self._stop_at:
                self._fork(post)

    # -- messages from and to workers

    def _hear(self, post: Post) -> None:
        if post.control is None:
            return
        for message in messages(post.control):
            match message:
                case {"event": "ready"} if not post.ready_at:
                    post.ready_at = time.monotonic()
                    seconds = round(post.ready_at - post.forked_at, 3)
                    self._log("info", post.event("ready"), **post.named, pid=post.pid, seconds=seconds)
                    self._say_ready()
                    self._tell_state()
                case {"event": "answer", "number": int(number), "answer": answer}:
                    self._requests.answered(post.index, number, answer)
                case {"event": "hosts"} if post.is_control:
                    self._hosts = message
                    self._tell_hosts(*self._posts.workers)
                case {"event": "linked"}:
                    self._posts.tell(self._posts.control, {**message, "worker": post.index})
                case {"event": "ask", "number": int(number), "worker": int(worker), "ask": ask}:
                    self._requests.ask(worker, ask, partial(self._pass_answer, post, post.pid, number))
                case {"event": "failed", "reason": str(reason)}:
                    post.reason = reason
                case {"event": "reloaded", "number": int(number), "reason": reason} if self._pending is not None:
                    self._pending.heard(number, post.index, post.incarnation, reason)
                case {"event": "closed"}:  # it is dying, and SIGCHLD will follow
                    post.control.close()
                    post.control = None
                    return

    def _tell_hosts(self, *posts: Post) -> None:
        for post in posts if self._hosts else ():
            self._posts.tell(post, self._hosts)

    def _say_ready(self) -> None:
        if all(post.ready_at for post in self._posts.workers) and not self._serving and not self._stop_at:
            self._serving = True
            self._notifier.ready(self._status())
            self._on_ready()

    def _pass_answer(self, post: Post, pid: int, number: int, said: Message) -> None:
        if post.pid == pid:  # else the request was put to one that has died
            self._posts.tell(post, {"event": "answered", "number": number, **said})

    def _ask(self, worker: int, message: Message) -> bool:
        if not 0 <= worker < len(self._posts.all) or not self._posts.all[worker].ready_at:
            return False
        self._posts.tell(self._posts.all[worker], message)
        return True

    def _tell_state(self) -> None:
        """Send the control process the state of the broker and its workers."""
        broker = "stopping" if self._stop_at else "serving" if self._serving else "starting"
        self._posts.tell_state(broker)

    def _status(self) -> str:
        return f"serving on {', '.join(self.listening_on())} with {self._workers} workers"

    # -- the end

    def _fail(self, reason: str) -> None:
        if not self._stop_at:
            self.failure = reason
            self._stop()

    def _stop(self) -> None:
        self._stop_at = time.monotonic()
        self._notifier.stopping()
        # Else the kernel would go on filling the backlogs after the workers have closed their copies.
        self.listeners.close()
        for post in self._posts.workers:
            post.fork_at = 0.0
            self._posts.tell(post, {"event": "stop", "seconds": self._policy.stop_seconds_max * 0.8})
        self._posts.control.fork_at = 0.0
        self._tell_state()

    def _enforce_stop(self, now: float) -> None:
        if not self._stop_at or self._killed:
            return
        if not any(post.pid for post in self._posts.workers):  # until now it has answered that we are stopping
            self._posts.tell(self._posts.control, {"event": "stop", "seconds": self._policy.stop_seconds_max * 0.1})
        elapsed = (now - self._stop_at) / self._policy.stop_seconds_max
        if elapsed >= 0.95:
            self._killed = True
            left = [post.index for post in self._posts.workers if post.pid]
            self._log("warning", "workers_killed_stopping", workers=left, seconds=self._policy.stop_seconds_max)
            self._posts.kill_all()
        elif elapsed >= 0.9:
            for post in self._posts.all:
                post.kill(signal.SIGTERM)

    # -- in the child

    def _live(self, channel: WorkerChannel | ControlChannel) -> int:
        if isinstance(channel, WorkerChannel):
            return self._run(channel)
        return 1 if self._run_control is None else self._run_control(channel)

    def _leave(self, channel: WorkerChannel | ControlChannel) -> None:
        """Close everything that belongs to the supervisor or to another child."""
        self._inherited.leave(channel)
        for post in self._posts.all:
            if post.control is not None:
                post.control.close()
        if self._console is not None:
            self._console.close()
        self._signals.leave()
        self.runtime_dir.release()

    def _failed(self, post: Post, reason: str, stack: str) -> None:
        self._log("error", post.event("failed"), **post.named, reason=reason, stack=stack)
