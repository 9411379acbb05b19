"""`MqttUser`: the base of locust users that speak MQTT.

    from locust import task
    from loadtest.user import MqttUser

    class Sensor(MqttUser):
        @task
        def report(self):
            self.client.publish(f"sensors/{self.client.client_id}/state")

    locust -f FILE --host mqtt://127.0.0.1:1883

Each request is reported to locust: CONNECT, SUBSCRIBE, UNSUBSCRIBE, PUBLISH (until PUBACK or PUBCOMP; at QoS 0 until
it is written to the socket), DELIVERY (from the publish to its arrival, by the time in the payload) and RECEIVED (a
message whose payload has no time: it is counted, and has no duration). An end of a connection that we did not ask for
is a failed DISCONNECT. Failures are `MqttFailure`s with the broker's Reason Code.

The options of `loadtest.options` are added to locust's by the import of this module. It imports locust, which patches
the standard library for gevent: import it before anything that uses sockets.
"""

from __future__ import annotations

import heapq
from typing import Any, ClassVar, Final
from weakref import WeakKeyDictionary

from locust import User, events

from loadtest.client import Message, MqttClient, Settings
from loadtest.options import add_to_locust, password_of, payloads
from loadtest.reporting import MqttFailure, Reporter
from loadtest.target import Target
from pyx.packets import Will

__all__ = ["Message", "MqttClient", "MqttFailure", "MqttUser", "Will"]

OWN_DEFAULTS: Final = {"mqtt-version": None, "qos": None, "payload": None, "topic": None, "client-prefix": "locust-"}
"""Of options; None: the attribute of the user's class says it."""


def _add_options(parser: Any, **_: Any) -> None:
    add_to_locust(parser, defaults=OWN_DEFAULTS)


events.init_command_line_parser.add_listener(_add_options)


class MqttUser(User):
    """Connects when it starts and disconnects when it stops. Attributes of the class are what its users have unless an
    option says otherwise.
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
    """As --payload says it."""
    topic: ClassVar[str] = "t/%i"
    """As --topic says it; see `filled`."""
    reconnect_seconds: ClassVar[float | None] = 1.0
    """How long until a client connects again whose connection failed or was lost; each time twice as long, up to 30 s.
    None: it does not."""
    answer_seconds: ClassVar[float] = 30.0
    inbox_messages_max: ClassVar[int] = 0
    """Messages that wait for `client.receive`."""

    _numbers: ClassVar[WeakKeyDictionary[Any, _Numbers]] = WeakKeyDictionary()

    def __init__(self, environment: Any) -> None:
        super().__init__(environment)
        self.options = environment.parsed_options
        self.number = self._numbers.setdefault(environment, _Numbers()).take()
        """Among the MqttUsers of this process; free again when it has stopped."""
        self.topic_template: str = self._option("topic", self.topic)
        runner = environment.runner
        is_worker = type(runner).__name__ == "WorkerRunner"
        prefix = self._option("client_prefix", "locust-")
        self.client = MqttClient(
            Reporter.of(environment),
            self._target(),
            Settings(
                f"{prefix}{runner.worker_index}-{self.number}" if is_worker else f"{prefix}{self.number}",
                version=self._option("mqtt_version", self.version),
                clean_start=self.clean_start,
                session_expiry=self._option("session_expiry", self.session_expiry),
                keep_alive=self.keep_alive,
                receive_maximum=self.receive_maximum,
                will=self.will,
                username=self._option("user", None),
                password=None if self.options is None else password_of(self.options),
            ),
            name=type(self).__name__,
            number=self.number,
            qos=self._option("qos", self.qos),
            payloads=payloads(self._option("payload", self.payload)),
            reconnect_seconds=self.reconnect_seconds,
            answer_seconds=self.answer_seconds,
            inbox_messages_max=self.inbox_messages_max,
            is_wall=is_worker,
        )

    def on_start(self) -> None:
        """Connect."""
        self.client.connect()

    def on_stop(self) -> None:
        """Disconnect."""
        self.client.disconnect()
        self._numbers[self.environment].give_back(self.number)

    def filled(self, template: str | None = None) -> str:
        """A topic: --topic, or another template, with %i for the user's number and %c for its client id."""
        template = self.topic_template if template is None else template
        return template.replace("%i", str(self.number)).replace("%c", self.client.client_id)

    def _option(self, name: str, default: Any) -> Any:
        value = getattr(self.options, name, None)
        return default if value is None else value

    def _target(self) -> Target:
        files = {name: self._option(name, None) for name in ("cafile", "cert", "key")}
        return Target.parse(self.environment.host or self.host or "mqtt://127.0.0.1:1883", **files)


class _Numbers:
    """The lowest one that is free: a user that starts after another has stopped takes its place, and its session."""

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
