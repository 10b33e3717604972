from __future__ import annotations

import os

import pytest

from storage_core.errors import StorageError
from storage_core.filesystem import FileSystem
from storage_core.record.record_batches import RecordBatches
from storage_core.segment import AbortedTransaction, TimestampOffset
from storage_core.segment.log_segment import RollParameters
from tests.descriptors import open_below

ALL_NAMES = [".index", ".log", ".timeindex", ".txnindex"]


@pytest.fixture
def batches(make_batch):
    return [make_batch(10 * n, (t,) * 3) for n, t in enumerate([10, 30, 20, 50, 50, 40])]


@pytest.fixture
def segment(folder, append, batches):
    made = folder.create(index_interval_bytes=100, segment_index_bytes=1000)
    for batch in batches:
        append(made, batch)
    made.append_aborted_transaction(AbortedTransaction(7, 10, 22, 23))
    made.append_aborted_transaction(AbortedTransaction(8, 30, 42, 43))
    return made


def contents(folder):
    return {suffix: folder.bytes_of(suffix) for suffix in folder.names}


def test_truncate_keeps_what_stands_in_front(segment, folder, batches):
    size = len(batches[0])
    assert segment.truncate_to(31, now_ms=0) == 3 * size
    assert folder.bytes_of(".log") == b"".join(batches[:3])
    assert segment.read_next_offset() == 23
    assert segment.largest_timestamp == TimestampOffset(30, 12)
    assert [entry.last_offset for entry in segment.transaction_index.read().entries] == [22]
    # Full size again, with only zeros after the entries.
    assert folder.bytes_of(".index") == bytes.fromhex("00000016 000000aa") + bytes(992)
    assert folder.bytes_of(".timeindex") == bytes.fromhex("000000000000001e 0000000c") + bytes(984)


@pytest.mark.parametrize("offset", range(64))
def test_truncate_drops_the_batch_that_holds_the_offset_and_all_after_it(segment, folder, batches, offset):
    kept = next((n for n in range(6) if 10 * n + 2 >= offset), 6)
    assert segment.truncate_to(offset, now_ms=0) == sum(map(len, batches[kept:]))
    assert folder.bytes_of(".log") == b"".join(batches[:kept])
    assert segment.read_next_offset() == (10 * kept - 7 if kept else 0)
    timestamps = [10, 30, 20, 50, 50, 40][:kept]
    assert segment.largest_timestamp.timestamp_ms == max(timestamps, default=-1)
    assert (len(folder.bytes_of(".index")), len(folder.bytes_of(".timeindex"))) == (1000, 996)
    for number in range(kept):
        assert segment.translate_offset(10 * number + 1).base_offset == 10 * number


def test_truncate_of_a_closed_segment_makes_room_in_the_indexes(segment, folder, append, make_batch):
    segment.close()
    again = folder.open(index_interval_bytes=0, segment_index_bytes=1000)
    assert again.truncate_to(100, now_ms=0) == 0
    append(again, make_batch(60, (60,)), make_batch(61, (61,)))
    assert again.offset_index.last_offset == 61
    assert again.time_index.last_entry == TimestampOffset(61, 61)


def test_append_and_truncate_thirty_times(folder, append, make_batch):
    segment = folder.create()
    append(segment, make_batch(0))
    for _ in range(30):
        append(segment, make_batch(1))
        assert segment.truncate_to(1, now_ms=0) > 0
    assert segment.read_next_offset() == 1
    assert folder.bytes_of(".log") == make_batch(0)


def rolls_at(segment, now_ms):
    return segment.should_roll(RollParameters(1, -1, segment.base_offset + 1, now_ms))


def test_truncating_to_nothing_starts_the_clock_again(folder, append, make_batch):
    segment = folder.create(segment_ms=1000, now_ms=0)
    append(segment, make_batch(0, (-1,)))
    assert rolls_at(segment, 1001)
    assert segment.truncate_to(0, now_ms=500) > 0
    assert segment.size_bytes == 0
    assert segment.largest_timestamp == TimestampOffset(-1, 0)
    append(segment, make_batch(0, (-1,)))
    assert not rolls_at(segment, 1500)
    assert rolls_at(segment, 1501)


def test_truncating_an_empty_segment(folder, append, make_batch):
    segment = folder.create(40, segment_ms=1000, segment_index_bytes=100)
    segment.close()
    again = folder.open(40, segment_ms=1000, segment_index_bytes=100)
    assert again.offset_index.is_full
    assert again.truncate_to(40, now_ms=700) == 0
    assert again.size_bytes == 0
    assert not again.offset_index.is_full
    append(again, make_batch(40, (-1,)))
    assert not rolls_at(again, 1700)


def test_a_first_batch_timestamp_is_forgotten_with_its_batch(folder, append, make_batch):
    segment = folder.create()
    append(segment, make_batch(0, (10,)))
    assert segment.first_batch_timestamp_ms == 10
    segment.truncate_to(0, now_ms=0)
    append(segment, make_batch(0, (20,)))
    assert segment.first_batch_timestamp_ms == 20


def test_the_interval_starts_again_after_truncation(folder, append, make_batch, offset_entries):
    batches = [make_batch(n) for n in range(5)]
    size = len(batches[0])
    segment = folder.create(index_interval_bytes=size)
    append(segment, *batches[:3])
    assert offset_entries(segment) == [(2, 2 * size)]
    segment.truncate_to(2, now_ms=0)
    append(segment, batches[2], batches[3], batches[4])
    # Without the truncation, the batch at offset 2 would have one.
    assert offset_entries(segment) == [(4, 4 * size)]


def test_a_clean_close_leaves_files_that_hold_just_what_is_in_them(segment, folder, batches):
    segment.close()
    assert {suffix: len(content) for suffix, content in contents(folder).items()} == {
        ".index": 16,
        ".log": sum(map(len, batches)),
        ".timeindex": 24,
        ".txnindex": 68,
    }
    before = contents(folder)
    segment.close()
    assert contents(folder) == before


def test_an_empty_segment_is_closed_with_empty_indexes(folder):
    segment = folder.create()
    assert folder.names == [".log"]
    segment.close()
    assert contents(folder) == {".index": b"", ".log": b"", ".timeindex": b""}


def test_closing_handlers_writes_nothing(segment, folder):
    before = contents(folder)
    segment.close_handlers()
    segment.close_handlers()
    # Nothing is open any more, so there is nothing to close.
    segment.close()
    assert contents(folder) == before


class Watched(FileSystem):
    def __init__(self):
        super().__init__()
        self.opened = []

    def open(self, path, version=None):
        self.opened.append(path)
        return super().open(path)

    def open_for_writing(self, path, *, create=False, **options):
        self.opened.append(path)
        return super().open_for_writing(path, create=create, **options)


def test_opening_and_closing_a_segment_that_nobody_uses_looks_at_no_file(segment, folder):
    segment.close()
    folder.filesystem = Watched()
    untouched = folder.open()
    untouched.close()
    statistics = folder.filesystem.statistics
    assert folder.filesystem.opened == []
    assert (statistics.files_examined, statistics.directories_listed) == (0, 0)


def test_indexes_can_wait_for_the_first_append_to_be_resized(segment, folder, append, make_batch):
    segment.close()
    before = contents(folder)
    again = folder.open(index_interval_bytes=0, segment_index_bytes=1000)
    assert again.should_roll(RollParameters(1, 0, 60, 0))
    again.resize_indexes(on_write=True)
    assert not again.should_roll(RollParameters(1, 0, 60, 0))
    assert again.free_index_entries == 83 - 1 - 2
    again.flush()
    again.close()
    assert contents(folder) == before
    assert not again.should_roll(RollParameters(1, 0, 60, 0))
    append(again, make_batch(60, (60,)), make_batch(61, (61,)))
    assert folder.bytes_of(".index")[:16] == before[".index"]
    assert len(folder.bytes_of(".index")) == 1000
    assert len(folder.bytes_of(".timeindex")) == 996
    assert again.offset_index.last_offset == 61


def test_reading_leaves_the_files_alone(segment, folder):
    segment.close()
    times = {path.name: path.stat().st_mtime_ns for path in folder.path.iterdir()}
    before = contents(folder)
    reading = folder.open()
    assert reading.translate_offset(0) is not None
    assert reading.largest_timestamp == TimestampOffset(50, 32)
    assert reading.reader().offset_for_timestamp(40).offset == 30
    assert reading.read_next_offset() == 53
    assert not reading.should_roll(RollParameters(1, 0, 1, 0)) or reading.offset_index.is_full
    reading.close()
    assert contents(folder) == before
    assert {path.name: path.stat().st_mtime_ns for path in folder.path.iterdir()} == times


def test_flush_makes_the_indexes_and_brings_every_file_to_the_disk(folder, append, make_batch, monkeypatch):
    segment = folder.create(segment_index_bytes=100)
    flushed = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda descriptor: (flushed.append(descriptor), real(descriptor)))
    segment.flush_log()
    assert (len(flushed), folder.names) == (1, [".log"])
    segment.flush()
    assert len(flushed) == 4
    assert {suffix: len(content) for suffix, content in contents(folder).items()} == {
        ".index": 96,
        ".log": 0,
        ".timeindex": 96,
    }
    append(segment, make_batch(0))
    segment.append_aborted_transaction(AbortedTransaction(7, 0, 1, 2))
    segment.flush()
    assert len(flushed) == 8


def test_flushing_a_segment_that_nobody_writes_to_leaves_nothing_open(segment, folder, monkeypatch):
    segment.close()
    folder.path.joinpath("00000000000000000000.index").unlink()
    before = open_below(folder.path)
    flushed = []
    monkeypatch.setattr(os, "fsync", flushed.append)
    again = folder.open()
    again.flush()
    assert len(flushed) == 4
    assert folder.bytes_of(".index") == b""
    assert open_below(folder.path) == before


def test_a_close_that_fails_leaves_nothing_open(folder, append, make_batch):
    segment = folder.create()
    append(segment, make_batch(0, (5,)))
    folder.filesystem.failing_suffix = ".timeindex"
    with pytest.raises(StorageError, match="No space left"):
        segment.close()
    folder.filesystem.failing_suffix = None
    before = contents(folder)
    segment.close()
    assert contents(folder) == before


def test_a_sealed_segment_needs_no_descriptors_after_it_was_flushed(folder, append, make_batch):
    segment = folder.create()
    before = len(open_below(folder.path))
    append(segment, make_batch(0, (5,)))
    segment.seal()
    segment.flush()
    # The log file was open before.
    assert len(open_below(folder.path)) == before - 1
    assert segment.translate_offset(0).last_offset == 0
    assert folder.bytes_of(".timeindex") == bytes.fromhex("0000000000000005 00000000")


def test_a_sealed_segment_that_is_written_again_is_closed_like_any_other(folder, append, make_batch):
    batches = [make_batch(n, (n,)) for n in range(3)]
    for base_offset, change in enumerate(
        [
            lambda segment: segment.truncate_to(2, now_ms=0),
            lambda segment: segment.resize_indexes(),
            lambda segment: append(segment, make_batch(3)),
        ]
    ):
        segment = folder.create(base_offset, segment_index_bytes=100)
        append(segment, *batches[base_offset:])
        segment.seal()
        segment.flush()
        change(segment)
        segment.flush()
        segment.close()
        assert len(folder.bytes_of(".index", base_offset)) == 0
        assert len(folder.bytes_of(".timeindex", base_offset)) == 12


def test_seal_and_close_cut_a_preallocated_log(folder, append, make_batch):
    for base_offset, close in ((0, "seal"), (100, "close")):
        segment = folder.create(base_offset, preallocate=True, internal_segment_bytes=1000)
        batch = make_batch(base_offset)
        append(segment, batch)
        assert folder.bytes_of(".log", base_offset) == batch + bytes(1000 - len(batch))
        assert segment.size_bytes == len(batch)
        getattr(segment, close)()
        assert folder.bytes_of(".log", base_offset) == batch
        again = folder.open(base_offset, preallocate=True, internal_segment_bytes=1000)
        assert again.size_bytes == len(batch)
        append(again, make_batch(base_offset + 1))
        content = folder.bytes_of(".log", base_offset)[: again.size_bytes]
        assert content == batch + make_batch(base_offset + 1)


def test_what_a_close_changes_is_on_the_disk(folder, append, make_batch, monkeypatch):
    segment = folder.create(preallocate=True, internal_segment_bytes=1000)
    append(segment, make_batch(0))
    segment.flush()
    sizes = []
    real = os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda descriptor: (sizes.append(os.fstat(descriptor).st_size), real(descriptor))
    )
    segment.close()
    assert sizes == [len(make_batch(0)), 0, 12]
    again = folder.open()
    again.flush()
    del sizes[:]
    again.close()
    assert sizes == []


def test_change_of_suffix_renames_what_is_there(segment, folder, batches):
    before = contents(folder)
    segment.change_suffix("", ".deleted")
    assert folder.names == [f"{suffix}.deleted" for suffix in ALL_NAMES]
    assert segment.path.endswith(".log.deleted")
    assert folder.bytes_of(".log.deleted") == b"".join(batches)
    assert segment.reader().end().next_offset == 53
    segment.change_suffix(".deleted", "")
    assert contents(folder) == before


def test_what_is_to_be_deleted_is_not_left_open(segment, folder):
    assert segment.offset_index.is_open
    folder.path.joinpath("00000000000000000000.log").unlink()
    with pytest.raises(FileNotFoundError):
        segment.change_suffix("", ".deleted")
    assert not segment.offset_index.is_open
    assert not segment.time_index.is_open


def test_change_of_suffix_makes_no_index_appear(folder):
    segment = folder.create(suffix=".cleaned")
    segment.change_suffix(".cleaned", ".swap")
    assert folder.names == [".log.swap"]
    segment.change_suffix(".swap", "")
    assert folder.names == [".log"]


def test_delete(segment, folder):
    segment.change_suffix("", ".deleted")
    segment.delete()
    assert folder.names == []
    segment.delete()


def test_delete_tolerates_that_the_directory_is_gone(segment, folder):
    for path in folder.path.iterdir():
        path.unlink()
    folder.path.rmdir()
    segment.delete()


@pytest.mark.parametrize("piece_bytes", [1, 50, 10_000])
def test_append_of_pieces_writes_what_append_of_batches_does(
    segment, folder, make_folder, batches, piece_bytes
):
    other = make_folder()
    made = other.create(index_interval_bytes=100, segment_index_bytes=1000)
    data = b"".join(batches)
    headers = RecordBatches.parse(data).headers
    made.append_pieces(headers, [data[at : at + piece_bytes] for at in range(0, len(data), piece_bytes)])
    assert made.largest_timestamp == segment.largest_timestamp
    for suffix in (".log", ".index", ".timeindex"):
        assert other.bytes_of(suffix) == folder.bytes_of(suffix)
