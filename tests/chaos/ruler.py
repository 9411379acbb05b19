"""The load generator mqload of the measuring tools, if present: ``RULER=`` names their directory."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.broker_process import BrokerProcess
from tests.chaos.crowd import ids_on

PAIRS = 20
WINDOW = 50


class SteadyLoad:
    """QoS 1 pairs on given workers, publishing at a share of their saturated rate."""

    def __init__(self, broker: BrokerProcess, on_workers: list[int], directory: Path) -> None:
        ruler = os.environ.get("RULER", "")
        source = Path(ruler, "mqload.c")
        if not ruler or not source.exists():
            pytest.skip("no load generator: RULER= names its directory")
        self._mqload = directory / "mqload"
        subprocess.run(["cc", "-O2", "-o", str(self._mqload), str(source)], check=True)
        self._command = [str(self._mqload), "pair", "--port", str(broker.address[1]), "--qos", "1"]
        self._command += ["--pubs", str(PAIRS), "--window", str(WINDOW)]
        names = [ids_on(worker, broker.workers, f"load{worker}x") for worker in on_workers]
        for option, turn in (("--pub-ids", 1), ("--sub-ids", 2)):
            path = directory / option.strip("-")
            chosen = itertools.islice(itertools.cycle(names), turn, PAIRS + turn)
            path.write_text("".join(f"{next(each)}\n" for each in chosen))
            self._command += [option, str(path)]

    def saturated(self, seconds: float) -> float:
        """Return the messages per second at saturation."""
        done = subprocess.run([*self._command, "--seconds", str(seconds)], capture_output=True, text=True, check=True)
        return float(json.loads(done.stdout)["in_per_s"])

    def begin(self, rate: float, seconds: float) -> None:
        """Publish at this rate for so many seconds."""
        command = [*self._command, "--rate", str(int(rate)), "--seconds", str(seconds)]
        self._running = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def result(self) -> dict[str, Any]:
        """Wait for its end; return its measurements."""
        out, _ = self._running.communicate(timeout=600)
        measured: dict[str, Any] = json.loads(out)
        return measured

    def kill(self) -> None:
        """Kill the generator if it still runs."""
        if self._running.poll() is None:
            self._running.kill()
        self._running.wait()
