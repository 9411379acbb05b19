"""TLS and WebSocket with mosquitto: mqttd has neither yet."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.loadtest.mosquitto import PASSWORD, USER, Mosquitto
from tests.loadtest.running import WRONG, flood, refused

SECURE = ("mqtts", "wss")
ENDED = "a connection that ended before its CONNACK: "


@pytest.mark.parametrize("scheme", ["mqtt", "mqtts", "ws", "wss"])
@pytest.mark.parametrize(("scenario", "qos"), [("pair", "2"), ("fanout", "0"), ("fanin", "1")])
def test_a_scenario_is_delivered_whole(mosquitto: Mosquitto, scheme: str, scenario: str, qos: str) -> None:
    trust = ["--cafile", str(mosquitto.directory / "ca.pem")] if scheme in SECURE else []
    found = flood(
        mosquitto.url(scheme), scenario, "-c", "6", "-q", qos, "--rate", "600", "--processes", "2", *trust,
        "--client-prefix", f"{scheme}{scenario}-", "-t", f"{scheme}{scenario}/%i", "--payload", "3:64,2000",
    )  # fmt: skip
    figures = found["figures"]
    assert found["ok"], found["said"]
    assert [figures[name] for name in WRONG] == [0] * len(WRONG)
    copies = 6 if scenario == "fanout" else 1
    assert figures["total_received"] == copies * figures["total_sent"] >= 20


@pytest.mark.parametrize(("scheme", "payload"), [("mqtts", "64,70000"), ("ws", "64,2000"), ("wss", "64,2000")])
def test_as_fast_as_it_goes(mosquitto: Mosquitto, scheme: str, payload: str) -> None:
    """Full sockets, and packets and frames cut at any byte lose nothing. mosquitto is slow with large frames."""
    trust = ["--cafile", str(mosquitto.directory / "ca.pem")] if scheme in SECURE else []
    found = flood(mosquitto.url(scheme), "pair", "-c", "4", "-q", "1", "-s", payload, *trust, "-t", f"{scheme}/%i")
    figures = found["figures"]
    assert [figures[name] for name in WRONG] == [0] * len(WRONG)
    assert figures["total_received"] == figures["total_sent"] > 20


def test_clients_show_a_certificate(mosquitto: Mosquitto) -> None:
    of = mosquitto.directory
    trust = ["--cafile", str(of / "ca.pem")]
    shown = ["--cert", str(of / "client.pem"), "--key", str(of / "client.key")]
    assert flood(mosquitto.url_with_certificate, "conn", "-c", "3", *trust, *shown)["figures"]["connected"] == 3
    assert "TLS: " in refused("conn", "-c", "3", "--host", mosquitto.url_with_certificate, *trust)


@pytest.mark.parametrize(
    ("scheme", "authority", "said"),
    [
        ("mqtts", "other-ca.pem", "TLS: self-signed certificate in certificate chain"),
        ("wss", "other-ca.pem", "TLS: self-signed certificate in certificate chain"),
        ("mqtts", None, "TLS: "),
    ],
)
def test_a_broker_that_is_not_trusted_is_named(
    mosquitto: Mosquitto, scheme: str, authority: str | None, said: str
) -> None:
    trust = ["--cafile", str(mosquitto.directory / authority)] if authority else []
    assert said in refused("conn", "-c", "2", "--host", mosquitto.url(scheme), *trust)


@pytest.mark.parametrize(
    ("speaks", "listens", "said"),
    [
        ("mqtts", "mqtt", ENDED),
        ("ws", "mqtt", ENDED),
        ("wss", "mqtts", ENDED),
        ("mqtt", "mqtts", ENDED),
        ("mqtts", "wss", "what came first is no CONNACK"),
    ],
)
def test_another_protocol_is_named(mosquitto: Mosquitto, speaks: str, listens: str, said: str) -> None:
    url = mosquitto.url(listens).replace(listens, speaks)
    trust = ["--cafile", str(mosquitto.directory / "ca.pem")] if speaks in SECURE else []
    assert said in refused("conn", "-c", "2", "--host", url, *trust)


def test_a_password_is_read_from_a_file(mosquitto: Mosquitto, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text(f"{PASSWORD}\n")
    url = mosquitto.url_with_password
    given = flood(url, "conn", "-c", "3", "--user", USER, "--password-file", str(file))
    assert given["figures"]["connected"] == 3
    assert "CONNACK with Reason Code 0x05" in refused("conn", "-c", "3", "--host", url)
