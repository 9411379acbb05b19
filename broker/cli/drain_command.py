"""`mqttd drain`: sends the clients and sessions of a host to the other hosts of its cluster, before it is stopped.

It waits until nothing is left. Interrupted, or after `--seconds`, the host goes on; `--end` ends it, and so does a
restart of the host. Requests go over the supervisor's control socket, as those of `mqttd sessions`.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

from broker.admin.requests import Drain, NoAnswer
from broker.cli.console_client import ConsoleClient, NoBroker, configured_directory
from broker.config.settings import ConfigError

__all__ = ["main"]

_CANNOT_DRAIN = 1
_BAD_USAGE = 2
_LOOK_SECONDS = 0.5
_SILENT_SECONDS_MAX = 30.0
"""Time for which a process that does not answer is waited for: it may have died, and its successor starts."""


class _Left(NamedTuple):
    connected: int
    sessions: int
    left_behind: int
    coming: int

    @property
    def is_all(self) -> bool:
        """Whether everything has gone that can go now."""
        return self.connected == self.coming == 0 and self.sessions <= self.left_behind

    def __str__(self) -> str:
        text = f"{self.connected} clients are connected, {self.sessions} sessions are here"
        if self.left_behind:
            text += f", {self.left_behind} of them only for messages of hosts that are away"
        if self.coming:
            text += f", {self.coming} have begun to come before"
        return text


class _NotDone(Exception):
    pass


def main(arguments: Sequence[str]) -> int:
    """Begin, or end, and wait. Exit status: 0 done, 1 refused, not done in time, or no broker that answers, 2 wrong
    usage.
    """
    parser = argparse.ArgumentParser(
        prog="mqttd drain",
        description="Send the clients and sessions of this host to the other hosts of its cluster, and wait until none "
        "is left. The host takes no clients until `mqttd drain --end`, or until it is started again.",
    )
    parser.add_argument("--end", action="store_true", help="take clients again; what has gone stays where it is")
    parser.add_argument("--seconds", type=float, metavar="N", help="wait for at most so long (default: as it takes)")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--data-dir", metavar="DIR", help="data directory of the broker (default: as configured)")
    where.add_argument("--runtime-dir", metavar="DIR", help="runtime directory of a broker with its store in memory")
    parser.add_argument("--config", metavar="FILE", help="configuration file of the broker; also MQTTD_CONFIG")
    given = parser.parse_args(arguments)
    if given.seconds is not None and not 0 <= given.seconds <= 1_000_000:
        parser.error("--seconds: 0 to 1,000,000")
    try:
        directory = given.data_dir or given.runtime_dir or configured_directory(given.config)
        with ConsoleClient(directory) as broker:
            _change(broker, "end" if given.end else "begin")
            if given.end:
                print("this host takes clients")
            else:
                _wait(broker, given.seconds)
                print("drained: the host can be stopped")
    except ConfigError as error:
        for line in error.lines:
            print(f"mqttd: {line}", file=sys.stderr)
        return _BAD_USAGE
    except (NoAnswer, _NotDone) as error:
        print(f"mqttd: {error}", file=sys.stderr)
        return _CANNOT_DRAIN
    except KeyboardInterrupt:
        print("mqttd: the host goes on; `mqttd drain --end` ends it", file=sys.stderr)
        return _CANNOT_DRAIN
    return 0


def _change(broker: ConsoleClient, change: str | None) -> str:
    """Ask the control process to begin, to end, or for nothing; return the state of the host."""
    try:
        answer = broker.ask(broker.workers, Drain(change))
    except NoBroker:
        raise
    except NoAnswer:  # it names a worker
        raise NoAnswer("no control process answers: is this host in a cluster?") from None
    if "refused" in answer:
        raise _NotDone(answer["refused"])
    return str(answer["drain"]["state"])


def _wait(broker: ConsoleClient, seconds: float | None) -> None:
    """Wait until nothing is left, and print how it goes."""
    now = time.monotonic()
    until, heard_at = None if seconds is None else now + seconds, now
    said: _Left | None = None
    while True:
        try:
            if _change(broker, None) != "draining":
                raise _NotDone("it has ended, and this host takes clients: no other one does, or somebody ended it")
            left = _left(broker)
            heard_at = time.monotonic()
        except NoBroker:
            raise
        except NoAnswer:
            if time.monotonic() - heard_at > _SILENT_SECONDS_MAX:
                raise
        else:
            if left != said:
                print(left, flush=True)
            said = left
            if left.is_all:
                return
        if until is not None and time.monotonic() >= until:
            raise _NotDone(f"not done in {seconds:g} s, the host goes on: {said or 'not all workers have answered'}")
        time.sleep(_LOOK_SECONDS)


def _left(broker: ConsoleClient) -> _Left:
    each = [broker.ask(worker, Drain(None))["drain"] for worker in range(broker.workers)]
    if not all(one["on"] for one in each):
        raise NoAnswer("not all workers know yet that they drain")
    return _Left(*(sum(one[name] for one in each) for name in _Left._fields))
