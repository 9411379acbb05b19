"""The Spark session of a job: sets what the job needs, and nothing that a cluster has configured.

`python -m spark_etl` starts Spark on this machine, with as many tasks at a time as it has cores (or `--master`).
`spark-submit` has made its own settings before this program begins: then only SQL settings are made.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SQL", "is_submitted", "session"]

SQL: Final = {
    # dates are in UTC
    "spark.sql.session.timeZone": "UTC",
    # files of a few dates are written in parallel, and not one after the other behind a sort
    "spark.sql.maxConcurrentOutputFileWriters": "32",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.compression.codec": "zstd",  # as spark_etl.parquet.direct_writer writes
}
_LOG: Final = Path(__file__).with_name("log4j2.properties")
_LOCAL: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "32",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOG.as_uri()}",
}


def is_submitted() -> bool:
    """Return whether spark-submit has started this program."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


@contextlib.contextmanager
def session(name: str, master: str = "local[*]") -> Iterator[SparkSession]:
    """Yield a session with the data source `mqttd`; one that did not exist before is stopped at the end.

    `master` is used unless spark-submit has set one.
    """
    from pyspark.sql import SparkSession

    from spark_etl import register

    is_new = SparkSession.getActiveSession() is None
    builder = SparkSession.builder.appName(f"mqttd {name}")
    if is_new and not is_submitted():
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        builder = builder.master(master)
        for key, value in _LOCAL.items():
            builder = builder.config(key, value)
    spark = builder.getOrCreate()
    try:
        for key, value in SQL.items():
            spark.conf.set(key, value)
        register(spark)
        yield spark
    finally:
        if is_new:
            spark.stop()
