"""The posts of a broker's processes, one for each worker and one for the control process: their incarnations, messages
to them, and detection of hangs.

An incarnation fills a post, and a successor after its death: at once, then after 0.25 s doubling to 10 s, until one has
served 5 s. A process whose heartbeat is unchanged for too long hangs: its stack is taken (SIGUSR2, faulthandler) and
logged, and it is killed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from shards import stacks
from shards.worker_channel import Message, send_message

__all__ = ["Death", "Post", "Posts"]

_STACK_SECONDS = 0.5
_DELAY_SECONDS_FIRST = 0.25
_DELAY_SECONDS_MAX = 10.0
_HEALTHY_SECONDS = 5.0


class Death(NamedTuple):
    """The end of an incarnation."""

    pid: int
    reason: str
    served: float | None
    """Seconds for which it was ready, None if it never was."""


@dataclass(slots=True)
class Post:
    """One post. The index of the control process is the number of workers."""

    index: int
    heartbeat: memoryview
    is_control: bool = False
    pid: int = 0  # 0: not running
    incarnation: int = 0
    control: socket.socket | None = None
    ready_at: float = 0.0  # 0: not ready
    reason: str = ""  # reported by it before it died
    beat: int = 0
    beat_at: float = 0.0  # when `beat` was last seen to change
    kill_at: float = 0.0  # set when its stack was requested; 0: not hung
    delay: float = 0.0  # before its next fork
    fork_at: float = 0.0  # 0: no fork planned
    forked_at: float = 0.0
    restarts: int = 0

    @property
    def named(self) -> dict[str, Any]:
        """The fields that identify it in a log line."""
        return {"process": "control"} if self.is_control else {"worker": self.index}

    def event(self, what: str) -> str:
        """Return the name of a log event."""
        return f"control_{what}" if self.is_control else f"worker_{what}"

    def fill(self, pid: int, incarnation: int, control: socket.socket) -> None:
        """Note that it was forked."""
        now = time.monotonic()
        self.restarts += self.incarnation != 0
        self.pid, self.incarnation, self.control = pid, incarnation, control
        self.reason, self.ready_at, self.kill_at = "", 0.0, 0.0
        self.beat, self.beat_at, self.forked_at = self.heartbeat[0], now, now

    def leave(self, exit_status: int) -> Death:
        """Note that it was reaped. `exit_status` is negative for a signal, as in waitstatus_to_exitcode."""
        if self.control is not None:
            self.control.close()
        if self.kill_at:
            reason = "hung"
        elif exit_status < 0:
            reason = f"killed by {signal.Signals(-exit_status).name}"
        else:
            reason = f"exit status {exit_status}"
        if self.reason:
            reason = f"{self.reason} ({reason})"
        pid, self.pid, self.control, self.kill_at = self.pid, 0, None, 0.0
        served = time.monotonic() - self.ready_at if self.ready_at else None
        self.ready_at = 0.0
        return Death(pid, reason, served)

    def plan_successor(self, served: float | None, now: float) -> None:
        """Plan the next fork, after an incarnation that was ready for `served` seconds."""
        if served is not None and served >= _HEALTHY_SECONDS:
            self.delay = 0.0
        self.fork_at = now + self.delay
        self.delay = min(max(self.delay * 2, _DELAY_SECONDS_FIRST), _DELAY_SECONDS_MAX)

    def kill(self, number: signal.Signals) -> None:
        """Send it this signal."""
        if self.pid:  # not reaped yet, so the pid is still its own
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


class Posts:
    """All posts of a broker. `log`: as for the supervisor."""

    def __init__(
        self,
        heartbeats: Sequence[memoryview],
        control_heartbeat: memoryview,
        has_control: bool,
        log: Callable[..., None],
    ) -> None:
        self.workers = [Post(index, heartbeat) for index, heartbeat in enumerate(heartbeats)]
        self.control = Post(len(self.workers), control_heartbeat, is_control=True)
        self.all = [*self.workers, self.control] if has_control else self.workers
        self._log = log

    @property
    def are_empty(self) -> bool:
        """Whether no process is left."""
        return not any(post.pid for post in self.all)

    def tell(self, post: Post, message: Message) -> None:
        """Send a message to a process, if it runs."""
        if post.control is None or not post.pid:
            return
        try:
            send_message(post.control, message)
        except BlockingIOError:
            # Hundreds of unread messages: its knowledge of its siblings is too old to be of use.
            self._log("error", post.event("unresponsive"), **post.named, pid=post.pid)
            post.kill(signal.SIGKILL)
        except (BrokenPipeError, ConnectionResetError):
            pass  # it is dying, and SIGCHLD will follow
        except OSError as error:  # no descriptor, no memory: the message is lost
            self._log("error", post.event("message_failed"), **post.named, reason=error.strerror)

    def tell_state(self, broker: str) -> None:
        """Send the control process the state of the broker and its workers."""
        workers = [
            {
                "state": "ready" if post.ready_at else "starting" if post.pid else "down",
                "pid": post.pid,
                "restarts": post.restarts,
            }
            for post in self.workers
        ]
        self.tell(self.control, {"event": "state", "broker": broker, "workers": workers})

    def kill_all(self) -> None:
        """Send SIGKILL to all."""
        for post in self.all:
            post.kill(signal.SIGKILL)

    def judge_heartbeats(self, now: float, hang_seconds_max: float, is_stopping: bool, runtime_dir: str) -> None:
        """Request the stacks of processes with a heartbeat unchanged for too long (unless stopping), then kill them."""
        for post in self.all:
            if not post.pid:
                continue
            beat = post.heartbeat[0]
            if beat != post.beat:
                post.beat, post.beat_at = beat, now
            elif not post.kill_at and not is_stopping and now - post.beat_at > hang_seconds_max:
                post.kill_at = now + _STACK_SECONDS
                post.kill(stacks.SIGNAL)
            if post.kill_at and now >= post.kill_at:
                self._log(
                    "error",
                    post.event("hung"),
                    **post.named,
                    pid=post.pid,
                    seconds=round(now - post.beat_at, 1),
                    state=stacks.process_state(post.pid),
                    stack=stacks.read(runtime_dir, post.index),
                )
                post.kill_at = now + hang_seconds_max
                post.kill(signal.SIGKILL)
