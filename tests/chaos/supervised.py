"""A broker's processes around a worker that speaks one line per command: what tests/chaos/test_supervisor.py starts.

    python -m tests.chaos.supervised '{"workers": 2, "hosts": ["127.0.0.1"], "policy": {...}, "settings": {...}}'

Standard output: `ready PORT` once every worker is. Standard error: one JSON line per log event.
`settings` steer the worker: see `_run`. SIGHUP takes {"reload": ...} of `settings` for the new ones, null refuses.
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import socket
import sys
from typing import Any

from shards import handoff
from shards.listening import CannotListen
from shards.policy import Policy
from shards.runtime_dir import RuntimeDir
from shards.supervisor import Reloaded, ReloadRefused, Seat, Supervisor


def _log(level: str, event: str, **fields: Any) -> None:
    print(json.dumps({"level": level, "event": event, **fields}), file=sys.stderr, flush=True)


class _Worker:
    def __init__(self, seat: Seat) -> None:
        self.seat = seat
        self.heard: list[dict[str, Any]] = []
        self.connections: list[socket.socket] = []

    def serve(self) -> int:
        seat = self.seat
        while True:
            seat.heartbeat[0] += 1
            readable, _, _ = select.select(
                [seat.control, seat.handoff_receive, *seat.listeners, *self.connections], [], [], 0.05
            )
            if seat.control in readable:
                messages = seat.messages()
                self.heard += messages
                for message in messages:
                    if message["event"] == "reload" and seat.settings.get("deaf") != seat.index:
                        refuses = seat.settings.get("refuses") == seat.index
                        seat.tell("reloaded", number=message["number"], reason="not this one" if refuses else None)
                if any(message["event"] == "stop" for message in messages):
                    if not seat.settings.get("ignore_stop"):
                        return 0
                    while seat.listeners:
                        seat.listeners.pop().close()
            if seat.handoff_receive in readable:
                handed_over = handoff.receive(seat.handoff_receive)
                if handed_over is not None:
                    self.connections.append(socket.socket(fileno=handed_over.fd))
                    self.answer(self.connections[-1], handed_over.unread.decode())
            for listener in seat.listeners:
                if listener in readable:
                    self.connections.append(listener.accept()[0])
            for connection in [each for each in self.connections if each in readable]:
                line = connection.recv(4096).decode()
                if line:
                    self.answer(connection, line)
                else:
                    self.connections.remove(connection)
                    connection.close()

    def answer(self, connection: socket.socket, line: str) -> None:
        seat = self.seat
        command, *arguments = line.split()
        reply: Any = None
        match command:
            case "who":
                reply = {
                    "index": seat.index,
                    "pid": os.getpid(),
                    "incarnation": seat.incarnation,
                    "incarnations": seat.incarnations,
                    "random": random.random(),
                    "cpus": sorted(os.sched_getaffinity(0)),
                    "listeners": [os.fstat(listener.fileno()).st_ino for listener in seat.listeners],
                    "runtime_dir": seat.runtime_dir,
                    "settings": seat.settings,
                }
            case "heard":
                reply = self.heard
            case "count":  # in the shared row, beside the heartbeat
                counters = seat.row.cast("Q")
                counters[1] += 1
                reply = [row.cast("Q")[1] for row in seat.rows]
            case "hand":  # hand this connection to worker N, which answers the rest of the line
                index = int(arguments[0])
                sent = handoff.send(
                    seat.handoff_send[index], connection.fileno(), " ".join(arguments[1:]).encode(), 5.0, ("peer", 1)
                )
                assert sent
                self.connections.remove(connection)
                connection.close()
                return
            case "hang":
                _stuck_in_here()
            case "exit":
                os._exit(int(arguments[0]))
        connection.sendall(json.dumps(reply).encode() + b"\n")


def _stuck_in_here() -> None:
    while True:
        pass


def _run(seat: Seat) -> int:
    settings = seat.settings
    if settings.get("fails") == seat.index:
        seat.failed("no such store")
        return 1
    if settings.get("raises") == seat.index:
        raise RuntimeError("broken\nworker")
    if settings.get("dies") == seat.index:
        os.kill(os.getpid(), signal.SIGKILL)
    if settings.get("ignore_stop"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if settings.get("slow") == seat.index:
        while True:  # starting for ever, alive all the same
            seat.heartbeat[0] += 1
            select.select([], [], [], 0.05)
    seat.ready()
    return _Worker(seat).serve()


def _main() -> int:
    options = json.loads(sys.argv[1])
    settings = options.get("settings", {})
    policy = Policy(**options.get("policy", {}))

    def reload() -> Reloaded:
        new = settings.get("reload")
        if "reload_items" in settings:
            new = {"rules": ["x" * 1000] * settings["reload_items"]}
        if new is None:
            raise ReloadRefused("port: wrong")
        return Reloaded({**settings, **new}, new, policy)

    try:
        supervisor = Supervisor(
            _run,
            workers=options.get("workers", 2),
            hosts=options.get("hosts", ["127.0.0.1"]),
            port=options.get("port", 0),
            settings=settings,
            policy=policy,
            log=_log,
            runtime_dir=RuntimeDir(options.get("runtime_dir")),
            on_ready=lambda: print(f"ready {supervisor.port}", flush=True),
            reload=reload,
            pin_cpus=options.get("pin_cpus", False),
        )
    except CannotListen as error:
        _log("error", "cannot_listen", reason=str(error))
        return 3
    status = supervisor.serve()
    _log("info", "ended", failure=supervisor.failure)
    return status


if __name__ == "__main__":
    raise SystemExit(_main())
