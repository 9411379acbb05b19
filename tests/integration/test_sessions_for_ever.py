"""Sessions that never expire: `session_expiry_seconds_max` 0 and 4294967295 mean the same."""

from __future__ import annotations

import pytest

from tests.broker_process import KIND, BrokerProcess
from tests.wire import Client

pytestmark = pytest.mark.skipif(KIND != "mqttd", reason="a setting of mqttd")

NEVER = 0xFFFFFFFF


@pytest.mark.parametrize("most", [0, NEVER])
@pytest.mark.parametrize("default_v3", [604_800, NEVER])
def test_they_are_granted_and_outlive_a_restart(most: int, default_v3: int) -> None:
    """A v5 client that asks for a session without end gets it, a v3 client the default; both survive a restart."""
    environment = {
        "MQTTD_STORE": "leveldb",
        "MQTTD_LIMITS__SESSION_EXPIRY_SECONDS_MAX": str(most),
        "MQTTD_LIMITS__SESSION_EXPIRY_SECONDS_DEFAULT_V3": str(default_v3),
    }
    with BrokerProcess(2, environment=environment) as broker:
        asked = {5: {"session_expiry_interval": NEVER}, 4: {}}
        for version, properties in asked.items():
            client = Client(broker.address, version)
            connack = client.connect(f"v{version}", clean=False, properties=properties)
            assert "session_expiry_interval" not in connack.properties
            client.subscribe("a", qos=1)
            client.disconnect()
        broker.restart()
        for version, properties in asked.items():
            client = Client(broker.address, version)
            assert client.connect(f"v{version}", clean=False, properties=properties).session_present
            client.close()
