"""Spark reads an object store as a directory: batches, SQL, streams; and shows no secret."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stdout

import pytest
from pyspark.errors import PySparkException

from spark_segmentlog import lag
from storage_core import read_table
from tests.conformance.archives import unpack_case

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return unpack_case("txn-ongoing", tmp_path_factory.mktemp("case"))[0]


@pytest.fixture
def options(bucket):
    """Returns those that work; the server compares only the key's id."""
    return {
        **bucket.storage_options,
        "s3.secret-access-key": "planted-secret",
        "s3.session-token": "planted-token",
        "adls.account-key": "planted-account-key",
        "adls.client-id": "planted-client",
    }


def counts(rows):
    return sorted((row["topic"], row["count"]) for row in rows)


@pytest.mark.thorough
def test_batches_and_sql(spark, bucket, directory, options):
    uri = bucket.put_tree(directory, "logs").replace("s3:", "s3a:")
    expected = read_table(directory, columns=["topic"])["topic"].value_counts().to_pylist()
    expected = sorted((each["values"], each["counts"]) for each in expected)
    frame = spark.read.format("segmentlog").options(**options).load(uri)
    assert counts(frame.groupBy("topic").count().collect()) == expected

    listed = ", ".join(f"'{name}' '{value}'" for name, value in {"path": uri, **options}.items())
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW stored USING segmentlog OPTIONS ({listed})")
    assert (
        counts(spark.sql("SELECT topic, count(*) AS count FROM stored GROUP BY topic").collect()) == expected
    )
    shown = io.StringIO()
    with redirect_stdout(shown):
        frame.explain("formatted")
        frame.explain(True)
        spark.table("stored").explain("extended")
        spark.sql("DESCRIBE EXTENDED stored").show(100, truncate=False)
    assert "== Physical Plan ==" in shown.getvalue()
    assert "planted" not in shown.getvalue() + repr(frame)
    view = spark.read.format("segmentlog").option("view", "segments").options(**options).load(uri)
    assert {row["topic"] for row in view.collect()} == {topic for topic, _ in expected}


@pytest.mark.thorough
def test_a_stream_and_its_lag(spark, bucket, directory, options, tmp_path):
    uri = bucket.put_tree(directory, "logs")
    stream = (
        spark.readStream.format("segmentlog")
        .options(**options)
        .option("startingOffsets", "earliest")
        .load(uri)
    )
    query = (
        stream.writeStream.format("memory")
        .queryName("from_a_bucket")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    assert spark.table("from_a_bucket").count() == read_table(directory).num_rows
    progress = query.lastProgress
    assert lag(progress, uri, storage_options=options).records == 0
    written = [
        path.read_text()
        for path in (tmp_path / "checkpoint").rglob("*")
        if path.suffix != ".crc" and path.is_file()
    ]
    assert "planted" not in json.dumps(progress, default=str) + "".join(written)


@pytest.mark.cases(1, 3)
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"s3.access-key-id": "planted-key"}, "The credentials may not list this path"),
        ({"fs.s3a.secret.key": "planted-too"}, "Set s3.secret-access-key"),
        ({"path": "s3a://no-such-bucket/logs"}, "No such bucket"),
    ],
)
def test_what_fails_shows_no_secret(spark, bucket, directory, options, wrong, message):
    uri = bucket.put_tree(directory, "logs")
    with pytest.raises(PySparkException, match=message) as raised:
        spark.read.format("segmentlog").options(**{"path": uri, **options, **wrong}).load().collect()
    assert "planted" not in str(raised.value)


@pytest.mark.thorough
def test_writes_are_refused(spark, bucket):
    frame = spark.createDataFrame([(b"v", "t")], "value binary, topic string")
    with pytest.raises(PySparkException, match=f"aws s3 sync <directory> s3://{bucket.name}/logs"):
        frame.write.format("segmentlog").mode("append").save(f"s3a://{bucket.name}/logs")
