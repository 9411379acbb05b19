"""The ruler: a load generator in C and the start commands of other brokers, in a separate folder beside this
repository. It is found by path and used in place; nothing of it is copied here.

`Ruler.at(path)` imports its compare.py, builds mqload and relay into its cache folder (MQLOAD_WORK) when they are older
than their source, and adds mqttd to the brokers of compare.py. Every run is a fresh broker on a free port, and one
mqload that reports CPU, latency, memory and every lost, duplicated or damaged message.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

Figures = dict[str, Any]
"""The result of one run: numbers by name, "ok", and "why" when it failed."""

#: our name -> the name in compare.py's table
PEERS = {"mosquitto": "mosq20", "nats-server": "nats"}
_PORT_FIRST = 21500
_STORE = "data"  # in the folder of a run
_ARCHIVE = '[[archive]]\nfilter = "#"\nhours = 24\nbytes = "10GB"\n'


class Running:
    """A running broker."""

    def __init__(self, broker: Any) -> None:
        self._broker = broker
        self.port: int = broker.port

    @property
    def pid(self) -> int:
        """Process id of the started process; its children count as the broker too."""
        pid: int = self._broker.p.pid
        return pid

    def pss_bytes(self) -> int:
        """Return the proportional set size of all its processes: a page shared by n of them counts 1/n in each."""
        total = 0
        for pid in self._broker.tree():
            try:
                with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as lines:
                    total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
            except (FileNotFoundError, ProcessLookupError, StopIteration):
                continue  # it ended meanwhile
        return total * 1024


class Ruler:
    """mqload and the brokers."""

    def __init__(self, compare: ModuleType) -> None:
        self._compare: Any = compare
        self._port = _PORT_FIRST
        self._lock = compare.Lock(os.path.join(compare.WORK, "cpu.lock"), 200)

    @classmethod
    def at(cls, path: Path) -> Ruler | None:
        """Return the ruler in that folder, built; None if the folder has none."""
        source = path / "compare.py"
        if not source.is_file():
            return None
        os.environ["PATH"] += ":/usr/sbin"  # where Debian puts mosquitto and nats-server
        spec = importlib.util.spec_from_file_location("ruler_compare", source)
        assert spec is not None
        assert spec.loader is not None
        compare = importlib.util.module_from_spec(spec)
        kept, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # nothing is written beside the ruler
        try:
            spec.loader.exec_module(compare)
        finally:
            sys.dont_write_bytecode = kept
        for name in ("mqload", "relay"):
            _build(path / f"{name}.c", Path(compare.WORK, name))
        return cls(compare)

    def installed(self, broker: str) -> bool:
        """Return whether that broker can be started on this machine."""
        return shutil.which(shlex.split(self._spec(broker)[0])[0]) is not None

    def mqload(self, broker: str, arguments: str, seconds: float, warmup: float) -> Figures:
        """Start the broker, run mqload against it with `{S}` for the time to measure, stop the broker."""
        compare = self._compare
        compare.SCENARIOS["ours"] = (arguments, "", "")
        options = argparse.Namespace(seconds=seconds, warmup=warmup, pin=False, extra="")
        self._lock.room(0)
        name, port = _file_name(broker), self._next_port()
        try:
            figures: Figures = compare.one(name, self._spec(broker), "ours", port, options)
        finally:
            _remove_store(Path(compare.WORK, "run", f"{name}-{port}"))
        return figures

    def generate(self, running: Running, arguments: str) -> Figures:
        """Run mqload against a running broker."""
        whole = f"{arguments} --port {running.port} --pid {running.pid} --tree"
        command = [self._compare.MQLOAD, *shlex.split(whole)]
        done = subprocess.run(command, capture_output=True, timeout=100, text=True, check=False)
        try:
            figures: Figures = self._compare.json.loads(done.stdout)
        except ValueError:
            return {"ok": False, "why": (done.stdout + done.stderr)[-200:].strip()}
        return figures

    @contextmanager
    def started(self, broker: str) -> Iterator[Running]:
        """Yield a fresh broker, for figures that mqload does not measure."""
        command, files, single, _ = self._spec(broker)
        self._lock.room(0)
        held = self._compare.Broker(_file_name(broker), command, files, single, self._next_port(), "", False)
        try:
            if not held.ok:
                raise RuntimeError(f"{broker} did not start: {Path(held.dir, 'log.txt').read_text()[-2000:]}")
            yield Running(held)
        finally:
            held.stop()
            _remove_store(Path(held.dir))

    def medians(self, runs: list[Figures]) -> tuple[dict[str, float], dict[str, float]]:
        """Return the median of every figure, and its spread in percent: (largest - smallest) / median."""
        medians, spreads = self._compare.median(runs)
        return dict(medians), dict(spreads)

    def complaint(self, runs: list[Figures]) -> str:
        """Return the errors of these runs, or an empty text."""
        text: str = self._compare.note({"runs": runs})
        return text

    def _next_port(self) -> int:
        self._port = int(self._compare.free_port(_PORT_FIRST, self._port))
        return self._port

    def _spec(self, broker: str) -> tuple[str, dict[str, str], bool, str]:
        """Return compare.py's (command, files, single-threaded, cannot do). "mqttd/2": mqttd with two workers,
        "mqttd/1+fsync" and "mqttd/1+buffered": with a store on disk, "mqttd/1+fsync+archive": everything is archived
        there, "mqttd/1 A=B": with A=B in its environment.
        """
        name, _, environment = broker.partition(" ")
        if name in PEERS:
            spec: tuple[str, dict[str, str], bool, str] = self._compare.BROKERS[PEERS[name]]
            return spec
        workers, _, durability = name.partition("/")[2].partition("+")
        durability, _, archive = durability.partition("+")
        store = "--store memory"
        files = {}
        if durability:
            environment = f"MQTTD_DURABILITY={durability} {environment}"
            store = f"--store leveldb --data-dir {{dir}}/{_STORE}"
        if archive:
            files["mqttd.toml"] = _ARCHIVE
            store += " --config {dir}/mqttd.toml"
        command = (
            f"env PYTHONPATH={shlex.quote(str(ROOT))} {environment} {shlex.quote(sys.executable)} -m broker "
            f"--workers {workers or 1} --port {{port}} {store}"
        )
        return command, files, False, ""


def _file_name(broker: str) -> str:
    """Return a broker's name for the folder of its files."""
    return broker.replace("/", "-").replace(" ", "-")


def _remove_store(run: Path) -> None:
    """Remove the store: those of many runs would fill the disk."""
    shutil.rmtree(run / _STORE, ignore_errors=True)


def _build(source: Path, binary: Path) -> None:
    if binary.exists() and binary.stat().st_mtime >= source.stat().st_mtime:
        return
    binary.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cc", "-O2", "-o", str(binary), str(source)], check=True)
