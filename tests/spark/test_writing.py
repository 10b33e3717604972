"""Writing in a session."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import datasource, functions
from pyspark.sql.datasource import DataSource, DataSourceReader

import spark_segmentlog
from tests.spark.writers import clear_line, rows

pytestmark = pytest.mark.spark


@pytest.fixture
def save(root):
    def save_with(frame, mode="append", **options):
        writer = frame.write.format("segmentlog").mode(mode)
        for name, text in options.items():
            writer = writer.option(name.replace("__", "."), text)
        writer.save(str(root))

    return save_with


@pytest.fixture
def frame(spark):
    """Rows 0 to 999 in four tasks: key, value, and two alternating topics."""
    number = functions.col("id")
    return spark.range(0, 1000, 1, 4).select(
        functions.concat(functions.lit("k"), number).alias("key"),
        number.cast("string").alias("value"),
        functions.when(number % 2 == 0, "even").otherwise("odd").alias("topic"),
    )


def test_a_frame_is_appended_and_overwritten(frame, save, root):
    save(frame, partitions=3)
    save(frame, kafka__compression__type="zstd")
    found = rows(root)
    assert sorted(found["value"].to_pylist()) == sorted([b"%d" % number for number in range(1000)] * 2)
    by_key = found.group_by(["key"]).aggregate([("partition", "count_distinct"), ("topic", "count_distinct")])
    assert set(by_key["partition_count_distinct"].to_pylist()) == {1}
    save(frame.limit(10), mode="overwrite", topic="even")
    found = rows(root)
    assert found.group_by("topic").aggregate([("value", "count")]).to_pylist() == [
        {"topic": "even", "value_count": 10},
        {"topic": "odd", "value_count": 1000},
    ]


@pytest.mark.parametrize(
    ("columns", "kind", "message"),
    [
        (["'v' AS value"], AnalysisException, "topic option required when no 'topic' attribute is present."),
        (
            ["'v' AS value", "CAST(NULL AS STRING) AS topic"],
            PythonException,
            "null topic present in the data.",
        ),
    ],
)
def test_errors_name_the_mistake_and_nothing_is_visible(spark, save, root, columns, kind, message):
    with pytest.raises(kind) as raised:
        save(spark.range(1).selectExpr(*columns))
    assert clear_line(raised.value).partition("Error: ")[2].startswith(message)
    assert not root.exists() or not any(name.startswith("t-") for name in os.listdir(root))


def in_a_thread(work):
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(work).result()


@pytest.mark.thorough
def test_another_thread_writes_where_the_session_is_active(spark, root):
    def write():
        spark.createDataFrame([], "value string")  # makes the session active in this thread
        frame.write.format("segmentlog").mode("append").option("topic", "orders").save(str(root))

    frame = spark.sql("SELECT 'v' AS value")
    in_a_thread(write)
    assert rows(root)["value"].to_pylist() == [b"v"]
    in_a_thread(lambda: spark.read.format("segmentlog").load(str(root)).collect())


class OtherSource(DataSource):
    @classmethod
    def name(cls):
        return "other"

    def writer(self, schema, overwrite):
        raise AssertionError("not found")


def test_without_an_active_session_spark_finds_no_python_source(spark, frame, save, root):
    """Check that Spark still finds no source there. If it does, remove the advice from docs/write.md."""
    spark.dataSource.register(OtherSource)
    for name in ("segmentlog", "other"):
        writer = frame.write.format(name).mode("append").option("topic", "t")
        with pytest.raises(Exception, match="DATA_SOURCE_NOT_FOUND"):
            in_a_thread(lambda writer=writer: writer.save(str(root)))
    assert not root.exists()


@pytest.mark.thorough
@pytest.mark.skipif(not hasattr(datasource, "Filter"), reason="Spark 4.0 wants every column of the view")
def test_insert_into_a_temporary_view(spark, save, root):
    save(spark.sql("SELECT 'old' AS value, 't' AS topic"))
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW written USING segmentlog OPTIONS (path '{root}', subscribe 't')"
    )
    spark.sql("INSERT INTO written (value, topic) VALUES (CAST('new' AS BINARY), 't'), (NULL, 'u')")
    assert rows(root).select(["topic", "offset", "value"]).to_pylist() == [
        {"topic": "t", "offset": 0, "value": b"old"},
        {"topic": "t", "offset": 1, "value": b"new"},
        {"topic": "u", "offset": 0, "value": None},
    ]
    spark.sql("INSERT OVERWRITE written SELECT * FROM written WHERE (offset) = 0")
    found = rows(root).select(["topic", "offset", "value"]).to_pylist()
    assert found[0] == {"topic": "t", "offset": 2, "value": b"old"}
    spark.catalog.dropTempView("written")


def test_timestamps_do_not_depend_on_the_sessions_zone(spark, save, root, conf):
    conf("spark.sql.session.timeZone", "America/New_York")
    save(spark.sql("SELECT 'v' AS value, timestamp_micros(1700000000123999) AS timestamp"), topic="t")
    assert rows(root)["timestamp"].cast(pa.int64()).to_pylist() == [1_700_000_000_123_000]


def test_large_types_are_accepted(spark, save, root, conf):
    conf("spark.sql.execution.arrow.useLargeVarTypes", "true")
    save(
        spark.sql(
            "SELECT 'k' AS key, CAST('v' AS BINARY) AS value, array(named_struct('key', 'h', 'value', CAST('1' AS BINARY))) AS headers"
        ),
        topic="t",
    )
    found = rows(root)
    assert (found["key"].to_pylist(), found["value"].to_pylist()) == ([b"k"], [b"v"])
    assert found["headers"].to_pylist() == [[{"key": "h", "value": b"1"}]]


# -- Inserts --------


# Since the version that lets readers take filters, Spark fills columns that an INSERT leaves out.
FILLS_COLUMNS = hasattr(DataSourceReader, "pushFilters")


@pytest.fixture
def view(spark, root):
    """Make a view of the log directory with some columns, or those of a read."""
    root.mkdir(parents=True)

    def make(columns=""):
        spark.sql(f"CREATE TEMPORARY VIEW v {columns} USING segmentlog OPTIONS (path '{root}')")

    yield make
    spark.catalog.dropTempView("v")


@pytest.mark.parametrize(
    "insert",
    [
        "INSERT INTO v VALUES ('k', 'it', 't')",
        "INSERT INTO v SELECT 'k', 'it', 't'",
        "INSERT INTO v (topic, key, value) SELECT 't', 'k', 'it'",
        "INSERT INTO v BY NAME SELECT 'it' AS value, 't' AS topic, 'k' AS key",
    ],
)
def test_a_view_with_a_schema_of_strings_takes_strings(spark, root, view, insert):
    view("(key STRING, value STRING, topic STRING)")
    spark.sql(insert)
    assert rows(root).select(["topic", "key", "value"]).to_pylist() == [
        {"topic": "t", "key": b"k", "value": b"it"}
    ]


@pytest.mark.skipif(not FILLS_COLUMNS, reason="Spark 4.0 wants every column of the view")
def test_an_insert_may_leave_out_columns(spark, root, view):
    view()
    spark.sql("INSERT INTO v (key, value, topic) SELECT CAST('k' AS BINARY), CAST('v' AS BINARY), 't'")
    assert rows(root)["value"].to_pylist() == [b"v"]


def test_strings_do_not_fit_a_view_of_a_read(spark, view):
    # docs/write.md says what to do: Spark refuses before it asks the source.
    view()
    with pytest.raises(AnalysisException, match='Cannot safely cast `key` "STRING" to "BINARY"'):
        spark.sql("INSERT INTO v (key, value, topic) SELECT 'k', 'v', 't'")


@pytest.mark.thorough
def test_registering_again_is_fine(spark, logs):
    for session in (spark, spark, spark.newSession()):
        spark_segmentlog.register(session)
        assert session.read.format("segmentlog").load(logs).count() == 210
