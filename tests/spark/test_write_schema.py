"""The frame's columns: found by name, checked before a task starts, refused in the words of Spark's Kafka sink."""

from __future__ import annotations

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from spark_segmentlog.write_columns import WriteColumns, write_columns
from spark_segmentlog.write_options import write_options
from storage_core.errors import InvalidRecordError

HEADERS = ArrayType(StructType().add("key", StringType()).add("value", BinaryType()))
WITH_TOPIC = write_options({"path": "/a", "topic": "t"})
WITHOUT_TOPIC = write_options({"path": "/a"})
PRESERVE = write_options({"path": "/a", "topic": "t", "preserveOffsets": "true"})


def frame(**columns):
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def test_a_value_is_enough_when_the_options_name_the_topic():
    assert write_columns(frame(value=BinaryType()), WITH_TOPIC) == WriteColumns(value=0)


def test_all_columns_in_any_order_and_others_left_alone():
    schema = frame(
        other=LongType(),
        headers=HEADERS,
        partition=IntegerType(),
        value=StringType(),
        timestamp=TimestampType(),
        offset=LongType(),
        timestampType=IntegerType(),
        key=BinaryType(),
        topic=StringType(),
    )
    found = write_columns(schema, WITHOUT_TOPIC)
    assert found == WriteColumns(value=3, key=7, topic=8, partition=2, headers=1, timestamp=4)
    assert found.of_records == (("value", 3), ("key", 7), ("timestamp", 4), ("headers", 1))


def test_what_is_read_can_be_written():
    schema = frame(
        key=BinaryType(),
        value=BinaryType(),
        topic=StringType(),
        partition=IntegerType(),
        offset=LongType(),
        timestamp=TimestampType(),
        timestampType=IntegerType(),
    )
    found = write_columns(schema, PRESERVE)
    assert (found.offset, found.partition, found.topic) == (4, 3, None)
    assert found.of_records[-1] == ("offset", 4)


def test_nullability_does_not_matter():
    schema = StructType(
        [
            StructField("value", BinaryType(), nullable=False),
            StructField(
                "headers",
                ArrayType(
                    StructType(
                        [StructField("key", StringType(), False), StructField("value", BinaryType(), False)]
                    ),
                    containsNull=False,
                ),
                nullable=False,
            ),
        ]
    )
    assert write_columns(schema, WITH_TOPIC) == WriteColumns(value=0, headers=1)


def test_the_topic_option_beats_the_column_whatever_its_type():
    found = write_columns(frame(value=StringType(), topic=IntegerType()), WITH_TOPIC)
    assert found.topic is None


def test_a_topic_is_needed():
    with pytest.raises(InvalidRecordError) as raised:
        write_columns(frame(value=StringType()), WITHOUT_TOPIC)
    assert str(raised.value) == (
        "topic option required when no 'topic' attribute is present. Use the topic option for setting a topic."
    )


def test_a_value_is_needed():
    with pytest.raises(InvalidRecordError, match=r"^Required attribute 'value' not found.$"):
        write_columns(frame(key=StringType()), WITH_TOPIC)


@pytest.mark.parametrize(
    ("column", "kind", "message"),
    [
        ("topic", IntegerType(), "topic attribute unsupported type int. topic must be a(n) string"),
        ("key", LongType(), "key attribute unsupported type bigint. key must be a(n) string or binary"),
        ("value", IntegerType(), "value attribute unsupported type int. value must be a(n) string or binary"),
        (
            "partition",
            ShortType(),
            "partition attribute unsupported type smallint. partition must be a(n) int",
        ),
        ("partition", LongType(), "partition attribute unsupported type bigint. partition must be a(n) int"),
        (
            "headers",
            ArrayType(StringType()),
            "headers attribute unsupported type array<string>. headers must be a(n) array<struct<key:string,",
        ),
        (
            "headers",
            ArrayType(StructType().add("key", StringType()).add("value", StringType())),
            "headers attribute unsupported type array<struct<key:string,value:string>>. headers must be",
        ),
        (
            "timestamp",
            TimestampNTZType(),
            "timestamp attribute unsupported type timestamp_ntz. timestamp must be a(n) timestamp. It has no time zone",
        ),
        ("timestamp", LongType(), "timestamp attribute unsupported type bigint. timestamp must be"),
    ],
)
def test_wrong_types_are_refused(column, kind, message):
    schema = frame(**{"value": BinaryType(), "topic": StringType(), column: kind})
    with pytest.raises(InvalidRecordError) as raised:
        write_columns(schema, WITHOUT_TOPIC)
    assert str(raised.value).startswith(message)


def test_the_first_error_is_the_one_that_kafka_reports():
    with pytest.raises(InvalidRecordError, match=r"^topic attribute"):
        write_columns(frame(topic=IntegerType(), key=IntegerType()), WITHOUT_TOPIC)
    with pytest.raises(InvalidRecordError, match=r"^key attribute"):
        write_columns(frame(key=IntegerType()), WITH_TOPIC)


def test_preserved_offsets_need_offset_and_partition():
    value, offset, partition = BinaryType(), LongType(), IntegerType()
    with pytest.raises(
        InvalidRecordError, match=r"^Required attribute 'offset' not found. With preserveOffsets"
    ):
        write_columns(frame(value=value, partition=partition), PRESERVE)
    with pytest.raises(InvalidRecordError, match=r"^Required attribute 'partition' not found"):
        write_columns(frame(value=value, offset=offset), PRESERVE)
    with pytest.raises(
        InvalidRecordError, match=r"^offset attribute unsupported type int. offset must be a\(n\) bigint"
    ):
        write_columns(frame(value=value, partition=partition, offset=IntegerType()), PRESERVE)


def test_an_offset_of_any_type_is_left_alone_without_preserve_offsets():
    assert write_columns(frame(value=BinaryType(), offset=StringType()), WITH_TOPIC).offset is None
