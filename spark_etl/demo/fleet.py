"""The broker and the fleet of the demo: separate programs, of which nothing is imported here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from spark_etl.jobs import JobError

__all__ = ["Published", "work"]

_ROOT: Final = Path(__file__).resolve().parents[2]
_PATIENCE_SECONDS: Final = 60.0
_CONFIG: Final = """\
workers = 2
[[archive]]
filter = "#"
hours = 1
bytes = "1GB"
[events]
topic_levels = 1
[limits]
queue_messages_max = 500
[leveldb]
reserve_bytes = 0
"""

Published = Counter[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Flood:
    """A part of the fleet: a run of flood, whose client ids begin with its name."""

    name: str
    arguments: str
    part: float = 1.0
    """Fraction of the time."""

    def command(self, url: str, seconds: float, result: Path | None = None) -> list[str]:
        """Return the command that starts it."""
        command = ["loadtest.flood", *self.arguments.split(), "--host", url, "--client-prefix", f"{self.name}-"]
        command += ["--processes", "1", "--warmup", "0", "--quiet", "--seconds", f"{seconds * self.part:g}"]
        return command if result is None else [*command, "--json", str(result)]


_AWAY: Final = Flood("away", "sub -c 5 -t meters/%i -q 1 --mqtt-version 5 --session-expiry 3600 --drain 0.1", 0.01)
_FLEET: Final = (
    Flood("plant", "fanin -c 50 -t plant/%i/temperature -q 1 --rate 500 --payload 80:64,20:1024"),
    Flood("orders", "shared -c 40 --subs 4 -t orders/%i -q 1 --rate 1000"),
    Flood("meters", "pub -c 30 -t meters/%i -q 1 --rate 300"),
    Flood("news", "fanout -c 20 --pubs 2 -t news/%i --rate 50 -s 200"),
    Flood("quiet", "pub -c 10 -t quiet/%i -q 1 --rate 20", 0.3),
)
_FLAPS: Final = Flood("flaps", "conn -c 2", 0.01)


def work(out: Path, seconds: float, say: Callable[[str], None]) -> Published:
    """Run a broker and its fleet, and take two snapshots: `out`/snapshots/during and after. Return the numbers
    published, by client and topic. Raises JobError.
    """
    snapshots = out / "snapshots"
    snapshots.mkdir()
    (out / "mqttd.toml").write_text(_CONFIG)
    results = [out / f"{each.name}.json" for each in _FLEET]
    with _broker(out) as url, ExitStack() as started:
        say(f"mqttd is ready at {url}; a fleet works for {seconds:g} s")
        _run(_AWAY.command(url, 60))
        floods = [
            started.enter_context(_started(each.command(url, seconds, result)))
            for each, result in zip(_FLEET, results, strict=True)
        ]
        _come_and_go(url, seconds / 2)
        say(_snapshot(out / "data", snapshots / "during"))
        _come_and_go(url, seconds / 2)
        for flood in floods:
            _ended(flood, "loadtest.flood", seconds + _PATIENCE_SECONDS)
    say(_snapshot(out / "data", snapshots / "after"))
    published: Published = Counter()
    for result in results:
        for each in json.loads(result.read_text())["published"]:
            published[each["client"], each["topic"]] += each["messages"]
        result.unlink()
    say(f"the fleet has published {published.total():,} messages, by {len(published)} clients")
    return published


@contextmanager
def _broker(out: Path) -> Iterator[str]:
    # `broker.testing` as a program is an mqttd that ends when its standard input does: also when this process is killed
    command = ["broker.testing", "--config", str(out / "mqttd.toml"), "--host", "127.0.0.1", "--port", "0"]
    command += ["--admin", "none", "--data-dir", str(out / "data")]
    log = out / "mqttd.log"
    with log.open("w") as errors, _started(command, errors.fileno(), subprocess.PIPE) as broker:
        assert broker.stdout is not None
        ready = broker.stdout.readline().split()
        if ready[:2] != ["mqttd", "ready"]:
            raise JobError(f"mqttd has not started: {log} says why")
        yield f"mqtt://{ready[2]}"
        broker.terminate()
        if broker.wait(_PATIENCE_SECONDS):
            raise JobError(f"mqttd has ended with status {broker.returncode}: {log} says why")


def _come_and_go(url: str, seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        _run(_FLAPS.command(url, 60))
        time.sleep(max(0.0, min(1.0, until - time.monotonic())))


def _snapshot(data: Path, snapshot: Path) -> str:
    return _run(["broker", "snapshot", "--data-dir", str(data), "--out", str(snapshot)]).splitlines()[-1]


# -- programs


@contextmanager
def _started(
    command: Sequence[str], errors: int = subprocess.STDOUT, given: int = subprocess.DEVNULL
) -> Iterator[subprocess.Popen[str]]:
    """Start one of our modules as a program; at the end it is killed, if it still runs. -P: no current directory."""
    environment = {name: text for name, text in os.environ.items() if not name.startswith("MQTTD_")}
    environment["PYTHONPATH"] = os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    with subprocess.Popen(
        [sys.executable, "-P", "-m", *command], env=environment, text=True, stdin=given, stdout=subprocess.PIPE,
        stderr=errors,
    ) as program:  # fmt: skip
        try:
            yield program
        finally:
            program.kill()


def _run(command: Sequence[str]) -> str:
    with _started(command) as program:
        return _ended(program, command[0], _PATIENCE_SECONDS)


def _ended(program: subprocess.Popen[str], name: str, seconds: float) -> str:
    # returns its output. JobError: it has failed, or has not ended
    try:
        said, _ = program.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        raise JobError(f"{name} has not ended after {seconds:g} s") from None
    if program.returncode:
        raise JobError(f"{name} has ended with status {program.returncode}: {said.strip() or 'without a word'}")
    return said
