"""The batch writer without Spark: tasks stage rows, and one commit publishes them."""

from __future__ import annotations

import os
import time

import pyarrow as pa
import pytest
from pyspark.sql.datasource import CaseInsensitiveDict, DataSourceArrowWriter
from pyspark.sql.types import BinaryType, StringType, StructType

from spark_segmentlog import SegmentLogDataSource
from storage_core.errors import InvalidTimestampError
from tests.spark.writers import batch, rows, sent, stage, staged_files, write, writer_of


def test_it_takes_arrow_batches(root):
    assert isinstance(writer_of(root, "value", topic="t"), DataSourceArrowWriter)


def test_every_column_comes_back(root):
    headers = [[("a", b"1"), ("a", None)], None, []]
    given = batch(
        key=pa.array([b"k", None, b""]),
        value=pa.array([b"v", b"", None]),
        topic=pa.array(["t", "u", "t"]),
        partition=pa.array([1, 0, 1], pa.int32()),
        timestamp=pa.array([1_700_000_000_000_999, -1, 7_000], pa.timestamp("us", "America/New_York")),
        headers=pa.array(headers, pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    )
    write(writer_of(root, *given.schema.names, partitions="2"), [given])
    found = rows(root)
    assert found["topic"].to_pylist() == ["t", "t", "u"]
    assert found["partition"].to_pylist() == [1, 1, 0]
    assert found["offset"].to_pylist() == [0, 1, 0]
    assert found["key"].to_pylist() == [b"k", b"", None]
    assert found["value"].to_pylist() == [b"v", None, b""]
    # Milliseconds, rounded down.
    assert found["timestamp"].cast(pa.int64()).to_pylist() == [1_700_000_000_000_000, 7_000, -1_000]
    assert found["headers"].to_pylist() == [
        [{"key": "a", "value": b"1"}, {"key": "a", "value": None}],
        None,
        None,
    ]


@pytest.mark.parametrize("text", [pa.string(), pa.large_string()])
@pytest.mark.parametrize("data", [pa.binary(), pa.large_binary()])
def test_strings_become_utf_8_with_either_offset_width(root, text, data):
    schema = StructType().add("key", StringType()).add("value", BinaryType()).add("topic", StringType())
    source = SegmentLogDataSource(CaseInsensitiveDict({"path": str(root)}))
    given = batch(
        key=pa.array(["ä", None], text),
        value=pa.array([b"\xff", b"v"], data),
        topic=pa.array(["t"] * 2, text),
    )
    write(source.writer(schema, overwrite=False), [given])
    assert rows(root)["key"].to_pylist() == ["ä".encode(), None]
    assert rows(root)["value"].to_pylist() == [b"\xff", b"v"]


def test_a_record_without_a_timestamp_gets_that_of_the_job(root):
    before_us = int(time.time() * 1000) * 1000
    writer = writer_of(root, "value", "timestamp", topic="t")
    after_us = int(time.time() * 1000) * 1000
    write(writer, [batch(value=[b"v"], timestamp=pa.array([None], pa.timestamp("us", "UTC")))])
    write(writer_of(root, "value", topic="t"), [batch(value=[b"v"])])
    first, second = rows(root)["timestamp"].cast(pa.int64()).to_pylist()
    assert before_us <= first <= after_us <= second


def test_nothing_is_visible_before_the_commit(root):
    writer = writer_of(root, "value", topic="t")
    message = stage(writer, [batch(value=[b"1"])])
    assert [name for name in os.listdir(root) if name.startswith("t-")] == []
    writer.commit([message])
    assert rows(root)["value"].to_pylist() == [b"1"]
    assert staged_files(root) == []


def test_rows_are_in_the_order_of_the_tasks(root):
    writer = writer_of(root, "value", topic="t")
    messages = [
        stage(writer, [batch(value=[b"%d" % task])], task, attempt)
        for task, attempt in ((2, 5), (0, 6), (1, 7))
    ]
    writer.commit([messages[1], messages[2], messages[0]])
    assert rows(root)["value"].to_pylist() == [b"0", b"1", b"2"]


def test_a_task_without_rows_stages_nothing(root):
    writer = writer_of(root, "value", topic="t")
    messages = [writer.write(iter([])), writer.write(iter([batch(value=pa.array([], pa.binary()))]))]
    assert staged_files(root) == []
    writer.commit(messages)
    assert rows(root, subscribe="t").num_rows == 0


def test_an_abort_removes_what_was_staged_and_commits_nothing(root):
    writer = writer_of(root, "value", topic="t")
    message = writer.write(iter([batch(value=[b"1"])]))
    assert staged_files(root)
    sent(writer).abort([None, message])
    assert staged_files(root) == []
    assert not (root / "t-0").exists()


def test_an_abort_after_the_commit_has_no_effect(root):
    writer = writer_of(root, "value", topic="t")
    message = writer.write(iter([batch(value=[b"1"])]))
    writer.commit([message])
    sent(writer).abort([message])
    assert rows(root)["value"].to_pylist() == [b"1"]


def test_a_version_that_is_committed_is_not_written_again(root):
    given = {"topic": "t", "txnAppId": "app", "txnVersion": "7"}
    write(writer_of(root, "value", **given), [batch(value=[b"1"])])
    again = writer_of(root, "value", **given)
    taken = iter([batch(value=[b"2"]), batch(value=[b"3"])])
    message = again.write(taken)
    # Spark expects the rows to be consumed.
    assert next(taken, None) is None
    again.commit([message])
    assert rows(root)["value"].to_pylist() == [b"1"]
    write(writer_of(root, "value", **given | {"txnVersion": "8"}), [batch(value=[b"2"])])
    assert rows(root)["value"].to_pylist() == [b"1", b"2"]


def test_rows_are_written_while_spark_is_asked_for_more(root):
    """The iterator ends only after a staged file exists: an encoder that first collects all batches never ends."""
    seen = []

    def batches():
        for _ in range(40):
            yield batch(value=[b"x" * 1000] * 1000)
        deadline = time.monotonic() + 300
        while not seen and time.monotonic() < deadline:
            seen.extend(staged_files(root))
            time.sleep(0.001)
        yield batch(value=[b"last"])

    writer = writer_of(root, "value", topic="t", flush="none")
    writer.commit([writer.write(batches())])
    assert seen
    assert rows(root).num_rows == 40_001


def test_ignored_options_are_one_log_line_without_their_values(root, caplog):
    writer_of(root, "value", topic="t", kafka__acks="all", subscribe="secret")
    messages = [record.message for record in caplog.records if record.name.startswith("spark_segmentlog")]
    assert len(messages) == 1
    assert "ignored kafka.acks, subscribe," in messages[0]
    assert "secret" not in messages[0]


# -- Limits of timestamps --------


HOUR_MS = 3_600_000


def rows_at(*shifts_ms):
    now_ms = time.time_ns() // 1_000_000
    return batch(
        value=pa.array([b"v"] * len(shifts_ms)),
        topic=pa.array(["a", "b"] * len(shifts_ms))[: len(shifts_ms)],
        timestamp=pa.array(
            [None if each is None else (now_ms + each) * 1000 for each in shifts_ms],
            pa.timestamp("us", "UTC"),
        ),
    )


@pytest.mark.parametrize(
    ("options", "allowed", "refused"),
    [
        ({"message__timestamp__before__max__ms": HOUR_MS}, [0, None, -HOUR_MS // 2, 10**12], -2 * HOUR_MS),
        ({"message__timestamp__after__max__ms": HOUR_MS}, [0, None, HOUR_MS // 2, -(10**12)], 2 * HOUR_MS),
        (
            {"message__timestamp__after__max__ms": 10_000, "message__timestamp__before__max__ms": 10_000},
            [0, None],
            20_000,
        ),
    ],
    ids=str,
)
def test_a_row_beyond_a_limit(tmp_path, options, allowed, refused):
    writer = writer_of(tmp_path / "logs", "value", "topic", "timestamp", **options)
    write(writer, [rows_at(*allowed)])
    assert rows(tmp_path / "logs").num_rows == len(allowed)
    writer = writer_of(tmp_path / "logs", "value", "topic", "timestamp", **options)
    # The second one is of topic b.
    wrong = rows_at(0, refused)
    timestamp_ms = wrong.column("timestamp").cast(pa.int64())[1].as_py() // 1000
    with pytest.raises(
        InvalidTimestampError, match=rf"a row for b-0: Expected a timestamp .* found {timestamp_ms}"
    ):
        stage(writer, [wrong])
    writer.abort([])
    assert rows(tmp_path / "logs").num_rows == len(allowed)


def test_without_limits_all_timestamps_are_kept(tmp_path):
    write(writer_of(tmp_path / "logs", "value", "topic", "timestamp"), [rows_at(0, -(10**12), 10**13)])
    assert rows(tmp_path / "logs").num_rows == 3
