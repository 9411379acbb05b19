"""Lives of clients over real workers with their stores on the disk, as rules of a state machine (hypothesis).

Strings of no, one and the greatest length, thousands of filters with the greatest Subscription Identifier, sessions
that are taken over, left, ended and begun anew, messages that are acknowledged or not, and a broker that is killed,
restarted, given other settings and other numbers of workers in between. One client does one thing at a time, so what is
sure at any moment is known:

    nothing acknowledged is missing     a message at QoS 1 or 2 that was answered is owed to each lasting session with a
                                        matching subscription of QoS 1 or 2, until its client has acknowledged it
    nothing comes of a former life      what was answered before a session began is never sent to it
    a session is there or not           Session Present, over every kill and restart
    the broker starts                   with every store that it has left behind, and `store verify` finds nothing
    nothing of ours fails               no worker dies but by our hand, no error of ours, no callback over its bound

Limits are the defaults, but for filters_per_second_max, which would make thousands of filters a matter of seconds, and
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
"""Of workers in one run of the broker: who dies often is restarted later and later."""
LONGEST = 65_535
OF_LONGEST = 200
"""Filters that session_bytes_max allows a client id of so many bytes, at least: each record has it."""
IDENTIFIER_MAX = 268_435_455
DEEP = "d" + "/x" * 13
MANY = 6_000
AT_ONCE = 500
"""Filters of one SUBSCRIBE, which is not divided."""
WILLS = "w"
"""Their topics begin so; nobody counts them."""
TOPICS = ["m/0", "m/1", DEEP, "l" * 4096]
FILTERS = ["m/0", "m/1", "m/+", "m/#", "#", "l" * 4096, "$share/g/m/#", f"$share/{'s' * 1024}/m/0"]
IDS = ["a", "b", "c", "d", "e" * LONGEST, "f" * 23]
EMPTY_LONG = st.sampled_from([0, 1, LONGEST])


#: each of them matches DEEP
DEEP_FILTERS = [
    "/".join(("d", *levels)) for levels in itertools.islice(itertools.product("x+", repeat=DEEP.count("/")), MANY)
]


def matches(topic_filter: str, topic: str) -> bool:
    """[MQTT 5, 4.7]; neither is of the server's own."""
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
    """Messages that had been published when it began."""
    client: Client | None = None
    filters: dict[str, int] = field(default_factory=dict)
    is_deep: bool = False
    owed: set[int] = field(default_factory=set)

    def wants(self, topic: str) -> bool:
        """Whether a message there at QoS 1 or 2 is owed to it."""
        if self.is_deep and topic == DEEP:
            return True
        return any(qos and not text.startswith("$") and matches(text, topic) for text, qos in self.filters.items())


class Lives(RuleBasedStateMachine):
    """See the top."""

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
        """By number of a message: whether its QoS was 1 or 2, and it was answered."""
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
        """A new session, one that goes on, or one that is taken over."""
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
        """The connection ends; a session that does not outlive it ends with it."""
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
        """Anew, or in the place of what was there (which owes nothing any more if it is of QoS 0 now)."""
        life, client = self._here(client_id)
        assert client.subscribe((text, qos)) == (qos,)
        life.filters[text] = qos
        if qos == 0:
            life.owed.clear()  # those of other filters are not told apart

    @rule(client_id=st.sampled_from(IDS), identifier=st.sampled_from([1, IDENTIFIER_MAX]))
    def subscribe_deep(self, client_id: str, identifier: int) -> None:
        """Thousands of filters, all of which match one topic."""
        life, client = self._here(client_id)
        properties = {"subscription_identifier": identifier} if life.version == 5 else {}
        deep = DEEP_FILTERS[: OF_LONGEST if len(client_id) == LONGEST else self.deep_filters]
        for at in range(0, len(deep), AT_ONCE):
            assert set(client.subscribe(*deep[at : at + AT_ONCE], qos=1, properties=properties)) == {1}
        life.is_deep = True

    @rule(client_id=st.sampled_from(IDS), text=st.sampled_from(FILTERS))
    def unsubscribe(self, client_id: str, text: str) -> None:
        """One filter; what waits because of it alone need not come."""
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
        """By somebody with properties of the greatest length, or without."""
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
        """What has come."""
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
        """SIGKILL; its successor has its sessions."""
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
        """In order or by SIGKILL; with other settings, and perhaps another number of workers."""
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
        """See the top."""
        died = self.broker.logs.count('"worker_died"')
        assert died <= self.killed, self.broker.logs[-4000:]
        wrong = [line for line in self.broker.logs.splitlines() if any(f'"{each}"' in line for each in DEFECTS)]
        assert not wrong, "\n".join(line[:2000] for line in wrong)

    def teardown(self) -> None:
        """Everybody comes back and gets what is owed; then the store is as it should be."""
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
