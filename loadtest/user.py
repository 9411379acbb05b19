"""`MqttUser`: the base of locust users that use MQTT.

    from locust import task
    from loadtest.user import MqttUser

    class Sensor(MqttUser):
        @task
        def report(self):
            self.client.publish(f"sensors/{self.client.client_id}/state")

    locust -f FILE --host mqtt://127.0.0.1:1883

Each request is reported to locust: CONNECT, SUBSCRIBE, UNSUBSCRIBE, PUBLISH (until PUBACK or PUBCOMP; at QoS 0 until
it is written to the socket), DELIVERY (from the publish to its arrival, by the time in the payload) and RECEIVED (a
message whose payload has no time: it is counted, without a duration). An unexpected end of a connection is a failed
DISCONNECT. Failures are `MqttFailure`s with the broker's Reason Code.

The import of this module adds the options of `loadtest.options` to locust's. It imports locust, which patches
the standard library for gevent: import it before anything that uses sockets.
"""

from __future__ import annotations

import argparse
import heapq
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Final
from weakref import WeakKeyDictionary

from locust import User, events

from loadtest.client import Message, MqttClient
from loadtest.options import add_to_locust, payloads, typed
from loadtest.reporting import MqttFailure, Reporter
from loadtest.settings import Settings
from loadtest.target import Target
from pyx.protocol.packets import Will

__all__ = ["Message", "MqttClient", "MqttFailure", "MqttUser", "Will"]

OWN_DEFAULTS: Final = {"mqtt-version": None, "qos": None, "payload": None, "topic": None, "client-prefix": "locust-"}
"""Defaults of options; None: the attribute of the user's class is used."""
_USERS_OF_A_PROCESS_MAX: Final = 1_000_000


def _add_options(parser: Any, **_: Any) -> None:
    add_to_locust(parser, defaults=OWN_DEFAULTS)


def _check_options(environment: Any, **_: Any) -> None:
    # before there are users: one line, not one traceback for each of them
    options = environment.parsed_options
    if options is None:
        return
    try:
        typed(options)
        _configured(environment.host, options, 5)
        _payloads(options.payload or MqttUser.payload)
    except ValueError as error:
        print(f"locust: {error}", file=sys.stderr)
        sys.exit(2)


events.init_command_line_parser.add_listener(_add_options)
events.init.add_listener(_check_options)

_payloads = lru_cache(maxsize=64)(payloads)


def _configured(host: str | None, options: argparse.Namespace | None, version: int) -> Target:
    host = host or "mqtt://127.0.0.1:1883"
    if options is None:
        return Target.parse(host, version=version)
    files = [
        Path(each) if each else None for each in (options.password_file, options.cafile, options.cert, options.key)
    ]
    return _target_of(host, options.mqtt_version or version, options.user, options.password, *files)


@lru_cache(maxsize=64)
def _target_of(host: str, version: int, user: str | None, password: str | None, *files: Path | None) -> Target:
    password_file, cafile, cert, key = files
    return Target.of(
        argparse.Namespace(
            host=host, mqtt_version=version, user=user, password=password, password_file=password_file, cafile=cafile,
            cert=cert, key=key, session_expiry=None,
        )
    )  # fmt: skip


class MqttUser(User):
    """Connects when it starts and disconnects when it stops. Attributes of the class are defaults, which options
    override.
    """

    abstract = True

    version: ClassVar[int] = 5
    clean_start: ClassVar[bool] = True
    session_expiry: ClassVar[int | None] = None
    keep_alive: ClassVar[int] = 60
    receive_maximum: ClassVar[int] = 65_535
    will: Will | None = None
    qos: ClassVar[int] = 0
    payload: ClassVar[str] = "64"
    """In the form of --payload."""
    topic: ClassVar[str] = "t/%i"
    """In the form of --topic; see `filled`."""
    reconnect_seconds: ClassVar[float | None] = 1.0
    """Pause before a client connects again after its connection failed or was lost; doubling, up to 30 s. None: it does
    not."""
    answer_seconds: ClassVar[float] = 30.0
    inbox_messages_max: ClassVar[int] = 0
    """Messages that may wait for `client.receive`."""

    _numbers: ClassVar[WeakKeyDictionary[Any, _Numbers]] = WeakKeyDictionary()

    def __init__(self, environment: Any) -> None:
        super().__init__(environment)
        self.options = environment.parsed_options
        if self.options is not None:
            typed(self.options)
        self.number = self._numbers.setdefault(environment, _Numbers()).take()
        """Number among the MqttUsers of this process; free again when it has stopped."""
        index = max(0, environment.runner.worker_index) if self._is_worker else 0
        self.place = index * _USERS_OF_A_PROCESS_MAX + self.number
        """Number among those of all processes."""
        self.topic_template: str = self._option("topic", self.topic)
        self.client = self.new_client()

    def new_client(self, suffix: str = "", reporter: Reporter | None = None) -> MqttClient:
        """Make one more connection of this user, with the settings of class and options. suffix: of its client id and
        its name in the statistics.
        """
        index = f"{self.environment.runner.worker_index}-" if self._is_worker else ""
        target = self._target()
        return MqttClient(
            reporter or Reporter.of(self.environment),
            target,
            Settings(
                "-".join(filter(None, [f"{self._option('client_prefix', 'locust-')}{index}{self.number}", suffix])),
                version=target.version,
                clean_start=self.clean_start,
                session_expiry=self._option("session_expiry", self.session_expiry),
                keep_alive=self.keep_alive,
                receive_maximum=self.receive_maximum,
                will=self.will,
                username=target.username,
                password=target.password,
            ),
            name=" ".join(filter(None, [type(self).__name__, suffix])),
            number=self.number,
            qos=self._option("qos", self.qos),
            payloads=_payloads(self._option("payload", self.payload)),
            reconnect_seconds=self.reconnect_seconds,
            answer_seconds=self.answer_seconds,
            inbox_messages_max=self.inbox_messages_max,
            is_wall=self._is_worker,
        )

    def on_start(self) -> None:
        """Connect."""
        self.client.connect()

    def on_stop(self) -> None:
        """Disconnect."""
        self.client.disconnect()
        self._numbers[self.environment].give_back(self.number)

    def filled(self, template: str | None = None) -> str:
        """Return a topic: --topic, or another template, with %i for the user's number and %c for its client id."""
        template = self.topic_template if template is None else template
        return template.replace("%i", str(self.place)).replace("%c", self.client.client_id)

    @property
    def _is_worker(self) -> bool:
        return type(self.environment.runner).__name__ == "WorkerRunner"

    def _target(self) -> Target:
        return _configured(self.environment.host or self.host, self.options, self.version)

    def _option(self, name: str, default: Any) -> Any:
        value = getattr(self.options, name, None)
        return default if value is None else value


class _Numbers:
    """Numbers, lowest first: a user that starts after another has stopped takes its number, and its session."""

    def __init__(self) -> None:
        self._free: list[int] = []
        self._next = 0

    def take(self) -> int:
        if self._free:
            return heapq.heappop(self._free)
        self._next += 1
        return self._next - 1

    def give_back(self, number: int) -> None:
        heapq.heappush(self._free, number)
