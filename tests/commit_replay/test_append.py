"""Appending staged batches: the same bytes as a log that is written to, however often it is begun."""

from __future__ import annotations

from contextlib import closing

import pytest

from storage_core.commit_files.journal import AppendOperation, JournalledPartition, StagedFileRange
from storage_core.commit_replay.publish import PartitionPublisher
from storage_core.commit_replay.staged_batches import StagedFiles
from storage_core.errors import CorruptError, CorruptRecordError
from storage_core.record.record_batches import RecordBatches
from storage_core.segment.log_segment import LogSegment
from tests.commit.jobs import CONFIG, JOBS, ROOT
from tests.faults.simulated_filesystem import SimulatedFileSystem
from tests.record.encoding import Batch, Record

DIRECTORY = f"{ROOT}/orders-0"
PACK = f".segmentlog-stage-{JOBS[0]}-0-0"
EPOCH = 5


def journalled(operation, *, keep_offsets=False):
    """Return the changes to one partition."""
    return JournalledPartition(
        "orders", 0, False, None, EPOCH, 0, 0, 10, 20, (), None, (operation,), keep_offsets=keep_offsets
    )


def append(filesystem, operation, *, keep_offsets=False):
    partition = journalled(operation, keep_offsets=keep_offsets)
    with closing(StagedFiles(filesystem, ROOT)) as files:
        return PartitionPublisher(filesystem, ROOT, partition, CONFIG, files).append(operation)


def batch(base_offset=0, count=3, timestamp_ms=1000, size=100):
    records = tuple(
        Record(offset_delta=delta, timestamp_ms=timestamp_ms + delta, value=b"v" * size)
        for delta in range(count)
    )
    return Batch(records, base_offset=base_offset, leader_epoch=-1).encode()


def batches(*timestamps_ms):
    return b"".join(batch(timestamp_ms=timestamp_ms) for timestamp_ms in timestamps_ms)


def new_filesystem(*, old=b"", pack=b""):
    """Return a log with some batches, closed cleanly, and a pack."""
    filesystem = SimulatedFileSystem()
    filesystem.put(f"{ROOT}/{PACK}.pack", pack)
    filesystem.make_directory(DIRECTORY)
    segment = LogSegment.create(filesystem, DIRECTORY, 10, CONFIG, now_ms=0)
    if old:
        segment.append(RecordBatches.parse(old).with_offsets(10, EPOCH))
    segment.seal()
    segment.close()
    return filesystem


def sizes(filesystem):
    files = filesystem.files()
    return [
        len(files.get(f"{DIRECTORY}/00000000000000000010{suffix}", b""))
        for suffix in (".log", ".index", ".timeindex")
    ]


def operation(filesystem, *sizes_bytes, base_offset):
    position = 0
    ranges = []
    for size_bytes in sizes_bytes:
        ranges.append(StagedFileRange(PACK, position, size_bytes))
        position += size_bytes
    return AppendOperation(tuple(ranges), base_offset, 10, *sizes(filesystem))


def segment_files(filesystem):
    return {
        path: content
        for path, content in filesystem.files().items()
        if path.startswith(DIRECTORY) and path.endswith((".log", "index"))
    }


@pytest.mark.parametrize("old", [b"", batches(1000), batches(1000, 5000, 2000)])
@pytest.mark.parametrize(
    "timestamps_ms",
    [(1000,), (6000, 7000, 7000), (900, 800), (2000, 9000, 100, 9000, 9500, 1), range(0, 90000, 1000)],
)
def test_a_segment_is_the_same_as_one_that_is_written_to(old, timestamps_ms):
    new = batches(*timestamps_ms)
    filesystem, expected = new_filesystem(old=old, pack=new), new_filesystem(old=old)
    offset = 10 + 3 * len(RecordBatches.parse(old).sizes_bytes) if old else 10
    segment = LogSegment(expected, DIRECTORY, 10, CONFIG, now_ms=0)
    segment.resize_indexes()
    segment.append(RecordBatches.parse(new).with_offsets(offset, EPOCH))
    segment.seal()
    segment.close()
    planned = operation(filesystem, len(new), base_offset=offset)
    written = append(filesystem, planned)
    assert segment_files(filesystem) == segment_files(expected)
    assert sorted(written) == sorted(segment_files(filesystem))
    # Again, as after a crash.
    append(filesystem, planned)
    assert segment_files(filesystem) == segment_files(expected)


def test_ranges_follow_one_another():
    new = batches(*range(1000, 9000, 1000))
    whole, split = new_filesystem(pack=new), new_filesystem(pack=new)
    size = len(new) // 8
    append(whole, operation(whole, 8 * size, base_offset=10))
    append(split, operation(split, size, 3 * size, 4 * size, base_offset=10))
    assert segment_files(split) == segment_files(whole)


def test_kept_offsets_get_the_epoch_only():
    new = batch(base_offset=50) + batch(base_offset=70)
    filesystem = new_filesystem(pack=new)
    planned = operation(filesystem, len(new), base_offset=50)
    append(filesystem, planned, keep_offsets=True)
    found = RecordBatches.parse(filesystem.files()[f"{DIRECTORY}/00000000000000000010.log"])
    assert found.headers["base_offset"].tolist() == [50, 70]
    assert found.headers["leader_epoch"].tolist() == [5, 5]


def test_a_segment_without_anything_is_made():
    filesystem = new_filesystem()
    append(filesystem, AppendOperation((), 99, 99, 0, 0, 0))
    assert {path: content for path, content in segment_files(filesystem).items() if "0099." in path} == {
        f"{DIRECTORY}/00000000000000000099{suffix}": b"" for suffix in (".log", ".index", ".timeindex")
    }


def test_a_log_that_is_shorter_than_journalled_is_reported():
    new = batches(1000)
    filesystem = new_filesystem(old=batches(1000), pack=new)
    planned = operation(filesystem, len(new), base_offset=13)
    with filesystem.open_for_writing(f"{DIRECTORY}/00000000000000000010.log") as log:
        log.truncate(100)
    before = filesystem.files()
    with pytest.raises(
        CorruptError, match=r"at least the .* bytes .* found 100: another program has changed it"
    ):
        append(filesystem, planned)
    assert filesystem.files() == before


@pytest.mark.parametrize("cut_bytes", [1, 100])
def test_a_staged_file_that_was_cut_is_reported(cut_bytes):
    new = batches(1000, 2000)
    filesystem = new_filesystem(pack=new[:-cut_bytes])
    planned = operation(filesystem, len(new), base_offset=10)
    with pytest.raises(CorruptRecordError, match="complete batches"):
        append(filesystem, planned)


def test_a_new_segment_removes_the_transaction_index_of_an_older_one():
    """Aborted transactions of a segment that was deleted are not those of this one."""
    pack = batches(1000)
    filesystem = new_filesystem(pack=pack)
    path = f"{DIRECTORY}/00000000000000000010.txnindex"
    filesystem.put(path, b"\x00" * 34)
    planned = operation(filesystem, len(pack), base_offset=10)
    append(filesystem, planned)
    assert path not in filesystem.files()


def test_aborted_transactions_of_a_segment_that_is_appended_to_stay():
    pack = batches(1000)
    filesystem = new_filesystem(old=batch(10), pack=pack)
    path = f"{DIRECTORY}/00000000000000000010.txnindex"
    filesystem.put(path, b"\x00" * 34)
    planned = operation(filesystem, len(pack), base_offset=13)
    append(filesystem, planned)
    assert filesystem.files()[path] == b"\x00" * 34
