"""Invalid writes: each fails with an error that says what to do, and changes no file in the log directory.

Mistakes in options and columns alone are in `test_write_options` and `test_write_schema`, rows that go nowhere in
`test_row_routing`. What a log directory must be, or must not hold, is tested with `tests/commit`.
"""

from __future__ import annotations

import errno
import os
import re
import struct
import zlib
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException

from storage_core import SegmentLogError, read_table
from storage_core.errors import (
    BatchTooLargeError,
    InvalidRecordError,
    LogDirectoryError,
    OptionError,
    RecordTooLargeError,
    StorageError,
)
from tests.faults.faulty_filesystem import Fault, FaultyCalls
from tests.spark import writers


def writer_of(path, *columns, **options):
    """Return a writer to topic ``t``, unless the options name another; the value None removes an option."""
    given = {name: value for name, value in {"topic": "t", **options}.items() if value is not None}
    return writers.writer_of(path, *(columns or ("value",)), **given)


def save(path, *columns, **options):
    """Write as Spark does: a failed task or commit aborts the job."""
    rows = options.pop("rows", None) or {"value": [b"1"]}
    writer = writer_of(path, *(columns or rows), **options)
    messages = [None]
    try:
        messages[0] = writer.write(iter([pa.record_batch(rows)]))
        writer.commit(messages)
    except SegmentLogError:
        writer.abort(messages)
        raise


def tree(path):
    """Return every file below a path with its content, and every directory."""
    found = {}
    for each in sorted(Path(path).rglob("*")):
        found[str(each)] = each.read_bytes() if each.is_file() else None
    return found


@pytest.fixture
def root(tmp_path):
    """Return a log directory with ten rows in topic ``t``."""
    path = tmp_path / "logs"
    save(path, rows={"value": [b"%d" % number for number in range(10)]})
    return path


@pytest.fixture
def refused(root, tmp_path):
    """Check that a write is refused, its message, and that nothing has changed."""

    def check(kind, message, path=root, what_to_do=None, **options):
        before = tree(tmp_path)
        with pytest.raises(kind, match=message) as raised:
            save(path, **options)
        assert tree(tmp_path) == before
        if what_to_do:
            assert re.search(what_to_do, str(raised.value)), str(raised.value)

    return check


# More than readers accept by default.
LARGE = b"x" * (65 << 20)


def int32(*numbers):
    return pa.array(numbers, pa.int32())


# -- Rows --------


@pytest.mark.parametrize(
    ("kind", "message", "what_to_do", "rows", "options"),
    [
        (
            OptionError,
            r"not to begin with '\.segmentlog-'",
            "Choose another name",
            {"value": [b"1"], "topic": [".segmentlog-commits"]},
            {"topic": None},
        ),
        (
            RecordTooLargeError,
            r"^Expected a batch of at most 67108864 bytes",
            r"max\.message\.bytes and maxDecompressedBatchBytes",
            {"value": [LARGE]},
            {"max__message__bytes": 70 << 20},
        ),
        (
            RecordTooLargeError,
            r"^Expected a batch of at most 67108864 bytes",
            r"max\.message\.bytes and maxDecompressedBatchBytes",
            {"value": [LARGE]},
            {"compression__type": "zstd"},
        ),
        (
            RecordTooLargeError,
            r"at most 1000 bytes, the limit max\.message\.bytes",
            "Raise|raise|smaller",
            {"value": [b"x" * 2000]},
            {"max__message__bytes": 1000},
        ),
    ],
    ids=["our own name", "batch's size", "batch's size inflated", "record's size"],
)
def test_rows_that_cannot_be_written(refused, kind, message, what_to_do, rows, options):
    refused(kind, message, what_to_do=what_to_do, rows=rows, **options)


@pytest.mark.parametrize(
    "options", [{"max__message__bytes": 70 << 20}, {"compression__type": "zstd"}], ids=["plain", "zstd"]
)
def test_a_large_row_is_written_for_readers_that_ask_for_it(root, options):
    save(root, rows={"value": [LARGE]}, maxDecompressedBatchBytes="70m", **options)
    with pytest.raises(BatchTooLargeError, match="maxDecompressedBatchBytes"):
        read_table(root)
    assert read_table(root, max_decompressed_batch_bytes="70m")["value"][-1].as_py() == LARGE


def test_the_first_and_the_last_timestamp_are_read_as_they_were_written(root):
    first, last = -9223372036854775000, 2**63 - 1
    column = pa.array([first, last], pa.int64()).cast(pa.timestamp("us", "UTC"))
    save(root, rows={"value": [b"first", b"last"], "timestamp": column}, topic="times")
    found = read_table(root, subscribe="times")["timestamp"].cast(pa.int64()).to_pylist()
    # The last one is truncated to milliseconds, like all timestamps.
    assert found == [first, last // 1000 * 1000]


def test_one_wrong_row_among_many_good_ones(refused):
    """Some good rows were staged before the wrong one."""
    rows = {"value": [b"x" * 100] * 400_000, "partition": int32(*[0] * 399_999, 7)}
    refused(InvalidRecordError, "^Partition 7 of topic t", rows=rows)


# -- Paths --------


@pytest.mark.parametrize("below", ["", "new", "new/er"])
def test_a_path_in_a_partition(refused, root, below):
    refused(
        LogDirectoryError,
        "found a path in a partition of one",
        path=root / "t-0" / below,
        what_to_do=f"Write to {root} with the option topic",
    )


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_that_may_not_be_written_to(refused, tmp_path):
    folder = tmp_path / "foreign"
    folder.mkdir()
    folder.chmod(0o555)
    refused(StorageError, "Permission denied", path=folder)
    refused(StorageError, "Permission denied", path=folder / "new")
    folder.chmod(0o755)


@pytest.mark.parametrize("error_number", [errno.EROFS, errno.EDQUOT, errno.EIO])
def test_a_file_system_that_refuses_everything(refused, tmp_path, error_number):
    with FaultyCalls(Fault(error_number, at=1, is_lasting=True)):
        refused(StorageError, re.escape(os.strerror(error_number)))
        refused(StorageError, re.escape(os.strerror(error_number)), path=tmp_path / "new")


def test_another_users_directory(refused, tmp_path):
    with FaultyCalls(Fault(errno.EACCES, at=1, is_lasting=True)):
        refused(SegmentLogError, "may not lock", what_to_do="Grant write access, or run as its owner")
        refused(SegmentLogError, "Permission denied|may not", path=tmp_path / "new")


def test_a_name_that_is_too_long(refused, tmp_path):
    refused(SegmentLogError, "File name too long", path=tmp_path / ("x" * 300))


def test_cyclic_links(refused, tmp_path):
    (tmp_path / "circle").symlink_to("circle")
    refused(SegmentLogError, "circle", path=tmp_path / "circle")


# -- What the directory holds --------


def test_a_home_directory(refused, tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letter.txt").write_bytes(b"Dear all")
    refused(LogDirectoryError, "found 'letter.txt'", path=tmp_path / "home", what_to_do="Choose another path")


@pytest.mark.parametrize("magic", [0, 1])
def test_old_formats_are_not_refused(root, magic):
    """A log may begin with old messages; new batches follow them."""
    directory = root / "old-0"
    directory.mkdir()
    content = (
        struct.pack(">bb", magic, 0)
        + (struct.pack(">q", 7) if magic else b"")
        + struct.pack(">ii", -1, 1)
        + b"v"
    )
    message = struct.pack(">I", zlib.crc32(content)) + content
    (directory / f"{0:020}.log").write_bytes(struct.pack(">qi", 0, len(message)) + message)
    (root / ".kafka_cleanshutdown").unlink()
    save(root, topic="old")
    assert read_table(root, subscribe="old")["value"].to_pylist() == [b"v", b"1"]


# -- In a session --------


@pytest.mark.spark
@pytest.mark.parametrize("mode", ["error", "errorifexists", "ignore", None])
def test_save_modes_that_spark_refuses(spark, root, tmp_path, mode):
    before = tree(tmp_path)
    writer = spark.sql("SELECT 'v' AS value").write.format("segmentlog").option("topic", "t")
    with pytest.raises(AnalysisException, match=r"Please use either the .Append. or .Overwrite. mode"):
        (writer.mode(mode) if mode else writer).save(str(root))
    assert tree(tmp_path) == before


@pytest.mark.spark
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda writer: writer.partitionBy("partition"), "partitioning or clustering columns do not match"),
        (lambda writer: writer.bucketBy(2, "value"), "bucketBy"),
        (lambda writer: writer.sortBy("value"), "sortBy|bucketBy"),
    ],
    ids=["partitionBy", "bucketBy", "sortBy"],
)
def test_layouts_of_tables_are_refused(spark, root, tmp_path, make, message):
    before = tree(tmp_path)
    frame = spark.sql("SELECT 'v' AS value, 0 AS partition")
    writer = make(frame.write.format("segmentlog").mode("append").option("topic", "t"))
    with pytest.raises(Exception, match=message):
        writer.save(str(root))
    assert tree(tmp_path) == before


@pytest.mark.cases(1, 4)
@pytest.mark.spark
@pytest.mark.parametrize(
    ("frame", "words"),
    [
        ("SELECT 1 AS value", "value must be a(n) string or binary. Cast it"),
        ("SELECT 'v' AS value, 5 AS partition", "Partition 5 of topic t"),
    ],
    ids=["on the driver", "in a task"],
)
def test_how_spark_shows_the_error(spark, root, tmp_path, frame, words):
    before = tree(tmp_path)
    with pytest.raises(Exception, match="Error") as raised:
        spark.sql(frame).write.format("segmentlog").mode("append").option("topic", "t").save(str(root))
    assert words in str(raised.value)
    assert tree(tmp_path) == before
