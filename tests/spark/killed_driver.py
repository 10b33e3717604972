"""A driver that writes one version after another until it is killed together with its JVM.

Started as ``python -m tests.spark.killed_driver <root>``. It first writes elsewhere and prints ``ready <pid of the
JVM> <ms of a write>``. Then it reads version numbers and prints ``done <version>`` after committing the rows of each.
"""

from __future__ import annotations

import sys
import tempfile
import time
import warnings

from tests.spark_settings import SPARK_SETTINGS

ROWS_PER_VERSION = 4000


def save_version(spark, root: str, version: int) -> None:
    """Write the rows of a version: ``<version>:<number>``, in three partitions."""
    spark.range(0, ROWS_PER_VERSION, 1, 3).selectExpr(
        f"concat('{version}:', CAST(id AS STRING)) AS value", "CAST(id % 3 AS INT) AS partition"
    ).write.format("segmentlog").mode("append").options(
        topic="t", partitions=3, txnAppId="app", txnVersion=version
    ).save(root)


def main(root: str) -> None:
    # PySpark warns about packages that this program does not use.
    warnings.simplefilter("ignore")
    from pyspark.sql import SparkSession

    import spark_segmentlog

    builder = SparkSession.builder.master("local[2,4]")
    for name, value in SPARK_SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.config("spark.driver.memory", "512m").getOrCreate()
    spark_segmentlog.register(spark)
    with tempfile.TemporaryDirectory() as folder:
        for version in (1, 2):
            begun = time.monotonic()
            save_version(spark, f"{folder}/logs", version)
    took_ms = int(1000 * (time.monotonic() - begun))
    print("ready", spark._jvm.java.lang.ProcessHandle.current().pid(), took_ms, flush=True)
    for line in sys.stdin:
        save_version(spark, root, int(line))
        print("done", int(line), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
