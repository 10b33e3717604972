"""Runs one query from either source, until all that is there has come, and prints what has come.

Started under the PySpark of the Kafka connector: ``<checkpoint> <log directory> <bootstrap servers> <jars>``. Each line of
standard input names the source of a run. It imports nothing of the tests.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession


def main(checkpoint: str, logs: str, servers: str, jars: str) -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", jars)
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    for line in sys.stdin:
        rows = _rows_of(spark, line.strip(), checkpoint, logs, servers)
        print("ROWS " + json.dumps(sorted(rows)), flush=True)


def _rows_of(
    spark: SparkSession, source: str, checkpoint: str, logs: str, servers: str
) -> list[tuple[int, int, str]]:
    reader = (
        spark.readStream.format(source).option("subscribe", "moved").option("startingOffsets", "earliest")
    )
    if source == "segmentlog":
        frame = reader.load(logs)
    else:
        frame = reader.option("kafka.bootstrap.servers", servers).load()
    rows: list[tuple[int, int, str]] = []

    def keep(batch, number):
        rows.extend((row.partition, row.offset, row.value.decode()) for row in batch.collect())

    selected = frame.selectExpr("partition", "offset", "value")
    query = selected.writeStream.option("checkpointLocation", checkpoint).foreachBatch(keep).start()
    query.processAllAvailable()
    query.stop()
    return rows


if __name__ == "__main__":
    main(*sys.argv[1:])
