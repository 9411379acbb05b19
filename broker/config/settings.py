"""The settings of the broker: their model, and the checks across several of them.

One model drives everything: the contents of the TOML file, the environment names (MQTTD_PORT,
MQTTD_LIMITS__PACKET_BYTES_MAX), the settings that a reload may change, and the tables of
docs/reference/configuration.md (`broker.config.reference_page`). A new setting is one field with a description; a new
bound is one field of `Limits` with its consequence. `broker.config.loading` reads them from their sources.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.config import JsonDict
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from broker.auth import BACKENDS
from broker.auth.chain import Chain
from broker.auth.contract import Backend, CredentialsError
from broker.config.addresses import is_loopback, split_address
from broker.config.archive import ARCHIVE_RULES_MAX, ArchiveRule, archive_errors
from broker.config.bridges import Bridge, bridge_errors
from broker.config.cluster import Cluster, cluster_errors
from broker.config.events import Events
from broker.config.leveldb import LevelDB
from broker.config.limits import BYTES_MAX, COUNT_MAX
from broker.config.limits import Limits as Limits
from broker.config.listeners import LISTENERS_MAX, Listener, all_listeners, listed, listener_errors, reachable
from broker.config.protocol import Protocol
from broker.config.queues import wrong_with
from broker.config.share_groups import ShareGroupRule

WORKERS_MAX = 64
"""The largest number of workers: a set of workers is a word of 64 bits, and a counter row has room for 64 links."""
QUEUE_RULES_MAX = 63
TOPIC_RULES_MAX = 64  # they are tried one after the other for each stored message

_RESTART: JsonDict = {"restart": True}  # read once, at the start: a reload keeps the old value


class ConfigError(Exception):
    """The settings are wrong."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__("; ".join(lines))
        self.lines = lines
        """One line per error: `key.path: what is wrong`."""


QueueFull = Literal["drop_newest", "drop_oldest", "disconnect", "hold"]


class QueueRule(BaseModel):
    """Behaviour of a session's full queue, for sessions with a subscription to this filter."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    filter: str = Field(min_length=1, description="Topic Filter; the rule applies to subscriptions that it covers.")
    full: QueueFull = Field(description="As `queue_full`.")
    messages_max: int | None = Field(
        default=None, ge=1, le=COUNT_MAX, description="Instead of `limits.queue_messages_max`."
    )
    bytes_max: int | None = Field(
        default=None, ge=1024, le=BYTES_MAX, description="Instead of `limits.queue_bytes_max`."
    )


class TopicRule(BaseModel):
    """Another `durability` for the messages of some topics. The first table whose Topic Filter matches applies.
    Sessions, subscriptions, wills and the states of QoS 2 are as durable as the strictest of all.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    filter: str = Field(min_length=1, description="Topic Filter; the rule applies to the topics that it matches.")
    durability: Literal["fsync", "buffered"] = Field(description="As `durability`.")


def _workers(value: object) -> object:
    """Refuse a number above the maximum with the reason."""
    if type(value) is int and value > WORKERS_MAX:
        raise PydanticCustomError(
            "workers", f"should be at most {WORKERS_MAX}, because a set of workers is a word of 64 bits"
        )
    return value


class Settings(BaseModel):
    """The settings of a broker. Immutable; a reload makes a new object."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    workers: Annotated[int, BeforeValidator(_workers)] = Field(
        default=0,
        ge=0,
        le=WORKERS_MAX,
        json_schema_extra=_RESTART,
        description="Worker processes, at most 64, because a set of workers is a word of 64 bits; 0: as many as there "
        "are usable cores (CPU affinity and control group quota), and 64 where there are more.",
    )
    host: Annotated[list[str], BeforeValidator(listed)] = Field(
        default=["127.0.0.1", "::1"],
        json_schema_extra=_RESTART,
        description="Addresses or names to listen on, IPv4 and IPv6. ::1 is left out by default where a machine "
        "has no IPv6. Empty: only the `[[listener]]` tables are used.",
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
        "`admin_unavailable`; an address that is configured must be free.",
    )
    admin_allow_anonymous: bool = Field(
        default=False,
        json_schema_extra=_RESTART,
        description="Whether the admin interface, which asks for no credentials, may listen on an address that other "
        "machines can reach.",
    )
    store: Literal["memory", "leveldb"] = Field(
        default="leveldb",
        json_schema_extra=_RESTART,
        description="Storage of sessions and messages; memory: lost with their worker; leveldb: in `data_dir`, written "
        "before they are acknowledged.",
    )
    data_dir: str = Field(
        default="./mqttd-data",
        min_length=1,
        json_schema_extra=_RESTART,
        description="Directory of the stores, for `leveldb`; it is created (0700) if missing, and belongs to "
        "one broker.",
    )
    durability: Literal["fsync", "buffered"] = Field(
        default="fsync",
        json_schema_extra=_RESTART,
        description="Condition for an acknowledgement, with `leveldb`; fsync: the data is on disk; buffered: the "
        "operating system has it, and anything not yet written is lost when the machine goes down.",
    )
    strict_store: bool = Field(
        default=False,
        json_schema_extra=_RESTART,
        description="Whether a worker refuses to start when a record of its store cannot be read, or the store needs "
        "a repair. Else such a record is set aside (kept, counted, named in the log), the store is repaired, and the "
        "rest serves.",
    )
    runtime_dir: str | None = Field(
        default=None,
        min_length=1,
        json_schema_extra=_RESTART,
        description="Directory for the broker's unix sockets, at most 80 bytes long; not set: a private temporary one.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Lowest level of log lines that are written."
    )
    log_format: Literal["text", "json"] = Field(
        default="text", json_schema_extra=_RESTART, description="Form of the log lines on standard error."
    )
    allow_anonymous: bool | None = Field(
        default=None,
        description="Whether clients without credentials may connect. Not set: they may if no password_file is "
        "set and only loopback addresses are listened on; for any other address one of the two must be set.",
    )
    password_file: str | None = Field(
        default=None,
        min_length=1,
        description="File of users and hashed passwords, written by `mqttd passwd FILE USER`; see "
        "[credentials](../credentials.md). A reload reads it again, and keeps the old one if it is wrong.",
    )
    pin_cpus: bool = Field(
        default=False, json_schema_extra=_RESTART, description="Whether each worker is pinned to one CPU."
    )
    queue_full: QueueFull = Field(
        default="drop_newest",
        description="Policy for a session's full queue (queue_messages_max, queue_bytes_max); hold: clients that "
        "publish to it wait for hold_seconds_max.",
    )
    refuse_disallowed_characters: bool = Field(
        default=False,
        description="Whether topics, filters, client ids and other strings with control characters (U+0001 to U+001F, "
        "U+007F to U+009F) or non-characters are malformed: DISCONNECT or CONNACK 0x81, a Topic Name 0x90, closed.",
    )
    queue_qos0: bool = Field(default=False, description="Whether QoS 0 messages are queued for offline clients.")
    sessions_full: Literal["end_oldest", "refuse"] = Field(
        default="end_oldest",
        description="Policy for a CONNECT that would create a session beyond limits.sessions_max; end_oldest: the "
        "session that has been offline for longest ends, and its will is published; refuse: CONNACK 0x97 (v3: 3).",
    )
    sys_interval_seconds: int = Field(
        default=10,
        ge=0,
        le=65535,
        description="Interval of publishing `$SYS/broker/...`; 0: never, and subscribers get nothing.",
    )
    listener: Annotated[list[Listener], Field(max_length=LISTENERS_MAX - 1)] = Field(
        default_factory=list, json_schema_extra=_RESTART, description="Further listeners."
    )
    queue: Annotated[list[QueueRule], Field(max_length=QUEUE_RULES_MAX)] = Field(
        default_factory=list, description="Queue rules for some Topic Filters."
    )
    topic: Annotated[list[TopicRule], Field(max_length=TOPIC_RULES_MAX)] = Field(
        default_factory=list, json_schema_extra=_RESTART, description="Durability of some topics."
    )
    archive: Annotated[list[ArchiveRule], Field(max_length=ARCHIVE_RULES_MAX)] = Field(
        default_factory=list, json_schema_extra=_RESTART, description="Archived topics."
    )
    shared: list[ShareGroupRule] = Field(default_factory=list, description="Strategies of share groups.")
    protocol: Protocol = Field(default_factory=lambda: Protocol())
    leveldb: LevelDB = Field(default_factory=lambda: LevelDB(), json_schema_extra=_RESTART)
    events: Events = Field(default_factory=lambda: Events(), json_schema_extra=_RESTART)
    bridges: dict[str, Bridge] = Field(
        default_factory=dict, json_schema_extra=_RESTART, description="Bridges to other brokers."
    )
    cluster: Cluster = Field(default_factory=lambda: Cluster(), json_schema_extra=_RESTART)
    limits: Limits = Field(default_factory=lambda: Limits())

    @property
    def listeners(self) -> list[Listener]:
        """All listeners; their order is their number (`shards.listening`)."""
        return all_listeners(self.host, self.port, self.listener)

    @property
    def anonymous_allowed(self) -> bool:
        """`allow_anonymous` with its default resolved (checked: without credentials, not set means loopback only)."""
        return self.password_file is None if self.allow_anonymous is None else self.allow_anonymous

    @property
    def tables_open_max(self) -> int:
        """The number of tables that a worker's store may keep open."""
        return 0 if self.store == "memory" else self.leveldb.open_files_max

    @property
    def is_synced(self) -> bool:
        """Whether any message waits for an fsync."""
        return "fsync" in (self.durability, *(rule.durability for rule in self.topic))

    @cached_property
    def credentials(self) -> Chain | None:
        """The back-ends of users, read on first use and then unchanged; None: nothing is configured.

        Raises CredentialsError, but not after `load` or `reloaded`, which have read it.
        """
        backends: list[Backend] = []
        errors: list[str] = []
        for name, open_backend in BACKENDS.items():
            if (value := getattr(self, name)) is not None:
                try:
                    backends.append(open_backend(value))
                except CredentialsError as error:
                    errors += [f"{name}: {line}" for line in error.lines]
        if errors:
            raise CredentialsError(errors)
        return Chain(backends) if backends else None

    @property
    def admin_address(self) -> tuple[str, int] | None:
        """Host and port of `admin` (validated), None for none."""
        return None if self.admin == "none" else split_address(self.admin)

    def reloadable(self) -> dict[str, Any]:
        """Return the settings that a running worker can change, as JSON types, for `reloaded()`."""
        values = self.model_dump(mode="json")
        return {name: value for name, value in values.items() if not needs_restart(Settings.model_fields[name])}

    def reloaded(self, message: Mapping[str, Any]) -> Settings:
        """Return these settings with another's `reloadable()` part. Raises ConfigError when the two contradict."""
        settings = Settings.model_validate({**self.model_dump(), **message})
        if errors := list(contradictions(settings)):
            raise ConfigError(errors)
        return settings


TABLES: dict[str, type[BaseModel]] = {
    "protocol": Protocol,
    "leveldb": LevelDB,
    "events": Events,
    "cluster": Cluster,
    "limits": Limits,
}
"""The tables of the file, by the key of Settings that holds them."""
RULES: dict[str, type[BaseModel]] = {
    "listener": Listener,
    "shared": ShareGroupRule,
    "queue": QueueRule,
    "topic": TopicRule,
    "archive": ArchiveRule,
    "bridges": Bridge,
}
"""The tables that may occur many times (`[[shared]]`, `[bridges.NAME]`); no environment variable sets them."""


def restart_needed(old: Settings, new: Settings) -> list[str]:
    """Return the keys that differ and that a reload cannot change."""
    fields = Settings.model_fields
    names = [name for name in fields if needs_restart(fields[name]) and getattr(old, name) != getattr(new, name)]
    for name, field in Limits.model_fields.items():
        if needs_restart(field) and getattr(old.limits, name) != getattr(new.limits, name):
            names.append(f"limits.{name}")
    return names


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


def contradictions(settings: Settings) -> Iterator[str]:
    """Yield errors that no field can detect alone."""
    yield from listener_errors(settings.listeners, settings.listener)
    if settings.allow_anonymous is None and settings.password_file is None:
        for each in settings.listeners:
            if hosts := reachable(each):
                yield (
                    f"{each.key}: {', '.join(hosts)} can be reached from other machines and no credentials are "
                    "configured: name users by --password-file (password_file), or let anybody connect by "
                    "--allow-anonymous (allow_anonymous = true)"
                )
    try:
        settings.credentials  # noqa: B018 (read now, and cached)
    except CredentialsError as error:
        yield from error.lines
    yield from _admin_errors(settings)
    for rule in settings.shared:
        if rule.when_full == "wait" and rule.strategy in ("round_robin", "least_inflight"):
            yield f"shared.when_full: 'wait' has no meaning for {rule.strategy} (group {rule.group!r})"
        if rule.hosts == "even" and rule.strategy not in ("round_robin", "least_inflight"):
            yield f"shared.hosts: 'even' has no meaning for {rule.strategy} (group {rule.group!r})"
        if rule.spread and settings.cluster.is_on and not settings.cluster.client_address:
            yield (
                f"shared.spread: needs cluster.client_address, where clients that other hosts send away reach this one "
                f"(group {rule.group!r})"
            )
    least = settings.leveldb.reserve_bytes_min
    if 0 < (settings.leveldb.reserve_bytes or 0) < least:
        yield (
            f"leveldb.reserve_bytes: less than {least} (twice leveldb.write_buffer_bytes and 70 MiB), which opening a "
            "database and compacting it may take; 0: no reserve"
        )
    if settings.protocol.redirect_permanent and settings.protocol.redirect is None:
        yield "protocol.redirect_permanent: there is no protocol.redirect"
    for table, filters in (
        ("queue", [each.filter for each in settings.queue]),
        ("topic", [each.filter for each in settings.topic]),
    ):
        for number, text in enumerate(filters, 1):
            if wrong := wrong_with(text):
                yield f"{table}.filter: {text!r} (of table {number}): {wrong}"
    yield from archive_errors(settings.archive, settings.store)
    yield from bridge_errors(settings.bridges)
    yield from cluster_errors(settings.cluster, settings.workers)
    limits = settings.limits
    if 0 < limits.session_expiry_seconds_max < limits.session_expiry_seconds_default_v3:
        yield (
            "limits.session_expiry_seconds_default_v3: more than limits.session_expiry_seconds_max "
            f"({limits.session_expiry_seconds_max})"
        )
    if limits.link_silence_seconds_max >= limits.worker_hang_seconds_max:
        yield (
            "limits.link_silence_seconds_max: not less than limits.worker_hang_seconds_max "
            f"({limits.worker_hang_seconds_max:g}): a hung worker would be killed before it counts as away"
        )


def leaves() -> Iterator[tuple[tuple[str, ...], FieldInfo]]:
    """Yield (key path, field) of every setting that has a value of its own."""
    for name, field in Settings.model_fields.items():
        if name not in (*TABLES, *RULES):
            yield (name,), field
    for table, model in TABLES.items():
        for name, field in model.model_fields.items():
            yield (table, name), field


def needs_restart(field: FieldInfo) -> bool:
    """Whether a reload keeps the old value."""
    extra = field.json_schema_extra
    return isinstance(extra, dict) and bool(extra.get("restart"))
