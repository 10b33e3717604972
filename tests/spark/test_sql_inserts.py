"""``INSERT INTO`` temporary views, and registering a source that Spark has found already."""

from __future__ import annotations

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql.datasource import DataSourceReader

import spark_segmentlog
from tests.spark.writers import rows

pytestmark = pytest.mark.spark

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
    # docs/options.md says what to do: Spark refuses before it asks the source.
    view()
    with pytest.raises(AnalysisException, match='Cannot safely cast `key` "STRING" to "BINARY"'):
        spark.sql("INSERT INTO v (key, value, topic) SELECT 'k', 'v', 't'")


@pytest.mark.thorough
def test_registering_again_is_fine(spark, logs):
    for session in (spark, spark, spark.newSession()):
        spark_segmentlog.register(session)
        assert session.read.format("segmentlog").load(logs).count() == 210
