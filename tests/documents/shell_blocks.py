"""Runs the shell blocks of a page as a reader does, and checks that the output is as the page shows it.

    ```sh               runs to its end, status 0; the ```text after it is all of its standard output
    ```sh broker        stays open, with this name: in a terminal of its own, until Ctrl-C at the end
    ```text broker      appears next in that terminal, possibly after other lines

Numbers and the width of gaps may differ; `...` stands for any text, a line of it for any lines. The reader's ports are
free ones: settings and options of clients are passed in the environment and in files that the programs read by
themselves, so the blocks run as written. A number of five digits or more that the page shows of a terminal (a port, a
process id) stands in later blocks for the one that came.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from broker.testing import processes_of_session
from tests.broker_process import ROOT
from tests.waiting import wait_until

__all__ = ["Block", "Reader", "blocks", "expected", "follow"]

SECONDS_MAX = 180.0
_BLOCK = re.compile(r"^```(sh|text)(?: (\w+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PARTS = re.compile(r"(\.\.\.|\d[\d,.]*\d|\d| +)")
_LONG_NUMBER = re.compile(r"\b\d{5,}\b")
_ADMIN = re.compile(r"\bhttp://127\.0\.0\.1:(\d+)")
_SUBSCRIPTIONS = re.compile(rb"^(?:mqtt_subscriptions_active|mqttd_replays)\{[^}]*\} ([\d.]+)$", re.MULTILINE)


class Block(NamedTuple):
    """One block of a page."""

    kind: str
    """`sh` or `text`."""
    terminal: str
    """Name of the terminal; empty: the block runs to its end."""
    text: str


def blocks(page: str) -> list[Block]:
    """Return the shell blocks and their expected output, in order."""
    return [Block(kind, terminal, text) for kind, terminal, text in _BLOCK.findall(page)]


def expected(shown: str) -> re.Pattern[str]:
    """Return a pattern for the output shown by a page, for any machine; its groups are the numbers."""
    lines = []
    for line in shown.splitlines():
        if line == "...":
            lines.append(r"(?:.*\n)*?")
            continue
        lines.append("".join(map(_any_machine, _PARTS.split(line))) + r" *\n")
    return re.compile("".join(lines))


def numbers(shown: str) -> list[str]:
    """Return the numbers that a page shows: those of the groups of `expected`."""
    return [part for line in shown.splitlines() for part in _PARTS.split(line) if part[:1].isdigit()]


def _any_machine(part: str) -> str:
    if part == "...":
        return ".*"
    if part[:1].isdigit():
        return r"(\d[\d,.]*)"
    return " *" if part and not part.strip() else re.escape(part)


def _has_ended(session: int) -> bool:
    return not processes_of_session(session)


class Reader:
    """A shell that runs a page's blocks: a directory, free ports, terminals that stay open."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._reserved = [socket.socket() for _ in range(2)]
        for each in self._reserved:  # bound but never listening: reserved, and mqttd may bind them too (broker.testing)
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            each.bind(("127.0.0.1", 0))
        self.port, self.admin = (each.getsockname()[1] for each in self._reserved)
        self._terminals: dict[str, subprocess.Popen[bytes]] = {}
        self._read: dict[str, int] = {}
        self._output = ""
        self._admins = {str(self.admin)}
        self._came: dict[str, str] = {}
        self._environment = self._made()

    def _made(self) -> dict[str, str]:
        programs, config = self.directory / "bin", self.directory / "config"
        for each in (programs, config):
            each.mkdir(parents=True)
        for client in ("mosquitto_pub", "mosquitto_sub"):
            (config / client).write_text(f"-h 127.0.0.1\n-p {self.port}\n")
        # with a pipe for standard input a broker ends when the test process is gone; the generator's variables would be
        # unknown settings to mqttd; a file that names its port is one of several hosts, each with a port of its own
        module = '$(case "$1" in --workers | --config | try-cluster) echo .testing; esac)'
        ports = "grep -qs '^port = ' \"$2\" && unset MQTTD_PORT MQTTD_ADMIN"
        self._program("mqttd", f'unset MQTTD_LOAD_HOST\n{ports}\nexec "{sys.executable}" -P -m broker{module} "$@"')
        self._program("python", f'exec "{sys.executable}" "$@"')
        inherited = {name: text for name, text in os.environ.items() if not name.startswith("MQTTD_")}
        return {
            **inherited,
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "XDG_CONFIG_HOME": str(config),
            "MQTTD_HOST": "127.0.0.1",
            "MQTTD_PORT": str(self.port),
            "MQTTD_ADMIN": f"127.0.0.1:{self.admin}",
            "MQTTD_LEVELDB__RESERVE_BYTES": "0",
            "MQTTD_LOAD_HOST": f"mqtt://127.0.0.1:{self.port}",
        }

    def _program(self, name: str, text: str) -> None:
        path = self.directory / "bin" / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def do(self, block: Block) -> None:
        """Run a block, or check that its output appears."""
        if block.kind == "text":
            self._look(block)
            return
        block = block._replace(text=_LONG_NUMBER.sub(lambda found: self._came.get(found[0], found[0]), block.text))
        if block.terminal:
            self._open(block)
        else:
            self._output = self._run(block.text)

    def _run(self, text: str) -> str:
        command = text.replace("http://127.0.0.1:8083", f"http://127.0.0.1:{self.admin}")
        done = subprocess.run(
            ["bash", "-euc", command], cwd=self.directory, env=self._environment, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=SECONDS_MAX,
        )  # fmt: skip
        assert done.returncode == 0, f"{text}\n{done.stdout}{done.stderr}"
        return done.stdout

    def _open(self, block: Block) -> None:
        name, subscribes = block.terminal, "mosquitto_sub" in block.text
        before = self._subscriptions() if subscribes else 0.0
        with self._file(name).open("wb") as output:
            self._terminals[name] = subprocess.Popen(
                ["bash", "-euc", f"exec {block.text}"], cwd=self.directory, env=self._environment,
                stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
                # a background job of a shell ignores SIGINT, and its child processes inherit that
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )  # fmt: skip
        self._read[name] = 0
        if subscribes:
            wait_until(lambda: self._subscriptions() > before, SECONDS_MAX, "it has subscribed")

    def _subscriptions(self) -> float:
        count = 0.0
        for port in self._admins:
            with contextlib.suppress(urllib.error.URLError):  # a host that does not run
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=SECONDS_MAX) as answer:
                    count += sum(map(float, _SUBSCRIPTIONS.findall(answer.read())))
        return count

    def _file(self, terminal: str) -> Path:
        return self.directory / f"{terminal}.terminal"

    def _look(self, block: Block) -> None:
        pattern = expected(block.text)
        if not block.terminal:
            assert pattern.fullmatch(self._output), f"the page shows\n{block.text}\nand this came:\n{self._output}"
            return

        def came() -> bool:
            found = pattern.search(self._file(block.terminal).read_text(), self._read[block.terminal])
            if found is not None:
                self._read[block.terminal] = found.end()
                self._admins.update(_ADMIN.findall(found[0]))
                self._came.update(zip(numbers(block.text), found.groups(), strict=True))
            return found is not None

        try:
            wait_until(came, SECONDS_MAX, f"{block.terminal} shows\n{block.text}")
        except TimeoutError as error:
            error.add_note(self._file(block.terminal).read_text())
            raise

    def leave(self) -> None:
        """Send Ctrl-C to each terminal, the last opened first. Raise AssertionError if a process does not end by it."""
        statuses = {}
        while self._terminals:
            name, process = self._terminals.popitem()
            try:
                os.killpg(process.pid, signal.SIGINT)
                statuses[name] = process.wait(SECONDS_MAX)
                wait_until(partial(_has_ended, process.pid), SECONDS_MAX, f"{name} has ended")
            finally:
                self._kill(process)
        assert not any(statuses.values()), statuses

    @staticmethod
    def _kill(process: subprocess.Popen[bytes]) -> None:
        for pid in processes_of_session(process.pid):
            os.kill(pid, signal.SIGKILL)
        process.wait(SECONDS_MAX)
        assert process.stdin is not None
        process.stdin.close()

    def close(self) -> None:
        """Kill all remaining processes, and free the ports."""
        for process in self._terminals.values():
            self._kill(process)
        for each in self._reserved:
            each.close()


@contextlib.contextmanager
def reading(directory: Path) -> Iterator[Reader]:
    """Yield a reader; all its processes have ended afterwards."""
    reader = Reader(directory)
    try:
        yield reader
        reader.leave()
    finally:
        reader.close()


def follow(page: Path, directory: Path) -> int:
    """Run all blocks of a page; return their number."""
    found = blocks(page.read_text())
    with reading(directory) as reader:
        for block in found:
            reader.do(block)
    return len(found)
