"""Whatever a caller does wrong is told in clear words, and nothing is lost by it."""

from __future__ import annotations

import datetime as dt
import os
import re
from pathlib import Path

import pyarrow as pa
import pytest

from storage_core import FileSystem, LogConfig, LogDirectory
from storage_core.errors import (
    AppendError,
    InvalidRecordError,
    InvalidTimestampError,
    LogClosedError,
    LogDirectoryError,
    LogDirectoryLockedError,
    LogReadOnlyError,
    NotWritableError,
    OffsetOutOfRangeError,
    OffsetOverflowError,
    OptionError,
    RecordBatchTooLargeError,
    RecordTooLargeError,
    SegmentLogError,
    UnreadableError,
)
from tests.descriptors import open_below
from tests.faults.session import records_of
from tests.record.encoding import Batch, Record

CONFIG = LogConfig(
    internal_segment_bytes=4_000, max_message_bytes=2_000, segment_index_bytes=240,
    message_timestamp_before_max_ms=1_000_000, message_timestamp_after_max_ms=1_000_000,
)  # fmt: skip
NOW_MS = 1_700_000_000_000
BEFORE = [(0, b"first"), (1, None), (2, b"third")]


class Clock:
    def now_ms(self):
        return NOW_MS


@pytest.fixture
def root(tmp_path):
    path = tmp_path / "data"
    path.mkdir()
    return str(path)


@pytest.fixture
def logs(root):
    logs = LogDirectory.open(root, config=CONFIG, clock=Clock())
    yield logs
    logs.close()


@pytest.fixture
def log(logs):
    log = logs.create("orders", 0, CONFIG)
    log.append(values(b"first", None, b"third"), acks="all")
    return log


def values(*content):
    return pa.table({"value": pa.array(content, pa.binary())})


def snapshot(root):
    return {path: path.read_bytes() for path in sorted(Path(root).rglob("*")) if path.is_file()}


def check_unharmed(log, root, before):
    """Nothing was written, and the log goes on."""
    assert snapshot(root) == before
    assert records_of(log) == BEFORE
    info = log.append(values(b"next"), acks="all")
    assert (info.first_offset, info.last_offset) == (3, 3)
    assert records_of(log) == [*BEFORE, (3, b"next")]


# -- Records that no log takes --------

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
WRONG_RECORDS = {
    "no column value": (pa.table({"key": [b"k"]}), "value"),
    "values of a wrong type": (pa.table({"value": [1, 2]}), "value"),
    "keys of a wrong type": (pa.table({"value": [b"v"], "key": [1.5]}), "key"),
    "timestamps of a wrong type": (pa.table({"value": [b"v"], "timestamp": ["noon"]}), "timestamp"),
    "dates for timestamps": (
        pa.table({"value": [b"v"], "timestamp": [dt.date(2020, 1, 1)]}), "timestamp",
    ),
    "headers of a wrong type": (pa.table({"value": [b"v"], "headers": [["a"]]}), "headers"),
    "a header without a key": (
        pa.table({"value": [b"v"], "headers": pa.array([[{"key": None, "value": b"x"}]], HEADERS)}), "header",
    ),
    "an unknown column": (pa.table({"value": [b"v"], "vlaue": [b"v"]}), "vlaue"),
    "a column twice": (pa.Table.from_arrays([pa.array([b"v"]), pa.array([b"w"])], ["value", "value"]), "value"),
}  # fmt: skip


@pytest.mark.parametrize(("records", "named"), WRONG_RECORDS.values(), ids=WRONG_RECORDS)
@pytest.mark.parametrize("rows", [1, 100])
def test_columns_that_no_log_takes(log, root, records, named, rows):
    before = snapshot(root)
    with pytest.raises(InvalidRecordError, match=named):
        log.append(pa.concat_tables([records] * rows))
    check_unharmed(log, root, before)


@pytest.mark.parametrize("records", [None, 7, "text", b"bytes", [b"a"], {"value": [b"a"]}, object()])
def test_what_is_no_table_at_all(log, root, records):
    before = snapshot(root)
    with pytest.raises((InvalidRecordError, TypeError)) as caught:
        log.append(records)
    assert re.search("Table|RecordBatch", str(caught.value))
    check_unharmed(log, root, before)


@pytest.mark.parametrize("position", [0, 50, 99])
def test_a_record_that_is_too_large(log, root, position):
    """Nothing of an append is written if a single record of it is refused."""
    before = snapshot(root)
    content = [b"small"] * 100
    content[position] = bytes(2_001)
    with pytest.raises(RecordTooLargeError, match=r"max\.message\.bytes"):
        log.append(values(*content))
    check_unharmed(log, root, before)


def test_an_append_of_batches_that_is_larger_than_a_segment(log, root):
    before = snapshot(root)
    batches = b"".join(
        Batch([Record(value=bytes(900))], base_offset=3 + number).encode() for number in range(5)
    )
    with pytest.raises(RecordBatchTooLargeError, match=r"segment\.bytes"):
        log.append_batches(batches)
    check_unharmed(log, root, before)


@pytest.mark.parametrize("away_ms", [-1_000_001, 1_000_001])
@pytest.mark.parametrize("position", [0, 50, 99])
def test_a_timestamp_too_far_from_now(log, root, away_ms, position):
    before = snapshot(root)
    timestamps = [NOW_MS] * 100
    timestamps[position] += away_ms
    table = pa.table({"value": [b"v"] * 100, "timestamp": pa.array(timestamps, pa.timestamp("ms"))})
    with pytest.raises(InvalidTimestampError, match=str(position)):
        log.append(table)
    check_unharmed(log, root, before)


def test_a_record_without_a_key_in_a_compacted_log(logs, root):
    log = logs.create("compacted", 0, CONFIG.replace(cleanup_policy="compact"))
    before = snapshot(root)
    table = pa.table({"key": [b"k", None], "value": [b"v", b"w"]})
    with pytest.raises(InvalidRecordError, match="key"):
        log.append(table)
    assert snapshot(root) == before
    assert log.log_end_offset == 0


@pytest.mark.parametrize("acks", [2, -2, "none", None, 1.5])
def test_acks_that_do_not_exist(log, root, acks):
    before = snapshot(root)
    with pytest.raises(OptionError, match="acks"):
        log.append(values(b"v"), acks=acks)
    check_unharmed(log, root, before)


def test_an_append_of_nothing_is_no_mistake(log, root):
    before = snapshot(root)
    assert log.append(values()).batch_count == 0
    check_unharmed(log, root, before)


# -- Batches that no log takes --------


def test_batches_that_are_damaged(log, root):
    before = snapshot(root)
    batch = bytearray(Batch([Record()], base_offset=3).encode())
    batch[-1] ^= 1
    with pytest.raises(SegmentLogError, match="CRC"):
        log.append_batches(bytes(batch))
    check_unharmed(log, root, before)


@pytest.mark.parametrize("base_offset", [0, 2])
def test_batches_below_the_log_end(log, root, base_offset):
    before = snapshot(root)
    with pytest.raises(AppendError, match="offset"):
        log.append_batches(Batch([Record()], base_offset=base_offset).encode())
    check_unharmed(log, root, before)


def test_batches_that_do_not_ascend(log, root):
    before = snapshot(root)
    batches = b"".join(Batch([Record()], base_offset=offset).encode() for offset in (4, 3))
    with pytest.raises(AppendError, match="offset"):
        log.append_batches(batches)
    check_unharmed(log, root, before)


def test_an_offset_that_is_beyond_the_largest(log, root):
    """No consumer could fetch an offset after 2^63 - 1."""
    before = snapshot(root)
    records = [Record(), Record(offset_delta=1)]
    with pytest.raises(OffsetOverflowError):
        log.append_batches(Batch(records, base_offset=2**63 - 1).encode())
    check_unharmed(log, root, before)


def test_a_log_that_is_full_to_the_largest_offset(logs):
    log = logs.create("last", 0, CONFIG)
    log.append_batches(Batch([Record()], base_offset=2**63 - 3).encode())
    with pytest.raises(OffsetOverflowError):
        log.append(values(b"1", b"2", b"3", b"4"))
    assert [offset for offset, _ in records_of(log)] == [2**63 - 3]


# -- Logs that take no writes --------

CHANGES = {
    "append": lambda log: log.append(values(b"v")),
    "append_batches": lambda log: log.append_batches(Batch([Record()], base_offset=3).encode()),
    "roll": lambda log: log.roll(),
    "flush": lambda log: log.flush(),
    "truncate_to": lambda log: log.truncate_to(1),
    "truncate_fully_and_start_at": lambda log: log.truncate_fully_and_start_at(7),
    "delete_records": lambda log: log.delete_records(1),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_log_that_was_opened_read_only(logs, log, root, change):
    logs.close()
    before = snapshot(root)
    with LogDirectory.open(root, read_only=True) as read_only:
        opened = read_only.get("orders", 0)
        with pytest.raises(LogReadOnlyError) as caught:
            change(opened)
        assert root in str(caught.value)
        with pytest.raises(LogReadOnlyError):
            read_only.create("more", 0)
        assert records_of(opened) == BEFORE
    assert snapshot(root) == before


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("closed", ["log", "directory"])
def test_a_log_that_was_closed(logs, log, root, change, closed):
    (log if closed == "log" else logs).close()
    before = snapshot(root)
    with pytest.raises(LogClosedError) as caught:
        change(log)
    assert root in str(caught.value)
    assert snapshot(root) == before
    with pytest.raises(LogClosedError):
        records_of(log)


def test_to_close_twice_is_no_mistake(logs, log, root):
    log.close()
    log.close()
    logs.close()
    before = snapshot(root)
    log.close()
    logs.close()
    assert snapshot(root) == before
    with pytest.raises(NotWritableError):
        logs.create("more", 0)


def test_a_closed_log_gives_all_files_back(root):
    logs = LogDirectory.open(root, config=CONFIG)
    log = logs.create("orders", 0)
    for _ in range(20):
        log.append(values(bytes(500)))
    records_of(log)
    assert open_below(root)
    logs.close()
    assert open_below(root) == []


# -- Offsets that are not there --------


@pytest.mark.parametrize("offset", [-1, 4, 2**63])
def test_reads_outside_of_the_log(log, root, offset):
    before = snapshot(root)
    with pytest.raises(SegmentLogError) as caught:
        records_of(log, start_offset=offset)
    assert isinstance(caught.value, (OffsetOutOfRangeError, OptionError))
    check_unharmed(log, root, before)


@pytest.mark.parametrize("offset", [4, 2**63 - 1])
def test_records_that_are_not_there_cannot_be_deleted(log, root, offset):
    before = snapshot(root)
    with pytest.raises(OffsetOutOfRangeError):
        log.delete_records(offset)
    check_unharmed(log, root, before)


@pytest.mark.parametrize("offset", [-1, -7, 2**63])
def test_a_log_is_not_cut_at_an_offset_that_cannot_be(log, root, offset):
    before = snapshot(root)
    for change in (log.truncate_to, log.truncate_fully_and_start_at):
        with pytest.raises(OptionError):
            change(offset)
    check_unharmed(log, root, before)


# -- Paths that are no log directory --------


def test_a_path_that_is_missing(tmp_path):
    with pytest.raises(LogDirectoryError) as caught:
        LogDirectory.open(str(tmp_path / "missing" / "data"), read_only=True)
    assert "missing" in str(caught.value)


def test_a_file_is_no_log_directory(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"content")
    for read_only in (False, True):
        with pytest.raises(LogDirectoryError) as caught:
            LogDirectory.open(str(path), read_only=read_only)
        assert str(path) in str(caught.value)
    assert path.read_bytes() == b"content"


def test_a_folder_of_other_things_is_no_log_directory(tmp_path):
    """Nothing is made in a folder that somebody named by mistake."""
    (tmp_path / "holiday.jpg").write_bytes(b"content")
    (tmp_path / "letters").mkdir()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(LogDirectoryError):
        LogDirectory.open(str(tmp_path))
    assert sorted(tmp_path.rglob("*")) == before


def test_a_partition_directory_is_no_log_directory(logs, log, root):
    logs.close()
    before = snapshot(root)
    with pytest.raises(LogDirectoryError) as caught:
        LogDirectory.open(os.path.join(root, "orders-0"))
    assert "orders-0" in str(caught.value)
    assert snapshot(root) == before


def test_the_disk_of_a_broker_is_not_written_to_unasked(root):
    (Path(root) / "meta.properties").write_text("version=1\ncluster.id=abc\nnode.id=1\n", encoding="ascii")
    before = snapshot(root)
    with pytest.raises(LogDirectoryError, match="broker"):
        LogDirectory.open(root)
    assert snapshot(root) == before


@pytest.mark.skipif(os.getuid() == 0, reason="root may do everything")
def test_a_folder_that_this_user_may_not_write_to(root):
    Path(root).chmod(0o555)
    with pytest.raises(UnreadableError, match="write"):
        LogDirectory.open(root)
    Path(root).chmod(0o755)


@pytest.mark.parametrize("topic", ["", ".", "..", "a/b", "a b", "\0", "ü", "x" * 250])
def test_topics_that_no_broker_takes(logs, root, topic):
    before = snapshot(root)
    with pytest.raises((OptionError, LogDirectoryError)):
        logs.create(topic, 0)
    assert snapshot(root) == before


@pytest.mark.parametrize("partition", [-1, 2**31, 1.5, "0", None])
def test_partitions_that_no_broker_takes(logs, root, partition):
    before = snapshot(root)
    with pytest.raises((OptionError, LogDirectoryError, TypeError)):
        logs.create("orders", partition)
    assert snapshot(root) == before


def test_a_log_that_is_there_is_not_made_again(logs, log, root):
    before = snapshot(root)
    with pytest.raises((OptionError, LogDirectoryError), match="orders"):
        logs.create("orders", 0)
    check_unharmed(log, root, before)


def test_a_log_that_is_not_there(logs, log):
    with pytest.raises((KeyError, LogDirectoryError)):
        logs.get("orders", 1)
    with pytest.raises((KeyError, LogDirectoryError)):
        logs.get("order", 0)


# -- Two writers --------


def test_a_second_writer_in_the_same_process(logs, log, root):
    before = snapshot(root)
    for path in (root, f"{root}/", os.path.relpath(root), f"{root}/../data"):
        with pytest.raises(LogDirectoryLockedError) as caught:
            LogDirectory.open(path)
        assert "lock" in str(caught.value)
    check_unharmed(log, root, before)
    logs.close()
    LogDirectory.open(root).close()


def test_a_second_writer_over_a_link_to_the_directory(logs, root, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(root)
    with pytest.raises(LogDirectoryError):
        LogDirectory.open(str(link))


def test_readers_beside_the_writer(logs, log, root):
    with LogDirectory.open(root, read_only=True) as one, LogDirectory.open(root, read_only=True) as other:
        assert records_of(one.get("orders", 0)) == records_of(other.get("orders", 0)) == BEFORE
    # That they are closed does not give the lock of the writer away.
    with pytest.raises(LogDirectoryLockedError):
        LogDirectory.open(root)
    log.append(values(b"next"))


def test_a_reader_that_opens_every_file_does_not_give_the_lock_away(logs, root):
    filesystem = FileSystem()
    for name in os.listdir(root):
        if os.path.isfile(os.path.join(root, name)) and name != ".lock":
            filesystem.open(os.path.join(root, name)).close()
    with pytest.raises(LogDirectoryLockedError):
        LogDirectory.open(root)


def test_an_open_that_fails_gives_the_lock_back(root):
    (Path(root) / "orders-0").mkdir()
    (Path(root) / "orders-0" / "00000000000000000000.log").mkdir()
    with pytest.raises(SegmentLogError):
        LogDirectory.open(root)
    (Path(root) / "orders-0" / "00000000000000000000.log").rmdir()
    LogDirectory.open(root).close()


@pytest.mark.parametrize("recovery", ["", "fast", None, 1])
def test_ways_of_recovery_that_do_not_exist(root, recovery):
    with pytest.raises(OptionError, match="recovery"):
        LogDirectory.open(root, recovery=recovery)
    LogDirectory.open(root).close()
