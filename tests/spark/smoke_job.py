"""A program that writes, reads, plans an empty read and misspells an option. Its answers are JSON in a file."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

import spark_segmentlog

SETTINGS = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.driver.memory": "1g",
    "spark.log.level": "OFF",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
}


def main(logs: str, answers: str, *mode: str) -> None:
    """Use a new log directory, through Spark Connect if the mode says so."""
    warnings.simplefilter("ignore")
    master = "local[2]"
    builder = (
        SparkSession.builder.remote(master) if mode == ("connect",) else SparkSession.builder.master(master)
    )
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    rows = spark.sql("SELECT 'a' AS topic, CAST(id AS STRING) AS KEY, concat('v', id) AS value FROM range(5)")
    rows.write.format("segmentlog").mode("append").option("partitions", "2").save(logs)
    Path(answers).write_text(json.dumps(found(spark, logs)), encoding="utf-8")
    spark.stop()


def found(spark: SparkSession, logs: str) -> dict[str, object]:
    """What each kind of read finds."""
    source = spark.read.format("segmentlog")
    records = source.load(logs)
    records.createOrReplaceTempView("records")
    return {
        "version": pyspark.__version__,
        "from": Path(spark_segmentlog.__file__).parents[1].name,
        "columns": records.columns,
        "read": sorted([bytes(row.key).decode(), bytes(row.value).decode()] for row in records.collect()),
        "sql": spark.sql("SELECT * FROM records WHERE key > X'32'").count(),
        "where": source.option("where", "key = '4'").load(logs).count(),
        "nothing": source.option("where", "offset < 0").load(logs).count(),
        "mistake": mistake(spark, logs),
    }


def mistake(spark: SparkSession, logs: str) -> str:
    """The error about a misspelt option."""
    try:
        spark.read.format("segmentlog").option("startingOfset", "earliest").load(logs).count()
    except Exception as error:  # noqa: BLE001  (which class it is differs between Sparks)
        return str(error)
    return ""


if __name__ == "__main__":
    main(*sys.argv[1:])
