"""The posts of a broker's processes, one for each worker and one for the control process: who fills it, what it is
told, and whether it hangs.

An incarnation fills a post, its successor after its death: at once, then after 0.25 s doubling to 10 s, until one has
served 5 s. Whoever's heartbeat stands still hangs: its stack is taken (SIGUSR2, faulthandler) and logged, and it is
killed.
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
    """How an incarnation has ended."""

    pid: int
    reason: str
    served: float | None
    """For how many seconds it was ready, None if it never was."""


@dataclass(slots=True)
class Post:
    """One of them. The index of the control process is the number of workers."""

    index: int
    heartbeat: memoryview
    is_control: bool = False
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

    @property
    def named(self) -> dict[str, Any]:
        """Whom a log line is about."""
        return {"process": "control"} if self.is_control else {"worker": self.index}

    def event(self, what: str) -> str:
        """The name of a log event."""
        return f"control_{what}" if self.is_control else f"worker_{what}"

    def fill(self, pid: int, incarnation: int, control: socket.socket) -> None:
        """It was forked."""
        now = time.monotonic()
        self.restarts += self.incarnation != 0
        self.pid, self.incarnation, self.control = pid, incarnation, control
        self.reason, self.ready_at, self.kill_at = "", 0.0, 0.0
        self.beat, self.beat_at, self.forked_at = self.heartbeat[0], now, now

    def leave(self, exit_status: int) -> Death:
        """It was reaped. `exit_status` is negative for a signal, as in waitstatus_to_exitcode."""
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
        """Of one that was ready for so many seconds."""
        if served is not None and served >= _HEALTHY_SECONDS:
            self.delay = 0.0
        self.fork_at = now + self.delay
        self.delay = min(max(self.delay * 2, _DELAY_SECONDS_FIRST), _DELAY_SECONDS_MAX)

    def kill(self, number: signal.Signals) -> None:
        """Send it this signal."""
        if self.pid:  # not reaped yet, so the number is still its own
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


class Posts:
    """All of a broker. `log`: as the supervisor's."""

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
        """Whether nobody is left."""
        return not any(post.pid for post in self.all)

    def tell(self, post: Post, message: Message) -> None:
        """One of them, if it runs."""
        if post.control is None or not post.pid:
            return
        try:
            send_message(post.control, message)
        except BlockingIOError:
            # Hundreds of messages unread: what it believes of its siblings is worth nothing.
            self._log("error", post.event("does_not_listen"), **post.named, pid=post.pid)
            post.kill(signal.SIGKILL)
        except (BrokenPipeError, ConnectionResetError):
            pass  # it is dying: SIGCHLD tells the rest
        except OSError as error:  # no descriptor, no memory: what it was to hear is not heard
            self._log("error", post.event("not_told"), **post.named, reason=error.strerror)

    def tell_state(self, broker: str) -> None:
        """Tell the control process how the broker and its workers are."""
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
        """SIGKILL."""
        for post in self.all:
            post.kill(signal.SIGKILL)

    def judge_heartbeats(self, now: float, hang_seconds_max: float, is_stopping: bool, runtime_dir: str) -> None:
        """Whose stands still for too long is asked for its stack (unless the broker is stopping), and killed after."""
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
