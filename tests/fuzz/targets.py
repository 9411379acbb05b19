"""What is fuzzed: one function per target, and the packets mutation begins with.

The invariant of every target is the same: each input is a packet, a documented MQTT error, or a wait for more bytes.
Anything else that a target raises, and every crash, is a find. Under ``make asan`` so is a read beyond the input.
"""

from __future__ import annotations

import socket
from collections.abc import Callable

from pyx.bridge.crossing import Crossing, TopicMap
from pyx.loadgen.client import Client
from pyx.loadgen.tally import Tally
from pyx.mesh.connection import ReceiveBuffer, ZmtpConnection
from pyx.protocol import codec, topics
from pyx.protocol.reasons import MalformedPacket, MqttError, ProtocolError, ReasonCode
from tests import wire
from tests.fuzz.watcher import split
from tests.rounds import Keeps, Rounds
from tests.wire import Will

VERSIONS = (3, 4, 5)

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01NULL" + bytes(48)
"""Of ZMTP 3.1."""

_BUFFER = ReceiveBuffer()


def whole(data: bytes) -> None:
    """Decode the input as one packet, from either side, in every version."""
    for version in VERSIONS:
        for from_server in (False, True):
            outcome(data, version, from_server)


def outcome(data: bytes, version: int, from_server: bool = False) -> str:
    """What becomes of the input: "packet", "wait", or the reason code of an error."""
    try:
        codec.decode(data, version, from_server)
    except codec.Incomplete:
        return "wait"
    except (MalformedPacket, ProtocolError) as error:
        return documented(error)
    return "packet"


def documented(error: MqttError) -> str:
    """The reason code of an error: one of the standard, and one that says something went wrong."""
    code = ReasonCode(error.reason_code)
    assert code >= 0x80, f"an error with a reason code of success: {code!r}"
    return code.name


def stream(data: bytes, cut: int, version: int) -> list[str]:
    """Feed the input in two parts to a stream decoder; return what came out until it ended or failed."""
    decoder = codec.Decoder(version)
    came: list[str] = []
    try:
        for part in (data[:cut], data[cut:]):
            decoder.feed(part)
            while (packet := decoder.next_packet()) is not None:
                came.append(type(packet).__name__)
    except (MalformedPacket, ProtocolError) as error:
        came.append(documented(error))
    return came


def cut_anywhere(data: bytes) -> None:
    """A stream of packets gives the same wherever it is cut."""
    for version in VERSIONS:
        expected = stream(data, len(data), version)
        for cut in {0, 1, 2, len(data) // 2, len(data) - 1} - {-1}:
            got = stream(data, cut, version)
            assert got == expected, f"v{version}, cut at {cut}: {got}, whole: {expected}"


def prefixes_wait(data: bytes) -> None:
    """What begins a packet is never taken for a whole one."""
    for version in VERSIONS:
        if outcome(data, version) == "packet":
            _, _, end = next(split(data))
            for size in {0, 1, end // 2, end - 1}:
                assert outcome(data[:size], version) == "wait", f"{size} of {end} bytes"


def topic_functions(data: bytes) -> None:
    """The checks of topics say yes or no, and agree with each other."""
    name, topic_filter = topics.is_topic_name(data), topics.is_topic_filter(data)
    if name:
        assert topic_filter or data.startswith(b"$share"), "a Topic Name is a Topic Filter too"
        assert not topics.contains_wildcard(data)
        data.decode()
    if topic_filter:
        assert topics.levels(data) == data.count(b"/") + 1
    share = topics.parse_share(data) if topic_filter and data.startswith(b"$share/") else None
    if share is not None:
        assert data == b"$share/" + share[0] + b"/" + share[1]


def load_client(data: bytes) -> None:
    """What a broker sends to a client of load tests means the same wherever it is cut."""
    for version in VERSIONS:
        expected = heard(data, len(data), version)
        for cut in {0, 1, len(data) // 2, len(data) - 1} - {-1}:
            got = heard(data, cut, version)
            assert got == expected, f"v{version}, cut at {cut}: {got}, whole: {expected}"


def heard(data: bytes, cut: int, version: int) -> tuple[list[str], bytes]:
    """What a client with something of every kind under way makes of the input, and what it answers."""
    tally = Tally("PUBLISH", "t")
    one = Client(version, (tally, tally))
    one.keeps_messages = True
    one.connect("c", properties={"receive_maximum": 2})
    one.feed(wire.packet("CONNACK", 0, b"\0\0", *([b"\0"] if version == 5 else [])))
    for qos in (1, 2, 1, 2):
        one.publish(b"t", b"x", tally, qos=qos, waiter=qos)
    one.subscribe([("#", 2)])
    for _ in range(3):
        one.publish(b"t", b"x", tally, qos=2, waiter=2)
    one.take_output()
    came = []
    for part in (data[:cut], data[cut:]):
        for event in one.feed(part):
            came.append(documented(event) if isinstance(event, MqttError) else type(event).__name__)
    return came, bytes(one.take_output())


def bridge(data: bytes) -> None:
    """What a broker says to a bridge gives whole packets for the other broker, or a documented error, wherever it is
    cut.
    """
    for of in (4, 5):
        for to in (4, 5):
            expected, crossed = crossing(data, len(data), of, to)
            ends = [0, *(end for _, _, end in split(crossed))]
            assert ends[-1] == len(crossed), f"{of} to {to}: a packet without its end: {crossed!r}"
            for cut in {0, 1, 2, len(data) // 2, len(data) - 1} & set(range(len(data))):
                got = crossing(data, cut, of, to)
                assert got == (expected, crossed), f"{of} to {to}, cut at {cut}: {got}, whole: {expected, crossed}"


def crossing(data: bytes, cut: int, of: int, to: int) -> tuple[str, bytes]:
    """Feed the input in two parts; return the error, if there was one, and what crosses, answers included."""
    way = Crossing([TopicMap(b"a/#", b"a/", b"bridged/"), TopicMap(b"#", b"", b"")], 100_000)
    way.begin(of, to, 1000, True)
    out = b""
    try:
        for part in (data[:cut], data[cut:]):
            out += way.feed(part)
            while way.is_behind:
                out += way.feed(b"")
    except (MalformedPacket, ProtocolError) as error:
        return documented(error), b""
    own = way.own_packets()
    return f"{len(own)} of its own", out + way.answers()


def mesh(data: bytes) -> None:
    """What a sibling says gives messages, the end of its connection, or a wait for more, wherever it is cut."""
    for types in ((b"PULL", b"PUSH"), (b"PUSH", b"PULL")):
        expected = conversed(types, data, len(data))
        for cut in {0, 1, 63, 64, 65, len(data) // 2, len(data) - 1} & set(range(len(data))):
            got = conversed(types, data, cut)
            assert got == expected, f"{types}, cut at {cut}: {got}, whole: {expected}"


def conversed(types: tuple[bytes, bytes], data: bytes, cut: int) -> tuple[list[list[bytes]], list[str], bytes]:
    """Say the input in two parts to a connection of the mesh; return its messages, its events, and its answers (none if
    it has closed the connection: it may have done so before it sent them).
    """
    rounds = Rounds()
    kept = Keeps()
    events: list[str] = []

    def lost(_reason: str, malformed: bool) -> None:
        events.append("malformed" if malformed else "lost")

    ours, sibling = socket.socketpair()
    ours.setblocking(False)
    with sibling:
        connection = ZmtpConnection(
            ours.detach(), *types, _BUFFER, rounds, kept, lambda: events.append("ready"), lambda: None, lost
        )
        connection.flush()
        for part in (data[:cut], data[cut:]):
            if connection.fd >= 0 and part:
                sibling.sendall(part)
                rounds.settle()
        answers = sibling.recv(1 << 20, socket.MSG_DONTWAIT) if connection.fd >= 0 else b""
        connection.close()
    assert not rounds.watched
    assert events in ([], ["ready"], ["malformed"], ["ready", "malformed"])
    return kept.messages, events, answers


TARGETS: dict[str, Callable[[bytes], None]] = {
    "whole": whole,
    "cut_anywhere": cut_anywhere,
    "prefixes_wait": prefixes_wait,
    "topics": topic_functions,
    "load_client": load_client,
    "bridge": bridge,
    "mesh": mesh,
}

_EVERYTHING = {
    "payload_format_indicator": 1,
    "message_expiry_interval": 60,
    "content_type": "t",
    "response_topic": "r/s",
    "correlation_data": b"\0\xff",
    "topic_alias": 3,
    "user_property": [("a", "b"), ("a", "c")],
}


def seeds() -> list[bytes]:
    """Sane packets of every kind and version, and some that a broker sends."""
    found = [wire.PINGREQ, wire.packet("PINGRESP", 0), b"a/+/#", b"$share/g/a/b", "ü/😀".encode()]
    for version in VERSIONS:
        v5 = version == 5
        will = Will("w", b"x", 1, True, {"will_delay_interval": 5, "content_type": "t"} if v5 else {})
        options = {"session_expiry_interval": 9, "receive_maximum": 3, "user_property": [("k", "v")]} if v5 else {}
        found += [
            wire.connect(version, "id", keep_alive=60, will=will, username="u", password=b"p", properties=options),
            wire.publish(version, "a/b", b"payload"),
            wire.publish(version, "a/b", b"payload", qos=2, packet_id=7, properties=_EVERYTHING if v5 else {}),
            wire.subscribe(version, 1, ("a/+", 1), ("#", 2), properties={"subscription_identifier": 300} if v5 else {}),
            wire.unsubscribe(version, 2, "a/+", "#"),
            wire.disconnect(version),
            *(wire.ack(version, kind, 7) for kind in ("PUBACK", "PUBREC", "PUBREL", "PUBCOMP")),
        ]
    for kind in (b"PUSH", b"PULL"):
        ready = b"\x04\x1a\x05READY\x0bSocket-Type\0\0\0\4" + kind
        long = b"\x01\x01a\x03\0\0\0\0\0\0\x01\0" + bytes(256) + b"\x00\x00"
        said = (b"", b"\x00\x03abc", long, b"\x04\x07\x04PING\0\x09")
        found += [GREETING + ready + each for each in said]
    found += [
        wire.packet("CONNACK", 0, b"\1\0", wire.encode_properties({"assigned_client_identifier": "x"})),
        wire.packet("SUBACK", 0, b"\0\1", b"\0", b"\1\x8f"),
        wire.packet("UNSUBACK", 0, b"\0\1", b"\0", b"\0\x11"),
        wire.packet("AUTH", 0, b"\x18", wire.encode_properties({"authentication_method": "m"})),
        wire.disconnect(5, 0x04, {"session_expiry_interval": 1, "reason_string": "r"}),
        wire.ack(5, "PUBACK", 7, 0x97, {"reason_string": "full"}),
    ]
    return found
