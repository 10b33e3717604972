"""Columns: Spark's types compared with Kafka's and Arrow's, and valid user schemas."""

from __future__ import annotations

import inspect

import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType, TimestampType

from spark_segmentlog.schema import ProjectedColumn, projected_columns, source_schema
from storage_core.errors import OptionError
from storage_core.options import parse_read_options
from storage_core.scan.spans import record_schema

# As printed by spark.read.format("kafka").load().schema, without and with includeHeaders.
KAFKA = (
    "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,"
    "timestampType:int>"
)
KAFKA_WITH_HEADERS = KAFKA.replace(
    "timestampType:int>", "timestampType:int,headers:array<struct<key:string,value:binary>>>"
)


def options(**given):
    return parse_read_options({"path": "/a", **given})


def nullable_flags(data_type):
    """Return all flags of a type, at every depth."""
    described = data_type.jsonValue()
    flags = []

    def collect(part):
        if isinstance(part, dict):
            flags.extend(value for name, value in part.items() if name in {"nullable", "containsNull"})
            for value in part.values():
                collect(value)
        elif isinstance(part, list):
            for value in part:
                collect(value)

    collect(described)
    return flags


def test_the_columns_are_those_of_sparks_kafka_source():
    assert source_schema(options()).simpleString() == KAFKA
    assert source_schema(options(includeHeaders=True)).simpleString() == KAFKA_WITH_HEADERS


def test_metadata_comes_last():
    names = source_schema(options(includeMetadata=True)).fieldNames()
    assert names[-2:] == ["timestampType", "_metadata"]
    assert source_schema(options(includeMetadata=True, includeHeaders=True)).fieldNames()[7:] == [
        "headers",
        "_metadata",
    ]


def test_everything_is_nullable():
    flags = nullable_flags(source_schema(options(includeMetadata=True, includeHeaders=True)))
    assert len(flags) == 9 + 3 + 11
    assert all(flags)


def test_spark_expects_the_very_arrow_schema_that_records_have():
    schema = source_schema(options(includeMetadata=True, includeHeaders=True))
    takes_zone = "timezone" in inspect.signature(to_arrow_schema).parameters
    # Spark 4.0 knows no other zone.
    expected = to_arrow_schema(schema, **({"timezone": "UTC"} if takes_zone else {}))
    assert expected.equals(record_schema(include_headers=True, include_metadata=True))


def test_the_option_columns_is_the_schema_in_its_order():
    assert source_schema(options(columns="offset, key")).fieldNames() == ["offset", "key"]


def test_a_schema_in_any_order_is_the_projection():
    schema = StructType().add("timestamp", TimestampType()).add("offset", LongType())
    assert projected_columns(schema, options()) == (ProjectedColumn("timestamp"), ProjectedColumn("offset"))


def test_headers_and_metadata_need_no_option_when_the_schema_names_them():
    schema = source_schema(options(includeMetadata=True, includeHeaders=True))
    assert len(projected_columns(schema, options())) == 9


def test_a_flag_is_honoured_where_no_null_can_be():
    schema = StructType([StructField("offset", LongType(), nullable=False)])
    assert projected_columns(schema, options()) == (ProjectedColumn("offset", nullable=False),)


@pytest.mark.parametrize(
    ("schema", "given", "message"),
    [
        (StructType(), {}, "names no column: expected at least one of key, value"),
        (StructType().add("ofset", LongType()), {}, "Column 'ofset' .* Did you mean 'offset'?"),
        (StructType().add("timestamptype", IntegerType()), {}, "Did you mean 'timestampType'?"),
        (StructType().add("Offset", LongType()), {}, "Did you mean 'offset'?"),
        (StructType().add("xyz", LongType()), {}, "Column 'xyz' .* expected one of key, value, topic"),
        (StructType().add("offset", IntegerType()), {}, "'offset' .* expected type bigint, found int"),
        (StructType().add("key", StringType()), {}, "'key' .* expected type binary, found string"),
        (
            StructType().add("_metadata", StructType().add("segment", StringType())),
            {},
            "'_metadata' .* expected type struct<segment:string,position:bigint",
        ),
        (StructType([StructField("key", source_schema(options())["key"].dataType, False)]), {}, "NOT NULL"),
        (StructType().add("offset", LongType()).add("offset", LongType()), {}, "found twice"),
        (StructType().add("offset", LongType()), {"columns": "key"}, "option 'columns' names"),
    ],
)
def test_a_wrong_schema_is_refused_in_one_line_that_names_the_column(schema, given, message):
    with pytest.raises(OptionError, match=message) as raised:
        projected_columns(schema, options(**given))
    assert "\n" not in str(raised.value)
