"""Settings of bridges: what is wrong is said, and what is right is understood."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from broker.config.bridges import CONNECTIONS_MAX, TOPICS_MAX, Bridge, local_ids
from broker.config.loading import load
from broker.config.settings import ConfigError
from tests.certificates import certificates

TOPIC = "\n[[bridges.b.topic]]\n"
RIGHT = '[bridges.b]\naddress = "mqtt://h"\n'


def loaded(tmp_path: Path, text: str) -> dict[str, Bridge]:
    file = tmp_path / "mqttd.toml"
    file.write_text(text)
    return load(str(file)).bridges


def errors(tmp_path: Path, text: str) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        loaded(tmp_path, text)
    return list(raised.value.lines)


def test_what_is_there_by_default(tmp_path: Path) -> None:
    bridge = loaded(tmp_path, RIGHT + TOPIC + 'pattern = "a/#"\n')["b"]
    assert (bridge.endpoint, bridge.is_tls, bridge.version, bridge.connections) == (("h", 1883), False, "5", 1)
    (topic,) = bridge.topic
    assert (topic.direction, topic.qos, topic.local_filter, topic.remote_filter) == ("out", 1, "a/#", "a/#")
    assert load(None).bridges == {}


@pytest.mark.parametrize(
    ("address", "endpoint"),
    [
        ("mqtt://h:1", ("h", 1)),
        ("mqtts://mqtt.example.com", ("mqtt.example.com", 8883)),
        ("mqtts://[::1]:65535", ("::1", 65535)),
    ],
)
def test_addresses(tmp_path: Path, address: str, endpoint: tuple[str, int]) -> None:
    text = f'[bridges.b]\naddress = "{address}"\n' + TOPIC + 'pattern = "a"\n'
    assert loaded(tmp_path, text)["b"].endpoint == endpoint


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("address = ", "bridges.b.address: 'http://h' is neither mqtt://HOST[:PORT] nor mqtts://HOST[:PORT]"),
        ("address = ", "bridges.b.address: 'mqtt://h:0' is neither"),
        ("address = ", "bridges.b.address: 'mqtt://h:65536' is neither"),
        ("address = ", "bridges.b.address: 'mqtt://' is neither"),
        ("address = ", "bridges.b.address: 'mqtt://a..b' is neither"),
        ("address = ", f"bridges.b.address: 'mqtt://{'a' * 64}.b' is neither"),
        ("address = ", "bridges.b.address: 'mqtt://[:::::]' is neither"),
        ('client_id = "\\u0000"', "bridges.b.client_id: contains U+0000, or more than 65,535 bytes"),
        (f'client_id = "{"ü" * 40_000}"', "bridges.b.client_id: contains U+0000, or more than 65,535 bytes"),
        ('username = "\\u0000"', "bridges.b.username: contains U+0000, or more than 65,535 bytes"),
        ('key = "/nowhere"', "bridges.b: certificate and key go together"),
        ('ca_file = "/nowhere"', "bridges.b.ca_file: has no meaning without mqtts://"),
        ('password_file = "/nowhere"', "bridges.b.password_file: has no meaning without bridges.b.username"),
        ("connections = 0", "bridges.b.connections: input should be greater than or equal to 1, not 0"),
        ("keep_alive_seconds = 4", "bridges.b.keep_alive_seconds: input should be greater than or equal to 5"),
        ("inflight_max = 65536", "bridges.b.inflight_max: input should be less than or equal to 65535"),
        ('version = "3.1"', "bridges.b.version: input should be '5' or '3.1.1'"),
        ("colour = 1", "bridges.b.colour: unknown key"),
    ],
)
def test_what_is_wrong_with_a_bridge(tmp_path: Path, line: str, says: str) -> None:
    address = says.split("'")[1] if line == "address = " else "mqtt://h"
    more = "" if line == "address = " else line
    text = f'[bridges.b]\naddress = "{address}"\n{more}\n' + TOPIC + 'pattern = "a"\n'
    assert any(each.startswith(says) for each in errors(tmp_path, text)), errors(tmp_path, text)


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ('ca_file = "/nowhere"', "bridges.b: /nowhere: No such file or directory"),
        ('ca_file = "/etc/passwd"', "bridges.b: /etc/passwd: "),
        ('certificate = "client.pem"\nkey = "server.key"', "bridges.b: client.pem, server.key: "),
        ('certificate = "client.pem"\nkey = "locked.key"', "bridges.b: client.pem, locked.key: "),
    ],
)
def test_what_is_wrong_with_certificates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: str, says: str
) -> None:
    """A key that is encrypted, too: nobody is there to give its passphrase, and nobody is asked."""
    certificates(tmp_path)
    monkeypatch.chdir(tmp_path)
    locked = ["openssl", "ec", "-in", "client.key", "-out", "locked.key", "-aes256", "-passout", "pass:secret"]
    subprocess.run(locked, check=True, capture_output=True)
    right = '[bridges.b]\naddress = "mqtts://h"\nca_file = "ca.pem"\ncertificate = "client.pem"\nkey = "client.key"\n'
    assert loaded(tmp_path, right + TOPIC + 'pattern = "a"\n')["b"].is_tls
    found = errors(tmp_path, f'[bridges.b]\naddress = "mqtts://h"\n{lines}\n{TOPIC}pattern = "a"\n')
    assert len(found) == 1
    assert found[0].startswith(says)
    assert "None" not in found[0]


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ('pattern = ""', "bridges.b.topic.pattern: string should have at least 1 character"),
        ('pattern = "a/#/b"', "bridges.b.topic.pattern: 'a/#/b' (here): # must be the last level"),
        ('pattern = "#"\nremote_prefix = "a"', "bridges.b.topic.pattern: 'a#' (there): # must be the last level"),
        ('pattern = "a"\nlocal_prefix = "+/"', "bridges.b.topic.local_prefix: '+/' has a wildcard"),
        ('pattern = "$share/g/a"', "bridges.b.topic.pattern: '$share/g/a' (here): shared subscriptions are not"),
        ('pattern = "$SYS/#"\ndirection = "in"', "bridges.b.topic.local_prefix: '$SYS/#' is this broker's own"),
        ('pattern = "a"\nqos = 3', "bridges.b.topic.qos: input should be less than or equal to 2"),
        ('pattern = "a"\ndirection = "up"', "bridges.b.topic.direction: input should be 'out', 'in' or 'both'"),
    ],
)
def test_what_is_wrong_with_a_topic(tmp_path: Path, lines: str, says: str) -> None:
    found = errors(tmp_path, RIGHT + TOPIC + lines + "\n")
    assert any(each.startswith(says) for each in found), found


@pytest.mark.parametrize("more", [0, 1])
def test_the_longest_topic_filter(tmp_path: Path, more: int) -> None:
    text = RIGHT + TOPIC + f'pattern = "{"a" * 60_000}"\nremote_prefix = "{"p" * (5535 + more)}"\n'
    if more:
        assert errors(tmp_path, text) == ["bridges.b.topic.pattern: more than 65,535 bytes with its prefix (there)"]
    else:
        assert len(loaded(tmp_path, text)["b"].topic[0].remote_filter) == 65535


def test_there_is_no_bridge_without_a_topic(tmp_path: Path) -> None:
    assert errors(tmp_path, RIGHT) == ["bridges.b.topic: field required"]
    assert errors(tmp_path, RIGHT + "topic = []\n")[0].startswith("bridges.b.topic: list should have at least 1 item")


@pytest.mark.parametrize("more", [0, 1])
def test_the_most_topics(tmp_path: Path, more: int) -> None:
    text = RIGHT + "".join(f'{TOPIC}pattern = "t{number}"\n' for number in range(TOPICS_MAX + more))
    if more:
        assert "at most 100 items" in errors(tmp_path, text)[0]
    else:
        assert len(loaded(tmp_path, text)["b"].topic) == TOPICS_MAX


@pytest.mark.parametrize("more", [0, 1])
def test_the_most_connections(tmp_path: Path, more: int) -> None:
    text = "".join(
        f'[bridges.b{number}]\naddress = "mqtt://h"\nconnections = {connections}\ntopic = [{{pattern = "a"}}]\n'
        for number, connections in enumerate([CONNECTIONS_MAX - 1, 1 + more])
    )
    if more:
        assert errors(tmp_path, text) == ["bridges: 65 connections; at most 64 of all bridges together"]
    else:
        assert len(loaded(tmp_path, text)) == 2


@pytest.mark.parametrize("name", ["x y", "$a", "a/b", "a" * 64, "-a"])
def test_names(tmp_path: Path, name: str) -> None:
    text = f'[bridges."{name}"]\naddress = "mqtt://h"\ntopic = [{{pattern = "a"}}]\n'
    assert errors(tmp_path, text)[0].startswith(f"bridges: {name!r} is no name")


@pytest.mark.parametrize("names", [("a", "a-0"), ("x", "y")])
def test_no_two_bridges_are_the_same_client(tmp_path: Path, names: tuple[str, str]) -> None:
    """They would take each other over for ever."""
    topics = 'topic = [{pattern = "a"}, {pattern = "b"}]\n'
    same = 'client_id = "same"\n' if names[0] == "x" else ""
    connections = "" if same else "connections = 2\n"
    text = f'[bridges.{names[0]}]\naddress = "mqtt://h"\n{same}{connections}{topics}'
    text += f'[bridges.{names[1]}]\naddress = "mqtt://h:1883"\n{same}{topics}'
    assert errors(tmp_path, text) == [f"bridges.{names[1]}.client_id: another bridge has it at the same broker"]
    assert len(loaded(tmp_path, text.replace("h:1883", "h:1884"))) == 2


def test_client_ids_here(tmp_path: Path) -> None:
    topics = 'topic = [{pattern = "a"}, {pattern = "b"}]\n'
    text = f'[bridges.a]\naddress = "mqtt://h"\nconnections = 3\n{topics}[bridges.b]\naddress = "mqtt://h"\n{topics}'
    bridges = loaded(tmp_path, text)
    assert list(local_ids(bridges, "")) == [("a", 0, "$bridge/a/0"), ("a", 1, "$bridge/a/1"), ("b", 0, "$bridge/b/0")]
    assert next(local_ids(bridges, "n1"))[2] == "$bridge/n1/a/0"
