"""The tables of the data source: their documentation is current, and they have a column for each field of an event."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from leveldb_store.format import events
from spark_etl.tables import catalogue as tables

ROOT = Path(__file__).resolve().parents[2]


def test_the_documentation_has_the_tables_of_today() -> None:
    path = ROOT / "docs" / "analytics.md"
    assert tables.with_tables(path.read_text()) == path.read_text(), (
        "run: python -m spark_etl.tables.catalogue --markdown docs/analytics.md"
    )


def test_each_column_of_a_table_stands_once() -> None:
    for table in tables.TABLES.values():
        assert len(set(table.names)) == len(table.names), table.name
        assert table.names[:4] == ["snapshot", "taken", "host", "store"]


def test_events_have_a_column_for_everything_an_event_says() -> None:
    said = {name for kind in events.KINDS for name in (*kind.texts, *(number for number, _ in kind.numbers))}
    assert said <= set(tables.TABLES["events"].names)


def test_columns_that_are_chosen_keep_the_tables_order() -> None:
    chosen = tables.table_of("sessions").chosen(["created", "client"])
    assert [column.name for column in chosen] == ["client", "created"]
    with pytest.raises(tables.TableError, match="the table sessions has no column topic; it has snapshot, "):
        tables.table_of("sessions").chosen(["topic"])
    with pytest.raises(tables.TableError, match="there is no table 'message'; there are messages, sessions, "):
        tables.table_of("message")


def test_the_module_prints_the_tables_and_refuses_what_it_does_not_know() -> None:
    command = [sys.executable, "-m", "spark_etl.tables.catalogue"]
    printed = subprocess.run([*command, "--markdown"], cwd=ROOT, capture_output=True, text=True)
    assert (printed.returncode, printed.stdout.strip()) == (0, tables.markdown().strip())
    refused = subprocess.run([*command, "--html"], cwd=ROOT, capture_output=True, text=True)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
