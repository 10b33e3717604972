from __future__ import annotations

import hashlib
import random
import struct
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.errors import OffsetOverflowError, RecordBatchTooLargeError, StorageError
from storage_core.filesystem import FileSystem
from storage_core.log_config import LogConfig
from storage_core.record.record_batches import RecordBatches
from storage_core.segment import AbortedTransaction, TimestampOffset
from storage_core.segment.log_segment import LogSegment
from tests.examples import examples

TIMESTAMPS_MS = [10, 20, 15, 40, 40, 50, 45, 60, 5, 70]
FIRST_BATCH = bytes.fromhex(
    "000000000000000000000040000000000267554e8b000000000000000000000000000a000000000000000affffffffffffffffffff"
    "ffffffff000000011c000000046b300c76616c75653000"
)
LOG_SHA256 = "e09132a532f5ebdea60d1d9820f5177755f67ce3da20f07001498063cf0a1f7d"
OFFSET_INDEX = bytes.fromhex("0000000200000098000000040000013000000006000001c80000000800000260")
ACTIVE_TIME_INDEX = bytes.fromhex(
    "000000000000001400000001000000000000002800000003000000000000003200000005000000000000003c00000007"
)
LAST_TIME_ENTRY = bytes.fromhex("000000000000004600000009")


@pytest.fixture
def golden_batches(make_batch):
    return [
        make_batch(offset, (timestamp_ms,), key=b"k%d" % offset, value=b"value%d" % offset)
        for offset, timestamp_ms in enumerate(TIMESTAMPS_MS)
    ]


@pytest.fixture
def golden(folder, golden_batches, append):
    segment = folder.create(index_interval_bytes=100, segment_index_bytes=1000)
    assert golden_batches[0] == FIRST_BATCH
    for batch in golden_batches:
        append(segment, batch)
    return segment


def test_files_of_an_active_segment(golden, folder):
    log = folder.bytes_of(".log")
    assert (len(log), hashlib.sha256(log).hexdigest()) == (760, LOG_SHA256)
    assert folder.bytes_of(".index") == OFFSET_INDEX + bytes(1000 - 32)
    assert folder.bytes_of(".timeindex") == ACTIVE_TIME_INDEX + bytes(996 - 48)
    assert folder.names == [".index", ".log", ".timeindex"]


@pytest.mark.parametrize("how", ["seal", "close"])
def test_files_of_a_closed_segment(golden, folder, how):
    getattr(golden, how)()
    assert folder.bytes_of(".index") == OFFSET_INDEX
    assert folder.bytes_of(".timeindex") == ACTIVE_TIME_INDEX + LAST_TIME_ENTRY
    assert hashlib.sha256(folder.bytes_of(".log")).hexdigest() == LOG_SHA256


def test_one_append_of_many_batches_gives_the_same_files(folder, golden_batches, append):
    segment = folder.create(index_interval_bytes=100, segment_index_bytes=1000)
    append(segment, *golden_batches)
    assert folder.bytes_of(".index") == OFFSET_INDEX + bytes(1000 - 32)
    assert folder.bytes_of(".timeindex") == ACTIVE_TIME_INDEX + bytes(996 - 48)
    assert segment.largest_timestamp == TimestampOffset(70, 9)


@pytest.mark.parametrize(
    ("timestamp_ms", "found"),
    [(0, 0), (11, 1), (20, 1), (40, 3), (41, 5), (45, 5), (51, 7), (61, 9), (71, None)],
)
def test_offsets_for_timestamps(golden, timestamp_ms, found):
    for state in ("active", "closed"):
        if state == "closed":
            golden.seal()
        record = golden.reader().offset_for_timestamp(timestamp_ms)
        assert (record and record.offset) == found
        assert record is None or record.timestamp_ms == TIMESTAMPS_MS[found]


def test_indexes_appear_with_the_first_append(folder, append, make_batch):
    segment = folder.create(segment_index_bytes=100)
    assert folder.names == [".log"]
    append(segment, make_batch(0))
    assert folder.names == [".index", ".log", ".timeindex"]
    assert (len(folder.bytes_of(".index")), len(folder.bytes_of(".timeindex"))) == (96, 96)


def test_an_append_of_nothing(folder, append):
    segment = folder.create()
    append(segment)
    assert (segment.size_bytes, folder.names) == (0, [".log"])


def test_entries_name_each_batch_of_one_append(folder, append, make_batch, offset_entries, time_entries):
    segment = folder.create(index_interval_bytes=0, segment_index_bytes=1000)
    batches = [make_batch(3 * n, (t, t - 1, t - 2)) for n, t in enumerate([50, 40, 60, 60, 55, 70])]
    append(segment, *batches)
    size = len(batches[0])
    assert offset_entries(segment) == [(3 * n + 2, n * size) for n in range(1, 6)]
    # The last offset of the batch that brought the maximum, and no entry where the maximum stays.
    assert time_entries(segment) == [(50, 2), (60, 8), (70, 17)]


@pytest.mark.parametrize(
    ("base_offset", "offset"), [(100, 99), (100, 100 + 2**31), (0, 2**31), (2**31 + 5, 4), (100, 0)]
)
@pytest.mark.parametrize("count", [1, 2])
def test_offsets_out_of_range_are_refused_before_anything_is_written(
    folder, append, make_batch, base_offset, offset, count
):
    segment = folder.create(base_offset)
    with pytest.raises(OffsetOverflowError, match=f"found {offset}"):
        append(segment, *[make_batch(offset + n) for n in range(count)])
    assert (segment.size_bytes, folder.names) == (0, [".log"])


def test_the_largest_offset_of_a_segment(folder, append, make_batch):
    segment = folder.create(100)
    append(segment, make_batch(100 + 2**31 - 1))
    assert segment.read_next_offset() == 100 + 2**31


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize(("suffix", "written"), [(".log", 0), (".log", 50), (".index", 0), (".timeindex", 5)])
def test_a_failed_write_changes_nothing_in_the_segment(
    folder, append, make_batch, offset_entries, time_entries, suffix, written, count
):
    segment = folder.create(index_interval_bytes=0, segment_index_bytes=1000)
    first = [make_batch(n, (n,)) for n in range(3)]
    append(segment, *first)

    def state():
        return (
            segment.size_bytes,
            segment.largest_timestamp,
            offset_entries(segment),
            time_entries(segment),
            segment.read_next_offset(),
            folder.bytes_of(".log")[: segment.size_bytes],
        )

    before = state()
    segment.flush()
    folder.filesystem.failing_suffix, folder.filesystem.written_bytes = suffix, written
    more = [make_batch(n, (n,)) for n in range(3, 3 + count)]
    with pytest.raises(StorageError, match="No space left"):
        append(segment, *more)
    assert state() == before
    folder.filesystem.failing_suffix = None
    append(segment, *more)
    segment.close()
    assert folder.bytes_of(".log") == b"".join(first + more)
    size = len(first[0])
    assert folder.bytes_of(".index") == b"".join(struct.pack(">ii", n, n * size) for n in range(1, 3 + count))


def test_a_log_file_has_at_most_2_gib(folder, append, make_batch):
    segment = folder.create()
    append(segment, make_batch(0))
    with open(segment.path, "r+b") as file:
        file.truncate(2**31 - 1)
    again = folder.open()
    with pytest.raises(RecordBatchTooLargeError, match="at most 0 bytes"):
        append(again, make_batch(1))


def test_entries_without_room_are_left_out(folder, append, make_batch):
    segment = folder.create(index_interval_bytes=0, segment_index_bytes=48)
    batches = [make_batch(n, (n,)) for n in range(20)]
    append(segment, *batches[:5])
    assert segment.free_index_entries == 0
    append(segment, *batches[5:15])
    for batch in batches[15:]:
        append(segment, batch)
    segment.close()
    assert (len(folder.bytes_of(".index")), len(folder.bytes_of(".timeindex"))) == (48, 48)
    assert folder.bytes_of(".log") == b"".join(batches)
    assert segment.reader().offset_for_timestamp(17).offset == 17
    assert [segment.translate_offset(n).base_offset for n in range(20)] == list(range(20))


def test_what_was_there_before_does_not_count_after_opening_again(folder, append, make_batch, offset_entries):
    batches = [make_batch(n, (n,)) for n in range(6)]
    size = len(batches[0])
    segment = folder.create(index_interval_bytes=2 * size)
    append(segment, *batches[:3])
    segment.close()
    again = folder.open(index_interval_bytes=2 * size)
    again.resize_indexes()
    append(again, *batches[3:])
    assert offset_entries(again) == []
    append(again, make_batch(6, (6,)))
    assert offset_entries(again) == [(6, 6 * size)]
    assert again.largest_timestamp == TimestampOffset(6, 6)


@examples(40)
@given(
    batches=st.lists(
        st.tuples(st.integers(1, 3), st.integers(0, 3), st.integers(-1, 50), st.integers(0, 200)),
        min_size=1,
        max_size=30,
    ),
    interval=st.integers(0, 500),
    data=st.data(),
)
def test_any_split_into_appends_gives_what_a_broker_writes(
    make_folder, append, make_batch, make_segment, batches, interval, data
):
    offset, built = 7, []
    for records, gap, timestamp_ms, size in batches:
        offset += gap
        built.append(make_batch(offset, (timestamp_ms,) * records, value=b"x" * size))
        offset += records
    folder = make_folder()
    segment = folder.create(7, index_interval_bytes=interval)
    position = 0
    while position < len(built):
        count = data.draw(st.integers(1, 5))
        append(segment, *built[position : position + count])
        position += count
    segment.close()
    expected = make_segment(7, built, index_interval_bytes=interval)
    assert folder.bytes_of(".log", 7) == expected.log
    assert folder.bytes_of(".index", 7) == expected.offset_index_bytes
    assert folder.bytes_of(".timeindex", 7) == expected.time_index_bytes


TRANSACTIONS_LOG = bytes.fromhex(
    "0000000000000000000000430000000302ac05cfd80010000000010000000000000001000000000000000200000000000000010000000000"
    "000000000210000000026102310010000202026202320000000000000000020000003a00000003026d9705ac001000000000000000000000"
    "0003000000000000000300000000000000020000000000000000000110000000026302330000000000000000030000003f0000000302207c"
    "5be200000000000000000000000000040000000000000004ffffffffffffffffffffffffffff000000011a000000026e0c6e6f6e74786e00"
    "0000000000000004000000420000000302c82feab20030000000000000000000000005000000000000000500000000000000020000ffffff"
    "ff000000012000000008000000000c0000000000070000000000000000050000004200000004022b6577d200300000000000000000000000"
    "06000000000000000600000000000000010000ffffffff000000012000000008000000010c00000000000700"
)


def test_files_of_a_segment_with_transactions(folder):
    segment = folder.create()
    batches = RecordBatches.parse(TRANSACTIONS_LOG)
    assert batches.count == 5
    segment.append(batches)
    segment.append_aborted_transaction(AbortedTransaction(2, 2, 4, 0))
    segment.close()
    assert folder.bytes_of(".log") == TRANSACTIONS_LOG
    assert folder.bytes_of(".index") == b""
    assert folder.bytes_of(".timeindex") == bytes.fromhex("000000000000000600000005")
    expected = "00000000000000000002000000000000000200000000000000040000000000000000"
    assert folder.bytes_of(".txnindex") == bytes.fromhex(expected)


def test_an_index_never_names_what_is_not_in_the_log_yet(tmp_path, append, make_batch):
    checked = []

    class Checking(FileSystem):
        def open_for_writing(self, path, *, create=False, **options):
            file = super().open_for_writing(path, create=create, **options)
            write_at = file.write_at

            def write(pieces, position_bytes):
                if path.endswith(".index"):
                    log = path.removesuffix(".index") + ".log"
                    (_, named), *_ = struct.iter_unpack(">ii", b"".join(pieces))
                    batches = RecordBatches.parse(Path(log).read_bytes()[named:])
                    checked.append(batches.base_offset)
                write_at(pieces, position_bytes)

            file.write_at = write
            return file

    config = LogConfig(index_interval_bytes=0)
    segment = LogSegment.create(Checking(), str(tmp_path), 0, config, now_ms=0)
    for offset in range(5):
        append(segment, make_batch(offset))
    append(segment, make_batch(5), make_batch(6))
    assert checked == [1, 2, 3, 4, 5]


def test_reading_in_other_threads_while_batches_are_appended(folder, append, make_batch):
    segment = folder.create(index_interval_bytes=200, segment_index_bytes=100_000)
    batches = [make_batch(n, (n,), value=b"%d" % n) for n in range(1500)]
    appended, wrong = [0], []
    is_over = threading.Event()

    def read():
        chance = random.Random(1)
        while not is_over.is_set():
            known = appended[0]
            if not known:
                continue
            offset = chance.randrange(known)
            reader = segment.reader()
            header = reader.translate_offset(offset)
            if segment.translate_offset(offset) != header or reader.read_batch(header) != batches[offset]:
                wrong.append(offset)
            if reader.end().next_offset < known:
                wrong.append(known)

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for batch in batches:
        append(segment, batch)
        appended[0] += 1
    is_over.set()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_copying_from_another_segment(folder, append, make_batch, make_segment):
    batches = [make_batch(10 * n, (n,), value=b"x" * 50_000) for n in range(60)]
    source = folder.create()
    append(source, *batches)
    target = folder.create(0, suffix=".cleaned", index_interval_bytes=100_000)
    assert target.append_from_file(source) == 60 * len(batches[0])
    target.close()
    expected = make_segment(0, batches, index_interval_bytes=100_000)
    assert folder.bytes_of(".log.cleaned") == expected.log
    assert folder.bytes_of(".index.cleaned") == expected.offset_index_bytes
    assert folder.bytes_of(".timeindex.cleaned") == expected.time_index_bytes


def test_copying_ends_before_an_offset_that_does_not_fit(folder, append, make_batch):
    batches = [make_batch(offset) for offset in (5, 9, 2**31 + 5, 2**31 + 6)]
    folder.put(".log", b"".join(batches))
    source = folder.open()
    size = len(batches[0])
    target = folder.create(5)
    assert target.append_from_file(source) == 2 * size
    rest = folder.create(2**31 + 5)
    assert rest.append_from_file(source, 2 * size) == 2 * size
    assert rest.append_from_file(source, 4 * size) == 0
    assert folder.bytes_of(".log", 5) + folder.bytes_of(".log", 2**31 + 5) == b"".join(batches)


def test_copying_a_batch_that_is_larger_than_a_window(folder, append, make_batch):
    batches = [make_batch(0), make_batch(1, value=b"x" * (3 << 20)), make_batch(2)]
    source = folder.create()
    append(source, *batches)
    target = folder.create(0, suffix=".cleaned")
    assert target.append_from_file(source) == sum(map(len, batches))
    assert folder.bytes_of(".log.cleaned") == b"".join(batches)
