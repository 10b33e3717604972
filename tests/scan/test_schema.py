"""Columns: the schema that Spark's Kafka source has, and projections of it."""

from __future__ import annotations

import pyarrow as pa
import pytest

from storage_core.errors import OptionError
from storage_core.scan.spans import METADATA_TYPE, project, record_schema

KAFKA_SOURCE = [
    ("key", pa.binary()),
    ("value", pa.binary()),
    ("topic", pa.string()),
    ("partition", pa.int32()),
    ("offset", pa.int64()),
    ("timestamp", pa.timestamp("us", tz="UTC")),
    ("timestampType", pa.int32()),
]
HEADERS = pa.field("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])))


def test_the_columns_are_those_of_sparks_kafka_source():
    assert record_schema() == pa.schema(KAFKA_SOURCE)


def test_headers_and_metadata_follow_in_this_order():
    assert record_schema(include_headers=True) == pa.schema([*KAFKA_SOURCE, HEADERS])
    both = record_schema(include_headers=True, include_metadata=True)
    assert both == pa.schema([*KAFKA_SOURCE, HEADERS, ("_metadata", METADATA_TYPE)])
    assert record_schema(include_metadata=True).names[-2:] == ["timestampType", "_metadata"]


def test_the_fields_of_metadata():
    assert [(field.name, str(field.type)) for field in METADATA_TYPE] == [
        ("segment", "string"),
        ("position", "int64"),
        ("batchOffset", "int64"),
        ("leaderEpoch", "int32"),
        ("producerId", "int64"),
        ("producerEpoch", "int32"),
        ("sequence", "int32"),
        ("isTransactional", "bool"),
        ("compression", "string"),
        ("magic", "int32"),
        ("timestampMs", "int64"),
    ]


def test_every_column_is_nullable():
    schema = record_schema(include_headers=True, include_metadata=True)
    assert all(field.nullable for field in schema)
    assert all(field.nullable for field in METADATA_TYPE)


def test_a_projection_keeps_the_order_asked_for():
    assert project(record_schema(), ("offset", "key")) == pa.schema(
        [("offset", pa.int64()), ("key", pa.binary())]
    )
    assert project(record_schema(), None) == record_schema()


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (("key", "offsets"), "no column is named 'offsets'. Choose from key, value, topic"),
        (("headers",), "no column is named 'headers'"),
        (("Key",), "no column is named 'Key'"),
        (("key", "value", "key"), "'key' is named twice"),
    ],
)
def test_a_projection_of_other_columns_is_refused(columns, message):
    with pytest.raises(OptionError, match=message):
        project(record_schema(), columns)
