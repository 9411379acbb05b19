"""The processes of a broker around a worker that answers one line per command, for tests/chaos/test_supervisor.py.

    python -m tests.chaos.supervised '{"workers": 2, "hosts": ["127.0.0.1"], "policy": {...}, "settings": {...}}'

Standard output: `ready PORT` once every worker is ready. Standard error: one JSON line per log event. `settings` steer
the worker: see `_run`. On SIGHUP, {"reload": ...} of `settings` are the new settings; null refuses them.
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

from pyx.io import handing_over
from shards.listening import CannotListen, ListenOn
from shards.policy import Policy
from shards.runtime_dir import RuntimeDir
from shards.supervisor import Reloaded, ReloadRefused, Supervisor, WorkerChannel


def _log(level: str, event: str, **fields: Any) -> None:
    # one write per line, so that lines of other processes are not mixed in
    os.write(sys.stderr.fileno(), json.dumps({"level": level, "event": event, **fields}).encode() + b"\n")


class _Worker:
    def __init__(self, channel: WorkerChannel) -> None:
        self.channel = channel
        self.heard: list[dict[str, Any]] = []
        self.connections: list[socket.socket] = []

    def serve(self) -> int:
        channel = self.channel
        listening = [each for listener in channel.listeners for each in listener.sockets]
        while True:
            channel.heartbeat[0] += 1
            readable, _, _ = select.select(
                [channel.control, channel.handoff_receive, *listening, *self.connections], [], [], 0.05
            )
            if channel.control in readable:
                messages = channel.messages()
                self.heard += messages
                for message in messages:
                    if message["event"] == "reload" and channel.settings.get("deaf") != channel.index:
                        refuses = channel.settings.get("refuses") == channel.index
                        channel.tell("reloaded", number=message["number"], reason="not this one" if refuses else None)
                if any(message["event"] == "stop" for message in messages):
                    if not channel.settings.get("ignore_stop"):
                        return 0
                    while listening:
                        listening.pop().close()
            if channel.handoff_receive in readable:
                handed_over = handing_over.receive(channel.handoff_receive.fileno())
                if handed_over is not None:
                    self.connections.append(socket.socket(fileno=handed_over.fd))
                    self.answer(self.connections[-1], handed_over.unread.decode())
            for listener in listening:
                if listener in readable:
                    self.connections.append(listener.accept()[0])
            for connection in [each for each in self.connections if each in readable]:
                try:
                    line = connection.recv(4096).decode()
                except ConnectionResetError:  # the test closed it with an answer unread
                    line = ""
                if line:
                    self.answer(connection, line)
                else:
                    self.connections.remove(connection)
                    connection.close()

    def answer(self, connection: socket.socket, line: str) -> None:
        channel = self.channel
        command, *arguments = line.split()
        reply: Any = None
        match command:
            case "who":
                reply = {
                    "index": channel.index,
                    "pid": os.getpid(),
                    "incarnation": channel.incarnation,
                    "incarnations": channel.incarnations,
                    "random": random.random(),
                    "cpus": sorted(os.sched_getaffinity(0)),
                    "listeners": [os.fstat(each.fileno()).st_ino for own in channel.listeners for each in own.sockets],
                    "runtime_dir": channel.runtime_dir,
                    "settings": channel.settings,
                }
            case "heard":
                reply = self.heard
            case "count":  # in the shared row, beside the heartbeat
                counters = channel.row.cast("Q")
                counters[1] += 1
                reply = [row.cast("Q")[1] for row in channel.rows]
            case "hand":  # hand this connection to worker N, which answers the rest of the line
                index = int(arguments[0])
                sent = handing_over.send(
                    channel.handoff_send[index].fileno(),
                    connection.fileno(),
                    " ".join(arguments[1:]).encode(),
                    5.0,
                    ("peer", 1),
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


def _run(channel: WorkerChannel) -> int:
    settings = channel.settings
    if settings.get("fails") == channel.index:
        channel.failed("no such store")
        return 1
    if settings.get("raises") == channel.index:
        raise RuntimeError("broken\nworker")
    if settings.get("dies") == channel.index:
        os.kill(os.getpid(), signal.SIGKILL)
    if settings.get("ignore_stop"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if settings.get("slow") == channel.index:
        while True:  # starts for ever, but is alive
            channel.heartbeat[0] += 1
            select.select([], [], [], 0.05)
    channel.ready()
    return _Worker(channel).serve()


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
            listeners=[ListenOn("default", "tcp", tuple(options.get("hosts", ["127.0.0.1"])), options.get("port", 0))],
            settings=settings,
            policy=policy,
            log=_log,
            runtime_dir=RuntimeDir(options.get("runtime_dir")),
            on_ready=lambda: print(f"ready {supervisor.listening_on()[0].rpartition(':')[2]}", flush=True),
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
