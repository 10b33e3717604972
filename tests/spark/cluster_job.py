"""A program for a cluster: writes, reads and restores. Its answers are JSON in a file.

If asked to, the first task that writes kills its executor.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from pyspark.sql import SparkSession

import spark_segmentlog

ROWS = 10_000


def main(place: str, answers: str, *mode: str) -> None:
    """Write below ``place``, and copy what was written."""
    spark = SparkSession.builder.getOrCreate()
    spark_segmentlog.register(spark)
    killed = Path(f"{place}.killed")
    is_killed = mode == ("killed",)

    def kill_executor_once(batches):
        for batch in batches:
            yield batch
            if is_killed:
                try:
                    os.mkdir(killed)
                except FileExistsError:
                    continue
                # This process, the daemon that forked it, and the executor's JVM.
                status = Path(f"/proc/{os.getppid()}/status").read_text(encoding="utf-8")
                os.kill(int(status.split("PPid:")[1].split()[0]), signal.SIGKILL)

    first, second = f"{place}/first", f"{place}/second"
    ids = spark.range(0, ROWS, 1, 4).selectExpr("CAST(id AS STRING) AS key", "concat('v', id) AS value")
    rows = ids.mapInArrow(kill_executor_once, ids.schema)
    rows.write.format("segmentlog").mode("append").options(topic="t", partitions="3").save(first)
    copied = {"preserveOffsets": "true", "offsetsFrom": first}
    read(spark, first).write.format("segmentlog").mode("append").options(**copied).save(second)
    written = content(spark, first)
    result = {
        "rows": len(written),
        "keys": len({key for _, _, key, _ in written}),
        "partitions": sorted({partition for partition, *_ in written}),
        "restored": content(spark, second) == written,
        "killed": killed.exists(),
        "from": os.path.dirname(os.path.dirname(spark_segmentlog.__file__)),
    }
    Path(answers).write_text(json.dumps(result), encoding="utf-8")
    spark.stop()


def read(spark, path):
    return spark.read.format("segmentlog").load(path)


def content(spark, path):
    return sorted(
        (row.partition, row.offset, bytes(row.key), bytes(row.value)) for row in read(spark, path).collect()
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
