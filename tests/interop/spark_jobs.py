"""Spark jobs that write into a log directory, and changes to the batches that they wrote."""

from __future__ import annotations

import re
import struct
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

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


def save(frame: DataFrame, root: Path, mode: str = "append", **options: object) -> None:
    """Write a frame into a log directory. Options have ``__`` for ``.``."""
    writer = frame.write.format("segmentlog").mode(mode)
    for name, value in options.items():
        writer = writer.option(name.replace("__", "."), value)
    writer.save(str(root))


def error_of_save(frame: DataFrame, root: Path, **options: object) -> str:
    """Return the error message of a `save` that is refused."""
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException) as raised:
        save(frame, root, **options)
    return str(raised.value)
