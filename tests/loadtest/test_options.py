"""Options that all load tools and locust accept with the same meaning."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

import pytest

from loadtest import compare, flood, options, plan
from loadtest.target import Target
from tests.broker_process import ROOT


def parsed(*arguments: str, **environment: str) -> argparse.Namespace:
    """Parse arguments as a load tool does."""
    parser = options.Parser(prog="python -m loadtest.tool")
    options.add_to(parser)
    options.from_environment(parser, {f"MQTTD_LOAD_{name}": value for name, value in environment.items()})
    return parser.parse_args(arguments)


def test_a_flag_is_before_the_environment_and_that_before_the_default() -> None:
    given = parsed("--qos", "2", QOS="1", CLIENT_PREFIX="car-")
    assert (given.qos, given.client_prefix, given.topic) == (2, "car-", "t/%i")


def test_every_option_has_a_variable() -> None:
    values = {"MQTT_VERSION": "5", "RATE": "10", "PAYLOAD": "80:64,20:4096", "PASSWORD": "s", "SESSION_EXPIRY": "60"}
    given = vars(parsed(**values))
    assert [given[name.lower()] for name in values] == [5, 10.0, "80:64,20:4096", "s", 60]
    assert {each.dest for each in options.OPTIONS} == set(given)


@pytest.mark.parametrize(
    ("arguments", "environment", "said"),
    [
        ((), {"QOS": "3"}, "tool: MQTTD_LOAD_QOS: invalid choice: 3"),
        ((), {"SESSION_EXPIRY": "soon"}, "tool: MQTTD_LOAD_SESSION_EXPIRY: invalid number value: 'soon'"),
        (("--rate", "-1"), {}, "tool: argument --rate: -1: a number from 0 on"),
        (("--rate", "nan"), {}, "tool: argument --rate: nan: a number from 0 on"),
        (("--pass", "x"), {}, "tool: unrecognized arguments: --pass x"),
    ],
)
def test_wrong_values_are_one_line(
    arguments: tuple[str, ...], environment: dict[str, str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parsed(*arguments, **environment)
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert told.startswith(said)
    assert told.count("\n") == 1


def test_what_was_given_can_be_handed_on_and_be_shown_without_secrets() -> None:
    given = parsed("--qos", "1", "--topic", "a b/%i", "--password", "x")
    assert options.arguments_of(given, without=options.OF_CONNECTIONS) == [
        "--mqtt-version", "4", "--client-prefix", "flood-", "--qos", "1", "--payload", "64", "--topic", "a b/%i",
    ]  # fmt: skip
    assert parsed(*options.arguments_of(given)) == given
    shown = options.shown(["--user", "u", "--password", "x", "--password=x", "--password-file", "f"])
    assert shown == ["--user", "u", "--password", "...", "--password=...", "--password-file", "f"]


@pytest.mark.parametrize("tool", [flood.parser({}), plan.parser(), compare.parser()], ids=["flood", "plan", "compare"])
def test_every_tool_has_them(tool: argparse.ArgumentParser) -> None:
    own = {flag for action in tool._actions for flag in action.option_strings}
    assert {f"--{each.name}" for each in options.OPTIONS} - own <= {"--host"}


def test_a_password_from_a_file_is_its_first_line(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("secret word\nanother line\n")
    assert options.password_of(parsed("--password-file", str(file))) == "secret word"
    assert options.password_of(parsed(PASSWORD="x")) == "x"
    assert options.password_of(parsed()) is None
    with pytest.raises(ValueError, match="say the same"):
        options.password_of(parsed("--password-file", str(file), "--password", "x"))
    file.write_text("")
    with pytest.raises(ValueError, match="is empty"):
        options.password_of(parsed("--password-file", str(file)))
    with pytest.raises(ValueError, match="No such file"):
        options.password_of(parsed("--password-file", str(tmp_path / "none")))


def test_payloads_come_in_turn_as_often_as_their_weights_say(tmp_path: Path) -> None:
    file = tmp_path / "reading.json"
    file.write_bytes(b'{"t": 20}')
    assert options.payloads("64") == (64,)
    assert options.payloads("100,200,300") == (100, 200, 300)
    turn = options.payloads("80:64,20:4096")
    assert sorted(turn) == [64, 64, 64, 64, 4096]
    assert options.payloads(f"{file}") == options.payloads(f"@{file}") == (b'{"t": 20}',)
    assert options.payloads(f"2:64,1:{file}").count(b'{"t": 20}') == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "neither a number of bytes nor a file"),
        ("64,", "neither a number of bytes nor a file"),
        ("-5", "neither a number of bytes nor a file: -5: No such file"),
        ("0:64", "a weight is 1 at least"),
        ("999999:64,1:65", "a turn of more than 10,000"),
        ("300000000", "more than 268,369,856 bytes"),
    ],
)
def test_payloads_that_are_none(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        options.payloads(text)


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("h", ("mqtt", "h", 1883, "mqtt://h:1883")),
        ("h:1", ("mqtt", "h", 1, "mqtt://h:1")),
        ("mqtts://[::1]", ("mqtts", "::1", 8883, "mqtts://[::1]:8883")),
        ("ws://h", ("ws", "h", 80, "ws://h:80/mqtt")),
        ("wss://h:8/a/b?c=d", ("wss", "h", 8, "wss://h:8/a/b?c=d")),
    ],
)
def test_addresses(url: str, address: tuple[str, str, int, str]) -> None:
    target = Target.parse(url)
    assert (target.scheme, target.host, target.port, target.url) == address
    assert Target.parse(target.url) == target


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--host", "http://h"], "mqtt://, mqtts://, ws:// or wss://, not http://"),
        (["--host", "mqtt://"], "names no host"),
        (["--host", "mqtt://h:99999"], "Port out of range"),
        (["--host", "mqtt://joe:secret@h"], "names and passwords are --user and --password"),
        (["--cafile", "x"], "mqtt:// has no TLS"),
        (["--host", "mqtts://h", "--cafile", "none.pem"], "--cafile none.pem: No such file"),
        (["--host", "mqtts://h", "--cafile", __file__], "--cafile .*: NO_CERTIFICATE_OR_CRL_FOUND"),
        (["--host", "mqtts://h", "--cert", "none.pem"], "--cert none.pem: No such file"),
        (["--host", "mqtts://h", "--key", "none.pem"], "--key is the key of --cert"),
        (["--password", "x"], "a password needs --user"),
    ],
)
def test_targets_that_are_none(arguments: list[str], said: str) -> None:
    with pytest.raises(ValueError, match=said) as error:
        Target.of(parsed(*arguments))
    assert "secret" not in str(error.value)


def test_locust_takes_them_beside_its_own() -> None:
    """locust's own -u and --users, --host, --version, -t and -s keep their meaning."""
    program = (
        "from loadtest import options\n"
        "from locust.argument_parser import get_parser\n"
        "parser = get_parser(default_config_files=[])\n"
        "options.add_to_locust(parser, defaults={'mqtt-version': 5})\n"
        "given = parser.parse_args(['--user', 'joe', '--users', '7', '-t', '5s', '--host', 'h', '--rate', '3'])\n"
        "print(given.user, given.num_users, given.run_time, given.host, given.rate, given.mqtt_version, given.qos)\n"
        "print([name for name in parser.secret_args_included_in_web_ui if 'password' in name])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60,
        env=os.environ | {"MQTTD_LOAD_QOS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["joe 7 5 h 3.0 5 1", "['password']"]
