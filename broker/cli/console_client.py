"""Client of the supervisor's control socket: sends requests to the workers of a running broker (`shards.console`). The
socket is named by `broker.json` in the broker's data directory or its runtime directory. Requests and answers:
`broker.admin.requests`.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from typing import Any, Self

from broker.admin import host_requests, requests
from broker.admin.host_requests import HostStates, OnHost
from broker.admin.requests import NoAnswer, Paged, Request, page_at, understood
from broker.config.loading import ENVIRONMENT_CONFIG, load
from shards.console import BrokerFile

__all__ = ["ConsoleClient", "NoBroker", "configured_directory"]

_SECONDS_MAX = 15.0


class NoBroker(NoAnswer):
    """No broker runs on that directory, or it has ended."""


def configured_directory(file: str | None) -> str:
    """Return where a broker with this configuration file (None: MQTTD_CONFIG, or none) has its broker.json. Raises
    ConfigError; and NoAnswer for a store in memory without `runtime_dir`: then only the broker knows.
    """
    settings = load(file or os.environ.get(ENVIRONMENT_CONFIG) or None, os.environ)
    if settings.store != "memory":
        return settings.data_dir
    if settings.runtime_dir is None:
        raise NoAnswer("a broker with its store in memory is found by its runtime_dir, which its start shows")
    return settings.runtime_dir


class ConsoleClient:
    """A connection to the supervisor. Raises NoAnswer, NoBroker."""

    def __init__(self, directory: str) -> None:
        none = f"no mqttd runs on {directory}"
        try:
            found = BrokerFile.read(directory)
            self.workers, path = int(found["workers"]), str(found["control"])
            cluster = found.get("cluster")  # none: of an earlier release, or alone
            self.node = None if cluster is None else str(cluster["node"])
            """The host's name in its cluster; None: it is in none."""
            self.cluster = "" if cluster is None else str(cluster["name"])
        except FileNotFoundError:
            raise NoBroker(none) from None
        except OSError as error:
            raise NoAnswer(f"{directory}: {error.strerror or error}") from None
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            raise NoAnswer(f"{directory}: broker.json is damaged") from None
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(_SECONDS_MAX)
        try:
            self._socket.connect(path)
        except (FileNotFoundError, ConnectionRefusedError):
            self._socket.close()
            raise NoBroker(f"{none} (an earlier one was killed)") from None
        except OSError as error:
            self._socket.close()
            raise NoAnswer(f"{path}: {error.strerror or error}") from None
        self._lines = self._socket.makefile("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._lines.close()
        self._socket.close()

    def ask(self, worker: int, request: Request | HostStates | OnHost) -> dict[str, Any]:
        """Return the answer of a worker; of the control process, which has the number after the last one's."""
        asked = host_requests.encode(request) if isinstance(request, HostStates | OnHost) else requests.encode(request)
        try:
            self._socket.sendall(json.dumps({"worker": worker, "ask": asked}).encode() + b"\n")
            line = self._lines.readline()
        except TimeoutError as error:
            raise NoAnswer(f"worker {worker} does not answer: {error.strerror or error}") from None
        except OSError as error:
            raise NoBroker(f"worker {worker} does not answer: {error.strerror or error}") from None
        if not line:
            raise NoBroker(f"worker {worker} does not answer: the broker has closed the connection")
        said = json.loads(line)
        if "error" in said:
            raise NoAnswer(said["error"])
        answer: dict[str, Any] = said["answer"]
        return understood(worker, answer)

    def pages(self, worker: int, request: Paged) -> Iterator[dict[str, Any]]:
        """Yield all pages of an answer."""
        at: int | None = request.at
        while at is not None:
            page = self.ask(worker, page_at(request, at))
            yield page
            at = page["next"]
