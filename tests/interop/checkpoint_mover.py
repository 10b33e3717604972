"""Runs one query from either source, until all that is there has come, and prints what has come.

Started under the PySpark of the Kafka connector: ``<source> <checkpoint> <log directory> <bootstrap servers> <jars>``. It
imports nothing of the tests.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession


def main(source: str, checkpoint: str, logs: str, servers: str, jars: str) -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", jars)
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
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
    print("ROWS " + json.dumps(sorted(rows)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
