"""Questions for the workers of a running broker, over the supervisor's control socket, which `DATA_DIR/broker.json`
names (`shards.console`). What they answer: `broker.worker.administration`.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any, Self

from shards.console import Written

__all__ = ["ConsoleClient", "NoAnswer", "NoBroker"]

_SECONDS_MAX = 15.0


class NoAnswer(Exception):
    """One line."""


class NoBroker(NoAnswer):
    """None runs there."""


class ConsoleClient:
    """A connection to the supervisor. Raises NoAnswer, NoBroker."""

    def __init__(self, directory: str) -> None:
        none = f"no mqttd runs on the data directory {directory}"
        try:
            found = Written.read(directory)
            self.workers, path = int(found["workers"]), str(found["control"])
        except FileNotFoundError:
            raise NoBroker(none) from None
        except OSError as error:
            raise NoAnswer(f"{directory}: {error.strerror or error}") from None
        except (ValueError, KeyError, TypeError):
            raise NoAnswer(f"{directory}: broker.json is damaged") from None
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(_SECONDS_MAX)
        try:
            self._socket.connect(path)
        except (FileNotFoundError, ConnectionRefusedError):
            self._socket.close()
            raise NoBroker(f"{none} (one did, and was killed)") from None
        except OSError as error:
            self._socket.close()
            raise NoAnswer(f"{path}: {error.strerror or error}") from None
        self._lines = self._socket.makefile("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._lines.close()
        self._socket.close()

    def ask(self, worker: int, question: dict[str, Any]) -> dict[str, Any]:
        """A worker's answer."""
        try:
            self._socket.sendall(json.dumps({"worker": worker, "ask": question}).encode() + b"\n")
            line = self._lines.readline()
        except OSError as error:
            raise NoAnswer(f"worker {worker} does not answer: {error.strerror or error}") from None
        if not line:
            raise NoAnswer(f"worker {worker} does not answer: the broker has closed the connection")
        said = json.loads(line)
        if "error" in said:
            raise NoAnswer(said["error"])
        answer: dict[str, Any] = said["answer"]
        return answer

    def pages(self, worker: int, question: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """All pages of an answer."""
        at: int | None = 0
        while at is not None:
            page = self.ask(worker, {**question, "from": at})
            yield page
            at = page["next"]
