"""Forks the workers, watches them, restarts them, stops them. No event loop library, no threads, no ZeroMQ, no gRPC:
one poll() over control sockets and a wake-up socket for signals, so that this process can always fork safely.

Made before the first fork, and outliving every worker, so that a worker's death loses nothing that waits in them:
    listeners        per worker, per address: the backlog of a dead worker waits for its successor
    hand-off pairs   per worker: connections passed to a worker that is down are taken by its successor
    shared rows      per worker: counters (written by the worker alone) and a heartbeat
    clock            of all: the highest message number, and the broker's time (`shards.clock`)
    admin listeners  of the control process, if there is one
Made per fork: the control pair, which is how the two talk (`shards.worker_channel` has the words).

Beside the workers it may keep one *control process*, which serves nobody's messages: it is told how the workers are
whenever that changes, its death disturbs nobody and never ends the broker, and it ends when the last worker has.

What happens when:
    a worker dies               siblings are told; forked again at once, then after 0.25 s doubling to 10 s, until one
                                has served 5 s; the control process likewise
    ... before it was ready, while the broker starts     the broker ends, exit status 1, with the worker's reason
    ... and it was the 10th death in 60 s                the broker ends, exit status 1
    its heartbeat stands still  its stack is taken (SIGUSR2, faulthandler) and logged; killed; then as above
    SIGTERM, SIGINT, SIGQUIT    listeners closed, "stop"; SIGTERM at 90 %, SIGKILL at 95 % of `stop_seconds_max`; exit 0
    a second one of these       SIGKILL at once
    SIGHUP                      `reload()`; its ReloadRefused keeps the old settings. "reloaded" is said when every
                                worker and the control process have said so, or who has not
    any other signal            ignored, with a line (`shards.signals`)
    the supervisor is killed    the kernel kills the workers (PR_SET_PDEATHSIG)
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import mmap
import os
import random
import select
import signal
import socket
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

from setproctitle import setproctitle

from shards import handoff, listening, rows, signals, stacks
from shards.clock import HostClock
from shards.console import Console
from shards.cores import usable_cpus
from shards.listening import Listeners, ListenOn
from shards.notify import Notifier
from shards.policy import Policy
from shards.questions import Questions
from shards.reloads import Reload, Reloaded, ReloadRefused
from shards.runtime_dir import RuntimeDir
from shards.worker_channel import HEARTBEAT_SECONDS, ControlChannel, Message, WorkerChannel, messages, send_message

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

_PR_SET_PDEATHSIG = 1
_STACK_SECONDS = 0.5
_DELAY_SECONDS_FIRST = 0.25
_DELAY_SECONDS_MAX = 10.0
_HEALTHY_SECONDS = 5.0
_DEATHS_MAX = 10
_DEATHS_SECONDS = 60.0
_WATCHED = signals.STOPPING | signals.IGNORED | {signal.SIGHUP, signal.SIGCHLD}
_WATCHED_BY_CHILDREN = frozenset({stacks.SIGNAL})


@dataclass(slots=True)
class _Post:
    """What the supervisor knows of one worker, or of the control process (its index is the number of workers)."""

    index: int
    heartbeat: memoryview
    pid: int = 0  # 0: not running
    incarnation: int = 0
    control: socket.socket | None = None
    ready_at: float = 0.0  # 0: not ready
    reason: str = ""  # what it said before it died
    beat: int = 0
    beat_at: float = 0.0  # when `beat` was last seen to change
    kill_at: float = 0.0  # its stack was asked for; 0: not hung
    delay: float = 0.0  # before its next fork
    fork_at: float = 0.0  # 0: nothing planned
    forked_at: float = 0.0
    restarts: int = 0


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
        bury: Callable[[memoryview], dict[str, Any]] = lambda _row: {},
        control: Callable[[ControlChannel], int] | None = None,
        admin: Sequence[socket.socket] = (),
        console: Console | None = None,
        clock: HostClock | None = None,
    ) -> None:
        """Makes the sockets.

        `run(channel)` is a worker's whole life, called in its own process; its result is the exit status. `settings`
        reach it unread. `row_bytes` is the size of a counter row, `heartbeat` the index of the heartbeat among its u64;
        `bury` closes a dead worker's and says what the log is to say of it.

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
        self.listeners = Listeners(listeners, workers)
        self._handoffs = [handoff.pair() for _ in range(workers)]
        self._rows = rows.shared_rows(workers, row_bytes)
        self._clock = clock or HostClock()
        self._bury_row = bury
        self._run_control = control
        self._admin = list(admin)
        self._console = console
        self._questions = Questions(self._ask)
        if console is not None:
            console.questions = self._questions
        beats = memoryview(mmap.mmap(-1, 16)).cast("Q")
        self._beat = beats[:1]
        self._control = _Post(workers, beats[1:])
        self._posts = [
            _Post(index, row[heartbeat * 8 : heartbeat * 8 + 8].cast("Q")) for index, row in enumerate(self._rows)
        ]
        self._all = [*self._posts, self._control] if control is not None else self._posts
        self._deaths: deque[float] = deque(maxlen=_DEATHS_MAX)
        self._serving = False  # every worker was ready once
        self._stop_at = 0.0  # when stopping began; 0: not stopping
        self._reloads = 0
        self._pending: Reload | None = None
        self._killed = False
        self.failure = ""
        """Why `serve` gave something else than 0, one line."""

    def listening_on(self) -> list[str]:
        """`HOST:PORT` of every address of every listener, IPv6 hosts in brackets."""
        return [address for addresses in self.listeners.addresses for address in addresses]

    # -- the loop

    def serve(self) -> int:
        """Fork the workers and watch them until told to stop. The exit status of the broker."""
        self._notifier = Notifier()
        self._watchdog_at = time.monotonic() + self._notifier.watchdog_seconds
        self._pid = os.getpid()
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._began = time.monotonic()
        self._wakeup, self._signalled = socket.socketpair()
        self._wakeup.setblocking(False)
        self._signalled.setblocking(False)
        former = {number: signal.signal(number, lambda *_: None) for number in _WATCHED}
        former_wakeup = signal.set_wakeup_fd(self._signalled.fileno(), warn_on_full_buffer=False)
        setproctitle("mqttd: supervisor")
        gc.collect()
        gc.freeze()  # what the workers inherit stays in pages they share: their collectors do not touch it
        try:
            for post in self._all:
                self._fork(post)
            while self._stop_at == 0 or any(post.pid for post in self._all):
                self._wait()
                self._beat[0] += 1
                self._clock.look()
                now = time.monotonic()
                self._judge_heartbeats(now)
                self._judge_reload(now)
                self._questions.expire(now)
                self._fork_what_is_due(now)
                self._enforce_stop(now)
                self._feed_watchdog(now)
            return 1 if self.failure else 0
        finally:
            self._kill_all()
            self._clock.close()
            gc.unfreeze()
            signal.set_wakeup_fd(former_wakeup)
            for number, handler in former.items():
                signal.signal(number, handler)
            self._wakeup.close()
            self._signalled.close()
            self.close()

    def close(self) -> None:
        """Close every socket and remove the runtime directory's contents."""
        self.listeners.close()
        listening.close([self._admin])
        for send, receive in self._handoffs:
            send.close()
            receive.close()
        if self._console is not None:
            self._console.close()
        self.runtime_dir.close()

    def _wait(self) -> None:
        poll = select.poll()
        poll.register(self._wakeup, select.POLLIN)
        posts = {}
        for post in self._all:
            if post.control is not None:
                poll.register(post.control, select.POLLIN)
                posts[post.control.fileno()] = post
        for each in self._console.sockets() if self._console is not None else ():
            poll.register(each, select.POLLIN)
        began = time.monotonic()
        timeout = self._seconds_until_due(began)
        ready = poll.poll(timeout * 1000)
        late = time.monotonic() - began - timeout
        if late > 1.0:  # we did not run ourselves (stopped, suspended, starved): that silence proves nothing
            for post in self._all:
                post.beat_at += late
        for descriptor, _ in ready:
            if descriptor in posts:
                self._hear(posts[descriptor])
            elif self._console is not None:
                self._console.readable(descriptor)
        came = b""
        with contextlib.suppress(BlockingIOError):
            came = self._wakeup.recv(4096)
        if came:
            self._handle_signals(set(came))

    def _seconds_until_due(self, now: float) -> float:
        due = min(now + min(1.0, self._policy.worker_hang_seconds_max / 4), self._questions.due())
        for post in self._all:
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
                self._kill_all()
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
        # whoever does not run now is forked with the new settings
        posts = [post for post in self._all if post.pid]
        self._pending = Reload(self._reloads, {post.index: post.incarnation for post in posts}, time.monotonic())
        for post in posts:
            self._tell(post, {"event": "reload", "number": self._reloads, "settings": reloaded.message})

    def _judge_reload(self, now: float) -> None:
        """Say what became of the last reload, when that is known of everybody."""
        if self._pending is None:
            return
        running = {post.index: (post.incarnation, post.ready_at) for post in self._all if post.pid}
        if not self._pending.is_over(running, now, self._policy.worker_hang_seconds_max):
            return
        refused, self._pending = self._pending.refused, None
        for index, reason in sorted(refused.items()):
            self._log("error", "reload_refused", **self._named(self._all[index]), reason=reason)
        if not refused:
            self._log("info", "reloaded")
        self._say_reloaded()

    def _say_reloaded(self) -> None:
        if self._serving:
            self._notifier.ready(self._status())

    # -- life and death of a worker

    def _fork(self, post: _Post) -> None:
        post.fork_at = 0.0
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        theirs.setblocking(False)
        incarnation = max(post.incarnation + 1, time.time_ns() // 1000)
        channel = self._control_channel(theirs) if post is self._control else self._channel(post, incarnation, theirs)
        # A signal between the fork and the child's own handlers would be written into *our* wake-up socket.
        signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
        try:
            pid = os.fork()
            if pid == 0:
                ours.close()
                self._be_child(channel)
        except OSError as error:  # no memory, no process ids left: as if it had died
            ours.close()
            self._log("error", "fork_failed", **self._named(post), reason=error.strerror)
            self._plan_successor(post, f"cannot fork: {error.strerror}", None)
            return
        finally:
            theirs.close()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _WATCHED)
        now = time.monotonic()
        post.restarts += post.incarnation != 0
        post.pid, post.incarnation, post.control = pid, incarnation, ours
        post.reason, post.ready_at, post.kill_at = "", 0.0, 0.0
        post.beat, post.beat_at, post.forked_at = post.heartbeat[0], now, now
        if post is not self._control:
            for other in self._posts:
                if other is not post and other.pid:
                    self._tell(other, {"event": "sibling_up", "worker": post.index, "incarnation": incarnation})
                    self._tell(post, {"event": "sibling_up", "worker": other.index, "incarnation": other.incarnation})
        self._tell_state()

    def _channel(self, post: _Post, incarnation: int, control: socket.socket) -> WorkerChannel:
        incarnations = [other.incarnation if other.pid else 0 for other in self._posts]
        incarnations[post.index] = incarnation
        return WorkerChannel(
            index=post.index,
            workers=self._workers,
            incarnation=incarnation,
            incarnations=incarnations,
            listeners=self.listeners.of(post.index),
            row=self._rows[post.index],
            rows=self._rows,
            heartbeat=post.heartbeat,
            handoff_receive=self._handoffs[post.index][1],
            handoff_send=[send for send, _ in self._handoffs],
            control=control,
            runtime_dir=self.runtime_dir.path,
            settings=self._settings,
            clock=self._clock,
            began=self._began,
        )

    def _control_channel(self, control: socket.socket) -> ControlChannel:
        return ControlChannel(
            index=self._control.index,
            workers=self._workers,
            listeners=self._admin,
            rows=self._rows,
            heartbeat=self._control.heartbeat,
            supervisor_heartbeat=self._beat,
            control=control,
            runtime_dir=self.runtime_dir.path,
            settings=self._settings,
            began=self._began,
            supervisor_pid=self._pid,
        )

    def _named(self, post: _Post) -> dict[str, Any]:
        """Whom a log line is about."""
        return {"process": "control"} if post is self._control else {"worker": post.index}

    def _reap(self) -> None:
        while True:
            try:
                # Any child: as process 1 of a container, orphans of strangers are ours too.
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for post in self._all:
                if post.pid == pid:
                    self._bury(post, os.waitstatus_to_exitcode(status))

    def _bury(self, post: _Post, exit_status: int) -> None:
        """`exit_status` is negative for a signal, as in waitstatus_to_exitcode."""
        self._hear(post)  # what it said last
        if post.control is not None:
            post.control.close()
        if post.kill_at:
            reason = "hung"
        elif exit_status < 0:
            reason = f"killed by {signal.Signals(-exit_status).name}"
        else:
            reason = f"exit status {exit_status}"
        if post.reason:
            reason = f"{post.reason} ({reason})"
        pid, post.pid, post.control, post.kill_at = post.pid, 0, None, 0.0
        served = time.monotonic() - post.ready_at if post.ready_at else None
        post.ready_at = 0.0
        named = self._named(post)
        if post is not self._control:
            named |= self._bury_row(self._rows[post.index])
            self._questions.gone(post.index)
            for other in self._posts:
                message = {"event": "sibling_down", "worker": post.index, "incarnation": post.incarnation}
                self._tell(other, message)
        self._tell_state()
        if self._stop_at:
            if exit_status != 0:
                self._log("warning", self._event(post, "died_stopping"), **named, pid=pid, reason=reason)
            return
        self._log("error", self._event(post, "died"), **named, pid=pid, reason=reason)
        self._plan_successor(post, reason, served)

    def _event(self, post: _Post, what: str) -> str:
        return f"control_{what}" if post is self._control else f"worker_{what}"

    def _plan_successor(self, post: _Post, reason: str, served: float | None) -> None:
        """`served` is for how many seconds the dead one was ready, None if it never was."""
        now = time.monotonic()
        if post is not self._control and self._give_up(post, reason, served, now):
            return
        if served is not None and served >= _HEALTHY_SECONDS:
            post.delay = 0.0
        post.fork_at = now + post.delay
        post.delay = min(max(post.delay * 2, _DELAY_SECONDS_FIRST), _DELAY_SECONDS_MAX)

    def _give_up(self, post: _Post, reason: str, served: float | None, now: float) -> bool:
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
        for post in self._all:
            if post.fork_at and post.fork_at <= now and not self._stop_at:
                self._fork(post)

    # -- what workers say and are told

    def _hear(self, post: _Post) -> None:
        if post.control is None:
            return
        for message in messages(post.control):
            match message:
                case {"event": "ready"} if not post.ready_at:
                    post.ready_at = time.monotonic()
                    seconds = round(post.ready_at - post.forked_at, 3)
                    self._log("info", self._event(post, "ready"), **self._named(post), pid=post.pid, seconds=seconds)
                    self._say_ready()
                    self._tell_state()
                case {"event": "answer", "number": int(number), "answer": answer}:
                    self._questions.answered(post.index, number, answer)
                case {"event": "ask", "number": int(number), "worker": int(worker), "ask": ask}:
                    self._questions.ask(worker, ask, partial(self._pass_answer, post, post.pid, number))
                case {"event": "failed", "reason": str(reason)}:
                    post.reason = reason
                case {"event": "reloaded", "number": int(number), "reason": reason} if self._pending is not None:
                    self._pending.heard(number, post.index, post.incarnation, reason)
                case {"event": "closed"}:  # it is dying: SIGCHLD tells the rest
                    post.control.close()
                    post.control = None
                    return

    def _say_ready(self) -> None:
        if all(post.ready_at for post in self._posts) and not self._serving and not self._stop_at:
            self._serving = True
            self._notifier.ready(self._status())
            self._on_ready()

    def _tell(self, post: _Post, message: Message) -> None:
        if post.control is None or not post.pid:
            return
        try:
            send_message(post.control, message)
        except BlockingIOError:
            # Hundreds of messages unread: what it believes of its siblings is worth nothing.
            self._log("error", self._event(post, "does_not_listen"), **self._named(post), pid=post.pid)
            self._kill(post, signal.SIGKILL)
        except (BrokenPipeError, ConnectionResetError):
            pass  # it is dying: SIGCHLD tells the rest
        except OSError as error:  # no descriptor, no memory: what it was to hear is not heard
            self._log("error", self._event(post, "not_told"), **self._named(post), reason=error.strerror)

    def _pass_answer(self, post: _Post, pid: int, number: int, said: Message) -> None:
        if post.pid == pid:  # else it was asked by one that has died
            self._tell(post, {"event": "answered", "number": number, **said})

    def _ask(self, worker: int, message: Message) -> bool:
        if not 0 <= worker < self._workers or not self._posts[worker].ready_at:
            return False
        self._tell(self._posts[worker], message)
        return True

    def _tell_state(self) -> None:
        """Tell the control process how the broker and its workers are."""
        broker = "stopping" if self._stop_at else "serving" if self._serving else "starting"
        workers = [
            {
                "state": "ready" if post.ready_at else "starting" if post.pid else "down",
                "pid": post.pid,
                "restarts": post.restarts,
            }
            for post in self._posts
        ]
        self._tell(self._control, {"event": "state", "broker": broker, "workers": workers})

    def _status(self) -> str:
        return f"serving on {', '.join(self.listening_on())} with {self._workers} workers"

    # -- heartbeats

    def _judge_heartbeats(self, now: float) -> None:
        for post in self._all:
            if not post.pid:
                continue
            beat = post.heartbeat[0]
            if beat != post.beat:
                post.beat, post.beat_at = beat, now
            elif not post.kill_at and not self._stop_at and now - post.beat_at > self._policy.worker_hang_seconds_max:
                post.kill_at = now + _STACK_SECONDS
                self._kill(post, stacks.SIGNAL)
            if post.kill_at and now >= post.kill_at:
                self._log(
                    "error",
                    self._event(post, "hung"),
                    **self._named(post),
                    pid=post.pid,
                    seconds=round(now - post.beat_at, 1),
                    state=stacks.process_state(post.pid),
                    stack=stacks.read(self.runtime_dir.path, post.index),
                )
                post.kill_at = now + self._policy.worker_hang_seconds_max
                self._kill(post, signal.SIGKILL)

    # -- the end

    def _fail(self, reason: str) -> None:
        if not self._stop_at:
            self.failure = reason
            self._stop()

    def _stop(self) -> None:
        self._stop_at = time.monotonic()
        self._notifier.stopping()
        # Else the kernel goes on filling the backlogs after the workers have closed their copies.
        self.listeners.close()
        for post in self._posts:
            post.fork_at = 0.0
            self._tell(post, {"event": "stop", "seconds": self._policy.stop_seconds_max * 0.8})
        self._control.fork_at = 0.0
        self._tell_state()

    def _enforce_stop(self, now: float) -> None:
        if not self._stop_at or self._killed:
            return
        if not any(post.pid for post in self._posts):  # until now it has said that we are stopping
            self._tell(self._control, {"event": "stop", "seconds": self._policy.stop_seconds_max * 0.1})
        elapsed = (now - self._stop_at) / self._policy.stop_seconds_max
        if elapsed >= 0.95:
            self._killed = True
            left = [post.index for post in self._posts if post.pid]
            self._log("warning", "workers_killed_stopping", workers=left, seconds=self._policy.stop_seconds_max)
            self._kill_all()
        elif elapsed >= 0.9:
            for post in self._all:
                self._kill(post, signal.SIGTERM)

    def _kill_all(self) -> None:
        for post in self._all:
            self._kill(post, signal.SIGKILL)

    def _kill(self, post: _Post, number: signal.Signals) -> None:
        if post.pid:  # not reaped yet, so the number is still its own
            with contextlib.suppress(ProcessLookupError):
                os.kill(post.pid, number)

    # -- in the child

    def _be_child(self, channel: WorkerChannel | ControlChannel) -> NoReturn:
        status = 1
        try:
            self._settle(channel)
            if isinstance(channel, WorkerChannel):
                status = self._run(channel)
            elif self._run_control is not None:
                status = self._run_control(channel)
        except SystemExit as error:
            status = error.code if isinstance(error.code, int) else int(error.code is not None)
        except BaseException as error:  # noqa: BLE001 (whatever it is, it must not unwind into the supervisor's frames)
            reason = "".join(traceback.format_exception_only(error)).strip().replace("\n", " ")
            channel.failed(reason)
            post = self._all[channel.index]
            self._log(
                "error", self._event(post, "failed"), **self._named(post), reason=reason, stack=traceback.format_exc()
            )
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(status & 0xFF)

    def _settle(self, channel: WorkerChannel | ControlChannel) -> None:
        """Make the forked copy of the supervisor a process of its own."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # until the worker has a handler: die
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        # The terminal sends these to the whole group; what they mean is the supervisor's to say.
        for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        self._libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != self._pid:  # it died before the kernel was asked to tell
            os._exit(1)
        self._close_what_is_not(channel)
        self._stack_file = stacks.register(channel.runtime_dir, channel.index)
        # the others when it can say that they came: signals.ignore_with_a_line
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _WATCHED - signals.IGNORED | _WATCHED_BY_CHILDREN)
        worker = isinstance(channel, WorkerChannel)
        setproctitle(f"mqttd: worker {channel.index}" if worker else "mqttd: control")
        random.seed()
        if self._pin_cpus and worker:
            cpus = usable_cpus()
            os.sched_setaffinity(0, {cpus[channel.index % len(cpus)]})

    def _close_what_is_not(self, channel: WorkerChannel | ControlChannel) -> None:
        for index in range(self._workers):
            if index != channel.index:
                self.listeners.close_of(index)  # else a stopped sibling's backlog would stay open through us
        for index, (_, receive) in enumerate(self._handoffs):
            if index != channel.index:
                receive.close()
        if isinstance(channel, WorkerChannel):
            for listener in self._admin:
                listener.close()
        else:
            for send, _ in self._handoffs:
                send.close()
        for post in self._all:
            if post.control is not None:
                post.control.close()
        if self._console is not None:
            self._console.close()
        self._wakeup.close()
        self._signalled.close()
        self.runtime_dir.release()
