"""Read a log directory that Apache Kafka wrote, with Spark and without a broker.

    make demo

``examples/data`` is the directory of a broker that was stopped: some topics of a web shop in one week of March 2026.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
DATA = str(HERE / "data")

# Set before Spark starts: its workers run this Python, and its settings come from conf/.
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
os.environ.setdefault("SPARK_CONF_DIR", str(HERE.parent / "conf"))

from pyspark.sql import DataFrame, SparkSession  # noqa: E402  (after the environment)

from storage_core import FileSystem, parse_read_options, plan_scan  # noqa: E402

EVENING = {"startingTimestamp": "2026-03-06T18:00:00Z", "endingTimestamp": "2026-03-06T21:00:00Z"}

REVENUE = """
    SELECT o.country, count(*) AS orders, bigint(sum(o.total_cents) / 100) AS revenue
    FROM (SELECT from_json(string(value), 'country string, total_cents bigint') AS o FROM orders)
    GROUP BY o.country
    ORDER BY revenue DESC
    LIMIT 5
"""


def read(spark: SparkSession, topic: str, **options: str) -> DataFrame:
    """Return one topic of the example data. One ``load()`` is one snapshot of the directory."""
    return spark.read.format("segmentlog").options(path=DATA, subscribe=topic, **options).load()


def heading(text: str) -> None:
    """Print a heading."""
    print(f"\n\033[1m{text}\033[0m\n" if sys.stdout.isatty() else f"\n{text}\n")


def main() -> None:
    """Show the schema, rows, an aggregation, transactions and a range in time."""
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("segmentlog quickstart")
        # The job takes seconds: no web page, no progress bar.
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )

    heading("The schema is that of Spark's Kafka source")
    orders = read(spark, "orders", includeHeaders="true")
    orders.printSchema()

    heading("Rows of the topic `orders`: zstd, three partitions, headers")
    text = ["partition", "offset", "timestamp", "string(key) AS key", "left(string(value), 50) AS value"]
    orders.selectExpr(*text, "headers[0].key AS header").orderBy("timestamp").show(5, truncate=False)

    heading("SQL: who buys most")
    orders.createOrReplaceTempView("orders")
    spark.sql(REVENUE).show()

    heading("Transactions: an aborted one is hidden from read_committed")
    everything = read(spark, "payments").count()
    committed = read(spark, "payments", isolationLevel="read_committed").count()
    print(f"{committed:,} payments committed, {everything - committed} more aborted")

    heading("Three hours of one evening, found through Kafka's own indexes")
    print(f"{read(spark, 'orders', **EVENING).count():,} orders of {orders.count():,}")
    print(what_was_skipped("orders", EVENING))

    spark.stop()


def what_was_skipped(topic: str, bounds: dict[str, str]) -> str:
    """Say how much of the topic a read with these bounds skips. Spark gets the same plan."""
    plan = plan_scan(FileSystem(), parse_read_options({"path": DATA, "subscribe": topic, **bounds}))
    planned_bytes, total_bytes = plan.planned_bytes, plan.total_bytes()
    return (
        f"{planned_bytes:,} of {total_bytes:,} bytes, in {plan.planned_segments} of {plan.total_segments} segments: "
        f"{1 - planned_bytes / total_bytes:.0%} skipped"
    )


if __name__ == "__main__":
    main()
