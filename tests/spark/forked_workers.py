"""A driver whose Python workers are forked from a daemon with an open log: what each worker may do with the log.

Started as ``python -m tests.spark.forked_workers``. It prints the outcome of each worker as a line of JSON.
"""

from __future__ import annotations

import json
import sys
import warnings

import pyarrow as pa

from tests.spark_settings import SPARK_SETTINGS


def main() -> None:
    # PySpark warns about packages that this program does not use.
    warnings.simplefilter("ignore")
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]")
    for name, value in SPARK_SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.config("spark.python.daemon.module", "tests.spark.logging_daemon").getOrCreate()
    met = spark.range(0, 4, 1, 4).mapInArrow(work, "met string").collect()
    json.dump([json.loads(row.met) for row in met], sys.stdout)
    spark.stop()


def work(batches):
    """The task of a worker."""
    for _ in batches:
        yield pa.record_batch({"met": [json.dumps(use_log())]})


def use_log() -> dict[str, object]:
    # The daemon opened the log in its main module.
    from __main__ import log, logs

    met: dict[str, object] = {"read": [value for batch in log.read() for value in batch["value"].to_pylist()]}
    met["read"] = [value.decode() for value in met["read"]]
    for name, change in {
        "append": lambda: log.append(pa.table({"value": pa.array([b"worker"])})),
        "flush": log.flush,
        "roll": log.roll,
        "close": logs.close,
    }.items():
        try:
            change()
        except Exception as error:  # noqa: BLE001  (told)
            met[name] = type(error).__name__
    with logs:
        pass
    return met


if __name__ == "__main__":
    main()
