"""Spark reads what Spark writes, for every row shape and codec. Queries during a commit see all of a job or none."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from chispa import assert_df_equality
from pyspark.sql import functions
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

pytestmark = pytest.mark.spark

HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
SCHEMA = StructType(
    [
        StructField("timestamp", TimestampType()),
        StructField("headers", ArrayType(HEADER)),
        StructField("ignored", StringType()),
        StructField("partition", IntegerType()),
        StructField("topic", StringType()),
        StructField("value", BinaryType()),
        StructField("key", BinaryType()),
    ]
)
TOPICS = ("a", "b.c", "D_-e")
PARTITIONS = 4
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def some_bytes(rng):
    size = rng.choice((0, 1, 9, 100, 5000))
    return rng.choice((None, b"", b"same", rng.randbytes(size), b"x" * size))


def some_headers(rng):
    names = ("", "h", "größe", "h")
    return rng.choice((None, [], [(rng.choice(names), some_bytes(rng)) for _ in range(rng.randrange(1, 4))]))


def some_row(rng):
    microseconds = rng.choice((0, 1, 999, 1_700_000_000_123_999, rng.randrange(17 * 10**14)))
    timestamp = rng.choice((None, EPOCH + timedelta(microseconds=microseconds)))
    partition = rng.choice((None, rng.randrange(PARTITIONS)))
    return (
        timestamp,
        some_headers(rng),
        "ignored",
        partition,
        rng.choice(TOPICS),
        some_bytes(rng),
        some_bytes(rng),
    )


@pytest.mark.parametrize(
    ("codec", "partitioner"),
    [
        ("none", "default"),
        ("gzip", "random"),
        ("snappy", "roundRobin"),
        ("lz4", "default"),
        ("zstd", "roundRobin"),
    ],
)
def test_every_shape_of_a_row_comes_back(spark, tmp_path, codec, partitioner):
    rng = random.Random(codec)
    rows = [some_row(rng) for _ in range(400)]
    frame = spark.createDataFrame(rows, SCHEMA).repartition(3)
    options = {
        "partitions": PARTITIONS,
        "partitioner": partitioner,
        "compression.type": codec,
        "batch.size": 20_000,
    }
    started = datetime.now(UTC).replace(microsecond=0)
    frame.write.format("segmentlog").mode("append").options(**options).save(str(tmp_path / "logs"))
    read_frame = (
        spark.read.format("segmentlog").option("includeHeaders", "true").load(str(tmp_path / "logs")).cache()
    )

    # A row without a timestamp gets the time of the job, which is later than any timestamp above.
    is_given = functions.col("timestamp") < functions.lit(started)
    found = read_frame.withColumn("timestamp", functions.when(is_given, functions.col("timestamp")))
    # Timestamps are stored in milliseconds, and missing headers are stored as an empty list.
    expected = frame.withColumns(
        {
            "timestamp": functions.expr("timestamp_millis(unix_millis(timestamp))"),
            "headers": functions.expr("IF(size(headers) > 0, headers, NULL)"),
        }
    )
    columns = ["topic", "key", "value", "headers", "timestamp"]
    assert_df_equality(
        found.select(columns), expected.select(columns), ignore_row_order=True, ignore_nullable=True
    )

    read = read_frame.collect()
    read_frame.unpersist()
    assert {row.timestampType for row in read} == {0}
    assert len({row.timestamp for row in read if row.timestamp.astimezone(UTC) >= started}) == 1

    # Each partition has at least the rows that name it.
    named = Counter((row[4], row[3]) for row in rows if row[3] is not None)
    by_partition = Counter((row.topic, row.partition) for row in read)
    assert all(by_partition[key] >= count for key, count in named.items())
    assert set(by_partition) <= set(itertools.product(TOPICS, range(PARTITIONS)))
    for key, count in by_partition.items():
        offsets = sorted(row.offset for row in read if (row.topic, row.partition) == key)
        assert offsets == list(range(count))


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("CAST(id AS STRING)", lambda number: b"%d" % number),
        ("CAST(CAST(id AS STRING) AS BINARY)", lambda number: b"%d" % number),
        ("CAST(CAST(id AS STRING) AS VARCHAR(9))", lambda number: b"%d" % number),
        ("to_json(struct(id))", lambda number: b'{"id":%d}' % number),
        ("CAST(NULL AS BINARY)", lambda number: None),
        ("IF(id % 2 = 0, NULL, 'ü')", lambda number: "ü".encode() if number % 2 else None),
    ],
)
def test_texts_and_bytes_are_values(spark, tmp_path, expression, expected):
    frame = spark.range(20).selectExpr(f"{expression} AS value", f"{expression} AS key", "'t' AS topic")
    frame.coalesce(1).write.format("segmentlog").mode("append").save(str(tmp_path / "logs"))
    read = (
        spark.read.format("segmentlog").load(str(tmp_path / "logs")).orderBy("offset").select("key", "value")
    )
    assert_df_equality(
        read, spark.createDataFrame([(expected(n), expected(n)) for n in range(20)], read.schema)
    )


def test_the_option_beats_the_column_even_where_that_is_null_or_no_text(spark, tmp_path):
    frame = spark.range(10).select(
        functions.col("id").cast("string").alias("value"),
        functions.when(functions.col("id") > 4, "column").alias("topic"),
    )
    writer = frame.write.format("segmentlog").mode("append")
    writer.option("topic", " option ").save(str(tmp_path / "logs"))
    frame.withColumn("topic", functions.lit(7)).write.format("segmentlog").mode("append").option(
        "topic", "option"
    ).save(str(tmp_path / "logs"))
    read = spark.read.format("segmentlog").load(str(tmp_path / "logs"))
    counts = read.groupBy("topic").count()
    assert_df_equality(counts, spark.createDataFrame([("option", 20)], counts.schema))


def test_a_frame_is_written_to_the_directory_that_it_reads(spark, tmp_path):
    """Its rows are read while others are staged next to their partitions."""
    path = str(tmp_path / "logs")
    spark.range(5000).selectExpr("CAST(id AS STRING) AS value", "'t' AS topic").write.format(
        "segmentlog"
    ).mode("append").save(path)
    for count in (10_000, 20_000):
        read = spark.read.format("segmentlog").load(path)
        read.write.format("segmentlog").mode("append").save(path)
        assert spark.read.format("segmentlog").load(path).count() == count
