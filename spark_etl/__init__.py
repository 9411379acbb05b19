"""PySpark over snapshots of mqttd's stores: the data source `mqttd`, and its tables (docs/analytics.md).

    import spark_etl
    spark_etl.register(spark)
    spark.read.format("mqttd").option("table", "messages").load("/var/backups/mqttd/2026-11-22")

Needs `pip install 'mqttd-broker[analytics]'` and Java 17, and none of the compiled code of the broker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["PUSHDOWN", "register", "with_json"]

PUSHDOWN: Final = "spark.sql.python.filterPushdown.enabled"


def register(spark: SparkSession) -> None:
    """Register the data source `mqttd` in a session, and let Spark pass it the conditions of queries."""
    from spark_etl.source.data_source import MqttdSource

    spark.conf.set(PUSHDOWN, "true")
    spark.dataSource.register(MqttdSource)


def with_json(messages: DataFrame) -> DataFrame:
    """Add a column `payload_json` (VARIANT): `payload_text`, which must be a column, if it is JSON; else null."""
    from pyspark.sql import functions as F

    return messages.withColumn("payload_json", F.try_parse_json("payload_text"))
