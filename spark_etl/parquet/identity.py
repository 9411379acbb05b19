"""What makes a message the same in two rows: of one host its number, of hosts of a cluster more than that.

Hosts keep the number of a message that comes from another one, so a message that waits on two hosts has it twice. But
two hosts may give the same number to different messages, and a third one have both. So between the hosts of a cluster,
and on each of them, messages are the same if topic and payload are the same, too, as the hosts themselves decide
(docs/adr/0045). Rows of hosts that are alone need no payload to be compared.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from spark_etl.tables.snapshots import Snapshot

__all__ = ["IDENTITY", "MessageIdentity"]

IDENTITY: Final = ("_scope", "_number", "_mark")
_NEEDED: Final = ("host", "number", "cluster", "topic", "payload")


class MessageIdentity:
    """The identity of messages of these snapshots, and of others of the same hosts."""

    def __init__(self, snapshots: Iterable[Snapshot]) -> None:
        # by host: a snapshot that was taken while its broker did not run does not say in which cluster it is
        self._clusters = {each.host: each.cluster for each in snapshots if each.cluster is not None}

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns from which it is made."""
        return _NEEDED if self._clusters else ("host", "number")

    def with_identity(self, rows: DataFrame) -> DataFrame:
        """Add the columns IDENTITY."""
        from pyspark.sql import functions as sf

        if not self._clusters:
            return rows.withColumns(
                {"_scope": sf.col("host"), "_number": sf.col("number"), "_mark": sf.lit(0).cast("bigint")}
            )
        named = sf.create_map(*(sf.lit(each) for pair in sorted(self._clusters.items()) for each in pair))
        cluster = sf.coalesce(sf.col("cluster"), sf.try_element_at(named, sf.col("host")))
        return rows.withColumns({
            "_scope": sf.coalesce(cluster, sf.col("host")),
            "_number": sf.col("number"),
            "_mark": sf.when(cluster.isNotNull(), sf.xxhash64("topic", "payload")).otherwise(sf.lit(0)),
        })  # fmt: skip
