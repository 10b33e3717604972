"""Copy hours of a topic into a partitioned Parquet table, for a backfill after an outage or for a new pipeline.

    python examples/hourly_backfill.py 2026-03-06T18 2026-03-06T21 /tmp/orders

Each hour is a job of its own: it reads the hour's part of the log, parses the JSON of the orders and replaces
``date=.../hour=...``. Spark moves a partition into place when the job commits, so an hour that exists is complete: run
the same command again after a crash. ``--again`` rewrites the hours of which the log has records.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

HERE = Path(__file__).resolve().parent

# Set before Spark starts: its workers run this Python, and its settings come from conf/.
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
os.environ.setdefault("SPARK_CONF_DIR", str(HERE.parent / "conf"))

from pyspark.sql import DataFrame, SparkSession, functions  # noqa: E402  (after the environment)

HOUR = timedelta(hours=1)
# Records are appended up to this much after their timestamp.
LATENESS = timedelta(minutes=2)
ORDER = (
    "order_id string, customer int, country string, channel string, total_cents bigint, "
    "items array<struct<sku: string, quantity: int, price_cents: bigint>>"
)


def orders_of(spark: SparkSession, logs: str, hour: datetime) -> DataFrame:
    """Select the orders whose timestamp is in the hour. A value that is not a JSON object fails the query.

    Bounds in time select offsets. All records of the hour come after its first one, but late records may come after the
    first record of the next hour. So the read ends a little later, and the filter is exact.
    """
    records = (
        spark.read.format("segmentlog")
        .option("subscribe", "orders")
        .option("columns", "partition,offset,timestamp,value")
        .option("startingTimestamp", hour.isoformat())
        .option("startingOffsetsByTimestampStrategy", "latest")  # a partition may have no later record
        .option("endingTimestamp", (hour + HOUR + LATENESS).isoformat())
        .load(logs)
        .filter((functions.col("timestamp") >= hour) & (functions.col("timestamp") < hour + HOUR))
    )
    order = functions.from_json(functions.col("value").cast("string"), ORDER, {"mode": "FAILFAST"})
    return records.select(
        functions.lit(f"{hour:%Y-%m-%d}").alias("date"),
        functions.lit(f"{hour:%H}").alias("hour"),
        "timestamp",
        order.alias("order"),
        "partition",
        "offset",
    ).select("date", "hour", "timestamp", "order.*", "partition", "offset")


def save_hour(orders: DataFrame, table: str) -> None:
    """Replace the partition of the hour, and no other one."""
    (
        orders.coalesce(1)  # one file an hour
        .write.mode("overwrite")
        .option("partitionOverwriteMode", "dynamic")
        .partitionBy("date", "hour")
        .parquet(table)
    )


def hours_between(start: datetime, end: datetime) -> Iterator[datetime]:
    """Yield each full hour from ``start`` to before ``end``."""
    while start < end:
        yield start
        start += HOUR


def hour_of(text: str) -> datetime:
    """Parse an hour in UTC."""
    return datetime.strptime(text, "%Y-%m-%dT%H").replace(tzinfo=UTC)


def main(arguments: Sequence[str] | None = None) -> None:
    """Backfill the hours that the table lacks."""
    parser = argparse.ArgumentParser(description="Copy hours of the topic `orders` into a Parquet table.")
    parser.add_argument("start", type=hour_of, help="the first hour, UTC: 2026-03-06T18")
    parser.add_argument("end", type=hour_of, help="the hour after the last one")
    parser.add_argument("table", type=Path, help="the directory of the table")
    parser.add_argument(
        "--logs", default=str(HERE / "data"), help="the log directory (default: examples/data)"
    )
    parser.add_argument("--again", action="store_true", help="also the hours that the table has")
    given = parser.parse_args(arguments)

    spark = (
        SparkSession.builder.master("local[2]")
        .appName("segmentlog backfill")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    for hour in hours_between(given.start, given.end):
        partition = given.table / f"date={hour:%Y-%m-%d}" / f"hour={hour:%H}"
        if partition.exists() and not given.again:
            print(f"{hour:%Y-%m-%d %H}h: already done")
            continue
        save_hour(orders_of(spark, given.logs, hour), str(given.table))
        rows = spark.read.parquet(str(partition)).count() if partition.exists() else 0
        print(f"{hour:%Y-%m-%d %H}h: {rows:,} orders")


if __name__ == "__main__":
    main()
