"""Views through Spark: the same rows as `read_table`, in tasks, with schemas of the user's own."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from spark_segmentlog.schema import spark_type
from storage_core import read_table
from storage_core.views import VIEW_NAMES, find_view
from tests.conformance.archives import unpack_case

pytestmark = pytest.mark.spark

DATA = str(Path(__file__).parent.parent.parent / "examples" / "data")
TYPED = str(Path(__file__).parent.parent.parent / "examples" / "typed")
# Each makes rows of log files in tasks; the others are thorough.
QUICK = ("batches", "epochs", "segments")


def views():
    return [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.thorough]) for name in VIEW_NAMES]


def rows_of(table):
    return sorted(map(repr, (tuple(row.values()) for row in table.to_pylist())))


def sorted_rows(frame):
    """Return the rows of a frame, with timestamps in UTC whatever the session's zone is."""
    table = frame.toArrow()
    utc = pa.timestamp("us", "UTC")
    kinds = [utc if pa.types.is_timestamp(field.type) else field.type for field in table.schema]
    return rows_of(table.cast(pa.schema(zip(table.schema.names, kinds, strict=True))))


@pytest.mark.parametrize("name", views())
def test_a_view_has_the_rows_and_the_types_that_python_gets(spark, tmp_path, name: str):
    data = str(unpack_case("internal", tmp_path / "case")[0]) if name == "group_offsets" else DATA
    data = TYPED if name == "schemas" else data
    frame = spark.read.format("segmentlog").option("view", name).load(data)
    view = find_view(name)
    assert frame.schema.names == view.schema.names
    assert [field.dataType for field in frame.schema] == [spark_type(column.type) for column in view.columns]
    assert all(field.nullable for field in frame.schema)
    assert sorted_rows(frame) == rows_of(read_table(data, view=name))


def test_conditions_and_bounds_reach_the_view(spark):
    options = {
        "subscribe": "orders",
        "startingTimestamp": "2026-03-06T12:00:00Z",
        "where": "baseOffset > 1000",
    }
    frame = spark.read.format("segmentlog").options(view="batches", **options).load(DATA)
    expected = read_table(
        DATA,
        view="batches",
        subscribe="orders",
        starting_timestamp="2026-03-06T12:00:00Z",
        where="baseOffset > 1000",
    )
    assert 0 < expected.num_rows < read_table(DATA, view="batches", subscribe="orders").num_rows
    assert sorted_rows(frame) == rows_of(expected)


def test_a_schema_of_the_users_own_is_the_projection(spark):
    schema = StructType().add("recordCount", "integer").add("topic", "string")
    frame = spark.read.format("segmentlog").schema(schema).option("view", "batches").load(DATA)
    assert frame.schema == schema
    table = read_table(DATA, view="batches", columns=["recordCount", "topic"])
    assert sorted_rows(frame) == rows_of(table)


def test_a_column_that_a_view_does_not_have_is_named(spark):
    with pytest.raises(Exception, match="expected one of topic, partition"):
        spark.read.format("segmentlog").options(view="batches", columns="crc32").load(DATA)


def test_views_in_sql(spark):
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW epochs USING segmentlog OPTIONS (path '{DATA}', view 'epochs')"
    )
    found = spark.sql("SELECT count(*) AS n FROM epochs").first()["n"]
    assert found == read_table(DATA, view="epochs").num_rows
