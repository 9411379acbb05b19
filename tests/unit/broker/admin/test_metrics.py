"""The collector over rows that no other process writes, and the tables of the documentation."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from broker.admin import metrics
from broker.admin.metrics import BrokerState, Rows, WorkerState
from pyx.core import counters
from pyx.core.counters import Row
from tests.broker_process import ROOT

ASKED_FOR = {
    "mqtt_connections_current": "gauge", "mqtt_connections_total": "counter", "mqtt_sessions_active": "gauge",
    "mqtt_messages_received_total": "counter", "mqtt_messages_sent_total": "counter",
    "mqtt_bytes_received_total": "counter", "mqtt_bytes_sent_total": "counter",
    "mqtt_publish_duration_seconds": "histogram", "mqtt_delivery_duration_seconds": "histogram",
    "mqtt_wildcard_match_duration_seconds": "histogram", "mqtt_subscriptions_active": "gauge",
    "mqtt_retained_messages": "gauge", "mqtt_messages_dropped_total": "counter",
}  # fmt: skip
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def scrape(*rows: Row | bytearray) -> tuple[Samples, dict[str, str]]:
    """Return (samples by name and labels, types by name as exported) of a broker with these rows."""
    registry = CollectorRegistry()
    state = BrokerState(5.0, [WorkerState(True, 2, 0.1) for _ in rows], {"b": 1, "a": 0})
    memory = [memoryview(row) for row in rows if isinstance(row, bytearray)]
    registry.register(Rows(memory, lambda: state, ["default", "plant"]))
    samples: Samples = {}
    types = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        types[family.name + "_total" if family.type == "counter" else family.name] = family.type
        for sample in family.samples:
            key = sample.name, tuple(sorted(sample.labels.items()))
            assert key not in samples, f"{key} twice"
            samples[key] = sample.value
    return samples, types


@pytest.fixture
def rows() -> list[bytearray]:
    """Return two workers' rows, in which counter i of worker w is 1000 w + i."""
    made = [bytearray(counters.ROW_BYTES) for _ in range(2)]
    for worker, memory in enumerate(made):
        row = Row(memory)
        for index in range(len(counters.NAMES)):
            row.set(index, 1000 * worker + index)
    return made


def test_the_names_that_were_asked_for(rows: list[bytearray]) -> None:
    _, types = scrape(*rows)
    assert {name: types.get(name) for name in ASKED_FOR} == ASKED_FOR


def test_every_counter_is_exported_once(rows: list[bytearray]) -> None:
    """A counter added to the table is included without a change here."""
    samples, _ = scrape(*rows)
    values = [value for (name, labels), value in samples.items() if ("worker", "1") in labels]
    for index, name in enumerate(counters.NAMES):
        if name != "incarnation":
            assert values.count(1000 + index) == 1, name


def test_reasons_for_drops_are_labels(rows: list[bytearray]) -> None:
    samples, _ = scrape(*rows)
    for index, name in enumerate(counters.NAMES):
        if name.startswith("dropped_"):
            labels = (("reason", name.removeprefix("dropped_")), ("worker", "0"))
            assert samples["mqtt_messages_dropped_total", labels] == index


def test_connections_that_are_open_are_never_negative(rows: list[bytearray]) -> None:
    row = Row(rows[0])
    for opened, closed, current in ((5, 3, 2), (5, 6, 0)):
        row.set(counters.CONNECTIONS_OPENED, opened)
        row.set(counters.CONNECTIONS_CLOSED, closed)
        assert scrape(*rows)[0]["mqtt_connections_current", (("worker", "0"),)] == current


def test_a_histogram_is_cumulative(rows: list[bytearray]) -> None:
    row = Row(rows[1])
    for nanoseconds in (900, 1_000, 40_000, 10**10):
        row.observe(0, nanoseconds)
    samples, _ = scrape(*rows)
    name = "mqtt_publish_duration_seconds"

    def bucket(bound: str) -> float:
        return samples[f"{name}_bucket", (("le", bound), ("worker", "1"))]

    assert [bucket(bound) for bound in ("1e-06", "2.5e-06", "5e-05", "2.5", "+Inf")] == [2, 2, 3, 3, 4]
    assert samples[f"{name}_count", (("worker", "1"),)] == 4
    assert samples[f"{name}_sum", (("worker", "1"),)] == pytest.approx(10.0000419)
    assert samples[f"{name}_count", (("worker", "0"),)] == 0


def test_links_have_both_ends(rows: list[bytearray]) -> None:
    Row(rows[0]).set_link(1, [1, 2, 3, 4, 5, 6, 7000, 8])
    samples, types = scrape(*rows)
    found = {
        name: value
        for (name, labels), value in samples.items()
        if name.startswith("mqttd_link_") and labels == (("to", "1"), ("worker", "0"))
    }
    assert found == {
        "mqttd_link_batches_total": 1,
        "mqttd_link_messages_total": 2,
        "mqttd_link_bytes_total": 3,
        "mqttd_link_resent_total": 4,
        "mqttd_link_qos0_dropped_total": 5,
        "mqttd_link_unacknowledged_batches": 6,
        "mqttd_link_oldest_unacknowledged_seconds": 7,
        "mqttd_link_outbox_bytes": 8,
    }
    assert types["mqttd_link_outbox_bytes"] == "gauge"
    assert not [labels for name, labels in samples if name.startswith("mqttd_link_") and ("to", "2") in labels]
    assert len([1 for name, _ in samples if name == "mqttd_link_outbox_bytes"]) == 2, "none to itself"


def test_the_documentation_has_the_tables_of_today() -> None:
    path = ROOT / "docs" / "reference" / "metrics.md"
    assert metrics.with_tables(path.read_text()) == path.read_text(), (
        "run: python -m broker.admin.metrics --markdown docs/reference/metrics.md"
    )


def test_the_alerts_of_deploy_use_metrics_that_exist(rows: list[bytearray]) -> None:
    _, types = scrape(*rows)
    text = (ROOT / "deploy" / "mqttd-alerts.yml").read_text()
    used = {word.split("[")[0].split("{")[0].strip("()") for line in text.splitlines() if "expr:" in line
            for word in line.replace("(", " ").split() if word.startswith("mqtt")}  # fmt: skip
    assert used
    assert used <= set(types)
