"""Which columns of a DataFrame are written: names are matched as Spark matches them, and none is lost silently."""

from __future__ import annotations

import logging

import pyarrow as pa
import pytest
from pyspark.errors import PythonException
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import StringType, StructType, TimestampType

from spark_segmentlog import SegmentLogDataSource
from spark_segmentlog.write_columns import write_columns
from spark_segmentlog.write_options import write_options
from storage_core.errors import InvalidRecordError
from tests.spark.writers import KINDS, clear_line, rows, staged_files, write

WITH_TOPIC = write_options({"path": "/a", "topic": "t"})


def frame(*names):
    schema = StructType()
    for name in names:
        schema.add(name, KINDS.get(name.lower(), StringType()))
    return schema


def writer_of_names(path, *names):
    options = CaseInsensitiveDict({"path": str(path), "topic": "t"})
    return SegmentLogDataSource(options).writer(frame(*names), overwrite=False)


@pytest.mark.parametrize("name", ["value", "key", "timestamp", "headers", "partition"])
def test_a_name_may_have_any_case(name):
    given = name.capitalize()
    names = (given,) if name == "value" else ("value", given)
    columns = write_columns(frame(*names), WITH_TOPIC)
    assert getattr(columns, name) == len(names) - 1
    assert columns.in_other_case == (given,)
    assert columns.look_alikes == ()


def test_a_topic_column_may_have_any_case():
    columns = write_columns(frame("VALUE", "Topic"), write_options({"path": "/a"}))
    assert (columns.value, columns.topic) == (0, 1)


def test_the_exact_name_goes_first_where_names_have_case():
    columns = write_columns(frame("Value", "value", "VALUE"), WITH_TOPIC)
    assert columns.value == 1
    assert columns.in_other_case == ()
    assert columns.in_two_cases == (("value", "Value"), ("value", "VALUE"))
    assert columns.look_alikes == (("Value", "value"), ("VALUE", "value"))


def test_two_columns_that_differ_in_case_are_refused_where_names_have_none(root):
    twice = pa.record_batch({"value": [b"v"], "key": [b"k"], "Key": [b"l"]})
    with pytest.raises(
        InvalidRecordError, match=r"^Expected one column 'key', found 'key' and 'Key', which are the same"
    ):
        write(writer_of_names(root, "value", "key", "Key"), [twice])
    assert staged_files(root) == []


def test_of_two_other_spellings_neither_is_chosen():
    with pytest.raises(InvalidRecordError, match="found 'KEY' and 'Key', which differ in case only"):
        write_columns(frame("value", "KEY", "Key"), WITH_TOPIC)


def test_types_are_checked_in_any_case():
    with pytest.raises(InvalidRecordError, match=r"unsupported type string in column 'Timestamp'\."):
        write_columns(StructType().add("value", StringType()).add("Timestamp", StringType()), WITH_TOPIC)


@pytest.mark.parametrize(
    ("left_out", "meant"), [("header", "headers"), ("Keys", "key"), ("time_stamp", "timestamp")]
)
def test_a_column_that_is_left_out_and_looks_like_ours_is_a_warning(tmp_path, caplog, left_out, meant):
    with caplog.at_level(logging.WARNING):
        writer_of_names(tmp_path, "value", left_out)
    assert [message.split(" of the DataFrame")[0] for message in caplog.messages] == [
        f"segmentlog left out the column '{left_out}'"
    ]
    assert f"looks like '{meant}'" in caplog.messages[0]


def test_the_columns_of_a_read_and_other_ones_are_left_out_in_silence(tmp_path, caplog):
    schema = frame(
        "value", "topic", "offset", "timestampType", "_metadata", "name", "id", "offsets", "topics"
    )
    schema.add("event_timestamp", TimestampType())
    with caplog.at_level(logging.WARNING):
        SegmentLogDataSource(CaseInsensitiveDict({"path": str(tmp_path), "topic": "t"})).writer(schema, False)
    assert caplog.messages == []


def test_columns_in_another_case_are_written(root):
    keyed = pa.record_batch({"VALUE": [b"v"], "Key": [b"k"]})
    write(writer_of_names(root, "VALUE", "Key"), [keyed])
    assert rows(root).select(["key", "value"]).to_pylist() == [{"key": b"k", "value": b"v"}]


@pytest.mark.thorough
@pytest.mark.spark
def test_names_have_case_in_a_session_where_they_do(spark, root, conf):
    def save(*columns):
        spark.range(1).selectExpr(*columns).write.format("segmentlog").mode("append").option(
            "topic", "t"
        ).save(str(root))

    save("'v' AS value", "'k' AS Key", "timestamp_millis(5) AS Timestamp")
    conf("spark.sql.caseSensitive", "true")
    with pytest.raises(PythonException) as raised:
        save("'v' AS value", "'k' AS Key")
    assert "because spark.sql.caseSensitive is true, found 'Key'." in clear_line(raised.value)
    save("'w' AS value", "'k' AS key", "'l' AS Key")
    found = rows(root).select(["key", "value"]).to_pylist()
    assert found == [{"key": b"k", "value": b"v"}, {"key": b"k", "value": b"w"}]
    assert rows(root)["timestamp"].cast(pa.int64()).to_pylist()[0] == 5000
