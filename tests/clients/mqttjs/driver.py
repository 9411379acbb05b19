"""MQTT.js in a Node process, installed once from npm by the committed lock file and driven by lines of JSON."""

from __future__ import annotations

import fcntl
import hashlib
import itertools
import json
import os
import queue
import shutil
import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.broker_process import ROOT, BrokerProcess

HERE = Path(__file__).resolve().parent
SECONDS_MAX = 60.0
INSTALL_SECONDS_MAX = 300.0


class NotInstalled(Exception):
    """Node or MQTT.js is missing and could not be installed; the text names the remedy."""


def installed() -> Path:
    """Return the directory of Node modules, in build/; the first call fetches them from npm. Raises NotInstalled."""
    missing = [program for program in ("node", "npm") if shutil.which(program) is None]
    if missing:
        raise NotInstalled(f"{' and '.join(missing)} not found: `make test` installs Debian's nodejs and npm")
    digest = hashlib.sha256((HERE / "package-lock.json").read_bytes()).hexdigest()[:12]
    target = ROOT / "build" / f"mqttjs-{digest}"
    target.mkdir(parents=True, exist_ok=True)
    with (target / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (target / "complete").exists():
            for name in ("package.json", "package-lock.json"):
                shutil.copy(HERE / name, target / name)
            command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--fetch-retries=1"]
            done = subprocess.run(
                command, cwd=target, capture_output=True, text=True, timeout=INSTALL_SECONDS_MAX, check=False
            )
            if done.returncode:
                raise NotInstalled(
                    "MQTT.js could not be installed. That needs npm's registry once: https://registry.npmjs.org, or a "
                    f"mirror named in ~/.npmrc. {' '.join(command)} said:\n{done.stdout}{done.stderr}"
                )
            (target / "complete").touch()
    return target / "node_modules"


class JsError(Exception):
    """A call was rejected; ``code`` is the reason code of the packet that caused it, if any."""

    def __init__(self, message: str, code: int | None) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class Message:
    """A message as MQTT.js passed it to the application."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    properties: dict[str, Any]


def _to_json(value: object) -> object:
    if isinstance(value, bytes):
        return {"type": "Buffer", "data": list(value)}
    raise TypeError(f"{value!r}")


def _from_json(value: dict[str, Any]) -> Any:
    return bytes(value["data"]) if value.get("type") == "Buffer" else value


@dataclass
class _Heard:
    """The events of one client: in queues by name (packets by command), and all in order."""

    history: list[tuple[str, list[Any]]] = field(default_factory=list)
    _queues: dict[str, queue.Queue[list[Any]]] = field(default_factory=dict)

    def queue(self, event: str) -> queue.Queue[list[Any]]:
        """Return the queue of this event. Reader and test may both be the first to ask: a defaultdict would make two,
        and lose what was put into the first.
        """
        return self._queues.setdefault(event, queue.Queue())


class MqttJs:
    """A Node process with any number of MQTT.js clients."""

    def __init__(self, log: Path) -> None:
        self._numbers = itertools.count(1)
        self._answers: dict[int, queue.Queue[dict[str, Any]]] = {}
        self._heard: dict[str, _Heard] = {}
        self._log = log
        with log.open("wb") as stderr:
            self.process = subprocess.Popen(
                ["node", HERE / "driver.cjs"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env={**os.environ, "NODE_PATH": str(installed())},
            )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            said = json.loads(line, object_hook=_from_json)
            if "number" in said:
                self._answers[said["number"]].put(said)
                continue
            heard, event, given = self.heard(said["client"]), said["event"], said["arguments"]
            heard.history.append((event, given))
            heard.queue(event if event != "packetreceive" else given[0]["cmd"]).put(given)

    def heard(self, client: str) -> _Heard:
        """Return the client's events; see ``_Heard``."""
        return self._heard.setdefault(client, _Heard())

    def call(self, client: str, method: str, *arguments: Any) -> Any:
        """Call a method and return the result of its promise. Raises JsError."""
        number = next(self._numbers)
        answer = self._answers[number] = queue.Queue()
        line = {"number": number, "client": client, "method": method, "arguments": arguments}
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(line, default=_to_json).encode() + b"\n")
        self.process.stdin.flush()
        try:
            said = answer.get(timeout=SECONDS_MAX)
        except queue.Empty:
            raise TimeoutError(f"{client}.{method}: {self._log.read_text()}") from None
        if "error" in said:
            raise JsError(said["error"]["message"], said["error"]["code"])
        return said.get("value")

    def forget(self) -> None:
        """Close all connections and drop their events: later clients may have the same names."""
        self.call("", "forget")
        self._heard = {}

    def close(self) -> None:
        """End the process and thereby all its connections."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.kill()
        self.process.wait(SECONDS_MAX)
        self._reader.join()
        self.process.stdin.close()
        self.process.stdout.close()


class JsClient:
    """One MQTT.js client. ``options`` are MQTT.js's own; it reconnects by itself 50 ms after its connection broke."""

    def __init__(self, node: MqttJs, broker: BrokerProcess, version: int, client_id: str, **options: Any) -> None:
        self.name = client_id or "nameless"
        self.version = version
        self._node = node
        self._heard = node.heard(self.name)
        chosen = {"protocolVersion": version, "clientId": client_id, "reconnectPeriod": 50, **options}
        node.call(self.name, "connect", broker.url, chosen)

    def __getattr__(self, method: str) -> Callable[..., Any]:
        """``client.publishAsync(...)`` and every other method of MQTT.js, by its own name."""
        return lambda *arguments: self._node.call(self.name, method, *arguments)

    @property
    def history(self) -> list[tuple[str, list[Any]]]:
        """Return all events until now, in order."""
        return list(self._heard.history)

    def sent(self, command: str) -> list[dict[str, Any]]:
        """Return the packets of this kind that it has sent until now."""
        return [given[0] for event, given in self.history if event == "packetsend" and given[0]["cmd"] == command]

    def next(self, event: str) -> list[Any]:
        """Return the arguments of its next event of this name; received packets are events too (``suback``)."""
        try:
            return self._heard.queue(event).get(timeout=SECONDS_MAX)
        except queue.Empty:
            raise TimeoutError(f"no {event} for {self.name}; the last it said: {self.history[-10:]}") from None

    def packet(self, command: str) -> dict[str, Any]:
        """Return the next packet of this kind that it receives."""
        packet: dict[str, Any] = self.next(command)[0]
        return packet

    def message(self) -> Message:
        """Return the next message."""
        topic, payload, packet = self.next("message")
        return Message(topic, payload, packet["qos"], packet["retain"], packet.get("properties", {}))

    def subscribe(self, topic: str, qos: int = 0, **options: Any) -> dict[str, Any]:
        """Subscribe; return the SUBACK."""
        self.subscribeAsync(topic, {"qos": qos, **options})
        return self.packet("suback")

    def publish(self, topic: str, payload: bytes, qos: int = 0, **options: Any) -> None:
        """Publish and complete the handshake."""
        self.publishAsync(topic, payload, {"qos": qos, **options})

    def begin_publish(self, topic: str, payload: bytes, qos: int) -> None:
        """Pass a message to MQTT.js, which sends it when it can."""
        self._node.call(self.name, "publish", topic, payload, {"qos": qos})

    def break_down(self) -> None:
        """Break the socket."""
        self._node.call(self.name, "break")

    def end(self) -> None:
        """Send DISCONNECT and wait until the connection is closed."""
        self.endAsync()
