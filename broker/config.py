"""The settings: what they are, where they come from, and every mistake in them at once.

One model drives everything: what the TOML file may contain, the environment names (MQTTD_PORT,
MQTTD_LIMITS__PACKET_BYTES_MAX), what a reload may change, and the tables of docs/configuration.md (`python -m
broker.config --markdown docs/configuration.md`). A new setting is one field with a description; a new bound is one
field of `Limits` that says what happens at the bound.

Defaults < file < environment < flags. Values are not guessed: a TOML string is no number, `true` is no 1; the text of
an environment variable is read as the type its key has. Errors are lines `key.path: what is wrong`, each with the
place it came from.
"""

from __future__ import annotations

import difflib
import ipaddress
import sys
import tomllib
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.config import JsonDict
from pydantic.fields import FieldInfo

from broker.auth import BACKENDS
from broker.auth.contract import Backend, CredentialsError
from broker.protocol import Protocol

ENVIRONMENT_PREFIX = "MQTTD_"
ENVIRONMENT_CONFIG = "MQTTD_CONFIG"
"""Names the configuration file when --config does not."""

_ENVIRONMENT_OTHERS = ("MQTTD_TEST", "MQTTD_PROFILE", "MQTTD_EXTENSIONS")  # of the build and the tests, no settings
_KIB = 1024
_MIB = 1024 * _KIB
_DAY = 86400
_WORKERS_MAX = 256  # a message number has 8 bits for its worker
_PACKET_BYTES_MAX = 5 + 268_435_455  # fixed header and the largest Remaining Length (MQTT 5.0, 1.5.5)
_NEVER_EXPIRES = 0xFFFFFFFF

_RESTART: JsonDict = {"restart": True}  # read once, at the start: a reload keeps the old value


class ConfigError(Exception):
    """The settings are wrong."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__("; ".join(lines))
        self.lines = lines
        """One line per error: `key.path: what is wrong`."""


def _listed(value: object) -> object:
    return [value] if isinstance(value, str) else value


Seconds = Annotated[float, Field(gt=0, le=3600, allow_inf_nan=False)]


class Limits(BaseModel):
    """Every bound, its unit last. Counts are per worker where nothing else is said."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    # -- packets
    packet_bytes_max: int = Field(
        default=16 * _MIB,
        ge=128,
        le=_PACKET_BYTES_MAX,
        description="Largest packet taken from a client, said as Maximum Packet Size; a larger one: DISCONNECT "
        "0x95, closed.",
    )
    topic_bytes_max: int = Field(
        default=4096,
        ge=1,
        le=65535,
        description="Longest topic name or filter; a longer one: PUBACK or PUBREC 0x90, at QoS 0 discarded, SUBACK "
        "0x8F; v3: closed, SUBACK 0x80. The topic of a will: CONNACK 0x90, v3: closed.",
    )
    topic_levels_max: int = Field(
        default=128,
        ge=1,
        le=65535,
        description="Most levels of a topic name or filter; consequence as for topic_bytes_max.",
    )
    topic_alias_max: int = Field(
        default=10,
        ge=0,
        le=65535,
        description="Topic Aliases a v5 client may set, said as Topic Alias Maximum; beyond: 0x94, closed.",
    )
    topic_alias_out_max: int = Field(
        default=10,
        ge=0,
        le=64,
        description="Topic Aliases we set at a v5 client that allows them (at most its Topic Alias Maximum), for the "
        "topics it is sent most; 0: none.",
    )
    receive_maximum: int = Field(
        default=100,
        ge=1,
        le=65535,
        description="QoS 1 and 2 messages a client may have unanswered at us, said as Receive Maximum; beyond: "
        "0x93, closed.",
    )

    v31_client_id_characters_max: int = Field(
        default=65535,
        ge=1,
        le=65535,
        description="Longest client id of a v3.1 client; a longer one: return code 2. MQTT 3.1 says 23, which few "
        "clients and no usual broker keep to.",
    )

    # -- connections
    connections_max: int = Field(
        default=0,
        ge=0,
        description="Connections of the broker, each worker having an equal part (rounded up); 0: as many as file "
        "descriptors allow; beyond: CONNACK 0x97 (v3: 3), and of more than 256 at a time the rest closed at once; "
        "counted and logged.",
    )
    connect_seconds_max: Seconds = Field(default=10.0, description="From accept to the complete CONNECT; then closed.")
    keep_alive_seconds_max: int = Field(
        default=0,
        ge=0,
        le=65535,
        description="Longest Keep Alive granted, 0: any. A v5 client is told Server Keep Alive; a v3 client "
        "that asks for more is closed after 1.5 times this bound.",
    )
    outbox_bytes_max: int = Field(
        default=_MIB,
        ge=4096,
        description="Bytes waiting to be sent on a connection; beyond: QoS 0 is dropped (outbox_full), the rest waits.",
    )
    share_large_bytes: int = Field(
        default=2048,
        ge=64,
        description="Payloads from this size on are shared by reference and not copied into outboxes.",
    )

    # -- sessions
    session_expiry_seconds_max: int = Field(
        default=30 * _DAY,
        ge=0,
        le=_NEVER_EXPIRES,
        description="Longest Session Expiry Interval granted (v5 is told by CONNACK); 4294967295: sessions may "
        "live forever.",
    )
    session_expiry_seconds_default_v3: int = Field(
        default=7 * _DAY,
        ge=0,
        le=_NEVER_EXPIRES,
        description="Session expiry of a v3 client with CleanSession 0, which cannot say one; at most "
        "session_expiry_seconds_max. "
        "v3.1.1 lets a server end sessions (3.1.2.4); a week survives a weekend and forgets devices that were "
        "thrown away.",
    )
    filters_per_session_max: int = Field(
        default=100_000, ge=1, description="Subscriptions of a session; beyond: SUBACK 0x97 (v3: 0x80)."
    )
    inflight_max: int = Field(
        default=100,
        ge=1,
        le=65535,
        description="QoS 1 and 2 messages sent and unanswered when the client names no Receive Maximum; the "
        "next ones wait in the queue.",
    )
    queue_messages_max: int = Field(
        default=10_000, ge=1, description="Messages that wait for a session; beyond: queue_full decides."
    )
    queue_bytes_max: int = Field(
        default=16 * _MIB, ge=1024, description="Bytes that wait for a session; beyond: queue_full decides."
    )

    # -- retained messages
    retained_messages_max: int = Field(
        default=1_000_000,
        ge=0,
        description="Retained messages a worker owns; beyond: a new one is not retained (counted), v5: 0x97.",
    )
    retained_bytes_max: int = Field(
        default=256 * _MIB,
        ge=0,
        description="Bytes of retained messages a worker owns; consequence as for retained_messages_max.",
    )

    # -- fairness: what one source may use of a tick
    tick_connection_bytes_max: int = Field(
        default=64 * _KIB, ge=1024, description="Bytes read from one connection before the others have their turn."
    )
    tick_connection_packets_max: int = Field(
        default=1000, ge=1, description="Packets handled of one connection before the others have their turn."
    )
    tick_peer_bytes_max: int = Field(
        default=_MIB, ge=64 * _KIB, description="Bytes handled of one sibling worker before the others have their turn."
    )

    # -- between workers
    handoff_seconds_max: Seconds = Field(
        default=5.0,
        description="A connection waits at most so long for its home worker to take it; then CONNACK 0x88 (v3: "
        "3), closed.",
    )
    handoff_pending_max: int = Field(
        default=1000,
        ge=1,
        description="Connections that wait for their home worker; beyond: CONNACK 0x88 (v3: 3) at once.",
    )
    link_silence_seconds_max: Seconds = Field(
        default=1.5, description="A sibling silent for so long counts as away; a SUBACK waits for it no longer."
    )
    peer_stall_seconds_max: Seconds = Field(
        default=2.0,
        description="Publishers wait at most so long for a sibling whose outbox is full; then it counts as away.",
    )
    mesh_coalesce_microseconds_max: int = Field(
        default=700,
        ge=0,
        le=100_000,
        description="After a batch has left for a sibling, the next one waits at most so long for company; 0: never.",
    )
    peer_outbox_bytes_max: int = Field(
        default=64 * _MIB,
        ge=_MIB,
        description="Bytes waiting for a sibling; beyond: publishers with messages for it are not read "
        "(peer_stall_seconds_max).",
    )
    handoff_log_bytes_max: int = Field(
        default=256 * _MIB,
        ge=0,
        description="Bytes kept for a sibling that is away; beyond: dropped and counted as peer_lost.",
    )

    # -- credentials
    auth_pending_max: int = Field(
        default=500,
        ge=1,
        description="Connections whose password waits for being checked; beyond: CONNACK 0x97 (v3: 3). One that waits "
        "longer than connect_seconds_max gets 0x88 (v3: 3).",
    )
    auth_threads_max: int = Field(
        default=2,
        ge=1,
        le=64,
        description="Threads that compute password hashes, each with 19 MiB while it does; what comes meanwhile waits.",
    )
    auth_cache_entries_max: int = Field(
        default=100_000,
        ge=0,
        description="Pairs of user name and password known to be right, kept as a keyed hash; beyond: the least "
        "recently used is forgotten, and its next login costs a hash.",
    )
    auth_cache_seconds_max: float = Field(
        default=float(_DAY),
        ge=0,
        allow_inf_nan=False,
        description="Such a pair is forgotten when nobody has logged in by it for so long, and when the password file "
        "is read again.",
    )
    auth_data_bytes_max: int = Field(
        default=2048,
        ge=256,
        le=65535,
        description="Longest Authentication Data taken from a client; beyond: authentication failed, 0x87.",
    )

    # -- processes and logs
    worker_hang_seconds_max: Seconds = Field(
        default=10.0,
        description="A worker whose heartbeat stands still for so long is logged with its stack, killed and restarted.",
    )
    stop_seconds_max: Seconds = Field(
        default=10.0, description="From SIGTERM to the end; workers still there are killed."
    )
    log_lines_per_second_max: int = Field(
        default=100,
        ge=1,
        description="Log lines per worker, event name and second; the rest is counted, and the count logged "
        "every second.",
    )


class Settings(BaseModel):
    """What a broker is started with. Immutable; a reload makes a new one."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    workers: int = Field(
        default=0,
        ge=0,
        le=_WORKERS_MAX,
        json_schema_extra=_RESTART,
        description="Worker processes; 0: as many as there are usable cores (CPU affinity and control group quota).",
    )
    host: Annotated[list[str], BeforeValidator(_listed)] = Field(
        default=["127.0.0.1", "::1"],
        min_length=1,
        json_schema_extra=_RESTART,
        description="Addresses or names to listen on, IPv4 and IPv6. ::1 is left out by default where a machine "
        "has no IPv6.",
    )
    port: int = Field(
        default=1883,
        ge=0,
        le=65535,
        json_schema_extra=_RESTART,
        description="TCP port; 0: one free port for all addresses and workers.",
    )
    admin: str = Field(
        default="127.0.0.1:8083",
        json_schema_extra=_RESTART,
        description="HOST:PORT of the admin interface (/health, /ready, /metrics; HTTP), IPv6 hosts in brackets, port "
        "0: a free one; none: no admin interface. When the default is taken the broker starts without it and logs "
        "`admin_unavailable`; an address that was asked for must be free.",
    )
    admin_allow_anonymous: bool = Field(
        default=False,
        json_schema_extra=_RESTART,
        description="Whether the admin interface, which asks for no credentials, may listen on an address that other "
        "machines can reach.",
    )
    store: Literal["memory"] = Field(
        default="memory",
        json_schema_extra=_RESTART,
        description="Where sessions and messages are kept; memory: lost with their worker.",
    )
    runtime_dir: str | None = Field(
        default=None,
        min_length=1,
        json_schema_extra=_RESTART,
        description="Directory for the broker's unix sockets, at most 80 bytes long; not set: a private temporary one.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="The least important lines that are logged."
    )
    log_format: Literal["text", "json"] = Field(
        default="text", json_schema_extra=_RESTART, description="Form of the log lines on standard error."
    )
    allow_anonymous: bool | None = Field(
        default=None,
        description="Whether clients without credentials may connect. Not set: they may as long as no password_file is "
        "set and only loopback addresses are listened on; for any other address one of the two must be set.",
    )
    password_file: str | None = Field(
        default=None,
        min_length=1,
        description="File of users and hashed passwords, written by `mqttd passwd FILE USER`; see "
        "[credentials](credentials.md). A reload reads it again, and keeps the old one if it is wrong.",
    )
    pin_cpus: bool = Field(
        default=False, json_schema_extra=_RESTART, description="Whether each worker is bound to one CPU."
    )
    queue_full: Literal["drop_newest", "drop_oldest", "disconnect"] = Field(
        default="drop_newest",
        description="What happens when a session's queue is full (queue_messages_max, queue_bytes_max).",
    )
    refuse_disallowed_characters: bool = Field(
        default=False,
        description="Whether topics, filters, client ids and other strings with control characters (U+0001 to U+001F, "
        "U+007F to U+009F) or non-characters are malformed: DISCONNECT or CONNACK 0x81, a Topic Name 0x90, closed.",
    )
    queue_qos0: bool = Field(
        default=False, description="Whether QoS 0 messages are queued for clients that are offline."
    )
    sys_interval_seconds: int = Field(
        default=10,
        ge=0,
        le=65535,
        description="How often `$SYS/broker/...` is published; 0: never, and nobody gets it.",
    )
    protocol: Protocol = Field(default_factory=lambda: Protocol())
    limits: Limits = Field(default_factory=lambda: Limits())

    @property
    def anonymous_allowed(self) -> bool:
        """`allow_anonymous` with its default resolved (checked: without credentials, not set means loopback only)."""
        return self.password_file is None if self.allow_anonymous is None else self.allow_anonymous

    @cached_property
    def credentials(self) -> Backend | None:
        """Where users come from, read on first use and then as it was; None: nothing is configured.

        Raises CredentialsError, but not after `load` or `reloaded`, which have read it.
        """
        for name, open_backend in BACKENDS.items():
            if (value := getattr(self, name)) is not None:
                try:
                    return open_backend(value)
                except CredentialsError as error:
                    raise CredentialsError([f"{name}: {line}" for line in error.lines]) from None
        return None

    @property
    def admin_address(self) -> tuple[str, int] | None:
        """Host and port of `admin` (checked), None for none."""
        return None if self.admin == "none" else split_address(self.admin)

    def reloadable(self) -> dict[str, Any]:
        """The part a running worker can take over, as JSON types; `reloaded()` is its other end."""
        values = self.model_dump(mode="json")
        return {name: value for name, value in values.items() if not _needs_restart(Settings.model_fields[name])}

    def reloaded(self, message: Mapping[str, Any]) -> Settings:
        """These settings with another's `reloadable()` part. Raises ConfigError when the two do not go together."""
        settings = Settings.model_validate({**self.model_dump(), **message})
        if errors := list(_contradictions(settings)):
            raise ConfigError(errors)
        return settings


TABLES: dict[str, type[BaseModel]] = {"protocol": Protocol, "limits": Limits}
"""The tables of the file, by the key of Settings that holds them."""


def load(
    file: str | None,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
) -> Settings:
    """The settings from a TOML file (None: none), environment variables and flags (by top-level key).

    Raises ConfigError with every error found.
    """
    errors: list[str] = []
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}  # key path -> where its value came from, if not the file
    if file is not None:
        values = _read_toml(file)
    for name, path, text in _from_environment(environment or {}, errors):
        if _put(values, path, _typed(path, text)):
            origins[".".join(path)] = name
    for key, value in (flags or {}).items():
        values[key] = value
        origins[key] = "--" + key.replace("_", "-")
    settings = None
    try:
        settings = Settings.model_validate(values)
    except ValidationError as error:
        errors += [_line(detail, origins) for detail in error.errors(include_url=False)]
    if settings is not None:
        errors += _contradictions(settings)
    if errors or settings is None:
        raise ConfigError(errors)
    return settings


def restart_needed(old: Settings, new: Settings) -> list[str]:
    """The keys that differ and that a reload cannot change."""
    fields = Settings.model_fields
    return [name for name in fields if _needs_restart(fields[name]) and getattr(old, name) != getattr(new, name)]


def is_loopback(host: str) -> bool:
    """Whether an address or name cannot be reached from other machines. Names but localhost count as reachable."""
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def split_address(text: str) -> tuple[str, int]:
    """HOST:PORT, an IPv6 host in brackets. Raises ValueError."""
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        host = ""
    if not colon or not host or host != host.strip() or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(text)
    return host, int(port)


def _admin_errors(settings: Settings) -> Iterator[str]:
    try:
        address = settings.admin_address
    except ValueError:
        yield f"admin: {settings.admin!r} is neither HOST:PORT ([HOST]:PORT for IPv6) nor none"
        return
    if address is not None and not is_loopback(address[0]) and not settings.admin_allow_anonymous:
        yield (
            f"admin: {address[0]} can be reached from other machines and the admin interface asks for no credentials; "
            "to let anybody read it say so with --admin-allow-anonymous (admin_allow_anonymous = true)"
        )


def _contradictions(settings: Settings) -> Iterator[str]:
    """What no field can see alone."""
    for host in settings.host:
        if not host or host != host.strip():
            yield f"host: {host!r} is neither an address nor a name"
    reachable = [host for host in settings.host if not is_loopback(host)]
    if reachable and settings.allow_anonymous is None and settings.password_file is None:
        yield (
            f"host: {', '.join(reachable)} can be reached from other machines and no credentials are configured: "
            "name users by --password-file (password_file), or let anybody connect by --allow-anonymous "
            "(allow_anonymous = true)"
        )
    try:
        settings.credentials  # noqa: B018 (read now, and kept)
    except CredentialsError as error:
        yield from error.lines
    yield from _admin_errors(settings)
    if settings.protocol.redirect_permanent and settings.protocol.redirect is None:
        yield "protocol.redirect_permanent: there is no protocol.redirect"
    limits = settings.limits
    if limits.session_expiry_seconds_default_v3 > limits.session_expiry_seconds_max:
        yield (
            "limits.session_expiry_seconds_default_v3: more than limits.session_expiry_seconds_max "
            f"({limits.session_expiry_seconds_max})"
        )
    if limits.link_silence_seconds_max >= limits.worker_hang_seconds_max:
        yield (
            "limits.link_silence_seconds_max: not less than limits.worker_hang_seconds_max "
            f"({limits.worker_hang_seconds_max:g}): a hung worker would be killed before it counts as away"
        )


def _read_toml(file: str) -> dict[str, Any]:
    try:
        with open(file, "rb") as opened:
            return tomllib.load(opened)
    except OSError as error:
        raise ConfigError([f"{file}: {error.strerror}"]) from None
    except UnicodeDecodeError:
        raise ConfigError([f"{file}: not UTF-8"]) from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError([f"{file}: {error}"]) from None


def _from_environment(environment: Mapping[str, str], errors: list[str]) -> Iterator[tuple[str, tuple[str, ...], str]]:
    """(variable, key path, text) of every variable that names a setting."""
    known = {_environment_name(path): path for path, _ in leaves()}
    for name, text in sorted(environment.items()):
        if not name.startswith(ENVIRONMENT_PREFIX) or name.startswith(_ENVIRONMENT_OTHERS):
            continue
        if name == ENVIRONMENT_CONFIG:
            continue
        if name in known:
            yield name, known[name], text
        else:
            errors.append(f"{name}: no such setting{_suggestion(name, list(known))} (environment)")


def _environment_name(path: tuple[str, ...]) -> str:
    return ENVIRONMENT_PREFIX + "__".join(path).upper()


def _put(values: dict[str, Any], path: tuple[str, ...], value: object) -> bool:
    *tables, key = path
    for table in tables:
        inner = values.setdefault(table, {})
        if not isinstance(inner, dict):
            return False  # the file has something else there, which validation names
        values = inner
    values[key] = value
    return True


def _typed(path: tuple[str, ...], text: str) -> object:
    """A variable's text as the type of its key; if it is none the text itself, which validation will name."""
    annotation = dict(leaves())[path].annotation
    kinds = {annotation, *get_args(annotation)}
    if get_origin(annotation) is list:
        return [part.strip() for part in text.split(",")]
    if bool in kinds:
        return {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}.get(text.lower(), text)
    for kind in (int, float):
        if kind in kinds:
            try:
                return kind(text)
            except ValueError:
                return text
    return text


def leaves() -> Iterator[tuple[tuple[str, ...], FieldInfo]]:
    """(key path, field) of every setting that has a value of its own."""
    for name, field in Settings.model_fields.items():
        if name not in TABLES:
            yield (name,), field
    for table, model in TABLES.items():
        for name, field in model.model_fields.items():
            yield (table, name), field


def _line(detail: Any, origins: Mapping[str, str]) -> str:
    """One line for one of pydantic's error details."""
    location = [str(part) for part in detail["loc"] if not isinstance(part, int)]
    path = ".".join(location)
    if detail["type"] == "extra_forbidden":
        known = [*TABLES, *(".".join(leaf) for leaf, _ in leaves())]
        return f"{path}: unknown key{_suggestion(path, known)}"
    message = detail["msg"][0].lower() + detail["msg"][1:]
    given = detail["input"]
    shown = f", not {given!r}" if isinstance(given, str | int | float | bool) else ""
    origin = f" (from {origins[path]})" if path in origins else ""
    return f"{path}: {message}{shown}{origin}"


def _suggestion(name: str, known: list[str]) -> str:
    """`; did you mean ...?` when something known is close: the whole path, or the last part in another table."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.75)
    if not close:
        by_key = {path.rpartition(".")[2]: path for path in known}
        close = [
            by_key[key] for key in difflib.get_close_matches(name.rpartition(".")[2], list(by_key), n=1, cutoff=0.75)
        ]
    return f"; did you mean {close[0]}?" if close else ""


def _needs_restart(field: FieldInfo) -> bool:
    return field.json_schema_extra == _RESTART


# -- the tables of docs/configuration.md

_BEGIN = "<!-- generated: python -m broker.config --markdown docs/configuration.md -->"
_END = "<!-- end of what is generated -->"


def markdown() -> str:
    """The tables of all settings."""
    parts = []
    for table in ((), *((name,) for name in TABLES)):
        parts.append(f"### {table[0].capitalize() if table else 'Settings'}\n")
        if table:
            parts.append(f"In the table `[{table[0]}]` of the file. {TABLES[table[0]].__doc__}\n")
        parts.append("| key | default | environment | reload | meaning |\n|---|---|---|---|---|")
        for path, field in leaves():
            if path[:-1] == table:
                reload = "no" if _needs_restart(field) else "yes"
                default = _shown(field.default)
                name = _environment_name(path)
                parts.append(f"| `{path[-1]}` | {default} | `{name}` | {reload} | {_meaning(field)} |")
        parts.append("")
    return "\n".join(parts)


def _meaning(field: FieldInfo) -> str:
    choices = [repr(choice) for choice in get_args(field.annotation) if isinstance(choice, str)]
    listed = f" One of {', '.join(choices)}.".replace("'", "`") if len(choices) > 1 else ""
    return f"{field.description}{listed}"


def _shown(value: object) -> str:
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return f"`{value}`".lower()
    if isinstance(value, int):
        for unit, size in (("MiB", _MIB), ("KiB", _KIB)):
            if value >= size and value % size == 0:
                return f"`{value}` ({value // size} {unit})"
        if value >= _DAY and value % _DAY == 0:
            return f"`{value}` ({value // _DAY} days)"
        return f"`{value}`"
    if isinstance(value, float):
        return f"`{value:g}`"
    return f"`{value}`".replace("'", '"')


def with_tables(document: str) -> str:
    """A document with its generated part made anew. Raises ValueError when it has no place for it."""
    before, begin, rest = document.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise ValueError(f"the document has no lines {_BEGIN!r} and {_END!r}")
    return f"{before}{begin}\n\n{markdown()}\n{end}{after}"


def _main(arguments: list[str]) -> int:
    match arguments:
        case ["--markdown"]:
            print(markdown())
        case ["--markdown", file]:
            path = Path(file)
            path.write_text(with_tables(path.read_text()))
        case _:
            print("usage: python -m broker.config --markdown [FILE]", file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(_main(sys.argv[1:]))
