"""The counter rows as Prometheus metrics: names, types and help texts, and the collector that reads the rows.

Counters that are not named here are exported all the same, as `mqttd_<name>`: a new counter is one line in
pyx/core/counters.pxd. The tables of docs/reference/metrics.md are generated from this module (`python -m
broker.admin.metrics --markdown docs/reference/metrics.md`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

import broker
from broker.admin import sys_topics
from broker.config.limits import Limits
from pyx.core import counters
from pyx.core.counters import Row

if TYPE_CHECKING:
    from broker.cluster.leadership import LeadershipCounts

__all__ = ["BrokerState", "Rows", "connected", "families", "markdown"]


class Family(NamedTuple):
    """One metric. The name of a counter is given without `_total`, which the exposition adds."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...] = ("worker",)

    @property
    def shown(self) -> str:
        """The exported name."""
        return self.name + "_total" if self.kind == "counter" else self.name


class WorkerState(NamedTuple):
    """A worker's state, from the supervisor and the heartbeats."""

    up: bool
    restarts: int
    heartbeat_age_seconds: float


class BrokerState(NamedTuple):
    """State of the broker that is not in the rows. host_links: by other host of the cluster, how many of the workers
    are linked with it; leadership: what is counted about who leads it; None: there is no cluster.
    """

    uptime_seconds: float
    workers: Sequence[WorkerState]
    host_links: Mapping[str, int] | None = None
    leadership: LeadershipCounts | None = None


#: counter -> its exported name and meaning; others are `mqttd_<counter>`, with a text of _HELP if there is
_NAMED: dict[str, tuple[str, str]] = {
    "sessions": ("mqtt_sessions_active", "Sessions of connected and of offline clients."),
    "subscriptions": ("mqtt_subscriptions_active", "Subscriptions of all sessions, shared ones included."),
    "retained_messages": ("mqtt_retained_messages", "Topics with a retained message."),
    "connections_opened": ("mqtt_connections", "Connections that were accepted by a CONNACK."),
    "publish_received": ("mqtt_messages_received", "PUBLISH packets from clients, without repeated ones of QoS 2."),
    "publish_sent": ("mqtt_messages_sent", "PUBLISH packets to clients, including redeliveries."),
    "bytes_received": ("mqtt_bytes_received", "Bytes from clients."),
    "bytes_sent": ("mqtt_bytes_sent", "Bytes to clients that the kernel has taken."),
    "connections": ("mqttd_sockets", "Sockets of clients, including those before CONNECT and those being closed."),
    "heartbeat": ("mqttd_heartbeats", "Changes of the worker's heartbeat: at least one in two seconds."),
}
_DROPPED = Family(
    "mqtt_messages_dropped",
    "counter",
    "Copies of messages that a session did not get, by reason; see the table of reasons.",
    ("worker", "reason"),
)
_CURRENT = Family("mqtt_connections_current", "gauge", "Clients that are connected.")
_HELP: dict[str, str] = {
    "shared_subscriptions": "Shared subscriptions.",
    "filters": "Different Topic Filters, including those of other workers.",
    "store_full": "1: the store takes no new message, because the disk is full or fails.",
    "store_failed": "1: the disk fails, nothing becomes durable.",
    "records_set_aside": "Unreadable records of the store, which are kept but not used.",
    "store_unwritten_bytes": "Bytes that were given to the store and are not written yet, measured once a second.",
    "store_unwritten_held": "Times that reading a client was paused because of store_unwritten_bytes_max.",
    "store_held": "Times that reading a publisher before MQTT 5 was paused because a store was full.",
    "store_refused": "Publishes and subscriptions that were refused, and connections that were closed, because a store "
    "was full or failed.",
    "replays": "Subscriptions that read the archive.",
    "replayed_messages": "Archived messages queued for sessions that replay.",
    "replayed_bytes": "Bytes of their topics, properties and payloads.",
    "replay_pages": "Pages read from the archive of this worker, for its own sessions and those of other workers.",
    "replays_refused": "Topic Filters with mqttd-offset that were refused.",
    "replays_fallen_behind": "Times that retention had removed messages before a replay read them.",
    "replay_pages_for_hosts": "Pages of the archive sent to replays of other hosts' clients.",
    "replay_questions_refused": "Requests of other hosts' replays beyond replays_for_hosts_max.",
    "replay_hosts_lost": "Times that a replay lost a host whose archive it was reading.",
    "archive_messages_refused": "Messages of other hosts about archives that could not be read, or were not asked for.",
    "store_blocks_read": "Blocks of messages read back from the store, for sessions that are behind.",
    "store_blocks_left_out": "Unreadable blocks of the log and parts of indexes: their messages are left out.",
    "store_reads_shared": "Batches not read from the store, because another session had just read them.",
    "archive_bytes": "Size of the archive's blocks.",
    "archived_messages": "Messages archived, from this worker's clients.",
    "archived_bytes": "Size of their records.",
    "archive_dropped": "QoS 0 messages not archived, because the store was full or too slow.",
    "archive_removed_messages": "Messages that the archive's retention has removed.",
    "archive_removed_bytes": "Bytes of their blocks.",
    "events_bytes": "Size of recorded events in the store, before compression.",
    "events_recorded": "Events recorded: connections, sessions, subscriptions, and the samples of each minute.",
    "events_suppressed": "Events only counted and not recorded, beyond events_per_second_max.",
    "events_lost": "Events only counted and not recorded, because the store was full or failed.",
    "events_unlisted": "Messages that events count together, because clients_max or topics_max was reached.",
    "retained_bytes": "Bytes of retained messages.",
    "log_messages": "Entries of the log for sessions that are behind or offline.",
    "log_bytes": "Bytes of that log.",
    "connections_accepted": "Sockets accepted.",
    "connections_handed_over": "Connections handed over to their home worker.",
    "connections_taken_in": "Connections received from the worker that accepted them.",
    "connections_refused": "Connections closed before, or by, their CONNACK.",
    "sessions_over_max": "CONNECTs refused at sessions_max.",
    "sessions_ended_for_room": "Sessions ended at sessions_max, because they had been offline for longest.",
    "sessions_too_large": "Subscriptions and CONNECTs refused because of session_bytes_max.",
    "connections_closed": "Connections that ended after their CONNACK, including those lost with a worker.",
    "authentications_failed": "Connections and re-authentications with wrong or missing credentials.",
    "authentications_refused": "Connections refused at auth_pending_max.",
    "authentications_repeated": "Re-authentications that succeeded.",
    "credentials_hashed": "Password hashes computed.",
    "credentials_cached": "Passwords accepted from the cache, without a hash.",
    "sessions_taken_over": "Connections closed because their client connected again.",
    "sessions_expired": "Sessions that ended by their Session Expiry Interval.",
    "accept_errors": "Failures to accept a connection for lack of descriptors or memory.",
    "keep_alive_timeouts": "Connections closed for silence.",
    "protocol_errors": "Connections closed for a malformed packet or a protocol error.",
    "internal_errors": "Connections closed after an internal error; the log has the traceback.",
    "packets_received": "MQTT packets of any type from clients.",
    "answers_sent": "MQTT packets to clients other than PUBLISH.",
    "recv_calls": "Calls of recv().",
    "send_calls": "Calls of send() and sendmsg().",
    "ticks": "Rounds of the event loop.",
    "publish_received_qos1": "PUBLISH packets of QoS 1 from clients.",
    "publish_received_qos2": "PUBLISH packets of QoS 2 from clients, without repeated ones.",
    "publish_duplicates": "Repeated PUBLISH packets of QoS 2.",
    "publish_bytes_received": "Bytes of payload from clients.",
    "publish_bytes_sent": "Bytes of payload to clients.",
    "publish_refused": "PUBLISH packets refused: not authorised, to $SYS, beyond a bound, or invalid UTF-8.",
    "subscriptions_not_authorised": "Subscriptions refused because the client is not authorised.",
    "wills_refused": "Wills not published because their client is no longer authorised.",
    "publish_unmatched": "PUBLISH packets without a matching subscription.",
    "redelivered": "PUBLISH packets sent again with DUP.",
    "retained_refused": "Messages not retained: retained_messages_max or retained_bytes_max.",
    "matched": "Copies of messages, one per session that matched: delivered + dropped + waiting.",
    "delivered_qos0": "Copies of QoS 0 that the kernel has taken.",
    "delivered_qos1": "Copies of QoS 1 acknowledged.",
    "delivered_qos2": "Copies of QoS 2 completed.",
    "shared_waited": "Messages of share groups queued for a member, because none had room when they arrived.",
    "shared_reassigned": "Messages of share groups reassigned to another member or worker.",
    "mesh_entries_sent": "Messages sent to other workers.",
    "mesh_entries_received": "Messages received from other workers.",
    "mesh_batches_received": "Batches received from other workers.",
    "mesh_bytes_received": "Bytes of those batches.",
    "mesh_batches_behind": "Times that batches for another worker went to the hand-off log because it is slower than "
    "its messages arrive: they leave the memory, and are read back when it has room.",
    "mesh_frames_refused": "Mesh messages that were malformed, or from or for a worker that is dead.",
    "retained_offered": "Retained messages sent to other hosts, which have asked for what they may not have.",
    "host_clocks_refused": "Messages of another host that were numbered anew because its clock is more than a minute "
    "ahead.",
    "owners_taken": "Client ids taken over from another host, because their clients connected here.",
    "owners_doubtful": "Connections refused because this host has been no proven member of its cluster for "
    "cluster.unproven_seconds_max.",
    "sessions_moved": "Sessions that have come from another host, with their clients or because it drains.",
    "moves_refused": "Sessions that did not come from other hosts because too many were coming at the same time.",
    "owner_requests": "Requests of clients for the owner of a client id (`$mqttd/owner`).",
    "owner_requests_refused": "Of these those that were not answered, or with an error.",
    "clients_sent_away": "Connections closed because this host drains, or has more than its share of the clients.",
    "sessions_offered": "Sessions offered to other hosts because this host drains, each as often as it was offered.",
    "members_sent_away": "Connections closed because this host had more members of a share group than others "
    "(`shared.spread`).",
    "members_came_back": "Of these: the client was connected to this host again when the group was looked at next.",
    "messages_handed_over": "Messages that another host still had for a session that it does not own any more.",
    "owners_unproven": "Connections that were accepted although etcd did not say that this host owns their client id.",
    "retained_unwatched": "Live retained messages that could not be remembered while a SUBSCRIBE was answered, because "
    "of lack of room: an older one of the topic may follow.",
    "bridges_connected": "Connections of bridges that are joined with the other broker.",
    "bridge_messages_out": "Messages sent to other brokers by bridges.",
    "bridge_messages_in": "Messages of other brokers, by bridges.",
    "bridge_refused": "Messages of bridges that the other broker, or this one, has refused, or that do not fit there: "
    "their topic is in no table of the bridge any more, or too long with its prefix, or the packet is too large.",
    "reading_paused": "Times that reading a publisher was paused because another worker had no room.",
    "clients_maximum": "Highest number of connected clients of all workers, as seen by this one.",
}
_REASONS: dict[str, str] = {
    "expired": "its Message Expiry Interval had passed",
    "offline_qos0": "QoS 0, and the client was not connected",
    "outbox_full": "QoS 0, and `outbox_bytes_max` waited for the client",
    "connection_closed": "QoS 0, and the connection ended before the kernel took it",
    "queue_full": "`queue_messages_max` or `queue_bytes_max`",
    "packet_too_large": "larger than the client's Maximum Packet Size",
    "unsubscribed": "the client unsubscribed while it waited",
    "session_ended": "the session ended while it waited",
    "refused": "the client answered with a reason code of 0x80 or above",
    "peer_lost": "the worker that it was for died, or was away for too long",
    "no_member": "the share group had no member left",
    "overtaken": "retained, and a newer retained message of its topic was sent first, as it came",
    "worker_lost": "it was in the memory of a worker that died",
}
_HISTOGRAMS: dict[str, tuple[str, str]] = {
    "publish_duration": (
        "mqtt_publish_duration_seconds",
        "From the beginning of the tick that received a PUBLISH to the end of its routing, or to its ack leaving when "
        "that waits for another worker. A sample every 10 ms at most.",
    ),
    "delivery_duration": (
        "mqtt_delivery_duration_seconds",
        "From the beginning of the tick that received a PUBLISH, on any worker, to its copies being passed to the "
        "kernel. Measured for the same samples, once per delivering worker.",
    ),
    "match_duration": (
        "mqtt_wildcard_match_duration_seconds",
        "Matching a topic against the wildcard filters, where the result was not cached. One in 16 is measured.",
    ),
}
_LINKS: dict[str, tuple[str, str, float]] = {
    "batches": ("mqttd_link_batches", "Batches sent.", 1),
    "messages": ("mqttd_link_messages", "Messages in them, including requests and answers between workers.", 1),
    "bytes": ("mqttd_link_bytes", "Size of the batches.", 1),
    "resent": ("mqttd_link_resent", "Batches sent again.", 1),
    "qos0_dropped": ("mqttd_link_qos0_dropped", "QoS 0 messages not sent: the other worker was away or full.", 1),
    "unacknowledged": ("mqttd_link_unacknowledged_batches", "Batches without an acknowledgement yet.", 1),
    "oldest_ms": ("mqttd_link_oldest_unacknowledged_seconds", "Age of the oldest of them.", 0.001),
    "outbox_bytes": ("mqttd_link_outbox_bytes", "Bytes that wait for the other worker.", 1),
}
_LISTENERS: dict[str, tuple[str, str, str]] = {
    "connections_accepted": (
        "mqttd_listener_connections_accepted",
        "counter",
        "Sockets that a worker accepted on this listener.",
    ),
    "connections": (
        "mqttd_listener_connections",
        "gauge",
        "Client sockets of this listener that a worker serves, including those without a CONNECT yet.",
    ),
}
_BROKER: tuple[Family, ...] = (
    Family("mqttd_build_info", "gauge", "Always 1; the label has the version of mqttd.", ("version",)),
    Family("mqttd_uptime_seconds", "gauge", "Time since the supervisor was started.", ()),
    Family("mqttd_worker_up", "gauge", "1: serving; 0: starting or down."),
    Family("mqttd_worker_restarts", "counter", "Restarts of the worker."),
    Family("mqttd_worker_heartbeat_age_seconds", "gauge", "Time since the worker's heartbeat last changed."),
    Family(
        "mqttd_host_links",
        "gauge",
        "In a cluster: workers of this host that are linked with another host, by that; less than all of them: it is "
        "away, or its links are.",
        ("host",),
    ),
    Family("mqttd_cluster_leader", "gauge", "In a cluster: 1: the control process of this host leads it.", ()),
    Family(
        "mqttd_cluster_leader_changes",
        "counter",
        "Terms of leaders that this host has seen begin; from 0 after a restart of its control process.",
        (),
    ),
    Family("mqttd_cluster_plans", "counter", "Plans to spread clients that this host has made as the leader.", ()),
    Family(
        "mqttd_cluster_reaped",
        "counter",
        "Records in etcd that this host has taken away as the leader, because they belong to nothing: `owners` of "
        "client ids, `numbers` of hosts.",
        ("kind",),
    ),
)


def _help_of_limits(counter: str) -> str:
    """Return the help text of a counter that limits count into, else its name in words."""
    fields = Limits.model_fields.items()
    extras = [(name, extra) for name, field in fields if isinstance(extra := field.json_schema_extra, dict)]
    at = [f"at `{name}`: {extra['beyond']}" for name, extra in extras if extra["counter"] == counter]
    return f"Counted {'; '.join(at)}." if at else counter.replace("_", " ").capitalize() + "."


def _plain() -> Iterator[tuple[int, Family]]:
    """Yield (counter, its family) for every counter that has a family of its own."""
    for index, name in enumerate(counters.NAMES):
        if name.startswith("dropped_") or name == "incarnation":
            continue
        kind = "gauge" if counters.is_gauge(index) or name == "clients_maximum" else "counter"
        shown, text = _NAMED.get(name) or (f"mqttd_{name}", _HELP.get(name) or _help_of_limits(name))
        yield index, Family(shown, kind, text)


def _links() -> Iterator[tuple[int, Family, float]]:
    for place, name in enumerate(counters.LINK_TOTALS + counters.LINK_GAUGES):
        shown, text, scale = _LINKS[name]
        yield (
            place,
            Family(shown, "counter" if name in counters.LINK_TOTALS else "gauge", text, ("worker", "to")),
            scale,
        )


def _listeners() -> Iterator[tuple[int, Family]]:
    for place, name in enumerate(counters.LISTENER_NAMES):
        yield place, Family(*_LISTENERS[name], ("worker", "listener"))


def _histograms() -> Iterator[tuple[int, Family]]:
    for which, name in enumerate(counters.HISTOGRAMS):
        shown, text = _HISTOGRAMS[name]
        yield which, Family(shown, "histogram", text)


def _drops() -> Iterator[tuple[int, str]]:
    for index, name in enumerate(counters.NAMES):
        if name.startswith("dropped_"):
            yield index, name.removeprefix("dropped_")


def families() -> list[Family]:
    """Return all metrics, in the order of the exposition."""
    return [
        *_BROKER,
        _CURRENT,
        _DROPPED,
        *(family for _, family in _plain()),
        *(family for _, family in _histograms()),
        *(family for _, family in _listeners()),
        *(family for _, family, _ in _links()),
    ]


class Rows(Collector):
    """Collector that reads the rows of all workers on request. `listeners`: the names of the configured ones."""

    def __init__(self, rows: Sequence[memoryview], state: Callable[[], BrokerState], listeners: Sequence[str]) -> None:
        self._rows = [Row(row) for row in rows]
        self._state = state
        self._listeners = listeners

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        yield from self._broker()
        yield self._made(_CURRENT, [((str(i),), connected(row)) for i, row in enumerate(self._rows)])
        drops = list(_drops())
        yield self._made(
            _DROPPED,
            [((str(i), reason), row.get(index)) for i, row in enumerate(self._rows) for index, reason in drops],
        )
        for index, family in _plain():
            yield self._made(family, [((str(i),), row.get(index)) for i, row in enumerate(self._rows)])
        for which, family in _histograms():
            yield self._histogram(which, family)
        listeners = [
            ((str(i), name), row.listener(number))
            for i, row in enumerate(self._rows)
            for number, name in enumerate(self._listeners)
        ]
        for place, family in _listeners():
            yield self._made(family, [(labels, values[place]) for labels, values in listeners])
        links = [
            ((str(i), str(peer)), row.link(peer))
            for i, row in enumerate(self._rows)
            for peer in range(len(self._rows))
            if peer != i
        ]
        for place, family, scale in _links():
            yield self._made(family, [(labels, values[place] * scale) for labels, values in links])

    def _broker(self) -> Iterator[Metric]:
        state = self._state()
        build, uptime, up, restarts, age, host_links, *of_leader = _BROKER
        workers = [((str(i),), worker) for i, worker in enumerate(state.workers)]
        yield self._made(build, [((broker.__version__,), 1)])
        yield self._made(uptime, [((), state.uptime_seconds)])
        yield self._made(up, [(labels, float(worker.up)) for labels, worker in workers])
        yield self._made(restarts, [(labels, worker.restarts) for labels, worker in workers])
        yield self._made(age, [(labels, worker.heartbeat_age_seconds) for labels, worker in workers])
        if state.host_links is not None:
            yield self._made(host_links, [((host,), links) for host, links in sorted(state.host_links.items())])
        if (counts := state.leadership) is not None:
            reaped = [(("owners",), counts.owners_reaped), (("numbers",), counts.numbers_reaped)]
            leader, changes, plans, taken_away = of_leader
            yield self._made(leader, [((), float(counts.is_leader))])
            yield self._made(changes, [((), counts.changes)])
            yield self._made(plans, [((), counts.plans)])
            yield self._made(taken_away, reaped)

    def _made(self, family: Family, samples: Sequence[tuple[tuple[str, ...], float]]) -> Metric:
        metric = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
        made = metric(family.name, family.help, labels=family.labels)
        for labels, value in samples:
            made.add_metric(labels, value)
        return made

    def _histogram(self, which: int, family: Family) -> Metric:
        metric = HistogramMetricFamily(family.name, family.help, labels=family.labels)
        for i, row in enumerate(self._rows):
            nanoseconds, samples = row.histogram(which)
            total = 0
            buckets = []
            for bound, count in zip((*counters.BOUNDS_NS, None), samples, strict=True):
                total += count
                buckets.append(("+Inf" if bound is None else str(bound / 1e9), total))
            metric.add_metric([str(i)], buckets=buckets, sum_value=nanoseconds / 1e9)
        return metric


def connected(row: Row) -> int:
    """Return the number of connected clients of a worker."""
    opened = row.get(counters.CONNECTIONS_OPENED)  # read first: a connection closed meanwhile must not make it negative
    return max(0, opened - row.get(counters.CONNECTIONS_CLOSED))


# -- the tables of docs/reference/metrics.md

_BEGIN = "<!-- generated: python -m broker.admin.metrics --markdown docs/reference/metrics.md -->"
_END = "<!-- end of what is generated -->"
_SYS_BEGIN = "<!-- generated likewise: topics of $SYS -->"
_SYS_END = "<!-- end of the topics of $SYS -->"


def markdown() -> str:
    """Return the tables of metrics and of drop reasons."""
    lines = ["| metric | type | labels | meaning |", "|---|---|---|---|"]
    for family in families():
        labels = ", ".join(f"`{label}`" for label in family.labels)
        lines.append(f"| `{family.shown}` | {family.kind} | {labels} | {family.help} |")
    lines += ["", "| `reason` | a copy was dropped because |", "|---|---|"]
    for _, reason in _drops():
        lines.append(f"| `{reason}` | {_REASONS.get(reason, reason.replace('_', ' '))} |")
    return "\n".join(lines)


def with_tables(document: str) -> str:
    """Return a document with its generated parts replaced. Raises ValueError when their markers are missing."""
    for first, last, table in ((_SYS_BEGIN, _SYS_END, sys_topics.markdown()), (_BEGIN, _END, markdown())):
        before, begin, rest = document.partition(first)
        _, end, after = rest.partition(last)
        if not begin or not end:
            raise ValueError(f"the document has no lines {first!r} and {last!r}")
        document = f"{before}{begin}\n\n{table}\n\n{end}{after}"
    return document


def _main(arguments: list[str]) -> int:
    match arguments:
        case ["--markdown", file]:
            path = Path(file)
            path.write_text(with_tables(path.read_text()))
            return 0
    print("usage: python -m broker.admin.metrics --markdown FILE", file=sys.stderr)
    return 2


if __name__ == "__main__":
    raise SystemExit(_main(sys.argv[1:]))
