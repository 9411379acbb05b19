"""Settings: every mistake at once with its key path, the order of precedence, and a complete documentation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from broker import config
from broker.config import ConfigError, Settings, load
from tests.broker_process import ROOT

Write = Callable[[str], str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """``write(text)`` makes a configuration file and gives its path."""

    def write_one(text: str) -> str:
        path = tmp_path / "mqttd.toml"
        path.write_text(text)
        return str(path)

    return write_one


def errors(file: str | None = None, environment: dict[str, str] | None = None, **flags: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(file, environment, flags)
    return caught.value.lines


def test_defaults_listen_on_loopback_and_allow_anonymous_clients() -> None:
    settings = load(None)
    assert settings.port == 1883
    assert all(config.is_loopback(host) for host in settings.host)
    assert settings.anonymous_allowed
    assert settings.limits.packet_bytes_max == 16 << 20


def test_file_over_defaults_environment_over_file_flags_over_all(write: Write) -> None:
    file = write("port = 2\nworkers = 2\nqueue_qos0 = true\n[limits]\ninflight_max = 2\nqueue_messages_max = 2\n")
    environment = {"MQTTD_PORT": "3", "MQTTD_WORKERS": "3", "MQTTD_LIMITS__INFLIGHT_MAX": "3", "PATH": "/bin"}
    settings = load(file, environment, {"port": 4})
    found = (settings.port, settings.workers, settings.limits.inflight_max, settings.limits.queue_messages_max)
    assert found == (4, 3, 3, 2)
    assert settings.queue_qos0


def test_every_kind_of_value_comes_from_the_environment() -> None:
    environment = {
        "MQTTD_HOST": "127.0.0.1, ::1",
        "MQTTD_PIN_CPUS": "true",
        "MQTTD_ALLOW_ANONYMOUS": "no",
        "MQTTD_QUEUE_FULL": "disconnect",
        "MQTTD_RUNTIME_DIR": "/run/mqttd",
        "MQTTD_LIMITS__LINK_SILENCE_SECONDS_MAX": "0.5",
    }
    settings = load(None, environment)
    assert settings.host == ["127.0.0.1", "::1"]
    assert (settings.pin_cpus, settings.allow_anonymous, settings.queue_full) == (True, False, "disconnect")
    assert (settings.runtime_dir, settings.limits.link_silence_seconds_max) == ("/run/mqttd", 0.5)


def test_every_error_is_named_with_its_key_path(write: Write) -> None:
    file = write(
        'port = "1883"\nworkers = true\nlog_levle = "info"\n[limits]\npacket_bytes_max = 0\ninflight_max = 1.5\n'
    )
    assert errors(file) == [
        "workers: input should be a valid integer, not True",
        "port: input should be a valid integer, not '1883'",
        "limits.packet_bytes_max: input should be greater than or equal to 128, not 0",
        "limits.inflight_max: input should be a valid integer, not 1.5",
        "log_levle: unknown key; did you mean log_level?",
    ]


def test_errors_say_where_a_value_came_from() -> None:
    assert errors(None, {"MQTTD_WORKERS": "many"}, port=70000) == [
        "workers: input should be a valid integer, not 'many' (from MQTTD_WORKERS)",
        "port: input should be less than or equal to 65535, not 70000 (from --port)",
    ]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("[limits]\npacket_byte_max = 1", "limits.packet_byte_max: unknown key; did you mean limits.packet_bytes_max?"),
        ("packet_bytes_max = 1", "packet_bytes_max: unknown key; did you mean limits.packet_bytes_max?"),
        ("[limit]\ninflight_max = 1", "limit: unknown key; did you mean limits?"),
        ("zzz = 1", "zzz: unknown key"),
        ("limits = 3", "limits: input should be a valid dictionary or instance of Limits, not 3"),
        ("host = []", "host: list should have at least 1 item after validation, not 0"),
        ("host = ['127.0.0.1', 5]", "host: input should be a valid string, not 5"),
        ("host = ''", "host: '' is neither an address nor a name"),
    ],
)
def test_error(write: Write, text: str, error: str) -> None:
    assert error in errors(write(text))


def test_unknown_environment_variables_are_errors_but_for_those_of_build_and_tests() -> None:
    lines = errors(None, {"MQTTD_LIMITS__PACKET_BYTE_MAX": "1", "MQTTD_LOGLEVEL": "info"})
    assert lines == [
        "MQTTD_LIMITS__PACKET_BYTE_MAX: no such setting; did you mean MQTTD_LIMITS__PACKET_BYTES_MAX? (environment)",
        "MQTTD_LOGLEVEL: no such setting; did you mean MQTTD_LOG_LEVEL? (environment)",
    ]
    load(None, {"MQTTD_CONFIG": "x", "MQTTD_TEST_BROKER": "mosquitto", "MQTTD_PROFILE": "asan", "MQTTD_TESTS": "1"})


def test_files_that_cannot_be_read(write: Write, tmp_path: Path) -> None:
    assert errors(str(tmp_path / "none.toml")) == [f"{tmp_path}/none.toml: No such file or directory"]
    file = write("port = 1\nport = = 2\n")
    assert errors(file)[0].startswith(f"{file}: ")
    assert "line 2" in errors(file)[0]
    Path(file).write_bytes(b"\xff")
    assert errors(file) == [f"{file}: not UTF-8"]


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost", "::ffff:127.0.0.1"])
def test_loopback_may_be_anonymous_without_asking(host: str) -> None:
    assert load(None, {}, {"host": [host]}).anonymous_allowed


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "2001:db8::1", "broker.example", "fe80::1%eth0"])
def test_other_addresses_must_be_asked_for(host: str) -> None:
    lines = errors(None, {}, host=["127.0.0.1", host])
    assert len(lines) == 1
    assert "--allow-anonymous" in lines[0]
    assert host in lines[0]
    assert load(None, {}, {"host": [host], "allow_anonymous": True}).anonymous_allowed
    assert not load(None, {}, {"host": [host], "allow_anonymous": False}).anonymous_allowed


def test_a_password_file_closes_the_door_and_lets_other_addresses_be_listened_on(tmp_path: Path) -> None:
    path = tmp_path / "users"
    path.write_text("# nobody yet\n")
    for host in ("127.0.0.1", "0.0.0.0"):
        settings = load(None, {"MQTTD_PASSWORD_FILE": str(path)}, {"host": [host]})
        assert not settings.anonymous_allowed
        assert settings.credentials is not None
        assert settings.model_copy(update={"workers": 2}).credentials is settings.credentials  # what is forked is read
        assert load(None, {}, {"password_file": str(path), "allow_anonymous": True}).anonymous_allowed
    assert load(None).credentials is None


def test_mistakes_in_the_password_file_are_errors_with_their_place(tmp_path: Path, write: Write) -> None:
    path = tmp_path / "users"
    file = write(f'password_file = "{path}"\nport = 1883\n')
    assert errors(file) == [f"password_file: {path}: No such file or directory"]
    path.write_text("# users\nalice:secret\n:x\n")
    assert errors(file) == [
        f"password_file: {path}:2: no argon2id, $7$ or $6$ hash",
        f"password_file: {path}:3: an empty user name",
    ]
    assert errors(write("password_file = ''")) == ["password_file: string should have at least 1 character, not ''"]


def test_limits_that_contradict_each_other(write: Write) -> None:
    text = "[limits]\nsession_expiry_seconds_max = 5\nlink_silence_seconds_max = 10\n"
    assert [line.partition(":")[0] for line in errors(write(text))] == [
        "limits.session_expiry_seconds_default_v3",
        "limits.link_silence_seconds_max",
    ]


def test_settings_do_not_change() -> None:
    settings = load(None)
    with pytest.raises(ValueError, match="frozen"):
        settings.port = 1
    with pytest.raises(ValueError, match="frozen"):
        settings.limits.inflight_max = 1


def test_a_reload_changes_what_it_can_and_names_what_it_cannot(write: Write) -> None:
    old = load(None)
    new = load(write('port = 2\nlog_level = "debug"\nqueue_full = "drop_oldest"\n[limits]\ninflight_max = 7\n'))
    assert config.restart_needed(old, new) == ["port"]
    reloaded = old.reloaded(new.reloadable())
    assert (reloaded.port, reloaded.log_level, reloaded.queue_full) == (1883, "debug", "drop_oldest")
    assert reloaded.limits.inflight_max == 7


def test_a_reload_cannot_open_a_broker_that_was_not(write: Write) -> None:
    old = load(None, {}, {"host": ["0.0.0.0"], "allow_anonymous": True})
    with pytest.raises(ConfigError, match="--allow-anonymous"):
        old.reloaded(load(write("port = 1883")).reloadable())


def test_every_bound_names_its_unit_and_every_setting_is_described() -> None:
    counts = (
        "messages",
        "connections",
        "filters_per_session",
        "topic_levels",
        "topic_alias",
        "inflight",
        "pending",
        "packets",
        "threads",
        "entries",
        "characters",
    )
    for name, field in config.Limits.model_fields.items():
        unit = any(word in name for word in ("bytes", "seconds", "microseconds", "lines_per_second", *counts))
        assert unit or name == "receive_maximum", name
        assert field.description
    for name, field in Settings.model_fields.items():
        assert field.description or name in config.TABLES
    for path, field in config.leaves():
        assert field.description, path


def test_the_documentation_has_the_tables_of_today() -> None:
    path = ROOT / "docs" / "configuration.md"
    assert config.with_tables(path.read_text()) == path.read_text(), (
        "run: python -m broker.config --markdown docs/configuration.md"
    )


def test_the_example_of_deploy_is_valid() -> None:
    load(str(ROOT / "deploy" / "mqttd.toml"))
