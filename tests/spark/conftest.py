"""Fixtures for all tests of this folder: one Spark session, whose JVM ends with the tests."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession

import spark_etl
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
END_SECONDS_MAX = 30.0

Load = Callable[..., DataFrame]


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Yield a session in local mode, with the data source."""
    set_here = {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1"}
    before = {name: os.environ.get(name) for name in set_here}
    os.environ.update(set_here)
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.local.dir": str(tmp_path_factory.mktemp("spark")),
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
    }
    builder = SparkSession.builder.master("local[2]").appName("mqttd tests")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    spark_etl.register(session)
    yield session
    gateway = SparkContext._gateway
    assert gateway is not None
    java: subprocess.Popen[bytes] = gateway.proc
    session.stop()
    gateway.shutdown()
    assert java.stdin is not None
    java.stdin.close()
    wait_until(lambda: java.poll() is not None, END_SECONDS_MAX, "the JVM has ended")
    for name, text in before.items():
        if text is None:
            del os.environ[name]
        else:
            os.environ[name] = text


@pytest.fixture
def load(spark: SparkSession) -> Load:
    """``load(directory, table, **options)``: returns the DataFrame of a table of the snapshots in a directory."""

    def loaded(directory: Path | str, table: str = "messages", **options: str) -> DataFrame:
        return spark.read.format("mqttd").option("table", table).options(**options).load(str(directory))

    return loaded
