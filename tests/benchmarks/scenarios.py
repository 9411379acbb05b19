"""The scenarios of the benchmarks, with their brokers, and the targets of their figures.

A scenario's variants are measured in turn, A B C A B C, so that other load on the machine affects all of them alike. A
target compares the median of one figure of one variant with that of another variant, or with a number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shards.placement import home
from tests.benchmarks import durable, interruptions, memory, replaying
from tests.benchmarks.ruler import Figures

if TYPE_CHECKING:
    from tests.benchmarks.ruler import Ruler

CPU = "broker_us_per_msg"
P50 = "lat_p50_us"
P99 = "lat_p99_us"

Measure = Callable[["Ruler"], Figures]


@dataclass(frozen=True)
class Variant:
    """One measured case. `broker`: its name for Ruler.mqload. `extra`: more arguments for mqload."""

    name: str
    broker: str
    extra: str = ""
    measure: Measure | None = None
    """A measurement that replaces mqload."""


@dataclass(frozen=True)
class Target:
    """A bound of a figure: at most `at_most` times that of variant `than`, or at most that number if there is none.
    `is_least`: at least.
    """

    of: str
    at_most: float
    than: str | None = "mosquitto"
    figure: str = CPU
    is_least: bool = False


@dataclass(frozen=True)
class Scenario:
    """A row of the tables, or several measured together."""

    name: str
    title: str
    arguments: str
    variants: tuple[Variant, ...]
    targets: tuple[Target, ...]
    figures: tuple[str, ...] = (CPU, "out_per_s")
    """Figures shown in the table of all figures."""
    seconds: float = 1.0
    """Factor of the run's seconds: higher where little happens, because CPU is counted in steps of 10 ms."""
    runs_max: int = 100
    """Maximum number of runs: memory does not need five."""
    remark: str = ""
    section: str = ""
    """Heading above it in the document; empty: the first part."""


MOSQUITTO = Variant("mosquitto", "mosquitto")
NATS = Variant("nats-server", "nats-server")
OURS = Variant("mqttd", "mqttd/1")
OURS_V5 = Variant("mqttd, v5", "mqttd/1", "--v5")
OURS_TWO = Variant("mqttd, 2 workers", "mqttd/2")
OURS_16 = Variant("mqttd, 16 workers", "mqttd/16")
MEMORY = Variant("mqttd, memory", "mqttd/1")
BUFFERED = Variant("mqttd, buffered", "mqttd/1+buffered")
FSYNC = Variant("mqttd, fsync", "mqttd/1+fsync")
ARCHIVE = Variant("mqttd, archive", "mqttd/1+fsync+archive")


def share_that_crosses(pairs: int, workers: int = 2) -> float:
    """Return the share of mqload's pairs, 0 to 1, with the publisher on one worker and the subscriber on another."""
    crossing = sum(home(f"mqlP{i}", workers) != home(f"mqlS{i}", workers) for i in range(pairs))
    return crossing / pairs


def _crosses(pairs: int) -> str:
    return f"with two workers {share_that_crosses(pairs):.0%} of the pairs cross the mesh"


RATE = (CPU, "out_per_s", P50, P99)
BACKLOG = ("drain_per_s", "store_per_s", "drain_broker_us_per_msg", "store_broker_us_per_msg")
ON_DISK = "The store on the disk"

SCENARIOS: tuple[Scenario, ...] = (
    Scenario(
        "pair0", "pair 20:20, QoS 0, saturated", "pair --pubs 20 --qos 0 {S}",
        (MOSQUITTO, NATS, OURS, OURS_V5, OURS_TWO),
        (
            Target("mqttd", 1 / 40), Target("mqttd", 1 / 3, "nats-server"), Target("mqttd, v5", 1.2, "mqttd"),
            Target("mqttd, 2 workers", 1.5, "mqttd"),
        ),
        remark=_crosses(20),
    ),
    Scenario(
        "pair1", "pair 20:20, QoS 1, window 50", "pair --pubs 20 --qos 1 --window 50 {S}",
        (MOSQUITTO, NATS, OURS, OURS_V5, OURS_TWO),
        (Target("mqttd", 1 / 20), Target("mqttd, v5", 1.2, "mqttd"), Target("mqttd, 2 workers", 1.3, "mqttd")),
        remark=_crosses(20),
    ),
    Scenario(
        "pair2", "pair 20:20, QoS 2, window 50", "pair --pubs 20 --qos 2 --window 50 {S}",
        (MOSQUITTO, OURS), (Target("mqttd", 1 / 20),),
    ),
    Scenario(
        "fanin0", "fan-in 50 -> 1, QoS 0", "fanin --pubs 50 --subs 1 --qos 0 {S}",
        (MOSQUITTO, NATS, OURS), (Target("mqttd", 1 / 30),),
    ),
    Scenario(
        "out1000", "fan-out 1 -> 1000, QoS 0", "fanout --subs 1000 --qos 0 {S}",
        (MOSQUITTO, NATS, OURS), (Target("mqttd", 1 / 40), Target("mqttd", 1 / 3, "nats-server")),
    ),
    Scenario(
        "out100_4k", "fan-out 1 -> 100, QoS 0, 4 KB", "fanout --subs 100 --qos 0 --payload 4096 {S}",
        (MOSQUITTO, NATS, OURS), (Target("mqttd", 1 / 5), Target("mqttd", 1 / 3, "nats-server")),
    ),
    Scenario(
        "out100_q1", "fan-out 1 -> 100, QoS 1, window 50", "fanout --subs 100 --qos 1 --window 50 {S}",
        (MOSQUITTO, NATS, OURS), (Target("mqttd", 1 / 15),),
    ),
    Scenario(
        "shared1", "shared 20 -> 10, QoS 1, window 50", "shared --pubs 20 --subs 10 --qos 1 --window 50 {S}",
        (MOSQUITTO, OURS, OURS_TWO), (Target("mqttd", 1 / 15), Target("mqttd, 2 workers", 1 / 18)),
    ),
    Scenario(
        "wild100k", "100,000 wildcard filters that do not match", "wild --filters 100000 --qos 0 {S}",
        (MOSQUITTO, NATS, OURS), (Target("mqttd", 1 / 20),),
    ),
    Scenario(
        "sparse500_10k", "pair 500:500 at 10,000 msg/s", "pair --pubs 500 --qos 0 --rate 10000 {S}",
        (MOSQUITTO, OURS, OURS_TWO, OURS_16),
        (
            Target("mqttd, 2 workers", 0.9), Target("mqttd, 2 workers", 1.1, figure=P50),
            Target("mqttd, 16 workers", 1.3, "mqttd, 2 workers"),
        ),
        figures=RATE, remark=_crosses(500),
    ),
    Scenario(
        "sparse500", "pair 500:500 at 20,000 msg/s", "pair --pubs 500 --qos 0 --rate 20000 {S}",
        (MOSQUITTO, NATS, OURS, OURS_TWO),
        (
            Target("mqttd", 0.95), Target("mqttd", 1.0, figure=P50), Target("mqttd, 2 workers", 0.95),
            Target("mqttd, 2 workers", 1.1, figure=P50),
        ),
        figures=RATE, remark=_crosses(500),
    ),
    Scenario(
        "sparse500_60k", "pair 500:500 at 60,000 msg/s", "pair --pubs 500 --qos 0 --rate 60000 {S}",
        (MOSQUITTO, OURS, OURS_TWO), (Target("mqttd, 2 workers", 0.9), Target("mqttd, 2 workers", 1.1, figure=P50)),
        figures=RATE, remark=_crosses(500),
    ),
    Scenario(
        "sparse_out500", "fan-out 1 -> 500 at 40/s", "fanout --subs 500 --qos 0 --rate 40 {S}",
        (MOSQUITTO, NATS, OURS), (Target("mqttd", 0.85),), figures=RATE, seconds=1.5, remark="0.75 is the goal",
    ),
    Scenario(
        "connect", "one connect, CONNACK, disconnect", "connect --conns 50 {S}",
        (MOSQUITTO, NATS, OURS, OURS_TWO),
        (
            Target("mqttd", 1.5), Target("mqttd, 2 workers", 1.1), Target("mqttd, 2 workers", 1.3, "mqttd", P50),
            Target("mqttd, 2 workers", 2.0, "mqttd", P99),
        ),
        figures=(CPU, P50, P99, "per_s"),
    ),
    Scenario(
        "large", "1 MB to 10,000 subscribers over 4 workers", "",
        (Variant("mqttd, 4 workers", "mqttd/4", measure=memory.large_body),),
        (Target("mqttd, 4 workers", memory.LARGE_GROWTH_BYTES_MAX, None, "growth_bytes"),),
        figures=("growth_bytes", "socket_bytes", "seconds"), runs_max=2,
        remark="2 bodies per worker + 1 KB per connection",
    ),
    Scenario(
        "stalled", "one of 1,000 subscribers does not read, p50 of the others", "",
        (
            Variant("mqttd, all read", "mqttd/1", measure=memory.everybody_reads),
            Variant("mqttd, one does not", "mqttd/1", measure=memory.one_does_not_read),
        ),
        (Target("mqttd, one does not", 1.1, "mqttd, all read", P50),), figures=(P50, P99, CPU),
    ),
    Scenario(
        "idle15k", "memory per idle connection, 15,000", "idle --conns 15000 --keepalive 20 --seconds 2",
        (MOSQUITTO, NATS, OURS_TWO), (Target("mqttd, 2 workers", 2048, None, "bytes_per_conn"),),
        figures=("bytes_per_conn", "ramp_per_s"), runs_max=3,
    ),
    Scenario(
        "filters1m", "1,000,000 filters in one worker", "",
        (
            Variant("mqttd, exact", "mqttd/1", measure=memory.exact_filters),
            Variant("mqttd, wildcard", "mqttd/1", measure=memory.wildcard_filters),
        ),
        (
            Target("mqttd, exact", 200, None, "bytes_per_filter"),
            Target("mqttd, wildcard", 400, None, "bytes_per_filter"),
            Target("mqttd, exact", 100, None, "match_ns"), Target("mqttd, wildcard", 1000, None, "match_ns"),
        ),
        figures=("bytes_per_filter", "match_ns", "subscribe_s"), runs_max=1,
        remark="1,000 clients x 1,000 filters of 30 bytes; wildcard: half +, half #; match: their slowest shape",
    ),
    Scenario(
        "idle_cpu", "10,000 idle connections, keep-alive 300 s: CPU", "idle --conns 10000 --keepalive 300 --seconds 15",
        (MOSQUITTO, OURS), (Target("mqttd", 0.5, None, "hold_broker_cpu_pct"),),
        figures=("hold_broker_cpu_pct",), runs_max=2, remark="percent of a core, PINGREQs included",
    ),
    Scenario(
        "sockets", "kernel memory per connection", "",
        (
            Variant("mqttd, idle", "mqttd/1", measure=memory.idle_sockets),
            Variant("mqttd, does not read", "mqttd/1", measure=memory.stalled_sockets),
        ),
        (), figures=("pss_bytes", "slab_bytes", "socket_bytes"), runs_max=1,
        remark="kernel: of both ends, for the client runs on the same machine",
    ),
    Scenario(
        "interruptions", "a process killed or stopped, passwords checked", "",
        (
            Variant("worker killed", "mqttd/4", measure=interruptions.worker_killed),
            Variant("worker stopped", "mqttd/4", measure=interruptions.worker_stopped),
            Variant("control process killed", "mqttd/4", measure=interruptions.control_killed),
            Variant("broker stopped", "mqttd/4", measure=interruptions.stopping),
            Variant("supervisor killed", "mqttd/4", measure=interruptions.supervisor_killed),
            Variant("50 passwords checked", "mqttd/2", measure=interruptions.passwords_checked),
        ),
        (
            Target("worker killed", 500, None, "gap_ms"), Target("worker killed", 2, None, "serves_s"),
            Target("worker stopped", 500, None, "gap_ms"), Target("worker stopped", 500, None, "ack_ms"),
            Target("worker stopped", 2300, None, "ack_to_stopped_ms"),
            Target("control process killed", 500, None, "gap_ms"), Target("broker stopped", 5, None, "end_s"),
            Target("supervisor killed", 1, None, "end_s"), Target("50 passwords checked", 20, None, "answer_ms"),
        ),
        figures=("gap_ms", "serves_s", "ack_ms", "ack_to_stopped_ms", "end_s", "answer_ms"), runs_max=3,
        remark="pairs of all workers to all at 30/s, QoS 1; gap: of those whose ends are elsewhere",
    ),
    Scenario(
        "durable1", "pair 20:20, QoS 1, window 50, subscribers with durable sessions",
        "pair --pubs 20 --qos 1 --window 50 --persist {S}",
        (MOSQUITTO, MEMORY, BUFFERED, FSYNC),
        (
            Target("mqttd, buffered", 1 / 8), Target("mqttd, fsync", 1 / 6),
            Target("mqttd, fsync", 1.5, figure="out_per_s", is_least=True),
        ),
        section=ON_DISK, remark="mosquitto: nothing on the disk",
    ),
    Scenario(
        "durable2", "pair 20:20, QoS 2, window 50, subscribers with durable sessions",
        "pair --pubs 20 --qos 2 --window 50 --persist {S}", (MOSQUITTO, MEMORY, FSYNC), (), section=ON_DISK,
    ),
    Scenario(
        "ack1", "from publish to ack, one publisher, window 1", "",
        (Variant("mqttd, fsync", "mqttd/1+fsync", measure=durable.acks),),
        (Target("mqttd, fsync", 1.5, None, "ack_fdatasyncs"),),
        figures=("ack_p50_us", "ack_memory_p50_us", "fdatasync_p50_us", "record_bytes", "ack_fdatasyncs", "ack_p99_us"),
        runs_max=3, section=ON_DISK, remark="what it takes longer than with the store in memory, in fdatasyncs",
    ),
    Scenario(
        "given1000", "QoS 1 to offline sessions with one filter", "",
        (
            Variant("one session", "mqttd/1", measure=durable.given_for_one),
            Variant("1,000 sessions", "mqttd/1", measure=durable.given_for_a_thousand),
        ),
        (Target("1,000 sessions", 1.05, "one session", "given_bytes"),),
        figures=("given_bytes",), runs_max=1, section=ON_DISK, remark="10 messages a tick, 100 bytes each",
    ),
    Scenario(
        "backlog1k", "100 sessions away, 1,000 messages each", "offline --subs 100 --count 100000 --qos 1 --window 50",
        (MOSQUITTO, MEMORY, BUFFERED, FSYNC),
        (
            Target("mqttd, fsync", 200_000, None, "drain_per_s", is_least=True),
            Target("mqttd, buffered", 200_000, None, "drain_per_s", is_least=True),
        ),
        figures=BACKLOG, section=ON_DISK,
    ),
    Scenario(
        "backlog10k", "100 sessions away, 10,000 messages each",
        "offline --subs 100 --count 1000000 --qos 1 --window 50",
        (MOSQUITTO, FSYNC), (Target("mqttd, fsync", 200_000, None, "drain_per_s", is_least=True),),
        figures=BACKLOG, runs_max=3, section=ON_DISK,
    ),
    Scenario(
        "start1m", "start with 1,000,000 queued messages of 100,000 sessions", "",
        (Variant("mqttd, fsync", "mqttd/1+fsync", measure=durable.start),),
        (Target("mqttd, fsync", 5, None, "start_s"),),
        figures=("start_s", "ping_max_ms", "pss_bytes", "store_bytes"), runs_max=1, section=ON_DISK,
        remark="each with a filter of its own; slowest PINGRESP of the first 3 s",
    ),
    Scenario(
        "inflight1m", "start with 1,000,000 messages in flight to 10,000 sessions", "",
        (Variant("mqttd, fsync", "mqttd/1+fsync", measure=durable.start_in_flight),),
        (Target("mqttd, fsync", 5, None, "start_s"),),
        figures=("start_s", "ping_max_ms", "pss_bytes", "store_bytes"), runs_max=1, section=ON_DISK,
        remark="all different, written in turns; slowest PINGRESP of the first 3 s",
    ),
    Scenario(
        "replay1m", "replay of 1,000,000 messages to one subscriber", "",
        (
            Variant("mqttd, fsync", "mqttd/1+fsync", measure=replaying.by_one_worker),
            Variant("mqttd, fsync, 2 workers", "mqttd/2+fsync", measure=replaying.by_two_workers),
        ),
        (
            Target("mqttd, fsync", 200_000, None, "replay_per_s", is_least=True),
            Target("mqttd, fsync", 1.2, None, "ping_ratio"),
        ),
        figures=("replay_per_s", "replay_us", "ping_p50_us", "ping_alone_p50_us", "ping_ratio"), runs_max=1,
        section=ON_DISK, remark="64 bytes, QoS 0; p50 is that of another client, which sends to itself",
    ),
    Scenario(
        "archive0", "pair 20:20, QoS 0, 64 B, 100,000 msg/s, archived", "pair --pubs 20 --qos 0 --rate 100000 {S}",
        (FSYNC, ARCHIVE), (Target("mqttd, archive", 2.0, "mqttd, fsync"),), figures=RATE, section=ON_DISK,
        remark="CPU of all threads, the writer's and LevelDB's included",
    ),
    Scenario(
        "archive1", "pair 20:20, QoS 1, window 50, archived", "pair --pubs 20 --qos 1 --window 50 {S}",
        (FSYNC, ARCHIVE), (), figures=RATE, section=ON_DISK,
        remark="each ack waits for the disk where it is archived, and for nothing where not",
    ),
    Scenario(
        "stall", "PINGRESP while 2,000 msg/s at QoS 1 are stored", "",
        (
            Variant("mqttd, fsync", "mqttd/1+fsync", measure=durable.ping_with_disk_quiet),
            Variant("mqttd, fsync, disk saturated", "mqttd/1+fsync", measure=durable.ping_with_disk_saturated),
            Variant("mqttd, memory, disk saturated", "mqttd/1", measure=durable.ping_in_memory_with_disk_saturated),
        ),
        (), figures=("ping_p99_us", "ping_p50_us", "ping_max_ms", "disk_wait_pct", "out_per_s", "fdatasync_p50_us"),
        runs_max=3, section=ON_DISK, remark="saturated: four threads of another process write and sync 4 MB each",
    ),
)  # fmt: skip
