"""Records framed for a schema registry, read as columns in each way, are what independent decoders make of them.

The cells of all ways and topics make up one row of the matrix; `tests/values/README.md` describes the logs.
"""

from __future__ import annotations

import json
from contextlib import redirect_stdout
from io import BytesIO, TextIOWrapper
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import storage_core
from conformance.matrix import CHECKS_PROPERTY
from conformance.spark_process import ClassicSpark
from storage_core.cli.main import segmentlog
from storage_core.filesystem import FileSystem
from storage_core.options import parse_stream_options
from storage_core.scan.read import read_schema, read_task
from storage_core.scan.stream import MicroBatchPlanner
from storage_core.scan.typed_columns import PinnedFormats
from tests.values.expected_rows import differences, rows_of, rows_without_errors
from tests.values.typed_logs import expected_values
from tests.values.written_logs import read_parquet

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from conformance.spark_process import ConnectSpark

_TOPICS = {
    name: topic for name, topic in expected_values()["topics"].items() if topic["value_subject"] is not None
}
# Spark starts queries slowly; how it is told to read does not depend on the topic.
_FEW = ("avro-mixed-bad", "proto-nested")


def _options(topic: str) -> dict[str, Any]:
    options = {"subscribe": topic, "value_format": "registry"}
    return options | ({"key_format": "registry"} if _TOPICS[topic]["key_subject"] else {})


def _permissive(topic: str) -> dict[str, Any]:
    return _options(topic) | {"mode": "PERMISSIVE"}


def _table(logs: Path, topic: str) -> pa.Table:
    return storage_core.read_table(logs, **_permissive(topic))


def _micro_batches(logs: Path, topic: str) -> pa.Table:
    options = parse_stream_options(
        {
            "path": str(logs),
            "starting_offsets": "earliest",
            "max_offsets_per_trigger": 50,
            **_permissive(topic),
        }
    )
    filesystem = FileSystem()
    formats = PinnedFormats(filesystem, options.read)
    stream = MicroBatchPlanner(filesystem, options, formats)
    schema = read_schema(options.read, formats.formats)
    batches: list[pa.RecordBatch] = []
    start = stream.initial_offsets()
    while (end := stream.latest_offsets(start)) != start:
        for task in stream.plan(start, end).tasks:
            batches += read_task(filesystem, task, schema)
        start = end
    return pa.Table.from_batches(batches, schema)


def _spark(logs: Path, topic: str, session: ClassicSpark | ConnectSpark) -> pa.Table:
    return session.read(logs, _permissive(topic))


def _spark_stream(logs: Path, topic: str, session: ClassicSpark) -> pa.Table:
    return session.stream(logs, {"starting_offsets": "earliest", **_permissive(topic)})


_WAYS: dict[str, Callable[..., pa.Table]] = {"table": _table, "streams": _micro_batches}
_SPARK_WAYS: dict[str, Callable[..., pa.Table]] = {"spark": _spark, "streams": _spark_stream}


@pytest.fixture
def note_checks(request: pytest.FixtureRequest) -> Callable[[int], None]:
    return lambda count: request.node.user_properties.append((CHECKS_PROPERTY, count))


def _check(table: pa.Table, topic: str) -> int:
    partitions = _TOPICS[topic]["partitions"]
    for column in ("value", "key") if _TOPICS[topic]["key_subject"] else ("value",):
        assert differences(rows_of(table, column), partitions, column) == []
    return table.num_rows


@pytest.mark.conformance
@pytest.mark.cases(20, 100)
@pytest.mark.parametrize("typed_way", _WAYS)
@pytest.mark.parametrize("topic", _TOPICS)
def test_columns(typed_way: str, topic: str, typed_logs: Path, note_checks: Callable[[int], None]) -> None:
    note_checks(_check(_WAYS[typed_way](typed_logs, topic), topic))


@pytest.mark.conformance
@pytest.mark.spark
@pytest.mark.thorough
@pytest.mark.cases(0, 100)
@pytest.mark.parametrize(
    ("typed_way", "topic"),
    [*(("spark", topic) for topic in _TOPICS), *(("streams", topic) for topic in _FEW)],
)
def test_columns_of_spark(
    typed_way: str, topic: str, typed_logs: Path, note_checks: Callable[[int], None], spark: SparkSession
) -> None:
    note_checks(_check(_SPARK_WAYS[typed_way](typed_logs, topic, ClassicSpark(spark)), topic))


@pytest.mark.conformance
@pytest.mark.spark
@pytest.mark.thorough
@pytest.mark.cases(0, 100)
@pytest.mark.parametrize("typed_way", ["connect"])
@pytest.mark.parametrize("topic", _FEW)
def test_columns_of_connect(
    typed_way: str,
    topic: str,
    typed_logs: Path,
    note_checks: Callable[[int], None],
    connect_spark: ConnectSpark,
) -> None:
    note_checks(_check(_spark(typed_logs, topic, connect_spark), topic))


@pytest.mark.conformance
@pytest.mark.cases(4, 100)
@pytest.mark.parametrize("typed_way", ["cat"])
# Values that are bytes are printed as those of other topics.
@pytest.mark.parametrize("topic", [topic for topic in _TOPICS if topic != "avro-bytes"])
def test_json_of_cat(
    typed_way: str, topic: str, typed_logs: Path, note_checks: Callable[[int], None]
) -> None:
    printed = TextIOWrapper(BytesIO(), encoding="utf-8")
    arguments = ["cat", str(typed_logs), "-J", "--mode", "DROPMALFORMED"]
    for name, value in _options(topic).items():
        arguments += [f"--{name.replace('_', '-')}", value]
    with redirect_stdout(printed):
        segmentlog.main(arguments, standalone_mode=False)
    printed.flush()
    lines = map(json.loads, printed.buffer.getvalue().decode().splitlines())  # type: ignore[attr-defined]
    rows = [(line["partition"], line["offset"], line["payload"], None) for line in lines]

    assert differences(rows, rows_without_errors(_TOPICS[topic]["partitions"])) == []
    note_checks(len(rows))


@pytest.mark.conformance
@pytest.mark.cases(4, 100)
@pytest.mark.parametrize("typed_way", ["convert"])
# One has a record without fields, which Parquet cannot hold.
@pytest.mark.parametrize("topic", [topic for topic in _TOPICS if topic != "avro-nested"])
def test_parquet_of_convert(
    typed_way: str, topic: str, typed_logs: Path, tmp_path: Path, note_checks: Callable[[int], None]
) -> None:
    arguments = ["convert", str(typed_logs), "--to", str(tmp_path / "out"), "--mode", "PERMISSIVE", "--quiet"]
    for name, value in _options(topic).items():
        arguments += [f"--{name.replace('_', '-')}", value]
    with redirect_stdout(TextIOWrapper(BytesIO())):
        segmentlog.main(arguments, standalone_mode=False)

    note_checks(_check(read_parquet(tmp_path / "out"), topic))
