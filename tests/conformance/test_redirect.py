"""Server redirection, and refusal of clients beyond connections_max."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import wire
from tests.broker_process import KIND, BrokerProcess
from tests.waiting import wait_until
from tests.wire import Client, OpenConnection

pytestmark = [pytest.mark.skipif(KIND != "mqttd", reason="these are settings of mqttd"), pytest.mark.one_store]

QUOTA_EXCEEDED, USE_ANOTHER_SERVER, SERVER_MOVED = 0x97, 0x9C, 0x9D
V3_UNAVAILABLE = 3
ELSEWHERE = "mqtt-2.example.org:1883 mqtt-3.example.org"


@pytest.fixture
def broker(workers: int, request: pytest.FixtureRequest, configured: Callable[..., BrokerProcess]) -> BrokerProcess:
    """A broker that redirects every client, temporarily or permanently."""
    permanent = str(getattr(request, "param", False)).lower()
    return configured(workers, {"PROTOCOL__REDIRECT": ELSEWHERE, "PROTOCOL__REDIRECT_PERMANENT": permanent})


@pytest.fixture
def client_of() -> Iterator[Callable[..., Client]]:
    """``client_of(broker, version)``: a connection to a broker that the scenario started."""
    opened: list[Client] = []

    def open_one(running: BrokerProcess, version: int = 5) -> Client:
        opened.append(Client(running.address, version))
        return opened[-1]

    yield open_one
    for client in opened:
        client.close()


def expect_redirected(client: Client, reason: int, size: int = 0) -> None:
    properties = {"maximum_packet_size": size} if size else {}
    client.send(wire.connect(client.version, "anybody", properties=properties))
    if client.version < 5:
        client.expect("CONNACK", reason=V3_UNAVAILABLE, session_present=False)
    else:
        got = client.expect("CONNACK", reason=reason, session_present=False)
        assert got.properties.get("server_reference") == (ELSEWHERE if size != 10 else None)
    client.expect_closed()


@pytest.mark.mqtt("5:3.2.2-8", "311:3.2.2-5")
@pytest.mark.parametrize("size", [0, 60, 10])
def test_use_another_server(open_connection: OpenConnection, any_version: int, size: int) -> None:
    """CONNACK 0x9C (v3: 3) closes the connection; it has a Server Reference if Maximum Packet Size allows."""
    expect_redirected(open_connection(any_version), USE_ANOTHER_SERVER, size if any_version == 5 else 0)


@pytest.mark.mqtt("5:3.2.2-8", "311:3.2.2-5")
@pytest.mark.parametrize("broker", [True], indirect=True, ids=["permanent"])
def test_server_moved(open_connection: OpenConnection, any_version: int) -> None:
    """Permanent redirection: CONNACK 0x9D, otherwise the same."""
    expect_redirected(open_connection(any_version), SERVER_MOVED)


@pytest.mark.mqtt("5:3.2.2-8", "5:4.13.2-1")
def test_redirection_begins_and_ends_with_a_reload(
    workers: int, own_broker: Callable[..., BrokerProcess], client_of: Callable[..., Client], tmp_path: Path
) -> None:
    """Connected clients stay, new ones are redirected; when the broker stops, the rest get a Server Reference."""
    config = tmp_path / "mqttd.toml"
    config.write_text("")
    running = own_broker(workers, ["--config", str(config), "--log-format", "json"])

    def reload(text: str) -> None:
        config.write_text(text)
        before = len(running.logged("reloaded"))
        os.kill(running.pid, signal.SIGHUP)
        wait_until(lambda: len(running.logged("reloaded")) >= before + workers, 60, "all workers have reloaded")

    stays = client_of(running)
    stays.connect("stays")
    reload(f'[protocol]\nredirect = "{ELSEWHERE}"\n')
    for _ in range(4):
        expect_redirected(client_of(running), USE_ANOTHER_SERVER)
    stays.expect_silence()
    reload("")
    client_of(running).connect("comes")
    reload(f'[protocol]\nredirect = "{ELSEWHERE}"\nredirect_permanent = true\n')
    os.kill(running.pid, signal.SIGTERM)
    got = stays.expect("DISCONNECT", reason=SERVER_MOVED)
    assert got.properties["server_reference"] == ELSEWHERE
    stays.expect_closed()


@pytest.mark.mqtt("5:3.2.2-8", "311:3.2.2-5")
def test_no_room(workers: int, own_broker: Callable[..., BrokerProcess], client_of: Callable[..., Client]) -> None:
    """Beyond connections_max a CONNECT gets 0x97 (v3: 3), a take-over succeeds, and a client that leaves makes room."""
    running = own_broker(workers, environment={"MQTTD_LIMITS__CONNECTIONS_MAX": str(3 * workers)})
    accepted: dict[str, Client] = {}
    refused: list[str] = []
    for number in range(12 * workers):
        version = (3, 4, 5)[number % 3]
        client = client_of(running, version)
        client.send(wire.connect(version, f"c{number}"))
        got = client.expect("CONNACK")
        if got.reason == 0:
            accepted[f"c{number}"] = client
        else:
            assert got.reason == (QUOTA_EXCEEDED if version == 5 else V3_UNAVAILABLE)
            client.expect_closed()
            refused.append(f"c{number}")
    assert len(accepted) == 3 * workers
    for client_id, client in accepted.items():
        again = client_of(running, client.version)
        again.connect(client_id)
        client.expect_closed(0x8E)
        again.disconnect()
    for client_id in refused[:3]:
        client_of(running).connect(client_id)
