"""Rows that Spark writes for a broker to load, and changes to their batches."""

from __future__ import annotations

import re
import struct
from typing import TYPE_CHECKING

from tests.interop.spark_jobs import save

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.interop.broker import KafkaBroker

ROW_COUNT = 1000


def write_rows(spark: SparkSession, root: Path, topic: str, mode: str = "append", **options: object) -> None:
    """Write some rows, whose values name the save mode, into partition 0 of a topic."""
    columns = [f"concat('{mode} ', id) AS value", "timestamp_seconds(1577836800 + id) AS timestamp"]
    rows = spark.range(0, ROW_COUNT, 1, 1).selectExpr(*columns)
    save(rows, root, mode, topic=topic, **options)


def topic_id_of(broker: KafkaBroker, topic: str) -> str:
    """Return the cluster's id for a topic."""
    text = (broker.log_directory / f"{topic}-0" / "partition.metadata").read_text()
    found = re.search(r"topic_id: (\S+)", text)
    assert found is not None
    return found[1]


def set_leader_epoch(partition: Path, leader_epoch: int) -> None:
    """Set the leader epoch of every batch of a partition, as another cluster might have. No CRC covers it."""
    (log,) = partition.glob("*.log")
    data = bytearray(log.read_bytes())
    position = 0
    while position < len(data):
        (length,) = struct.unpack_from(">i", data, position + 8)
        struct.pack_into(">i", data, position + 12, leader_epoch)
        position += 12 + length
    log.write_bytes(data)
    epochs = partition / "leader-epoch-checkpoint"
    if leader_epoch < 0:
        epochs.unlink()
    else:
        epochs.write_text(f"0\n1\n{leader_epoch} 0\n")
