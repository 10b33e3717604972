"""The data source in a Spark session: DataFrames, SQL, errors, early ends and task retries."""

from __future__ import annotations

import datetime as dt
import os
import time
from datetime import UTC, datetime

import pytest
from chispa import assert_df_equality
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import datasource, functions
from pyspark.sql.types import StructType

import spark_segmentlog
from storage_core import read_table
from storage_core.dump.convert import convert
from storage_core.filesystem import FileSystem
from storage_core.options import options_of
from storage_core.scan.plan import plan_scan

pytestmark = pytest.mark.spark

# Spark 4.1 keeps the plan of a load(), and has filters that become part of it. Spark 4.0 plans every action.
PLANS_ONCE = hasattr(datasource, "Filter")
KAFKA_COLUMNS = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]


@pytest.fixture
def load(spark, logs):
    """Load the shared logs with options; ``__`` becomes a dot."""

    def load_with(path=logs, schema=None, **options):
        reader = spark.read.format("segmentlog")
        if schema is not None:
            reader = reader.schema(schema)
        for name, value in options.items():
            reader = reader.option(name.replace("__", "."), value)
        return reader.load(path)

    return load_with


@pytest.fixture
def jobs(spark, request):
    """Yield the Spark jobs of this test."""
    context = spark.sparkContext
    context.setJobGroup(request.node.nodeid, "test")
    yield lambda: context.statusTracker().getJobIdsForGroup(request.node.nodeid)
    context.setLocalProperty("spark.jobGroup.id", None)


def clear_line(error):
    """Return the line of a planning error that states the mistake."""
    lines = str(error).strip().splitlines()
    assert lines[-1].strip() == "SQLSTATE: 38000"
    return lines[-2]


def test_the_source_is_found_without_registering_it(spark, load):
    # Spark discovers pyspark_segmentlog: nothing here registers the source in this session.
    assert load().columns == KAFKA_COLUMNS


@pytest.mark.thorough
def test_the_source_can_be_registered_in_a_session(spark, logs):
    session = spark.newSession()
    spark_segmentlog.register(session)
    assert session.read.format("SegmentLog").load(logs).count() == 210


def test_every_field_of_a_row(spark, load, records_of):
    frame = load(includeHeaders="true", subscribe="b")
    expected = [
        (
            record.key,
            record.value,
            "b",
            0,
            offset,
            datetime.fromtimestamp(record.timestamp_ms // 1000, UTC),
            0,
            list(record.headers) or None,
        )
        for offset, record in enumerate(records_of(10))
    ]
    assert_df_equality(frame, spark.createDataFrame(expected, frame.schema))


def test_metadata(load):
    frame = load(includeMetadata="true", subscribe="a")
    row = frame.where("partition = 1 and offset = 65").select("_metadata.*").head()
    assert row.segment.endswith("00000000000000000050.log")
    assert (row.batchOffset, row.producerId, row.isTransactional, row.compression) == (60, -1, False, "none")
    assert (row.magic, row.timestampMs) == (2, 1_700_000_065_000)


def test_a_schema_is_the_projection_in_its_order(load):
    frame = load(schema="topic string, offset bigint")
    assert frame.columns == ["topic", "offset"]
    assert frame.agg(functions.max("offset"), functions.count("topic")).head() == (99, 210)


@pytest.mark.thorough
def test_a_schema_may_name_headers_and_metadata_without_options(load):
    frame = load(schema=StructType().add(load(includeHeaders="true").schema["headers"]))
    assert frame.where("headers is not null").count() == 105


def test_the_option_columns_is_the_projection(load):
    frame = load(columns="offset,partition")
    assert frame.columns == ["offset", "partition"]
    assert frame.count() == 210


@pytest.mark.thorough
def test_unions_with_itself_and_caching(load):
    frame = load(subscribe="b")
    assert frame.union(frame).count() == 20
    cached = frame.cache()
    assert (cached.count(), cached.count()) == (10, 10)
    cached.unpersist()


@pytest.mark.thorough
def test_an_empty_plan(load, new_logs, records_of):
    new_logs.write("e", 0, [])
    assert load(path=new_logs.path).count() == 0
    assert load(path=new_logs.path).collect() == []
    assert load(path=new_logs.path).groupBy("topic").count().collect() == []


def test_a_timestamp_is_the_same_moment_in_every_session_zone(spark, load, conf):
    conf("spark.sql.session.timeZone", "America/Los_Angeles")
    frame = load(subscribe="b").where("timestamp = timestamp'2023-11-14 14:13:25'")
    moments = frame.selectExpr("offset", "unix_millis(timestamp) AS ms")
    assert_df_equality(moments, spark.createDataFrame([(5, 1_700_000_005_000)], moments.schema))


@pytest.mark.thorough
def test_one_load_is_one_snapshot_and_a_new_one_sees_more(load, new_logs, records_of):
    new_logs.write("n", 0, records_of(10))
    frame = load(path=new_logs.path)
    assert frame.count() == 10
    new_logs.write("n", 0, records_of(5, 10), base_offset=10)
    assert frame.count() == (10 if PLANS_ONCE else 15)
    assert load(path=new_logs.path).count() == 15


@pytest.mark.thorough
def test_temporary_views(spark, load, logs):
    load().createOrReplaceTempView("records")
    assert spark.sql("SELECT count(*) FROM records WHERE offset > 5").head()[0] == 190 - 2 + 4
    spark.sql(f"CREATE TEMPORARY VIEW made USING segmentlog OPTIONS (path '{logs}', subscribe 'b')")
    assert spark.sql("SELECT max(offset) FROM made").head()[0] == 9
    spark.sql(
        f"CREATE TEMPORARY VIEW narrow (offset bigint, topic string) USING segmentlog OPTIONS (path '{logs}')"
    )
    assert spark.sql("SELECT * FROM narrow").columns == ["offset", "topic"]
    for view in ("records", "made", "narrow"):
        spark.catalog.dropTempView(view)


@pytest.mark.thorough
def test_a_catalog_table_takes_its_path_in_the_query(spark, logs):
    spark.sql("CREATE TABLE records USING segmentlog TBLPROPERTIES ('any.property' = '1')")
    try:
        query = f"SELECT count(*) FROM records WITH (path = '{logs}', subscribe = 'b')"
        assert spark.sql(query).head()[0] == 10
        with pytest.raises(AnalysisException) as raised:
            spark.sql("SELECT count(*) FROM records").collect()
        assert "WITH (path = " in clear_line(raised.value)
    finally:
        spark.sql("DROP TABLE records")


# Each `load()` starts a process. What each option refuses is tested without Spark in tests/options.
MISUSES = [
    ({"startingOfset": "earliest"}, "Did you mean 'startingOffsets'?"),
    ({"endingOffsets": "{"}, "Expected e.g."),
    ({"where": "offset > '5'"}, "at character 10, `'5'`: expected a whole number for offset"),
]


@pytest.mark.parametrize(("options", "expected"), MISUSES)
def test_a_misused_option_is_one_clear_line_from_load(spark, logs, jobs, options, expected):
    with pytest.raises(AnalysisException) as raised:
        spark.read.format("segmentlog").options(**options).load(logs)
    line = clear_line(raised.value)
    assert line.startswith("storage_core.errors.OptionError: ")
    assert expected in line
    assert list(jobs()) == []


@pytest.mark.thorough
def test_a_start_that_a_stream_may_have_is_one_clear_line_before_any_task(load, jobs):
    """`load()` asks for the columns alone, and Spark does not say whether it is that of a batch or of a stream."""
    frame = load(startingOffsets="latest")
    with pytest.raises(AnalysisException) as raised:
        frame.count()
    line = clear_line(raised.value)
    assert line.startswith("storage_core.errors.OptionError: ")
    assert "starting offset can't be latest for batch queries on Kafka" in line
    assert list(jobs()) == []


@pytest.mark.parametrize(
    ("path", "options", "expected"),
    [
        (None, {"startingOffsets": '{"a":{"0":1}}'}, "KAFKA_START_OFFSET_DOES_NOT_MATCH_ASSIGNED"),
        ("/nowhere/at/all", {}, "/nowhere/at/all"),
    ],
)
def test_errors_found_in_the_directory_are_one_clear_line_before_any_task(
    load, logs, jobs, path, options, expected
):
    frame = load(path=path or logs, **options)
    with pytest.raises(AnalysisException) as raised:
        frame.count()
    assert expected in clear_line(raised.value)
    assert clear_line(raised.value).startswith("storage_core.errors.")
    assert list(jobs()) == []


def test_a_wrong_schema_is_one_clear_line_before_any_task(load, jobs):
    with pytest.raises(AnalysisException) as raised:
        load(schema="offset int").count()
    assert "Column 'offset' of the schema: expected type bigint, found int." in clear_line(raised.value)
    assert list(jobs()) == []


def test_damage_in_a_task_is_an_error_with_file_and_position(load, new_logs, records_of):
    new_logs.write("d", 0, records_of(10)).write("d", 0, records_of(10, 10), base_offset=10)
    path = os.path.join(new_logs.path, "d-0", "00000000000000000000.log")
    with open(path, "r+b") as file:
        file.seek(100)
        file.write(b"\xff")
    with pytest.raises(PythonException) as raised:
        load(path=new_logs.path).count()
    assert "CorruptRecordError" in str(raised.value)
    assert path in str(raised.value)


@pytest.mark.thorough
def test_a_task_that_fails_first_reads_everything_again(spark, load):
    def fail_first(batches):
        from pyspark import TaskContext

        for batch in batches:
            yield batch
            if TaskContext.get().attemptNumber() == 0:
                raise RuntimeError("the first attempt fails")

    frame = load(columns="offset", subscribe="a").mapInArrow(fail_first, "offset bigint")
    offsets = spark.range(100).toDF("offset")
    assert_df_equality(frame, offsets.union(offsets), ignore_row_order=True, ignore_nullable=True)


def open_under(path):
    """Files under ``path`` that any process of this user has open."""
    found = []
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            for descriptor in os.listdir(f"/proc/{process}/fd"):
                name = os.readlink(f"/proc/{process}/fd/{descriptor}")
                if name.startswith(path):
                    found.append(name)
        except OSError:
            continue
    return found


def test_a_limit_ends_early_and_closes_the_files(load, new_logs, records_of):
    records = records_of(2000)
    new_logs.write("l", 0, records, batch_size=500)
    assert len(load(path=new_logs.path, columns="offset,value").limit(3).collect()) == 3
    deadline = time.monotonic() + 300
    while open_under(new_logs.path):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_source_is_unchanged_by_a_read(load, new_logs, records_of):
    def state():
        return sorted(
            (entry.path, entry.stat().st_mtime_ns, entry.stat().st_size)
            for folder, _, _ in os.walk(new_logs.path)
            for entry in os.scandir(folder)
        )

    new_logs.write("s", 0, records_of(10))
    before = state()
    load(path=new_logs.path).count()
    assert state() == before


# -- A dataset that was converted --------


def test_rows_and_partitions(spark, tmp_path, request):
    data = request.config.rootpath / "examples" / "data"
    options = options_of([data], {})
    convert(FileSystem(), plan_scan(FileSystem(), options), options, str(tmp_path / "out"))
    frame = spark.read.parquet(str(tmp_path / "out"))
    columns = ["topic", "partition", "offset", "key", "value", "timestamp", "timestampType"]
    found = frame.select(columns).toArrow()
    expected = read_table(data).select(columns)
    order = [("topic", "ascending"), ("partition", "ascending"), ("offset", "ascending")]
    assert found.sort_by(order).cast(expected.schema).equals(expected)
    days = frame.where("topic = 'clicks'").select("date").distinct().collect()
    assert [row.date for row in days] == [dt.date(2026, 3, 6)]
