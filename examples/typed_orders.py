"""Turn a backup with its schema registry's topic into typed Parquet, and query that. No registry, no broker, no jar.

    python examples/typed_orders.py

``examples/typed`` has orders as Avro, written with two versions of their schema. Three records are not framed, so they do
not decode: they go to a folder of their own, with the reason.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
BACKUP = str(HERE / "typed")

# Set before Spark starts: its workers run this Python, and its settings come from conf/.
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
os.environ.setdefault("SPARK_CONF_DIR", str(HERE.parent / "conf"))

from pyspark.sql import SparkSession  # noqa: E402  (after the environment)

TOP_ITEMS = """
    SELECT item.sku, sum(item.quantity) AS sold, sum(item.quantity * item.price) AS revenue
    FROM (SELECT explode(items) AS item FROM orders)
    GROUP BY item.sku
    ORDER BY revenue DESC
    LIMIT 3
"""


def convert(spark: SparkSession, target: Path) -> None:
    """Write the orders that decode to ``orders``, and the others to ``rejected``."""
    records = (
        spark.read.format("segmentlog")
        .option("subscribe", "orders")
        .option("valueFormat", "registry")
        .option("mode", "PERMISSIVE")
        .load(BACKUP)
    )
    decoded = records.filter("_corrupt_record IS NULL").select("partition", "offset", "value.*")
    decoded.write.parquet(str(target / "orders"))
    rejected = records.filter("_corrupt_record IS NOT NULL").select("partition", "offset", "_corrupt_record")
    rejected.write.parquet(str(target / "rejected"))


def main() -> None:
    """Convert the backup, and show what the tables hold."""
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("segmentlog typed orders")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    with tempfile.TemporaryDirectory() as folder:
        convert(spark, Path(folder))
        orders = spark.read.parquet(f"{folder}/orders")
        orders.createOrReplaceTempView("orders")
        print(f"{orders.count():,} orders, {len(orders.columns)} columns")
        spark.sql(TOP_ITEMS).show()
        rejected = spark.read.parquet(f"{folder}/rejected")
        reason = "get_json_object(_corrupt_record, '$.reason') AS reason"
        rejected.selectExpr("partition", "offset", reason).orderBy("offset").show()
    spark.stop()


if __name__ == "__main__":
    main()
