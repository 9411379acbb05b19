"""Settings: all mistakes reported at once with their key paths, the order of precedence, and complete documentation."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest

from broker.config import settings as config
from broker.config.addresses import is_loopback
from broker.config.loading import load
from broker.config.queues import covers, first_rule
from broker.config.reference_page import markdown, with_tables
from broker.config.settings import ConfigError, Settings, restart_needed
from leveldb_store.engine.database import DatabaseOptions
from pyx.core.counters import NAMES
from tests.broker_process import ROOT
from tests.integration.test_limits import SCENARIOS

Write = Callable[[str], str]

#: Bounds that a whole host in trouble reaches, and the tests in which it does
ELSEWHERE = {
    "sessions_max": "tests/integration/test_bounds_of_the_broker.py::test_the_oldest_offline_session_ends",
    "session_bytes_max": "tests/integration/test_bounds_of_the_broker.py::test_session_bytes_max",
    "store_unwritten_bytes_max": "tests/integration/test_no_room.py::test_retained_messages_beyond_the_bound_wait",
    "replays_per_session_max": "tests/unit/broker/replay/test_limits_of_replays.py::test_limits",
    "replays_max": "tests/unit/broker/replay/test_limits_of_replays.py::test_limits",
    "replays_for_hosts_max": "tests/unit/broker/replay/test_replays_of_hosts.py::test_replays_for_hosts_max",
    "replay_page_bytes": "tests/unit/broker/replay/test_replaying.py::test_memory_is_bounded_by_pages",
    "link_silence_seconds_max": "tests/chaos/test_worker_stopped.py::"
    "test_a_client_whose_home_does_not_run_is_refused_in_time",
    "peer_stall_seconds_max": "tests/unit/zmq_mesh/test_links.py::"
    "test_stall_counts_as_away_and_ends_when_the_log_is_empty",
    "peer_outbox_bytes_max": "tests/unit/zmq_mesh/test_links.py::"
    "test_back_pressure_has_hysteresis_and_counts_volatile_bytes",
    "handoff_log_bytes_max": "tests/unit/zmq_mesh/test_links.py::test_handoff_log_refuses_the_newest_above_its_limit",
    "worker_hang_seconds_max": "tests/chaos/test_supervisor.py::"
    "test_a_hanging_worker_is_logged_with_its_stack_and_replaced",
    "stop_seconds_max": "tests/chaos/test_supervisor.py::test_a_worker_that_ignores_the_stop_is_killed_in_time",
    "auth_pending_max": "tests/conformance/test_credentials.py::test_too_many_that_wait_are_refused",
    "auth_threads_max": "tests/unit/broker/auth/test_hash_pool.py::"
    "test_the_caller_goes_on_while_work_is_done_and_only_so_much_runs_at_once",
    "auth_cache_entries_max": "tests/unit/broker/clients/test_authenticating.py::"
    "test_the_cache_forgets_by_age_and_number",
    "auth_cache_seconds_max": "tests/unit/broker/clients/test_authenticating.py::"
    "test_the_cache_forgets_by_age_and_number",
    "archive_gather_milliseconds_max": "tests/unit/pyx/storage/test_archiving.py::"
    "test_qos_0_is_gathered_for_a_while_and_no_ack_waits_for_it",
    "archive_pending_bytes_max": "tests/unit/pyx/storage/test_archiving.py::"
    "test_qos_0_is_dropped_from_the_archive_and_delivered_when_too_much_waits",
    "auth_data_bytes_max": "tests/conformance/test_credentials.py::test_a_bad_first_message",
}


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """``write(text)`` makes a configuration file and returns its path."""

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
    assert all(is_loopback(host) for host in settings.host)
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
        ("host = []", "host: may be empty only with a [[listener]] table"),
        (
            "[[listener]]\nport = 1\nname = 'a b'",
            "listener.name: string should match pattern '^[A-Za-z0-9_.-]{1,32}$', not 'a b'",
        ),
        (
            "[[listener]]\nport = 1\nname = 'default'",
            "listener.name: 'default' is reserved for host and port",
        ),
        (
            "[[listener]]\nport = 1\nname = 'a'\n[[listener]]\nport = 2\nname = 'a'",
            "listener.name: 'a' is there already",
        ),
        ("[[listener]]\nname = 'a'", "listener.port: field required"),
        ("[[listener]]\nport = 1\nname = 'a'\nkind = 'tls'", "listener.kind: input should be 'tcp', not 'tls'"),
        (
            "[[listener]]\nport = 1\nname = 'a'\nhost = ['']",
            "listener.host (of 'a'): '' is neither an address nor a name",
        ),
        (
            "[[listener]]\nport = 1\nname = 'a'\nhost = []",
            "listener.host: list should have at least 1 item after validation, not 0",
        ),
        (
            "host = []\n[[listener]]\nport = 1\nname = 'default'",
            "listener.name: 'default' is reserved for host and port",
        ),
        ("host = ['127.0.0.1', 5]", "host: input should be a valid string, not 5"),
        ("host = ''", "host: '' is neither an address nor a name"),
    ],
)
def test_error(write: Write, text: str, error: str) -> None:
    assert error in errors(write(text))


def test_listeners_are_numbered_in_their_order_and_host_may_be_left_empty_for_them(write: Write) -> None:
    table = "[[listener]]\nname = '{}'\nport = {}\n"
    both = load(write("port = 7\n" + table.format("a", 1) + table.format("b", 2)))
    assert [(each.name, each.kind, each.port) for each in both.listeners] == [
        ("default", "tcp", 7), ("a", "tcp", 1), ("b", "tcp", 2),
    ]  # fmt: skip
    assert both.listeners[1].host == both.host
    assert [each.name for each in load(write("host = []\n" + table.format("a", 1))).listeners] == ["a"]
    assert both.reloaded(both.reloadable()).listeners == both.listeners


@pytest.mark.parametrize("count", [0, 1, 15, 16])
def test_as_many_listeners_as_a_counter_row_has_places_for(write: Write, count: int) -> None:
    file = write("".join(f"[[listener]]\nname = 'l{number}'\nport = 0\n" for number in range(count)))
    if count <= 15:
        assert len(load(file).listeners) == count + 1
    else:
        assert errors(file) == ["listener: list should have at most 15 items after validation, not 16"]


def test_a_listener_that_others_can_reach_needs_credentials_like_any_other(write: Write) -> None:
    table = "[[listener]]\nname = 'out'\nport = 0\nhost = '0.0.0.0'\n"
    (error,) = errors(write(table))
    assert error.startswith("listener.host (of 'out'): 0.0.0.0 can be reached from other machines and no credentials")
    load(write("allow_anonymous = true\n" + table))


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
        assert settings.model_copy(update={"workers": 2}).credentials is settings.credentials  # read before a fork
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


def test_the_settings_of_leveldb_are_those_of_its_store(write: Write) -> None:
    options = dataclasses.asdict(DatabaseOptions())
    defaults = load(None).leveldb
    assert {**options, "reserve_bytes": 128 << 20} == {**defaults.model_dump(), **defaults.sizes("/", 1)._asdict()}
    text = 'store = "memory"\n[leveldb]\nwrite_buffer_bytes = 1048576\nreserve_bytes = 0\ncompression = "none"\n'
    assert load(write(text)).leveldb.reserve_bytes == 0
    assert restart_needed(load(None), load(write(text))) == ["store", "leveldb"]
    wrong = "[leveldb]\nwrite_buffer_bytes = 1\nbloom_bits = 99\ncompression = 'zip'\nopen_files_max = 10\n"
    assert [line.partition(":")[0] for line in errors(write(wrong))] == [
        "leveldb.write_buffer_bytes", "leveldb.open_files_max", "leveldb.bloom_bits", "leveldb.compression",
    ]  # fmt: skip
    assert [line.partition(":")[0] for line in errors(write("[leveldb]\nreserve_bytes = 1000000\n"))] == [
        "leveldb.reserve_bytes"
    ]


def edges() -> list[object]:
    """Return (key path, value) of every number at the least and the greatest that its description allows."""
    found: list[object] = []
    for path, field in config.leaves():
        whole = int in {field.annotation, *get_args(field.annotation)}
        for bound in field.metadata:
            values = (getattr(bound, "ge", None), getattr(bound, "le", None), getattr(bound, "gt", None))
            for value in (*values[:2], None if values[2] is None else values[2] + (1 if whole else 0.001)):
                if value is not None:
                    found.append(pytest.param(path, value if whole else float(value), id=f"{path[-1]}-{value:g}"))
    return found


#: edges that contradict another bound's default, and which of the two reports it
AGAINST = {
    ("session_expiry_seconds_default_v3", 0xFFFFFFFF): "limits.session_expiry_seconds_default_v3",
    ("link_silence_seconds_max", 3600): "limits.link_silence_seconds_max",
    ("worker_hang_seconds_max", 0.001): "limits.link_silence_seconds_max",
}


@pytest.mark.parametrize(("path", "value"), edges())
def test_every_number_can_be_as_small_and_as_large_as_its_description_says(
    write: Write, path: tuple[str, ...], value: float
) -> None:
    """0 with the meaning "any number" or "for ever" does not contradict another setting's default."""
    file = write(f"[{path[0]}]\n{path[1]} = {value}\n" if len(path) == 2 else f"{path[0]} = {value}\n")
    against = AGAINST.get((path[-1], value))
    if against is None:
        load(file)
    else:
        with pytest.raises(ConfigError, match=against):
            load(file)


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
    # what the standard, or the bound's neighbour in the table, calls so
    standard = {
        "receive_maximum", "inflight_max", "handoff_pending_max", "auth_pending_max", "half_open_per_address_max",
    }  # fmt: skip
    units = {"aliases", "minute", "second", "levels", "properties", "walks", "subscriptions", "filters", "characters"}
    for name, field in config.Limits.model_fields.items():
        assert isinstance(field.json_schema_extra, dict)
        unit = str(field.json_schema_extra["unit"]).split()[-1]
        assert unit in name or unit in units or name in standard, name
        assert field.description
        assert field.json_schema_extra["beyond"]
    for name, field in Settings.model_fields.items():
        assert field.description or name in config.TABLES
    for path, field in config.leaves():
        assert field.description, path


def test_the_counter_of_every_bound_exists() -> None:
    """Only the log reports a worker that hangs, one that is killed at the end, and lines that were left out."""
    events = {"worker_hung", "workers_killed_stopping", "log_suppressed"}
    for name, field in config.Limits.model_fields.items():
        assert isinstance(field.json_schema_extra, dict)
        kind, _, counter = str(field.json_schema_extra["counter"]).rpartition(" ")
        if kind == "log":
            assert counter in events, name
        elif counter:
            assert counter in NAMES, name
        else:
            assert name in (
                "share_large_bytes", "session_expiry_seconds_default_v3", "topic_alias_out_max", "replay_page_bytes",
            ), name  # fmt: skip


@pytest.mark.whole_tree
def test_every_bound_has_a_scenario_that_reaches_it() -> None:
    assert SCENARIOS.keys() | ELSEWHERE.keys() == set(config.Limits.model_fields)
    for limit, place in ELSEWHERE.items():
        path, _, function = place.partition("::")
        assert f"def {function}(" in (ROOT / path).read_text(), f"{limit}: {place} is gone"


def test_queue_rules(write: Write) -> None:
    text = """
[[queue]]
filter = "alarm/#"
full = "hold"
messages_max = 500
[[queue]]
filter = "telemetry/+/fast"
full = "drop_oldest"
"""
    first, second = load(write(text)).queue
    assert (first.filter, first.full, first.messages_max, first.bytes_max) == ("alarm/#", "hold", 500, None)
    assert second.full == "drop_oldest"
    assert errors(write('[[queue]]\nfilter = "a/#/b"\nfull = "hold"\n')) == [
        "queue.filter: 'a/#/b' (of table 1): # must be the last level, and all of it"
    ]
    assert errors(write('[[queue]]\nfilter = "a"\nfull = "wait"\n'))[0].startswith("queue.full: input should be")
    assert errors(None, {"MQTTD_QUEUE": "x"})[0].startswith("MQTTD_QUEUE: no such setting")


@pytest.mark.parametrize(
    ("megabytes", "stores", "text", "sizes"),
    [
        (1_000_000, 4, "", (16 << 20, 128 << 20)),
        (4096, 4, "", (16 << 20, 128 << 20)),
        (1024, 1, "", (16 << 20, 128 << 20)),
        (300, 1, "", ((300 << 20) // 64, 100 << 20)),
        (1024, 4, "", (4 << 20, (256 << 20) // 3)),
        (64, 2, "", (512 << 10, (32 << 20) // 3)),
        (1, 1, "", (64 << 10, (1 << 20) // 3)),
        (1_000_000, 1, "write_buffer_bytes = 67108864\n", (64 << 20, 198 << 20)),
        (64, 1, "write_buffer_bytes = 1048576\nreserve_bytes = 75497472\n", (1 << 20, 72 << 20)),
    ],
)
def test_what_is_not_set_fits_the_disk(
    write: Write, monkeypatch: pytest.MonkeyPatch, megabytes: int, stores: int, text: str, sizes: tuple[int, int]
) -> None:
    disk = os.statvfs_result((4096, 4096, megabytes << 8, 0, 0, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: disk)
    assert load(write(f"[leveldb]\n{text}")).leveldb.sizes("/", stores) == sizes


def test_topic_rules(write: Write) -> None:
    text = """
durability = "buffered"
[[topic]]
filter = "alarm/#"
durability = "fsync"
"""
    settings = load(write(text))
    assert [(rule.filter, rule.durability) for rule in settings.topic] == [("alarm/#", "fsync")]
    assert settings.is_synced
    assert not load(write('durability = "buffered"\n')).is_synced
    assert load(write('[[topic]]\nfilter = "#"\ndurability = "buffered"\n')).is_synced, "$-topics are others"
    assert errors(write('[[topic]]\nfilter = "a/#/b"\ndurability = "fsync"\n')) == [
        "topic.filter: 'a/#/b' (of table 1): # must be the last level, and all of it"
    ]
    assert errors(write('[[topic]]\nfilter = "a"\ndurability = "never"\n'))[0].startswith("topic.durability: input")


@pytest.mark.parametrize(
    ("rule", "subscribed", "covered"),
    [
        ("a", "a", True), ("a", "b", False), ("a/#", "a", True), ("a/#", "a/b", True), ("a/#", "a/+/c", True),
        ("a/#", "a/#", True), ("a/#", "#", False), ("a/#", "+/b", False), ("a/+", "a/b", True), ("a/+", "a/+", True),
        ("a/+", "a/#", False), ("a/+", "a", False), ("a/+", "a/b/c", False), ("#", "a/b", True), ("#", "$SYS/x", False),
        ("+/x", "$SYS/x", False), ("a/b", "a/+", False),
    ],
)  # fmt: skip
def test_a_queue_rule_covers_what_matches_nothing_else(rule: str, subscribed: str, covered: bool) -> None:
    assert covers(rule.encode(), subscribed.encode()) is covered


def test_the_first_queue_rule_in_order_decides() -> None:
    rules = [b"a/+", b"b/#", b"#"]
    assert [first_rule(rules, text) for text in (b"a/x", b"b/x", b"c", b"$SYS/x")] == [1, 2, 3, 0]
    assert first_rule([], b"a") == 0


def test_the_documentation_has_the_tables_of_today() -> None:
    path = ROOT / "docs" / "reference" / "configuration.md"
    assert with_tables(path.read_text()) == path.read_text(), (
        "run: python -m broker.config.reference_page --markdown docs/reference/configuration.md"
    )


def test_every_default_is_a_value() -> None:
    assert "Undefined" not in markdown()
    assert "``" not in markdown()
    assert "    " not in markdown()  # no indentation of a docstring, which depends on the version of CPython


def test_the_example_of_deploy_is_valid() -> None:
    load(str(ROOT / "deploy" / "mqttd.toml"))


def test_strategies_of_share_groups_are_tables_in_order(write: Write) -> None:
    file = write(
        '[[shared]]\ngroup = "a-*"\nfilter = "x/#"\nstrategy = "hash_topic"\nwhen_full = "wait"\n'
        '[[shared]]\ngroup = "*"\nstrategy = "sticky"\n'
    )
    settings = load(file)
    found = [(rule.group, rule.filter, rule.strategy, rule.when_full) for rule in settings.shared]
    assert found == [("a-*", "x/#", "hash_topic", "wait"), ("*", None, "sticky", "next")]
    assert load(None).reloaded(settings.reloadable()).shared == settings.shared


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('group = "a"', "shared.strategy: field required"),
        ('group = "a"\nstrategy = "random"', "shared.strategy: input should be 'round_robin', 'least_inflight', "),
        ('group = "a"\nstrategy = "sticky"\ngruop = 1', "shared.gruop: unknown key; did you mean shared.group?"),
        ('group = ""\nstrategy = "sticky"', "shared.group: string should have at least 1 character"),
        (
            'group = "a"\nstrategy = "round_robin"\nwhen_full = "wait"',
            "shared.when_full: 'wait' has no meaning for round_robin (group 'a')",
        ),
        (
            'group = "a"\nstrategy = "sticky"\nhosts = "even"',
            "shared.hosts: 'even' has no meaning for sticky (group 'a')",
        ),
        ('group = "a"\nstrategy = "sticky"\nspread = "yes"', "shared.spread: input should be a valid boolean"),
    ],
)
def test_mistakes_in_strategies_of_share_groups(write: Write, text: str, error: str) -> None:
    (line,) = errors(write(f"[[shared]]\n{text}\n"))
    assert line.startswith(error), line
