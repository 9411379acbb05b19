"""Commands run against a broker during a load: at given seconds, marked on the time axis of the run."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterable
from typing import Final

_PATIENCE_SECONDS: Final = 5.0


class Commands:
    """given: `SECONDS:COMMAND` each, the command for the shell. ValueError: one of them is invalid."""

    def __init__(self, given: Iterable[str] = ()) -> None:
        self._waiting = sorted(map(_parsed, given))
        self._running: list[tuple[str, subprocess.Popen[bytes]]] = []

    def look(self, at: float) -> list[tuple[float, str]]:
        """Start commands that are due `at` seconds after the measured time began. Return [(when, what happened)]:
        started commands, and those that ended with another status than 0.
        """
        happened = []
        while self._waiting and self._waiting[0][0] <= at:
            _, command = self._waiting.pop(0)
            process = subprocess.Popen(command, shell=True, stdin=subprocess.DEVNULL, start_new_session=True)
            self._running.append((command, process))
            happened.append((at, command))
        for command, process in self._running:
            if process.poll():
                happened.append((at, f"{command}: ended with status {process.returncode}"))
        self._running = [each for each in self._running if each[1].returncode is None]
        return happened

    def stop(self) -> list[str]:
        """End running commands with all that they started. Return reports on these, and on commands never due."""
        said = [f"--run {at:g}:{command}: the run was over before" for at, command in self._waiting]
        for command, process in self._running:
            if process.poll() is not None:
                continue
            said.append(f"--run {command}: was ended with the run")
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(_PATIENCE_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        self._waiting, self._running = [], []
        return said


def _parsed(text: str) -> tuple[float, str]:
    at, _, command = text.partition(":")
    try:
        seconds = float(at)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf") or not command.strip():
        raise ValueError(f"--run {text}: SECONDS:COMMAND, of the time that is measured")
    return seconds, command.strip()
