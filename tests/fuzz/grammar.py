"""Scripts for `tests.fuzz.stage`: what clients might send, right and wrong, made from a seed.

Most packets are right, because wrong ones end a connection; how many break a rule on purpose, or are damaged by
`tests.fuzz.mutation`, is a matter of the script's rudeness. Names, identifiers and topics come from small sets, so that
clients meet: the same client ids on several connections, the same Packet Identifiers, filters that overlap.
"""

from __future__ import annotations

import random
from typing import Any

from tests import wire
from tests.fuzz.mutation import mutate
from tests.fuzz.stage import HOUSES, Script, Step
from tests.wire import Will

LINES = 5
CLIENT_IDS = ("a", "b", "c", "d1", "é")
TOPICS = ("a", "a", "b", "a/b", "a/b", "a/b/c", "/", "/a", "a//b", "$x/a", "ü", "x" * 150)
BAD_TOPICS = ("", "a/+", "#", "$SYS/broker", "a/b/c/d/e/f/g/h/i/j", "y" * 300, "a\0b")
FILTERS = (
    "a", "a", "b", "a/b", "#", "#", "+", "+/b", "a/#", "a/+", "+/+", "a/+/c", "/#", "$x/#", "ü", "$share/g/a",
    "$share/g/a/b", "$share/g/#", "$share/h/+/b", "$share/h/a",
)  # fmt: skip
BAD_FILTERS = (
    "", "a/#/b", "a+", "#/a", "$share/g", "$share//a", "$share/+/a", "$share/g/", "a/b/c/d/e/f/g/h/i/j", "z" * 300,
    "$SYS/#", "a\0",
)  # fmt: skip
_ANY_PROPERTIES: dict[str, list[Any]] = {
    "payload_format_indicator": [0, 1, 2],
    "message_expiry_interval": [0, 1, 3, 0xFFFFFFFF],
    "content_type": ["", "t", "c" * 200],
    "response_topic": ["r", "a/b", "r/#"],
    "correlation_data": [b"", b"\0\xff", b"c" * 100],
    "subscription_identifier": [1, 127, 128, 268435455, 0, [1, 2]],
    "session_expiry_interval": [0, 1, 5, 1000, 0xFFFFFFFF],
    "assigned_client_identifier": ["x"],
    "server_keep_alive": [1],
    "authentication_method": ["SCRAM-SHA-256", ""],
    "authentication_data": [b"n,,n=a,r=b"],
    "request_problem_information": [0, 1, 2],
    "will_delay_interval": [0, 1, 3, 0xFFFFFFFF],
    "request_response_information": [0, 1],
    "reason_string": ["", "why"],
    "receive_maximum": [1, 2, 3, 100, 65535, 0],
    "topic_alias_maximum": [0, 1, 2, 65535],
    "topic_alias": [1, 2, 3, 4, 0, 65535],
    "maximum_packet_size": [1, 10, 20, 40, 100, 200, 5000, 0xFFFFFFFF, 0],
    "user_property": [[("k", "v")], [("k", "v"), ("k", "w")], [("", "")], [("u" * 50, "v" * 200)]],
}
_OF_CONNECT = (
    "session_expiry_interval", "receive_maximum", "maximum_packet_size", "topic_alias_maximum",
    "request_problem_information", "request_response_information", "user_property",
)  # fmt: skip
_OF_WILL = (
    "will_delay_interval", "payload_format_indicator", "message_expiry_interval", "content_type", "response_topic",
    "correlation_data", "user_property",
)  # fmt: skip
_OF_PUBLISH = (
    "payload_format_indicator", "message_expiry_interval", "topic_alias", "topic_alias", "response_topic",
    "correlation_data", "user_property", "content_type",
)  # fmt: skip
_USUALLY_TAKEN = {
    "payload_format_indicator": 2, "response_topic": 2, "subscription_identifier": 4, "request_problem_information": 2,
    "receive_maximum": 5, "topic_alias": 3, "maximum_packet_size": 8, "will_delay_interval": 3,
}  # fmt: skip
"""How many of the values of a property are right where the property is."""


class Grammar:
    """Makes packets and steps from one random source."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.rudeness = rng.choice((0.02, 0.2, 1.0))

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def rude(self, probability: float) -> bool:
        """Whether a rule is broken now: connections of rude scripts are short, of the others long."""
        return self.rng.random() < probability * self.rudeness

    def properties(self, names: tuple[str, ...], most: int = 3) -> dict[str, Any]:
        """Some of these; now and then one that does not belong there, or with a value it may not have."""
        rng = self.rng
        found: dict[str, Any] = {}
        for _ in range(rng.choice((0, 0, 1, 2, most))):
            name = rng.choice(list(_ANY_PROPERTIES)) if self.rude(0.02) else rng.choice(names)
            values = _ANY_PROPERTIES[name]
            usual = values if self.rude(0.02) else values[: _USUALLY_TAKEN.get(name, len(values))]
            found[name] = rng.choice(usual)
        return found

    def packet_id(self) -> int:
        rng = self.rng
        return rng.randrange(65536) if self.rude(0.03) else rng.choice((1, 1, 2, 2, 3, 4, 5, 6))

    def topic(self) -> str:
        return self.rng.choice(BAD_TOPICS if self.rude(0.03) else TOPICS)

    def filter(self) -> str:
        return self.rng.choice(BAD_FILTERS if self.rude(0.06) else FILTERS)

    def payload(self) -> bytes:
        rng = self.rng
        if self.chance(0.15):
            return b""
        size = rng.choice((1, 5, 20, 100, 127, 128, 129, 1000)) if not self.chance(0.03) else rng.choice((4096, 7000))
        return bytes([rng.randrange(256)]) * size

    # ------------------------------------------------------------ packets

    def connect(self, version: int) -> bytes:
        rng = self.rng
        v5 = version == 5
        will = None
        if self.chance(0.35):
            will = Will(
                self.topic(), self.payload(), rng.choice((0, 1, 2)), self.chance(0.4),
                self.properties(_OF_WILL) if v5 else {},
            )  # fmt: skip
        properties = self.properties(_OF_CONNECT, 4) if v5 else {}
        if v5 and self.chance(0.5):
            properties.setdefault("session_expiry_interval", 100)
        named = self.chance(0.1)
        return wire.connect(
            version, "" if self.chance(0.05) else rng.choice(CLIENT_IDS), clean=self.chance(0.35),
            keep_alive=rng.choice((0, 0, 1, 60)), will=will, properties=properties,
            username="u" if named else None, password=b"p" if named else None,
            extra_flags=1 if self.rude(0.01) else 0, level=rng.choice((0, 6, 131)) if self.rude(0.01) else None,
        )  # fmt: skip

    def publish(self, version: int) -> bytes:
        rng = self.rng
        qos = rng.choice((0, 1, 1, 2, 2))
        properties = self.properties(_OF_PUBLISH) if version == 5 else {}
        topic = self.topic()
        if "topic_alias" in properties and self.chance(0.15):
            topic = ""
        return wire.publish(
            version, topic, self.payload(), qos=qos, packet_id=self.packet_id(), retain=self.chance(0.25),
            dup=bool(qos) and self.chance(0.2), properties=properties,
        )  # fmt: skip

    def subscribe(self, version: int) -> bytes:
        rng = self.rng
        items = []
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            text, options = self.filter(), rng.choice((0, 1, 2))
            if version == 5:
                options |= rng.choice((0, 0, 0, 4, 8, 12)) | rng.choice((0, 0, 0x10, 0x20))
                if text.startswith("$share") and not self.rude(0.05):
                    options &= ~4
            if self.rude(0.01):
                options |= rng.choice((3, 0x30, 0x40, 0x80))
            items.append((text, options))
        properties = self.properties(("subscription_identifier", "user_property"), 1) if version == 5 else {}
        return wire.subscribe(version, self.packet_id(), *items, properties=properties)

    def packet(self, version: int) -> bytes:
        """Anything that a connected client may send, and rarely something else."""
        rng = self.rng
        v5 = version == 5
        kind = rng.randrange(100)
        if kind < 45:
            return self.publish(version)
        if kind < 63:
            return self.subscribe(version)
        if kind < 70:
            return wire.unsubscribe(version, self.packet_id(), *(self.filter() for _ in range(rng.choice((1, 1, 2)))))
        if kind < 84:
            return wire.ack(version, "PUBREL", self.packet_id(), rng.choice((0, 0, 0, 0x92)) if v5 else 0)
        if kind < 92:
            reason = rng.choice((0, 0, 0x80, 0x10)) if v5 else 0
            return wire.ack(version, rng.choice(("PUBACK", "PUBREC", "PUBCOMP")), self.packet_id(), reason)
        if kind < 96:
            return wire.PINGREQ
        if kind < 98 or not self.rude(1.0):
            if not v5:
                return wire.disconnect(version)
            reason = rng.choice((0, 0, 4, 0x80))
            return wire.disconnect(5, reason, self.properties(("session_expiry_interval", "reason_string"), 1))
        if kind < 99:
            return self.connect(version)
        return wire.packet(rng.choice(list(wire.TYPES)), rng.randrange(16), rng.randbytes(rng.randrange(12)))

    # ------------------------------------------------------------ steps

    def pieces(self, line: int, data: bytes) -> list[Step]:
        """One send, or several that are cut anywhere, with ticks between them."""
        if not data:
            return []
        if len(data) < 2 or not self.chance(0.3):
            return [("send", line, data.hex())]
        cuts = sorted({self.rng.randrange(1, len(data)) for _ in range(self.rng.choice((1, 1, 2, 5)))})
        steps: list[Step] = []
        for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
            steps.append(("send", line, data[begin:end].hex()))
            if self.chance(0.4):
                steps.append(("turn", 1))
        return steps

    def come(self, line: int, version: int, workers: int) -> list[Step]:
        """A connection with its CONNECT, and often a subscription at once."""
        data = self.connect(version)
        if self.chance(0.3):
            data += self.subscribe(version)
        if self.rude(0.05):
            data = mutate(self.rng, [data])
        return [("open", line, self.rng.randrange(workers)), *self.pieces(line, data), ("turn", 3)]

    def script(self) -> Script:
        """A whole one."""
        rng = self.rng
        workers = rng.choice((1, 2))
        script = Script(workers, rng.choice(list(HOUSES)))
        versions = [rng.choice((3, 4, 4, 5, 5, 5)) for _ in range(LINES)]
        for line in range(rng.randint(2, LINES)):
            script.steps += self.come(line, versions[line], workers)
        for _ in range(rng.randint(5, 60)):
            script.steps += self.steps(versions, workers)
        return script

    def steps(self, versions: list[int], workers: int) -> list[Step]:
        """What happens next."""
        rng = self.rng
        line = rng.randrange(LINES)
        version = versions[line]
        kind = rng.randrange(100)
        if kind < 45:
            data = b"".join(self.packet(version) for _ in range(rng.choice((1, 1, 2, 3, 8))))
            if self.rude(0.1):
                data = mutate(rng, [data, self.packet(rng.choice((3, 4, 5)))])[:20_000]
            return self.pieces(line, data)
        if kind < 66:
            code = rng.choice((0, 0, 0, 0x10, 0x80, 0x97))
            answers: list[Step] = [("turn", 1), ("answer", line, rng.choice((1, 2, 8, 50)), code)]
            return answers * rng.choice((1, 1, 2, 3))
        if kind < 72:
            return [("turn", rng.choice((1, 2, 5)))]
        if kind < 79:
            versions[line] = rng.choice((3, 4, 5)) if self.chance(0.3) else version
            return self.come(line, versions[line], workers)
        if kind < 82:
            return [("lose", line)]
        if kind < 87:
            return [("stall", line, rng.choice((0, 1)))]
        if kind < 92:
            return [("time", rng.choice((1, 100, 1000, 2000, 6000)))]
        if kind < 94:
            return [("jump", rng.choice((50, 800, 3000)))]
        if workers > 1:
            return [(rng.choice(("hold", "free", "free")), *rng.choice(((0, 1), (1, 0))))]
        return []


def vary(rng: random.Random, script: Script, others: list[Script]) -> Script:
    """A script like this one: steps left out, doubled, moved, damaged, or taken from another."""
    steps = list(script.steps)
    for _ in range(rng.randint(1, 6)):
        at = rng.randrange(len(steps) + 1)
        change = rng.randrange(6)
        if change == 0:
            del steps[at : at + rng.randint(1, 5)]
        elif change == 1:
            steps[at:at] = steps[at : at + rng.randint(1, 5)]
        elif change == 2 and steps:
            steps.insert(at, steps.pop(rng.randrange(len(steps))))
        elif change == 3 and at < len(steps) and steps[at][0] == "send":
            name, line, data = steps[at]
            steps[at] = (name, line, mutate(rng, [bytes.fromhex(data)])[:20_000].hex())
        elif change == 4:
            other = rng.choice(others).steps
            begin = rng.randrange(len(other) + 1)
            steps[at:at] = other[begin : begin + rng.randint(1, 20)]
        else:
            grammar = Grammar(rng)
            steps[at:at] = grammar.steps([rng.choice((3, 4, 5)) for _ in range(LINES)], script.workers)
    house = rng.choice(list(HOUSES)) if rng.random() < 0.1 else script.house
    return Script(script.workers, house, steps[:400])
