"""Writes a data directory that has a record of every kind, with the broker of this tree.

    python -m tests.golden.written tests/golden/schema-N

makes `schema-N.data.tar.xz`, the data directory of a broker of two workers after SIGKILL, and
`schema-N.snapshot.tar.xz`, a snapshot of it. It is run once, with the last code that writes schema N; what must be
found in them is said by `tests.integration.test_older_stores`. Nothing in them grows old: sessions, wills, messages
and the archive last a hundred years. `tests.golden.whole` has what schema 1 was written without.
"""

from __future__ import annotations

import os
import signal
import sys
import tarfile
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from broker.cli import main as cli
from broker.testing import Mqttd, wait_until
from shards.placement import home
from tests import wire
from tests.golden import whole
from tests.wire import Client, Will

WORKERS = 2
LONG = {"session_expiry_interval": 0xFFFFFFFF}
CONFIG = {
    "store": "leveldb",
    "leveldb": {"reserve_bytes": 0},
    "archive": [{"filter": "archived/#", "hours": 878_400, "bytes": "1GB"}, *whole.ARCHIVE],
    "queue": [{"filter": "holes/#", "messages_max": 3, "full": "drop_newest"}],
    "limits": {
        "session_expiry_seconds_max": 0xFFFFFFFF,
        "session_expiry_seconds_default_v3": 0xFFFFFFFF,
        "inflight_max": whole.IN_FLIGHT,
    },
}


def named(stem: str, worker: int) -> str:
    """A client id of that worker."""
    return next(name for name in (f"{stem}-{i}" for i in range(100)) if home(name, WORKERS) == worker)


class Fleet:
    """The clients of a broker, and what they do; whoever is to be connected at the end stays so."""

    def __init__(self, broker: Mqttd, stay: ExitStack) -> None:
        self._broker = broker
        self._stay = stay
        self.publisher = self.client(named("publisher", 0))

    def client(self, name: str, version: int = 5, **options: Any) -> Client:
        one = Client(self._broker.address, version)
        self._stay.callback(one.close)
        if version == 5:
            options.setdefault("properties", LONG)
        one.connect(name, clean=False, **options)
        return one

    def queues(self) -> None:
        """A username, Subscription Identifiers, two versions; a share group; a full queue."""
        with_user = self.client("with-user", username="alice", password=b"secret")
        with_user.subscribe(("queued/#", 2), properties={"subscription_identifier": 268_435_455})
        with_user.subscribe(("queued/+", 1), properties={"subscription_identifier": 7})
        with_user.disconnect()
        old = self.client("of-3-1-1", 4)
        old.subscribe(("queued/#", 1))
        old.disconnect()
        for number in range(5):
            properties = {"user_property": [("number", str(number))]}
            self.publisher.publish(f"queued/{number}", b"q%d" % number, qos=2, properties=properties)
        of_group = self.client("one-of-group", properties={**LONG, "receive_maximum": 2})
        of_group.subscribe(("$share/group/shared/#", 1))
        self.several("shared", b"s", 6)
        assert {of_group.expect("PUBLISH").payload for _ in range(2)} == {b"s0", b"s1"}
        of_group.close()
        full = self.client("full")
        full.subscribe(("holes/#", 1))
        full.disconnect()
        self.several("holes", b"h", 8)
        wait_until(lambda: "queue_full" in self._broker.logs, 60, "its bound is looked at")

    def several(self, topic: str, payload: bytes, count: int) -> None:
        for number in range(count):
            self.publisher.publish(f"{topic}/{number}", payload + b"%d" % number, qos=1)

    def windows(self) -> None:
        """Every state of a window, publishes without PUBREL, a subscription made while behind."""
        in_flight = self.client("in-flight", properties={**LONG, "receive_maximum": 5})
        in_flight.subscribe(("flight/#", 2))
        for number in range(8):
            self.publisher.publish(f"flight/{number}", b"f%d" % number, qos=1 + number % 2)
        got = [in_flight.read() for _ in range(5)]
        assert [each.payload for each in got] == [b"f%d" % number for number in range(5)]
        in_flight.ack("PUBREC", got[1].packet_id)  # PUBCOMP is to come
        in_flight.expect("PUBREL", packet_id=got[1].packet_id)
        in_flight.ack("PUBACK", got[0].packet_id)
        for packet_id in (70, 65535):
            in_flight.send(wire.publish(5, "nobody", b"", qos=2, packet_id=packet_id))
            in_flight.await_packet("PUBREC", packet_id)
        in_flight.close()
        late = self.client("late", properties={**LONG, "receive_maximum": 1})
        late.subscribe(("early/#", 1))
        self.several("early", b"e", 3)
        self.publisher.publish("later/0", b"not for it", qos=1)
        late.expect("PUBLISH", payload=b"e0")
        late.send(wire.subscribe(5, 900, ("later/#", 1)))
        late.await_packet("SUBACK", 900)
        self.publisher.publish("later/1", b"l1", qos=1)
        late.close()

    def retained(self) -> None:
        """Retained messages, and some that a session has asked for and not got."""
        for number in range(12):
            self.publisher.publish(f"kept/{number}", b"k%d" % number, qos=number % 3, retain=True)
        properties = {"message_expiry_interval": 0xFFFFFFFF, "content_type": "text"}
        self.publisher.publish("kept/expires", b"kx", qos=1, retain=True, properties=properties)
        asked = self.client("asked", properties={**LONG, "receive_maximum": 1})
        asked.subscribe(("kept/+", 1))
        while asked.expect("PUBLISH").qos == 0:
            pass
        asked.close()

    def wills(self) -> None:
        """One that waits, and one of a client that is connected."""
        delay = {"will_delay_interval": 0xFFFFFFFE}
        self.client("will-waits", will=Will("wills/waits", b"w0", 1, False, delay)).close()
        self.client("will-connected", will=Will("wills/connected", b"w1", 2, True, delay))

    def archive(self) -> None:
        """What is archived, and a subscription that replays it."""
        for number in range(10):
            self.publisher.publish(f"archived/{number % 2}", b"a%d" % number, qos=number % 3)
        replays = self.client("replays", properties={**LONG, "receive_maximum": 2})
        replays.subscribe(("archived/#", 1), properties={"user_property": [("mqttd-offset", "earliest")]})
        replays.expect("PUBLISH")
        replays.close()

    def hand_off_log(self) -> None:
        """What is for a worker that does not take it. Ends with SIGKILL for the broker."""
        away = self.client(named("away", 1))
        away.subscribe(("stopped/#", 2))
        away.disconnect()
        os.kill(self._broker.worker_pids()[1], signal.SIGSTOP)
        for number in range(4):
            self.publisher.publish(f"stopped/{number}", b"x%d" % number, qos=1 + number % 2)
        self.publisher.publish("stopped/large", b"L" * 10_000, qos=1)
        self._broker.kill()


def main(out: str) -> int:
    """See above."""
    with tempfile.TemporaryDirectory() as made, ExitStack() as stay:
        data, snapshot = Path(made, "data"), Path(made, "snapshot")
        config = {**CONFIG, "data_dir": str(data)}
        broker = Mqttd(WORKERS, config, arguments=["--log-level", "info"]).start()
        try:
            whole.unreadable(broker, data)
            fleet = Fleet(broker, stay)
            for each in (fleet.queues, fleet.windows, fleet.retained, fleet.wills, fleet.archive):
                each()
            whole.fill(fleet, data)
            fleet.hand_off_log()
        except BaseException:
            print(broker.logs, file=sys.stderr)
            broker.kill()
            raise
        wait_until(lambda: not broker.processes(), 60, "it has ended")
        broker.forget()
        pack(data, f"{out}.data.tar.xz")
        status = cli.main(["snapshot", "--out", str(snapshot), "--data-dir", str(data)])
        if status:
            return status
        pack(snapshot, f"{out}.snapshot.tar.xz")
    return 0


def pack(directory: Path, out: str) -> None:
    """Its files, without reserves and locks."""
    with tarfile.open(out, "w:xz") as tar:
        for file in sorted(directory.rglob("*")):
            if file.is_file() and file.name != "LOCK" and not file.name.startswith("reserve"):
                tar.add(file, file.relative_to(directory))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
