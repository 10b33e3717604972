"""Spark reads framed records as typed columns: types as `from_avro` gives them, values, bad records, projections."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import datasource, functions
from pyspark.sql.types import StructType

from spark_segmentlog.data_source import SegmentLogDataSource
from spark_segmentlog.reader import PushdownReader, to_predicate
from spark_segmentlog.schema import spark_type
from storage_core.errors import OptionError
from storage_core.filesystem import FileSystem
from storage_core.options import parse_read_options
from storage_core.scan.typed_columns import plan_formats
from tests.values.typed_logs import expected_values
from tests.values.written_logs import append, framed, record_schema, register

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

NESTED = record_schema(
    id="long",
    place=record_schema("Place", city="string", lat="double"),
    lines={"type": "array", "items": record_schema("Line", sku="string", price="double")},
)
VALUE = {
    "id": 7,
    "place": {"city": "Bern", "lat": 46.9},
    "lines": [{"sku": "a", "price": 1.5}, {"sku": "b", "price": 2.5}],
}


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """Return a topic with a good record, a tombstone and one that is not framed."""
    folder = tmp_path / "logs"
    register(folder, "orders-value", 1, 11, NESTED)
    append(folder, "orders", [(b"k", framed(11, NESTED, VALUE)), (b"k", None), (b"k", b"text")])
    return folder


def source(logs: Path, **options: str) -> SegmentLogDataSource:
    return SegmentLogDataSource(
        {"path": str(logs), "subscribe": "orders", "valueFormat": "registry", **options}
    )


def load(spark: SparkSession, logs: Path, schema: str | None = None, **options: str) -> DataFrame:
    reader = spark.read.format("segmentlog").options(subscribe="orders", valueFormat="registry", **options)
    return (reader if schema is None else reader.schema(schema)).load(str(logs))


@pytest.mark.parametrize("columns", [None, ["id"]])
def test_a_load_complains_of_the_registry_once(
    logs: Path, caplog: pytest.LogCaptureFixture, columns: list[str] | None
) -> None:
    register(logs, "others-value", 1, 11, '"int"')
    (found,) = (field for field in source(logs).schema() if field.name == "value")
    chosen = found.dataType if columns is None else StructType([found.dataType[name] for name in columns])

    source(logs).reader(StructType().add("value", chosen))

    assert len([text for text in caplog.messages if "Id 11 in the default context" in text]) == 1


@pytest.mark.parametrize(
    "topic", [name for name, topic in expected_values()["topics"].items() if "spark_type" in topic]
)
def test_types_are_those_of_from_avro(topic: str, typed_logs: Path) -> None:
    options = {"path": str(typed_logs), "subscribe": topic, "value_format": "registry"}

    (column,) = plan_formats(FileSystem(), parse_read_options(options))

    assert spark_type(column.arrow_type).simpleString() == expected_values()["topics"][topic]["spark_type"]


def test_all_columns_are_nullable(logs: Path) -> None:
    fields = json.loads(source(logs).schema().json())["fields"]

    assert "false" not in json.dumps([field for field in fields if field["name"] == "value"])


def test_the_option_columns_chooses_fields(logs: Path) -> None:
    chosen = source(logs, columns="value.place.city,offset,value.id")

    assert (
        chosen.schema().simpleString()
        == "struct<value:struct<id:bigint,place:struct<city:string>>,offset:bigint>"
    )
    assert len(chosen.reader(chosen.schema()).partitions()) == 1


@pytest.mark.spark
def test_typed_columns_are_queried(spark: SparkSession, logs: Path) -> None:
    frame = load(spark, logs, mode="PERMISSIVE")

    assert [row.value and row.value.asDict(recursive=True) for row in frame.orderBy("offset").collect()] == [
        VALUE,
        None,
        None,
    ]
    total = (
        frame.select(functions.explode("value.lines").alias("line")).agg(functions.sum("line.price")).first()
    )
    assert total is not None
    assert total[0] == 4.0
    failure = frame.where("_corrupt_record is not null").selectExpr("offset", "_corrupt_record").first()
    assert failure is not None
    assert (failure[0], json.loads(failure[1])["reason"]) == (2, "unframed")
    assert load(spark, logs, mode="DROPMALFORMED").count() == 2


@pytest.mark.spark
def test_a_users_own_schema_chooses_fields(spark: SparkSession, logs: Path) -> None:
    schema = "value struct<place:struct<city:string>,lines:array<struct<price:double>>>, offset bigint"

    row = load(spark, logs, schema, mode="DROPMALFORMED").where("offset = 0").first()

    assert row is not None
    assert row.value.asDict(recursive=True) == {
        "place": {"city": "Bern"},
        "lines": [{"price": 1.5}, {"price": 2.5}],
    }


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("value struct<idd:bigint>", "no field 'idd'"),
        ("value struct<place:struct<town:string>>", "no field 'town'"),
        ("value struct<id:int>", "expected type struct<id:bigint>, found struct<id:int>"),
        ("value binary", "expected type struct<id:bigint"),
    ],
)
def test_a_schema_that_does_not_fit_is_refused(logs: Path, schema: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        source(logs).reader(StructType.fromDDL(schema))


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_columns_that_are_not_in_a_schema_are_not_planned(tmp_path: Path) -> None:
    append(tmp_path / "logs", "orders", [(None, b"text")])

    # There is no topic of a registry.
    reader = source(tmp_path / "logs").reader(StructType.fromDDL("offset bigint"))

    assert len(reader.partitions()) == 1


def test_filters_of_typed_columns_are_left_to_spark(logs: Path) -> None:
    EqualTo = getattr(datasource, "EqualTo", None)  # noqa: N806
    if EqualTo is None:
        pytest.skip("Filters are new in Spark 4.1")

    class Reader(PushdownReader):
        @property
        def predicate(self) -> Any:
            return self._predicate

    options = parse_read_options({"path": str(logs), "subscribe": "orders", "key_format": "string"})
    formats = plan_formats(FileSystem(), options)
    by_key, by_offset = EqualTo(("key",), "k"), EqualTo(("offset",), 1)
    assert to_predicate(EqualTo(("key",), b"k")) is not None

    reader = Reader(options, (), formats)

    assert list(reader.pushFilters([EqualTo(("key",), b"k"), by_key, by_offset])) != []
    assert reader.predicate.children == (to_predicate(by_offset),)


@pytest.mark.thorough
@pytest.mark.spark
def test_an_error_of_a_record_reaches_the_user(spark: SparkSession, logs: Path) -> None:
    with pytest.raises(
        Exception, match="ValueDecodeError: The value of orders-0 at offset 2 does not decode: unframed"
    ):
        load(spark, logs).collect()


@pytest.mark.thorough
@pytest.mark.spark
def test_a_stream_reads_typed_columns(spark: SparkSession, logs: Path, tmp_path: Path) -> None:
    found: list[Any] = []
    options = {
        "subscribe": "orders",
        "valueFormat": "registry",
        "startingOffsets": "earliest",
        "mode": "DROPMALFORMED",
    }

    def run() -> None:
        frame = spark.readStream.format("segmentlog").options(**options).load(str(logs))
        writer = frame.writeStream.foreachBatch(
            lambda batch, _: found.extend(batch.select("value.id").collect())
        )
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        try:
            query.processAllAvailable()
        finally:
            query.stop()

    run()
    append(logs, "orders", [(None, framed(11, NESTED, {**VALUE, "id": 8}))])
    run()

    assert [row.id for row in found] == [7, None, 8]
    offsets = (tmp_path / "checkpoint" / "offsets" / "1").read_text().splitlines()[-1]
    assert json.loads(offsets) == {":valueSchemaId": {"0": 11}, "orders": {"0": 4}}
