"""Every bound of the broker: its default, its unit, its consequence, and the counter of how often it was reached.

The table of docs/reference/configuration.md is generated from this model (`broker.config.reference_page`). The data
path reads its part as `pyx.core.limits.Limits`, whose fields `broker.config.data_path` fills by name.
tests/integration/test_limits.py has a scenario that reaches each bound: a field without one fails a test.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.config import JsonDict

__all__ = ["BYTES_MAX", "COUNT_MAX", "Limits", "Seconds"]

_KIB = 1024
_MIB = 1024 * _KIB
_DAY = 86400
_PACKET_BYTES_MAX = 5 + 268_435_455  # fixed header and the largest Remaining Length (MQTT 5.0, 1.5.5)
_NEVER_EXPIRES = 0xFFFFFFFF
COUNT_MAX = 2**32 - 1
BYTES_MAX = 2**63 - 1
"""The largest integer of TOML."""

Seconds = Annotated[float, Field(gt=0, le=3600, allow_inf_nan=False)]


def _bound(
    default: float,
    unit: str,
    counter: str,
    what: str,
    beyond: str,
    *,
    ge: int | None = None,
    le: int | None = None,
    restart: bool = False,
) -> Any:
    """Return a field. `counter`: its name in pyx.core.counters, or `log NAME` for an event that only the log has, or ""
    for a threshold, at which nothing is refused. `restart`: the value is read once, a reload keeps the old one. `le` of
    an integer defaults to COUNT_MAX, the largest value that the data path can count to.
    """
    if le is None and isinstance(default, int):
        le = COUNT_MAX
    extra: JsonDict = {"unit": unit, "counter": counter, "beyond": beyond, "restart": restart}
    return Field(default=default, ge=ge, le=le, description=what, json_schema_extra=extra)


class Limits(BaseModel):
    """All bounds, with the unit last in the name. Counts are per worker unless stated otherwise."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    # -- packets
    packet_bytes_max: int = _bound(
        16 * _MIB, "bytes", "packets_too_large",
        "Largest packet accepted from a client, announced as Maximum Packet Size",
        "DISCONNECT 0x95, closed", ge=128, le=_PACKET_BYTES_MAX,
    )  # fmt: skip
    connect_bytes_max: int = _bound(
        384 * _KIB, "bytes", "connects_too_large",
        "Largest CONNECT; the default has room for five fields of the greatest length. Nothing after it is read "
        "before it is answered",
        "v5: CONNACK 0x95; closed", ge=64, le=_PACKET_BYTES_MAX,
    )  # fmt: skip
    topic_bytes_max: int = _bound(
        4096, "bytes", "topics_too_long",
        "Longest topic name or filter",
        "PUBACK or PUBREC 0x90, at QoS 0 discarded, SUBACK 0x8F; v3: closed, SUBACK 0x80. A will's: CONNACK 0x90, v3: "
        "closed", ge=1, le=65535,
    )  # fmt: skip
    topic_levels_max: int = _bound(
        128, "levels", "topics_too_deep",
        "Most levels of a topic name or filter",
        "as for topic_bytes_max", ge=1, le=65535,
    )  # fmt: skip
    share_name_bytes_max: int = _bound(
        1024, "bytes", "share_names_too_long",
        "Longest ShareName of a shared subscription (it is sent with every message that a worker passes to another for "
        "the group)",
        "SUBACK 0x8F; v3: SUBACK 0x80", ge=1, le=65535,
    )  # fmt: skip
    topic_alias_max: int = _bound(
        10, "aliases", "topic_aliases_refused",
        "Topic Aliases a v5 client may set, announced as Topic Alias Maximum",
        "DISCONNECT 0x94, closed", ge=0, le=65535,
    )  # fmt: skip
    topic_alias_out_max: int = _bound(
        10, "aliases", "",
        "Topic Aliases the broker sets for a v5 client that allows them (at most its Topic Alias Maximum), for the "
        "topics that it is sent most; 0: none",
        "other topics are sent in full: nothing is refused", ge=0, le=64,
    )  # fmt: skip
    v31_client_id_characters_max: int = _bound(
        65535, "characters", "client_ids_too_long",
        "Longest client id of a v3.1 client. MQTT 3.1 allows 23, which few clients and no common broker observe",
        "return code 2", ge=1, le=65535,
    )  # fmt: skip
    receive_maximum: int = _bound(
        100, "messages", "receive_maximum_exceeded",
        "QoS 1 and 2 messages a v5 client may have unanswered at the broker, announced as Receive Maximum",
        "not read while answers to it are pending (`receive_maximum_held`), then DISCONNECT 0x93, closed",
        ge=1, le=65535,
    )  # fmt: skip
    user_properties_max: int = _bound(
        1000, "properties", "user_properties_refused",
        "User Properties of one packet (those of a will count separately)",
        "DISCONNECT (CONNACK) 0x97, closed", ge=0,
    )  # fmt: skip
    user_property_bytes_max: int = _bound(
        64 * _KIB, "bytes", "user_properties_refused",
        "Bytes of the User Properties of one packet, names and values",
        "as for user_properties_max", ge=0,
    )  # fmt: skip
    filters_per_packet_max: int = _bound(
        10_000, "filters", "filters_per_packet_refused",
        "Topic Filters of one SUBSCRIBE or UNSUBSCRIBE",
        "DISCONNECT 0x97, v3: closed", ge=1,
    )  # fmt: skip

    # -- connections
    connections_max: int = _bound(
        0, "connections", "connections_over_max",
        "Connections of the whole broker; 0: as many as file descriptors allow, without those that the broker needs "
        "itself",
        "CONNACK 0x97 (v3: 3); beyond 256 at a time the rest is closed at once; logged", ge=0,
    )  # fmt: skip
    connect_seconds_max: Seconds = _bound(
        10.0, "seconds", "connect_timeouts", "From accept to the complete CONNECT", "closed"
    )
    half_open_per_address_max: int = _bound(
        16_384, "connections", "half_open_refused",
        "Connections from one source address whose CONNECT has not been read, per accepting worker; IPv6: from one "
        "/64. 0: any number",
        "closed at once", ge=0,
    )  # fmt: skip
    connections_per_address_per_second_max: int = _bound(
        0, "connections per second", "connection_rate_refused",
        "New connections from one source address (IPv6: from one /64), each worker having an equal part (rounded up); "
        "those of one second may come at once. 0: any number",
        "closed at once", ge=0,
    )  # fmt: skip
    takeovers_per_minute_max: int = _bound(
        60, "take-overs per minute", "takeovers_refused",
        "Take-overs of one client id. 0: any number",
        "the newer is refused with CONNACK 0x97 (v3: 3) for 1 s, doubling to 60 s while the fight continues; the log "
        "names both addresses", ge=0,
    )  # fmt: skip
    keep_alive_seconds_max: int = _bound(
        0, "seconds", "keep_alives_shortened",
        "Longest Keep Alive granted, 0: any",
        "a v5 client is sent Server Keep Alive; a v3 client cannot be told, and is closed after a silence of 1.5 "
        "times this bound", ge=0, le=65535,
    )  # fmt: skip
    filters_per_second_max: int = _bound(
        2000, "filters per second", "filters_rate_held",
        "Topic Filters in the SUBSCRIBEs and UNSUBSCRIBEs of one connection; those of one second, and one packet with "
        "more, may come at once. 0: any number",
        "the connection is not read until the rate allows; its keep-alive is suspended", ge=0,
    )  # fmt: skip
    publish_per_second_max: int = _bound(
        0, "messages per second", "publish_rate_held",
        "PUBLISH packets of one connection; those of one second may come at once. 0: any number",
        "the connection is not read until the rate allows; its keep-alive is suspended", ge=0,
    )  # fmt: skip
    publish_bytes_per_second_max: int = _bound(
        0, "bytes per second", "publish_rate_held",
        "Bytes of the PUBLISH packets of one connection; those of one second may come at once. 0: any number",
        "as for publish_per_second_max", ge=0,
    )  # fmt: skip
    outbox_bytes_max: int = _bound(
        _MIB, "bytes", "dropped_outbox_full",
        "Bytes waiting to be sent on a connection",
        "QoS 0 is dropped, the rest waits in the session's queue", ge=4096,
    )  # fmt: skip
    share_large_bytes: int = _bound(
        2048, "bytes", "",
        "Payloads of at least this size are shared by reference and not copied into outboxes",
        "a threshold: nothing is refused", ge=64,
    )  # fmt: skip

    # -- sessions
    session_expiry_seconds_max: int = _bound(
        30 * _DAY, "seconds", "session_expiries_shortened",
        "Longest Session Expiry Interval granted; 0 or 4294967295: sessions may live forever",
        "shortened; v5 learns it from CONNACK", ge=0, le=_NEVER_EXPIRES,
    )  # fmt: skip
    session_expiry_seconds_default_v3: int = _bound(
        7 * _DAY, "seconds", "",
        "Session expiry of a v3 client with CleanSession 0, which cannot set one; at most session_expiry_seconds_max. "
        "v3.1.1 lets a server end sessions (3.1.2.4); a week survives a weekend and forgets devices that were thrown "
        "away",
        "a default: nothing is refused", ge=0, le=_NEVER_EXPIRES,
    )  # fmt: skip
    sessions_max: int = _bound(
        1_000_000, "sessions", "sessions_over_max",
        "Sessions of the whole broker, of connected and offline clients; 0: any number",
        "`sessions_full` decides: the session that has been offline for longest ends (`sessions_ended_for_room`), or "
        "the client gets CONNACK 0x97 (v3: 3), as it also does when no session is offline; logged", ge=0,
    )  # fmt: skip
    session_bytes_max: int = _bound(
        16 * _MIB, "bytes", "sessions_too_large",
        "Size of a session, connected or not: client id, user name, will, and for each subscription the Topic Filter "
        "and once more the client id, as in its stored record (queued messages have bounds of their own)",
        "SUBACK 0x97 (v3: 0x80), CONNACK 0x97 (v3: 3)", ge=64, le=BYTES_MAX,
    )  # fmt: skip
    filters_per_session_max: int = _bound(
        100_000, "subscriptions", "filters_refused", "Subscriptions of a session", "SUBACK 0x97 (v3: 0x80)", ge=1
    )
    filters_max: int = _bound(
        10_000_000, "subscriptions", "filters_refused",
        "Subscriptions of all sessions of a worker", "SUBACK 0x97 (v3: 0x80)", ge=1,
    )  # fmt: skip
    wildcard_arrangements_max: int = _bound(
        1024, "arrangements", "filters_refused",
        "Wildcard arrangements among the Topic Filters of a worker's clients and siblings (`a/+/c` and `x/+/z` "
        "have the same one). At most one Topic Filter of each matches a topic, so this bounds the cost of one publish. "
        "0: any number",
        "SUBACK 0x97 (v3: 0x80) for a Topic Filter that would be the first with its arrangement", ge=0,
    )  # fmt: skip
    inflight_max: int = _bound(
        100, "messages", "inflight_full",
        "QoS 1 and 2 messages sent and unanswered; at most the client's Receive Maximum",
        "the next ones wait in the session's queue", ge=1, le=65535,
    )  # fmt: skip
    inflight_bytes_max: int = _bound(
        16 * _MIB, "bytes", "inflight_full",
        "Bytes of QoS 1 and 2 messages sent to a lasting session (or for a share group) and unanswered, which are kept "
        "to be sent again. The message that reaches the bound is sent, whatever its size",
        "the next ones wait in the session's queue", ge=1, le=2**62,
    )  # fmt: skip
    queue_messages_max: int = _bound(
        10_000, "messages", "dropped_queue_full",
        "Messages queued for a session; a [[queue]] rule may override it",
        "queue_full decides", ge=1,
    )  # fmt: skip
    queue_bytes_max: int = _bound(
        16 * _MIB, "bytes", "dropped_queue_full",
        "Bytes queued for a session; a [[queue]] rule may override it",
        "queue_full decides", ge=1024, le=BYTES_MAX,
    )  # fmt: skip
    hold_seconds_max: Seconds = _bound(
        5.0, "seconds", "holds_given_up",
        "Time that publishers wait for a session whose queue is full (queue_full = hold), or for a worker at "
        "worker_memory_bytes_max",
        "new messages are dropped for that session until its queue has shrunk by a quarter",
    )  # fmt: skip
    store_error_seconds_max: Seconds = _bound(
        10.0, "seconds", "store_refused",
        "Time that QoS 1 and 2 publishes wait for a disk that is full or fails: those whose ack is already waiting, "
        "and those of v3 clients, which are not read meanwhile; new ones of v5 clients are answered at once. Also the "
        "time that a CONNACK, SUBACK or UNSUBACK waits for its record when the disk fails",
        "PUBACK, PUBREC or SUBACK 0x97, UNSUBACK 0x80, CONNACK 0x88; v3: CONNACK 3, SUBACK 0x80, else closed",
    )  # fmt: skip
    store_unwritten_bytes_max: int = _bound(
        64 * _MIB, "bytes", "store_unwritten_held",
        "Bytes that a worker has given to its store and that the disk has not taken yet. 0: any amount",
        "until half of them are written, clients whose packets would add to them are not read: PUBLISHes to be "
        "retained or queued, at any QoS, and SUBSCRIBEs and UNSUBSCRIBEs of stored sessions. A PUBLISH that has waited "
        "for store_error_seconds_max is refused with 0x97 (v3: closed; at QoS 0 discarded)", ge=0, le=BYTES_MAX,
    )  # fmt: skip
    retained_walks_per_session_max: int = _bound(
        32, "walks", "retained_walks_deferred",
        "Topic Filters of a session whose retained messages are looked up at the same time",
        "the next ones wait, in order", ge=1,
    )  # fmt: skip
    replays_per_session_max: int = _bound(
        16, "replays", "replays_refused",
        "Subscriptions of a session that read the archive (user property `mqttd-offset`)",
        "SUBACK 0x97", ge=0,
    )  # fmt: skip
    replays_max: int = _bound(
        1000, "replays", "replays_refused",
        "Subscriptions of all sessions of a worker that read the archive",
        "SUBACK 0x97", ge=0,
    )  # fmt: skip
    replays_for_hosts_max: int = _bound(
        1000, "replays", "replay_questions_refused",
        "Replays of other hosts' clients that read the archive of a worker at a time, for each Topic Filter. 0: none",
        "SUBACK 0x97 there; a replay that has begun waits for that archive, logged", ge=0,
    )  # fmt: skip
    replay_page_bytes: int = _bound(
        64 * _KIB, "bytes", "",
        "Size of a replay's request to the archives, all workers together; about twice that is held in memory",
        "a threshold: more is requested when half of it has been sent to the client", ge=4096, le=4 * _MIB,
    )  # fmt: skip

    # -- memory
    retained_messages_max: int = _bound(
        1_000_000, "messages", "retained_refused",
        "Retained messages a worker owns",
        "a new one is delivered but not retained, logged", ge=0,
    )  # fmt: skip
    retained_bytes_max: int = _bound(
        256 * _MIB, "bytes", "retained_refused",
        "Bytes of retained messages a worker owns", "as for retained_messages_max", ge=0, le=BYTES_MAX,
    )  # fmt: skip
    archive_gather_milliseconds_max: int = _bound(
        10, "milliseconds", "archived_messages",
        "Time that archived QoS 0 messages may wait for others to be written together; those of QoS 1 and 2 are "
        "written with their tick. 0: all are",
        "they are written", ge=0, le=10_000,
    )  # fmt: skip
    archive_pending_bytes_max: int = _bound(
        64 * _MIB, "bytes", "archive_dropped",
        "Bytes of archived messages in a worker's memory that the disk has not taken yet",
        "QoS 0 messages are not archived (they are delivered)", ge=_MIB, le=BYTES_MAX, restart=True,
    )  # fmt: skip
    worker_memory_bytes_max: int = _bound(
        0, "bytes", "memory_refused",
        "Anonymous resident memory of a worker, measured every second. 0: any amount",
        "until it is 5 % below: new clients are refused with CONNACK 0x97 (v3: 3; those with a session here may "
        "connect), new subscriptions with 0x97, new retained messages are not kept; clients that publish at QoS 1 or "
        "2 to this worker are not read for hold_seconds_max, then refused with 0x97 (v3: closed)", ge=0, le=BYTES_MAX,
    )  # fmt: skip

    # -- fairness: one source's share of a tick
    tick_connection_bytes_max: int = _bound(
        64 * _KIB, "bytes", "recv_calls",
        "Bytes read from one connection before the others' turn",
        "the rest is read in the next tick", ge=1024, restart=True,
    )  # fmt: skip
    tick_connection_packets_max: int = _bound(
        1000, "packets", "tick_packets_carried",
        "Packets of one connection handled before the others' turn",
        "the rest is handled in the next tick", ge=1,
    )  # fmt: skip
    tick_filters_max: int = _bound(
        64, "filters", "tick_packets_carried",
        "Topic Filters of the SUBSCRIBEs and UNSUBSCRIBEs that begin in one tick, of all connections; a packet with "
        "more than 500 is continued with as many per tick",
        "the packet waits for the next tick, and its connection with it", ge=1,
    )  # fmt: skip
    tick_peer_bytes_max: int = _bound(
        _MIB, "bytes", "tick_peer_carried",
        "Bytes of the sibling workers handled before the clients' turn",
        "the rest is handled in the next tick", ge=64 * _KIB, restart=True,
    )  # fmt: skip

    # -- between workers
    handoff_seconds_max: Seconds = _bound(
        5.0, "seconds", "handoff_timeouts",
        "Time that a connection waits for its home worker to take it",
        "CONNACK 0x88 (v3: 3), closed",
    )  # fmt: skip
    handoff_pending_max: int = _bound(
        1000, "connections", "handoffs_refused",
        "Connections that wait for their home worker", "CONNACK 0x88 (v3: 3) at once", ge=1,
    )  # fmt: skip
    link_silence_seconds_max: Seconds = _bound(
        1.5, "seconds", "peers_away",
        "Time that a sibling may be silent",
        "it counts as away: SUBACKs no longer wait for it, its messages are kept for it", restart=True,
    )  # fmt: skip
    peer_stall_seconds_max: Seconds = _bound(
        2.0, "seconds", "peers_away",
        "Time that publishers wait for a sibling whose outbox is full", "it counts as away", restart=True,
    )  # fmt: skip
    peer_outbox_bytes_max: int = _bound(
        64 * _MIB, "bytes", "reading_paused",
        "Bytes waiting for a sibling",
        "publishers with messages for it are not read (peer_stall_seconds_max)", ge=_MIB, le=BYTES_MAX, restart=True,
    )  # fmt: skip
    handoff_log_bytes_max: int = _bound(
        256 * _MIB,
        "bytes",
        "dropped_peer_lost",
        "Bytes kept in memory for a sibling or host that is away, 512 more for each batch (not with a store on disk)",
        "dropped",
        ge=0,
        le=BYTES_MAX,
        restart=True,
    )

    # -- credentials
    auth_pending_max: int = _bound(
        500, "connections", "authentications_refused",
        "Connections whose password waits to be checked",
        "CONNACK 0x97 (v3: 3). One that waits longer than connect_seconds_max gets 0x88 (v3: 3)", ge=1,
    )  # fmt: skip
    auth_threads_max: int = _bound(
        2, "threads", "credentials_hashed",
        "Threads that compute password hashes, each with 19 MiB while it computes",
        "further hashes wait", ge=1, le=64,
    )  # fmt: skip
    auth_cache_entries_max: int = _bound(
        100_000, "entries", "credentials_hashed",
        "Pairs of user name and password known to be right, kept as a keyed hash",
        "the least recently used is forgotten, and its next login costs a hash", ge=0,
    )  # fmt: skip
    auth_cache_seconds_max: Annotated[float, Field(ge=0, allow_inf_nan=False)] = _bound(
        float(_DAY), "seconds", "credentials_hashed",
        "Time that such a pair is kept without a login; all are forgotten when the password file is read again",
        "it is forgotten",
    )  # fmt: skip
    auth_data_bytes_max: int = _bound(
        2048, "bytes", "authentications_failed",
        "Longest Authentication Data accepted from a client", "authentication failed, 0x87", ge=256, le=65535,
    )  # fmt: skip

    # -- processes and logs
    worker_hang_seconds_max: Seconds = _bound(
        10.0, "seconds", "log worker_hung",
        "Time that a worker's heartbeat may be unchanged", "it is logged with its stack, killed and restarted",
    )  # fmt: skip
    stop_seconds_max: Seconds = _bound(
        10.0, "seconds", "log workers_killed_stopping", "From SIGTERM to the end", "workers still there are killed"
    )
    log_lines_per_second_max: int = _bound(
        100, "lines per second", "log log_suppressed",
        "Log lines per worker, event name and second",
        "the rest is counted, and the count logged every second", ge=1,
    )  # fmt: skip
