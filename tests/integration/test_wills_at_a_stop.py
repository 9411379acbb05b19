"""Wills of clients that are connected when the broker stops."""

from __future__ import annotations

from contextlib import ExitStack, closing

import pytest

from shards.placement import home
from tests.broker_process import KIND, BrokerProcess
from tests.wire import Client, Will

pytestmark = pytest.mark.skipif(KIND != "mqttd", reason="starts mqttd with its own store")

CLIENTS = 8


@pytest.mark.parametrize("number", [1, 4])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_they_are_retained_over_a_restart(number: int, qos: int) -> None:
    """Also those of QoS 0, which wait for the disk, and those whose topic another worker owns."""
    names = [f"client{each}" for each in range(CLIENTS)]
    assert number == 1 or len({home(name, number) for name in names}) > 1
    with BrokerProcess(number, environment={"MQTTD_STORE": "leveldb"}) as broker, ExitStack() as clients:
        for name in names:
            client = clients.enter_context(closing(Client(broker.address, 5)))
            client.connect(name, will=Will(f"will/{name}", name.encode(), qos, retain=True))
        broker.restart()
        late = clients.enter_context(closing(Client(broker.address, 5)))
        late.connect("late")
        late.subscribe(("will/#", 1))
        got = [late.expect("PUBLISH") for _ in names]
        assert {(packet.topic, packet.payload) for packet in got} == {(f"will/{name}", name.encode()) for name in names}
        assert not broker.logged("internal_error")


@pytest.mark.parametrize("store", ["memory", "leveldb"])
@pytest.mark.parametrize("qos", [0, 1])
def test_subscribers_that_are_connected_get_them(store: str, qos: int) -> None:
    """Connections end in the order in which they began; who subscribes began last."""
    with BrokerProcess(1, environment={"MQTTD_STORE": store}) as broker, ExitStack() as clients:
        for number in range(5):
            client = clients.enter_context(closing(Client(broker.address, 5)))
            client.connect(f"client{number}", will=Will(f"will/{number}", b"gone", qos))
        subscriber = clients.enter_context(closing(Client(broker.address, 5)))
        subscriber.connect("subscriber")
        subscriber.subscribe(("will/#", 1))
        assert broker.stop() == 0
        assert [subscriber.expect("PUBLISH", payload=b"gone").topic for _ in range(5)] == [
            f"will/{n}" for n in range(5)
        ]
        subscriber.expect("DISCONNECT", reason=0x8B)
