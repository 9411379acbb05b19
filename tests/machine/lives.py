"""Clients on real workers with stores on disk, as rules of a state machine (hypothesis).

Strings of length zero, one and the maximum, thousands of filters with the greatest Subscription Identifier, sessions
that are taken over, left, ended and started again, messages that are acknowledged or not, and a broker that is killed,
restarted, given other settings and other numbers of workers in between. One client acts at a time, so the certain
facts at any moment are known:

    nothing acknowledged is missing     a message at QoS 1 or 2 that was answered is owed to each lasting session with a
                                        matching subscription of QoS 1 or 2, until its client has acknowledged it
    no message of a former session      a message that was answered before a session began is never sent to it
    a session is there or not           Session Present, over every kill and restart
    the broker starts                   with every store that it has left, and `store verify` finds no defect
    no defect of the broker             no worker dies unless killed, no internal error, no callback over its bound

Limits have their defaults, except filters_per_second_max, which would make thousands of filters take seconds, and
wildcard_arrangements_max, which would refuse them.

"""

from __future__ import annotations

import itertools
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests import wire
from tests.broker_process import BrokerProcess
from tests.mqttd_command import mqttd
from tests.wire import Client, Closed

__all__ = ["Lives"]

SECONDS = 30.0
DEFECTS = "callback_over_bound", "internal_error", "defect", "worker_hung"
KILLS_MAX = 2
"""Kills of workers in one run of the broker: a worker that dies often is restarted later and later."""
LONGEST = 65_535
OF_LONGEST = 200
"""Filters that session_bytes_max allows, at least, with a client id of this length: each record contains it."""
IDENTIFIER_MAX = 268_435_455
DEEP = "d" + "/x" * 13
MANY = 6_000
AT_ONCE = 500
"""Filters of one SUBSCRIBE, which is not divided."""
WILLS = "w"
"""Prefix of the topics of wills; their messages are not counted."""
TOPICS = ["m/0", "m/1", DEEP, "l" * 4096]
FILTERS = ["m/0", "m/1", "m/+", "m/#", "#", "l" * 4096, "$share/g/m/#", f"$share/{'s' * 1024}/m/0"]
IDS = ["a", "b", "c", "d", "e" * LONGEST, "f" * 23]
EMPTY_LONG = st.sampled_from([0, 1, LONGEST])


#: each of them matches DEEP
DEEP_FILTERS = [
    "/".join(("d", *levels)) for levels in itertools.islice(itertools.product("x+", repeat=DEEP.count("/")), MANY)
]


def matches(topic_filter: str, topic: str) -> bool:
    """Return whether the filter matches the topic [MQTT 5, 4.7]; neither begins with $."""
    wanted, levels = topic_filter.split("/"), topic.split("/")
    for at, level in enumerate(wanted):
        if level == "#":
            return True
        if at >= len(levels) or level not in ("+", levels[at]):
            return False
    return len(wanted) == len(levels)


@dataclass
class Life:
    """A session, as its client knows it."""

    version: int
    lasting: bool
    born: int
    """Number of messages that had been published when it began."""
    client: Client | None = None
    filters: dict[str, int] = field(default_factory=dict)
    is_deep: bool = False
    owed: set[int] = field(default_factory=set)

    def wants(self, topic: str) -> bool:
        """Return whether a message on this topic at QoS 1 or 2 is owed to it."""
        if self.is_deep and topic == DEEP:
            return True
        return any(qos and not text.startswith("$") and matches(text, topic) for text, qos in self.filters.items())


class Lives(RuleBasedStateMachine):
    """The state machine: see the module docstring."""

    deep_filters = 1_500
    """Filters of a session that match one topic; at most MANY."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory(prefix="mqttd-lives-")
        self.data = Path(self.directory.name, "data")
        environment = {
            "MQTTD_STORE": "leveldb",
            "MQTTD_LIMITS__FILTERS_PER_SECOND_MAX": "0",
            "MQTTD_LIMITS__WILDCARD_ARRANGEMENTS_MAX": "0",
        }
        arguments = ["--data-dir", str(self.data), "--log-format", "json"]
        self.broker = BrokerProcess(2, arguments, environment)
        self.broker.start()
        self.lives: dict[str, Life] = {}
        self.answered: dict[int, bool] = {}
        """By number of each answered message: whether its QoS was 1 or 2."""
        self.killed = self.in_this_run = 0

    # ------------------------------------------------------------ clients

    @rule(
        client_id=st.sampled_from(IDS),
        version=st.sampled_from([4, 5]),
        lasting=st.booleans(),
        clean=st.booleans(),
        name=st.none() | EMPTY_LONG,
        will=st.none() | EMPTY_LONG,
        delay=st.sampled_from([0, 1, 600]),
    )
    def connect(
        self, client_id: str, version: int, lasting: bool, clean: bool, name: int | None, will: int | None, delay: int
    ) -> None:
        """Connect: to a new session, a resumed one, or by a take-over."""
        if version == 4:
            clean = not lasting
        options: dict[str, Any] = {"clean": clean}
        if version == 5 and lasting:
            options["properties"] = {"session_expiry_interval": 600}
        if name is not None:
            options["username"] = "u" * name
        if will is not None:
            properties = {"will_delay_interval": delay} if version == 5 else {}
            options["will"] = wire.Will(WILLS * max(1, min(will, 4096)), b"w" * will, 1, properties=properties)
        former = self.lives.get(client_id)
        life = Life(version, lasting, len(self.answered))
        if former is not None and not clean and (former.lasting or former.client is None):
            life.born, life.filters, life.owed, life.is_deep = former.born, former.filters, former.owed, former.is_deep
        elif former is not None:
            former = None
        client = Client(self.broker.address, version)
        got = client.connect(client_id, **options)
        assert got.session_present == (former is not None), f"{client_id[:9]}: {got}"
        before = self.lives.get(client_id)
        if before is not None and before.client is not None:
            before.client.close()
        life.client = client
        self.lives[client_id] = life

    @rule(client_id=st.sampled_from(IDS), how=st.sampled_from(["disconnect", "cut", "with will", "expiry 0"]))
    def leave(self, client_id: str, how: str) -> None:
        """End the connection; a session that does not outlive it ends with it."""
        life = self.lives.get(client_id)
        if life is None or life.client is None:
            return
        if how == "cut":
            life.client.close()
        elif how == "expiry 0" and life.version == 5:
            life.client.disconnect(properties={"session_expiry_interval": 0})
            life.lasting = False
        else:
            life.client.disconnect(4 if how == "with will" and life.version == 5 else 0)
        with suppress(Closed, ConnectionError, OSError, AssertionError):
            while True:
                life.client.read(SECONDS)
        self._gone(client_id)

    def _gone(self, client_id: str) -> None:
        life = self.lives[client_id]
        assert life.client is not None
        life.client.close()
        life.client = None
        if not life.lasting:
            del self.lives[client_id]

    def _here(self, client_id: str) -> tuple[Life, Client]:
        life = self.lives.get(client_id)
        if life is None or life.client is None:
            self.connect(client_id, 5, True, False, None, None, 0)
            life = self.lives[client_id]
        assert life.client is not None
        return life, life.client

    @rule(client_id=st.sampled_from(IDS), text=st.sampled_from(FILTERS), qos=st.integers(0, 2))
    def subscribe(self, client_id: str, text: str, qos: int) -> None:
        """Subscribe, or replace a subscription (which owes nothing any more if it is now of QoS 0)."""
        life, client = self._here(client_id)
        assert client.subscribe((text, qos)) == (qos,)
        life.filters[text] = qos
        if qos == 0:
            life.owed.clear()  # messages of other filters cannot be told apart

    @rule(client_id=st.sampled_from(IDS), identifier=st.sampled_from([1, IDENTIFIER_MAX]))
    def subscribe_deep(self, client_id: str, identifier: int) -> None:
        """Subscribe to thousands of filters that all match one topic."""
        life, client = self._here(client_id)
        properties = {"subscription_identifier": identifier} if life.version == 5 else {}
        deep = DEEP_FILTERS[: OF_LONGEST if len(client_id) == LONGEST else self.deep_filters]
        for at in range(0, len(deep), AT_ONCE):
            assert set(client.subscribe(*deep[at : at + AT_ONCE], qos=1, properties=properties)) == {1}
        life.is_deep = True

    @rule(client_id=st.sampled_from(IDS), text=st.sampled_from(FILTERS))
    def unsubscribe(self, client_id: str, text: str) -> None:
        """Unsubscribe from one filter; messages queued only for it need not arrive."""
        life = self.lives.get(client_id)
        if life is None or life.client is None:
            return
        life.client.unsubscribe(text)
        if life.filters.pop(text, None) is not None:
            life.owed.clear()

    @rule(
        topic=st.sampled_from(TOPICS),
        qos=st.integers(0, 2),
        size=st.sampled_from([0, 1, 70_000]),
        large=st.booleans(),
        control=st.booleans(),
        many=st.sampled_from([1, 1, 1, 120]),
    )
    def publish(self, topic: str, qos: int, size: int, large: bool, control: bool, many: int) -> None:
        """Publish as another client, with properties of the maximum length or without."""
        properties: dict[str, Any] = {}
        if large and many == 1:
            pairs = [("k" * 30_000, "v" * 30_000)]
            properties = {"content_type": "t" * LONGEST, "correlation_data": b"c" * LONGEST, "user_property": pairs}
        if control and self.broker.environment.get("MQTTD_REFUSE_DISALLOWED_CHARACTERS") != "true":
            properties["response_topic"] = "\x01"
        publisher = Client(self.broker.address, 5)
        publisher.connect("")
        for _ in range(many):
            number = len(self.answered)
            self.answered[number] = qos > 0
            payload = b"%d|" % number + b"p" * (size if many == 1 else 1)
            assert publisher.publish(topic, payload, qos=qos, properties=properties) in (0, 0x10)
            for life in self.lives.values():
                if qos and life.wants(topic):
                    life.owed.add(number)
        publisher.disconnect()
        publisher.close()

    @rule(client_id=st.sampled_from(IDS), acknowledges=st.booleans())
    def read(self, client_id: str, acknowledges: bool) -> None:
        """Read the messages that have arrived."""
        life = self.lives.get(client_id)
        if life is not None and life.client is not None:
            self._take(life, acknowledges)

    def _take(self, life: Life, acknowledges: bool) -> int:
        client = life.client
        assert client is not None
        client.send(wire.PINGREQ)
        taken = 0
        while (packet := client.read(SECONDS)).kind != "PINGRESP":
            if packet.kind == "PUBLISH":
                taken += 1
                self._came(life, packet, acknowledges)
            elif packet.kind == "PUBREL":
                client.ack("PUBCOMP", packet.packet_id)
        return taken

    def _came(self, life: Life, packet: wire.Packet, acknowledges: bool) -> None:
        assert life.client is not None
        if acknowledges and packet.qos:
            life.client.ack("PUBACK" if packet.qos == 1 else "PUBREC", packet.packet_id)
        if packet.topic.startswith(WILLS):
            return
        number = int(packet.payload.partition(b"|")[0])
        assert number >= life.born or not self.answered[number], f"#{number}, and the session began at #{life.born}"
        if acknowledges and packet.qos:
            life.owed.discard(number)

    # ------------------------------------------------------------ the broker

    @rule(worker=st.integers(0, 2))
    def kill_worker(self, worker: int) -> None:
        """Kill a worker; its successor has its sessions."""
        if self.in_this_run == KILLS_MAX:
            return
        self.killed += 1
        self.in_this_run += 1
        self.broker.kill_worker(worker % self.broker.workers)
        self._look_after_clients()

    @rule(
        kills=st.booleans(),
        workers=st.integers(1, 3),
        refuses=st.booleans(),
        queues=st.booleans(),
        changes=st.booleans(),
    )
    def restart(self, kills: bool, workers: int, refuses: bool, queues: bool, changes: bool) -> None:
        """Restart the broker in order or after SIGKILL; with other settings, and perhaps another number of workers."""
        if kills:
            self.broker.kill()
        else:
            assert self.broker.stop() == 0, self.broker.logs[-2000:]
        if changes:
            self.broker.workers = workers
            self.broker.environment["MQTTD_REFUSE_DISALLOWED_CHARACTERS"] = str(refuses).lower()
            self.broker.environment["MQTTD_QUEUE_QOS0"] = str(queues).lower()
        self.in_this_run = 0
        self.broker.start()
        self._look_after_clients()

    def _look_after_clients(self) -> None:
        for client_id, life in list(self.lives.items()):
            if life.client is None:
                continue
            try:
                self._take(life, False)
            except (Closed, OSError):
                self._gone(client_id)
            except AssertionError as error:
                if not str(error).startswith("closed in the middle"):
                    raise
                self._gone(client_id)

    @invariant()
    @precondition(lambda self: self.broker.alive())
    def nothing_of_ours_fails(self) -> None:
        """Check that no worker died by itself and the log has no defect."""
        died = self.broker.logs.count('"worker_died"')
        assert died <= self.killed, self.broker.logs[-4000:]
        wrong = [line for line in self.broker.logs.splitlines() if any(f'"{each}"' in line for each in DEFECTS)]
        assert not wrong, "\n".join(line[:2000] for line in wrong)

    def teardown(self) -> None:
        """Reconnect all lasting sessions, which get the messages owed; then verify the store."""
        try:
            if self.broker.alive():
                self._everybody_comes()
                self.nothing_of_ours_fails()
                assert self.broker.stop() == 0, self.broker.logs[-2000:]
                if self.data.exists():
                    said = mqttd("store", "verify", self.data)
                    assert said.status == 0, said.err
        finally:
            for life in self.lives.values():
                if life.client is not None:
                    life.client.close()
            self.broker.kill()
            self.broker.forget()
            self.directory.cleanup()

    def _everybody_comes(self) -> None:
        for client_id, life in self.lives.items():
            if not life.lasting:
                continue
            if life.client is not None:
                life.client.close()
            life.client = Client(self.broker.address, life.version)
            lasting = {"session_expiry_interval": 600} if life.version == 5 else {}
            assert life.client.connect(client_id, clean=False, properties=lasting).session_present
            until = time.monotonic() + SECONDS
            while life.owed:
                self._take(life, True)
                assert time.monotonic() < until, f"{client_id[:9]}: {sorted(life.owed)[:9]} never came"
