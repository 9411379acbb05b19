"""A subscriber that does not read costs its own bound and slows nobody; its drops are counted exactly."""

from __future__ import annotations

import pytest

from tests.broker_process import BrokerProcess
from tests.chaos.conftest import OpenCrowd, Record, StartBroker
from tests.chaos.crowd import Crowd, Publisher, Subscriber, ids_on, in_order, missing, repeated

MB = 1 << 20
MIB_SIZES = [pytest.param(100, id="100MB"), pytest.param(1000, id="1GB", marks=pytest.mark.soak)]
PAYLOAD_BYTES = 4000
LAG_MESSAGES = 64  # the reader is never further behind, so that only the stalled subscriber misses messages
OUTBOX_BYTES = 8 * MB
QUEUE_BYTES = 16 * MB
INFLIGHT = 100


def publish_all(crowd: Crowd, publisher: Publisher, reader: Subscriber, megabytes: int, what: str) -> None:
    """Publish so many MB, never further ahead of the reader than LAG_MESSAGES."""
    publisher.count = publisher.sent + megabytes * MB // PAYLOAD_BYTES
    publisher.room = lambda: publisher.room_before(reader, LAG_MESSAGES)
    publisher.begin()
    crowd.until(lambda: publisher.done, what, 30.0 + megabytes)
    crowd.until(lambda: len(reader.received[publisher.number]) == publisher.sent, "the reader has all")


def drops_of(broker: BrokerProcess, client_id: str) -> int:
    """Return the drops that the log reports for the client, once they have ended."""
    ends = [line for line in broker.logged("drops_end") if line["client"] == client_id]
    return int(ends[-1]["drops"]) if ends else 0


class Memory:
    """The highest PSS of the broker's processes since ``peak`` was set to 0, sampled while the crowd turns."""

    def __init__(self, crowd: Crowd, broker: BrokerProcess) -> None:
        self._broker = broker
        self._turns = 0
        self.peak = 0
        crowd.on_turn.append(self._look)

    def _look(self, _: float) -> None:
        self._turns += 1
        if self._turns % 50 == 0:
            self.peak = max(self.peak, self._broker.pss_bytes())


@pytest.mark.parametrize("megabytes", MIB_SIZES)
# between two workers as much is under way as the slower one lets: on a machine that does nothing else
@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.alone)])
@pytest.mark.parametrize("qos", [0, 1])
def test_a_stalled_subscriber_costs_its_bound(
    start_broker: StartBroker, crowd_of: OpenCrowd, megabytes: int, processes: int, qos: int,
    record_property: Record,
) -> None:  # fmt: skip
    """Memory grows by its limits + 10 %; drops = sent - received; the other subscriber of the topic gets all."""
    broker = start_broker(processes, outbox_bytes_max=OUTBOX_BYTES)
    crowd = crowd_of(broker)
    where = ids_on(processes - 1, processes, "sub")
    reader = Subscriber(crowd, next(where), "flood", qos=qos)
    client_id = next(ids_on(0, processes, "pub"))
    publisher = Publisher(crowd, client_id, "flood", qos=qos, window=50, payload_bytes=PAYLOAD_BYTES)
    crowd.settle()
    memory = Memory(crowd, broker)
    publish_all(crowd, publisher, reader, 60, "everybody reads: buffers have their size")
    usual = max(memory.peak, broker.pss_bytes())
    warmed = publisher.sent
    stalled = Subscriber(crowd, next(where), "flood", qos=qos, receive_buffer=65536)
    crowd.settle()
    stalled.read_on(False)
    memory.peak = 0
    publish_all(crowd, publisher, reader, megabytes, "all is published")
    growth = max(memory.peak, broker.pss_bytes()) - usual
    limits = OUTBOX_BYTES if qos == 0 else QUEUE_BYTES + INFLIGHT * PAYLOAD_BYTES
    if processes > 1:
        limits += 2 * LAG_MESSAGES * PAYLOAD_BYTES  # under way between the two workers, at both ends
    record_property("growth", f"{growth / MB:.2f} MB of {limits / MB:.2f} MB of limits")
    sent = publisher.sent - warmed
    stalled.read_on(True)
    crowd.until(lambda: drops_of(broker, stalled.client_id), "its drops have ended")
    publisher.room, publisher.count = None, publisher.sent + 1
    last = publisher.sent
    crowd.until(lambda: stalled.received[publisher.number][-1:] == [last], "it is served again")
    received = len(stalled.received[publisher.number]) - 1
    dropped = drops_of(broker, stalled.client_id)
    record_property("counts", f"sent {sent}, received {received}, dropped {dropped}")
    assert dropped == sent - received > 0
    assert repeated(stalled, publisher) == 0
    assert in_order(stalled, publisher)
    assert not missing(reader, publisher)
    assert repeated(reader, publisher) == 0
    assert growth <= limits * 1.1
