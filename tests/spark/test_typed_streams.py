"""A streaming query keeps the schema that its columns are read with, over restarts, in the offsets of its checkpoint."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import pytest

from spark_segmentlog.data_source import SegmentLogDataSource
from storage_core.errors import OptionError
from tests.values.written_logs import append, framed, record_schema, register

if TYPE_CHECKING:
    from pathlib import Path

FIRST = record_schema(id="long", note=("string", "first"))
SECOND = record_schema(id="long", note=("string", "second"))
WIDER = record_schema(id="long", note=("string", ""), more=("int", 0))


class Query:
    """A streaming query as Spark runs it: a checkpoint of offsets, and a new DataFrame and reader for each run."""

    def __init__(self, logs: Path, **options: Any) -> None:
        self.options = {
            "path": str(logs),
            "subscribe": "orders",
            "startingOffsets": "earliest",
            "valueFormat": "registry",
            **options,
        }
        self.ends: list[str] = []
        self.initial = "{}"
        self.start()

    def start(self, *, knows_starts: bool = True, **options: Any) -> None:
        self.options |= options
        source = SegmentLogDataSource(dict(self.options))
        self.reader = source.streamReader(source.schema())
        if not knows_starts and self.ends:
            last = json.loads(self.ends[-1])
            assert self.reader.partitions(last, last) == []

    def run_batch(self, *, knows_starts: bool = True) -> list[Any]:
        start = json.loads(self.ends[-1]) if self.ends else self.reader.initialOffset()
        end = self.reader.latestOffset(start) if knows_starts else self.reader.latestOffset()
        self.ends.append(json.dumps(end))
        return self.read(start, json.loads(self.ends[-1]))

    def repeat_first_batch(self) -> list[Any]:
        return self.read(self.reader.initialOffset(), json.loads(self.ends[0]))

    def read(self, start: Any, end: Any) -> list[Any]:
        batches = [batch for task in self.reader.partitions(start, end) for batch in self.reader.read(task)]
        return [value for batch in batches for value in batch["value"].to_pylist()]


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    folder = tmp_path / "logs"
    register(folder, "orders-value", 1, 11, FIRST)
    append(folder, "orders", [(None, framed(11, FIRST, {"id": 1, "note": "a"}))])
    return folder


def add(logs: Path, schema_id: int, schema: Any, **fields: Any) -> None:
    append(logs, "orders", [(None, framed(schema_id, schema, fields))])


BARE = record_schema(id="long")


@pytest.mark.parametrize("knows_starts", [True, False])
def test_a_restarted_query_reads_with_the_schema_it_was_begun_with(
    logs: Path, caplog: pytest.LogCaptureFixture, knows_starts: bool
) -> None:
    caplog.set_level(logging.WARNING)
    query = Query(logs)
    assert query.run_batch(knows_starts=knows_starts) == [{"id": 1, "note": "a"}]
    assert json.loads(query.ends[0]) == {":valueSchemaId": {"0": 11}, "orders": {"0": 1}}
    register(logs, "orders-value", 2, 12, SECOND)
    register(logs, "bare-value", 1, 13, BARE)
    add(logs, 13, BARE, id=2)

    query.start(knows_starts=knows_starts)

    # The default is that of the first version, not of the newer one.
    assert query.run_batch(knows_starts=knows_starts) == [{"id": 2, "note": "first"}]
    assert json.loads(query.ends[1]) == {":valueSchemaId": {"0": 11}, "orders": {"0": 2}}
    assert len([text for text in caplog.messages if "is newer than" in text]) == 1


def test_a_first_batch_that_is_repeated_reads_with_the_same_schema(logs: Path) -> None:
    query = Query(logs)
    register(logs, "bare-value", 1, 13, BARE)
    add(logs, 13, BARE, id=2)
    assert [row["note"] for row in query.run_batch()] == ["a", "first"]
    register(logs, "orders-value", 2, 12, SECOND)

    query.start()

    assert [row["note"] for row in query.repeat_first_batch()] == ["a", "first"]


def test_a_restart_with_other_columns_fails_and_says_what_to_do(logs: Path) -> None:
    query = Query(logs)
    query.run_batch()
    register(logs, "orders-value", 2, 12, WIDER)
    add(logs, 12, WIDER, id=2, note="b", more=3)
    query.start()

    with pytest.raises(OptionError, match=r"begun with .* version 1 \(id 11\).* Set valueSchemaId=11"):
        query.run_batch()
    assert len(query.ends) == 1
    query.start(valueSchemaId="11")
    assert query.run_batch() == [{"id": 2, "note": "b"}]


def test_a_restart_with_a_field_that_the_schema_lacks_says_so(logs: Path) -> None:
    query = Query(logs)
    query.run_batch()
    register(logs, "orders-value", 2, 12, WIDER)
    query.start(columns="value.more")

    with pytest.raises(
        OptionError, match=r"begun with the values read by schema id 11\. Order has no field 'more'"
    ):
        query.run_batch()


def test_a_running_query_learns_schemas_that_are_registered_meanwhile(logs: Path) -> None:
    query = Query(logs)
    query.run_batch()
    register(logs, "orders-value", 2, 12, WIDER)
    add(logs, 12, WIDER, id=2, note="b", more=3)

    assert query.run_batch() == [{"id": 2, "note": "b"}]


def test_a_query_may_be_started_for_a_topic_that_comes_later(logs: Path) -> None:
    register(logs, "later-value", 1, 21, BARE)
    query = Query(logs, subscribe="later")
    assert query.run_batch() == []
    append(logs, "later", [(None, framed(21, BARE, {"id": 1}))])

    assert query.run_batch() == [{"id": 1}]


def test_offsets_with_schema_ids_are_those_of_a_query_without(logs: Path) -> None:
    query = Query(logs)
    query.run_batch()
    add(logs, 11, FIRST, id=2, note="b")

    query.start(valueFormat="bytes")

    assert len(query.run_batch()) == 1
    assert json.loads(query.ends[-1]) == {"orders": {"0": 2}}
