"""Reading tasks: whatever the bounds, the splits and the columns, the rows are those of the full read."""

from __future__ import annotations

import os
import shutil
import struct
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import storage_core.scan.read as read_module
import storage_core.scan.sections as sections_module
from storage_core.errors import (
    BatchTooLargeError,
    CorruptRecordError,
    DataLossError,
    SegmentLogError,
    TimestampRangeError,
    UnreadableError,
)
from storage_core.filesystem import FileSystem
from storage_core.scan.read import read_task

ALL_COLUMNS = (
    "key",
    "value",
    "topic",
    "partition",
    "offset",
    "timestamp",
    "timestampType",
    "headers",
    "_metadata",
)
PRODUCERS = (7, 8)

# -- Logs of every shape --------

byte_strings = st.none() | st.sampled_from([b"", b"k", b"a value of more than twelve bytes", b"x" * 1500])
headers = st.lists(st.tuples(st.sampled_from(["", "h", "löng name"]), byte_strings), max_size=3).map(tuple)


@st.composite
def batches(draw):
    """The arguments of one append: record fields, and what the batch's header says."""
    count = draw(st.integers(0, 6))
    step = draw(st.sampled_from([1, 1, 1, 3]))
    deltas = [number * step + (number > 2) for number in range(count)]
    records = [
        (delta, 1000 + draw(st.integers(-30, 60)), draw(byte_strings), draw(byte_strings), draw(headers))
        for delta in deltas
    ]
    fields = {
        "codec": draw(st.integers(0, 4)),
        "leader_epoch": draw(st.integers(-1, 3)),
        # A batch without records that has a timestamp misleads look-ups by time, a broker's too.
        "append_time_ms": draw(st.none() | st.integers(900, 1100)) if count else None,
        "last_offset_delta": max(deltas, default=0) + draw(st.sampled_from([0, 0, 0, 2])),
    }
    producer_id = draw(st.sampled_from([-1, -1, *PRODUCERS]))
    if producer_id >= 0:
        fields |= {
            "producer_id": producer_id,
            "producer_epoch": draw(st.integers(0, 3)),
            "base_sequence": draw(st.sampled_from([0, 5, 2**31 - 2])),
            "transactional": draw(st.booleans()),
        }
    return records, fields


operations = st.lists(
    st.one_of(
        st.tuples(st.just("append"), batches()),
        st.tuples(st.sampled_from(["abort", "commit", "empty_control"]), st.sampled_from(PRODUCERS)),
        st.tuples(st.just("skip"), st.integers(1, 3)),
        st.tuples(st.just("roll"), st.none()),
    ),
    max_size=30,
)


def build(log, steps, record_of):
    for name, argument in steps:
        if name == "append":
            records, fields = argument
            log.append(*(record_of(*record) for record in records), **fields)
        elif name == "roll":
            log.roll()
        else:
            getattr(log, name)(argument)
    # The log ends with a batch: behind the last one, a gap does not show.
    return log.values(1)


def expect_rows(rows, columns, start=0, end=2**63):
    return [{name: row[name] for name in columns} for row in rows if start <= row["offset"] < end]


split_options = st.fixed_dictionaries(
    {"use_indexes": st.booleans()},
    optional={
        "max_bytes_per_partition": st.sampled_from([1, 100, 1000, 4096, 20_000]),
        "min_partitions": st.integers(1, 12),
        "max_records_per_partition": st.integers(1, 20),
    },
)


@pytest.fixture
def small_windows(monkeypatch):
    """Windows so small that the shortest logs have many, and batches that do not fit."""

    def use(size_bytes):
        monkeypatch.setattr(read_module, "WINDOW_BYTES", size_bytes)
        monkeypatch.setattr(sections_module, "WINDOW_BYTES", size_bytes)
        monkeypatch.setattr(sections_module, "_ENOUGH_BYTES", size_bytes * 3 // 4)

    return use


def examples(count):
    return settings(
        max_examples=count, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
    )


def check_any_read(log_root, scan, record_of, small_windows, data, *, by_time=False):
    """Draw a log and a read of it; compare with what was written."""
    log = build(log_root.rows(), data.draw(operations), record_of)
    if data.draw(st.booleans()):
        log_root.mark_clean()
        log.take_snapshot()
    log.write(
        indexes=data.draw(st.booleans()), index_interval_bytes=data.draw(st.sampled_from([0, 1000, 4096]))
    )
    small_windows(data.draw(st.sampled_from([70, 200, 3000, 4 << 20])))

    rows, limit = log.rows, log.next_offset
    isolation = data.draw(st.sampled_from(["read_uncommitted", "read_committed"]))
    if isolation == "read_committed":
        rows, limit = log.committed_rows, min(log.open.values(), default=limit)
    start, end, bounds = draw_times(log, limit, data) if by_time else draw_offsets(limit, data)
    columns = data.draw(st.lists(st.sampled_from(ALL_COLUMNS), min_size=1, unique=True))
    split = data.draw(split_options)
    planned = scan(log.path, isolation_level=isolation, columns=columns, **bounds, **split)
    assert planned.rows() == expect_rows(rows, columns, start, end)
    for task in planned.plan.tasks:
        offsets = sum(span.end_offset - span.start_offset for span in task.spans)
        assert offsets <= split.get("max_records_per_partition", offsets)


def bounds_of(start, end):
    return {"starting_offsets": {"events": {"0": start}}, "ending_offsets": {"events": {"0": end}}}


def draw_offsets(limit, data):
    start = data.draw(st.integers(0, limit))
    end = data.draw(st.integers(start, limit))
    return start, end, bounds_of(start, end)


def draw_times(log, limit, data):
    # A segment without timestamps counts as old as its file.
    for path in log.path.glob("*.log"):
        os.utime(path, (0, 0))
    times_ms = data.draw(st.lists(st.integers(890, 1110), min_size=2, max_size=2).map(sorted))
    offsets = []
    for time_ms in times_ms:
        young = (row["offset"] for row in log.rows if row["timestamp"] >= time_ms * 1000)
        offsets.append(min(next(young, limit), limit))
    options = {
        "starting_timestamp": times_ms[0],
        "ending_timestamp": times_ms[1],
        "starting_offsets_by_timestamp_strategy": "latest",
    }
    return *offsets, options


@examples(100)
@given(data=st.data(), by_time=st.booleans())
def test_any_read_gives_the_rows_that_were_written(
    new_log_root, scan, record_of, small_windows, data, by_time
):
    check_any_read(new_log_root(), scan, record_of, small_windows, data, by_time=by_time)


@pytest.mark.soak
@examples(10_000)
@given(data=st.data(), by_time=st.booleans())
def test_any_read_gives_the_rows_that_were_written_soak(
    new_log_root, scan, record_of, small_windows, data, by_time
):
    check_any_read(new_log_root(), scan, record_of, small_windows, data, by_time=by_time)


# -- Columns --------


@pytest.fixture
def mixed(log_root, record_of):
    """Every codec, gaps, headers, both kinds of timestamps, a transaction, an empty batch."""
    log = log_root.rows()
    for codec in range(5):
        log.append(
            record_of(0, 1000 + codec, b"k", b"first", (("h", b"1"),)),
            record_of(1, 900, None, None),
            codec=codec,
            leader_epoch=codec,
        )
        log.append(record_of(1, 5000), record_of(4, 7000), codec=codec, last_offset_delta=6)
        log.append(record_of(0, 1), record_of(1, 2), codec=codec, append_time_ms=8000 + codec)
        log.append(record_of(), codec=codec, producer_id=7, base_sequence=codec, transactional=True)
        log.roll()
    return log.commit(7).append(last_offset_delta=3).values(1).write()


@pytest.mark.parametrize("column", ALL_COLUMNS)
def test_each_column_alone_has_the_values_of_the_full_read(mixed, scan, column):
    assert scan(mixed.path, columns=[column]).rows() == expect_rows(mixed.rows, [column])


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(columns=st.lists(st.sampled_from(ALL_COLUMNS), min_size=1, unique=True))
def test_any_columns_in_any_order(mixed, scan, columns):
    planned = scan(mixed.path, columns=columns)
    assert planned.schema.names == columns
    assert [list(row) for row in planned.rows()] == [columns] * len(mixed.rows)
    assert planned.rows() == expect_rows(mixed.rows, columns)


def test_every_arrow_batch_has_exactly_the_schema(mixed, scan):
    planned = scan(mixed.path)
    found = list(planned.batches())
    assert found
    for each in found:
        assert each.schema.equals(planned.schema, check_metadata=True)
        assert each.num_rows


def test_offsets_of_batches_without_gaps_need_no_decompression(log_root, scan):
    log = log_root.rows()
    for _ in range(3):
        log._append([], 5, codec=4, payload=b"garbage", record_count=5)
    log.write()
    assert scan(log.path, columns=["offset", "topic"]).offsets() == list(range(15))
    with pytest.raises(CorruptRecordError, match="zstd"):
        scan(log.path, columns=["offset", "value"]).rows()
    # But their CRC is checked.
    with log.log_path().open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"!")
        file.seek(0, os.SEEK_END)
        file.write(bytes(100))
    damaged = scan(log.path, columns=["offset"], ending_offsets={"events": {"0": 10}})
    assert damaged.offsets() == list(range(10))


@pytest.mark.parametrize("columns", [["offset"], ["value"]])
def test_the_crc_is_checked_whatever_is_read(log_root, scan, overwrite, columns):
    log = log_root.rows().values(5, codec=4).values(5, codec=4).roll().values(1).write()
    overwrite(log.log_path(), 70, b"\xff")
    with pytest.raises(CorruptRecordError, match="CRC"):
        scan(log.path, columns=columns).rows()


def test_a_timestamp_beyond_microseconds_names_its_file_and_offset(log_root, record_of, scan):
    log = log_root.rows().values(3).append(record_of(0, 1_700_000_000_000_000_000)).values(1).write()
    with pytest.raises(TimestampRangeError, match="1700000000000000000") as caught:
        scan(log.path).rows()
    assert (caught.value.path, caught.value.offset) == (str(log.log_path()), 3)
    without = [name for name in ALL_COLUMNS if name != "timestamp"]
    assert scan(log.path, columns=without).rows() == expect_rows(log.rows, without)


def test_the_largest_offsets_of_all(log_root, record_of, scan):
    log = log_root.rows(base_offset=2**63 - 10)
    log.append(*(record_of(delta) for delta in range(10))).write()
    assert scan(log.path).rows() == log.rows


# -- Sizes --------


def test_arrow_batches_are_neither_too_long_nor_too_large(log_root, scan):
    log = log_root.rows().data(100_000).values(3000, b"x" * 10_000, codec=4).data(5000)
    found = list(scan(log.write().path).batches())
    assert sum(each.num_rows for each in found) == 108_000
    assert max(each.num_rows for each in found) <= 65_536
    assert max(each.nbytes for each in found) <= 9 << 20
    assert [offset for each in found for offset in each["offset"].to_pylist()] == list(range(108_000))


@pytest.mark.parametrize("codec", range(5))
def test_batches_larger_than_the_window(log_root, scan, codec):
    rng = np.random.default_rng(5)
    log = log_root.rows().values(10)
    # 5 MiB that no codec makes smaller, and 20 MiB that every codec does.
    log.values(5, rng.bytes(1 << 20), codec=codec).values(10).values(
        20, b"x" * (1 << 20), codec=codec
    ).values(10)
    planned = scan(log.write().path)
    rows = [row for each in planned.batches() for row in each.select(["offset", "value"]).to_pylist()]
    assert rows == expect_rows(log.rows, ["offset", "value"])


@pytest.mark.parametrize("codec", range(5))
def test_a_batch_that_inflates_beyond_the_limit(log_root, scan, codec):
    log = log_root.rows().values(3).values(3, b"x" * 100_000, codec=codec).roll().values(1).write()
    assert len(scan(log.path, max_decompressed_batch_bytes="400k").rows()) == 7
    with pytest.raises(BatchTooLargeError, match="maxDecompressedBatchBytes") as caught:
        scan(log.path, max_decompressed_batch_bytes="100k").rows()
    start, end, *offsets = log.places[0][1]
    assert (caught.value.path, caught.value.position_bytes, caught.value.end_position_bytes) == (
        str(log.log_path()),
        start,
        end,
    )
    assert caught.value.offset == offsets[0]
    # In front of it all is well.
    before = scan(log.path, max_decompressed_batch_bytes="100k", ending_offsets={"events": {"0": 3}})
    assert before.offsets() == [0, 1, 2]


def test_a_batch_that_declares_more_than_the_limit(log_root, scan, overwrite):
    log = log_root.rows()
    for _ in range(10):
        log.values(10)
    log.roll().values(1).write()
    start = log.places[0][5][0]
    overwrite(log.log_path(), start + 8, struct.pack(">i", 2**31 - 1))
    # The rest of the segment is no whole batch: nothing is allocated for what is declared.
    with pytest.raises(CorruptRecordError, match="cut off") as caught:
        scan(log.path).rows()
    assert caught.value.position_bytes == start


# -- Damage --------


@pytest.fixture
def damaged(log_root):
    """Three segments of five batches of four offsets: the closed one in the middle is to be damaged."""
    log = log_root.rows()
    for number in range(15):
        log.values(4, b"x" * 1500)
        if number in (4, 9):
            log.roll()
    return log.write()


class TestDamage:
    """Offsets 28 to 31, the third batch of the segment that begins at 20."""

    @pytest.fixture
    def path(self, damaged):
        return damaged.log_path(20)

    @pytest.fixture
    def place(self, damaged):
        return damaged.places[20][2]

    def raised(self, scan, path, **options):
        with pytest.raises(CorruptRecordError) as caught:
            scan(path.parent, **options).rows()
        assert caught.value.path == str(path)
        assert str(path) in str(caught.value)
        return caught.value

    @pytest.mark.parametrize("options", [{}, {"use_indexes": False}, {"min_partitions": 12}])
    def test_a_flipped_byte(self, damaged, path, place, scan, overwrite, options):
        start, end, first_offset, last_offset = place
        overwrite(path, start + 1000, b"\xff")
        error = self.raised(scan, path, **options)
        assert "CRC" in str(error)
        assert (error.position_bytes, error.end_position_bytes) == (start, end)
        assert (error.offset, error.last_offset) == (first_offset, last_offset)
        for around in ((0, 28), (21, 28), (32, 60), (33, 34), (40, 60)):
            assert scan(damaged.path, **bounds_of(*around), **options).offsets() == list(range(*around))

    @pytest.mark.parametrize("first", [20, 28, 29, 31])
    def test_a_flipped_byte_is_found_from_any_start_within_its_batch(
        self, path, place, scan, overwrite, first
    ):
        overwrite(path, place[0] + 1000, b"\xff")
        self.raised(scan, path, **bounds_of(first, 60))
        self.raised(scan, path, **bounds_of(0, min(first + 1, 60)) if first >= 28 else {})

    @pytest.mark.parametrize("options", [{}, {"use_indexes": False}, {"min_partitions": 15}])
    @pytest.mark.parametrize(("start", "end"), [(0, 60), (36, 60), (37, 60), (38, 39), (0, 37), (0, 40)])
    def test_a_closed_segment_that_is_cut_off(self, damaged, path, scan, options, start, end):
        last = damaged.places[20][4]
        os.truncate(path, last[1] - 1)
        error = self.raised(scan, path, **bounds_of(start, end), **options)
        assert "cut off" in str(error)
        assert (error.position_bytes, error.end_position_bytes) == (last[0], last[1] - 1)
        for around in ((0, 36), (40, 60), (25, 36)):
            assert scan(damaged.path, **bounds_of(*around), **options).offsets() == list(range(*around))

    @pytest.mark.parametrize("options", [{}, {"use_indexes": False}, {"min_partitions": 15}])
    @pytest.mark.parametrize(("start", "end"), [(0, 60), (0, 30), (29, 30), (28, 60)])
    def test_a_hole_of_zeros(self, damaged, path, place, scan, overwrite, options, start, end):
        overwrite(path, place[0], bytes(place[1] - place[0]))
        error = self.raised(scan, path, **bounds_of(start, end), **options)
        assert error.position_bytes == place[0]
        for around in ((0, 28), (40, 60)):
            assert scan(damaged.path, **bounds_of(*around), **options).offsets() == list(range(*around))

    def test_behind_a_hole_the_index_leads_on(self, damaged, path, place, scan, overwrite):
        overwrite(path, place[0], bytes(place[1] - place[0]))
        # From the batch behind the one right after the hole: the entry before that is in the hole.
        for start, end in ((36, 60), (37, 38), (39, 41)):
            assert scan(damaged.path, **bounds_of(start, end)).offsets() == list(range(start, end))

    def test_zeros_at_the_end_of_a_closed_segment(self, damaged, path, scan):
        with path.open("ab") as file:
            file.write(bytes(100_000))
        assert scan(damaged.path).offsets() == list(range(60))

    @pytest.mark.parametrize("codec", range(5))
    def test_batches_out_of_order(self, log_root, scan, codec):
        log = log_root.rows()
        for _ in range(3):
            log.values(4, codec=codec)
        log.roll().values(1).write()
        content = log.log_path().read_bytes()
        (_, first, *_), (_, second, *_) = log.places[0][:2]
        log.log_path().write_bytes(content[first:second] + content[:first] + content[second:])
        error = self.raised(scan, log.log_path())
        assert "batches are out of order" in str(error)
        assert (error.offset, error.last_offset) == (0, 3)
        assert (error.position_bytes, error.end_position_bytes) == (second - first, second)

    def test_a_batch_that_stands_twice(self, log_root, scan):
        log = log_root.rows().values(4).values(4).roll().values(1).write()
        content = log.log_path().read_bytes()
        size = log.places[0][0][1]
        log.log_path().write_bytes(content[:size] + content)
        assert self.raised(scan, log.log_path()).position_bytes == size

    def test_a_base_offset_below_the_segments(self, log_root, scan):
        log = log_root.rows(base_offset=100).values(4).roll().values(1).write()
        content = bytearray(log.log_path(100).read_bytes())
        content[:8] = struct.pack(">q", 50)
        log.log_path(100).write_bytes(content)
        error = self.raised(scan, log.log_path(100))
        assert "offsets from 100 on" in str(error)
        assert (error.position_bytes, error.offset) == (0, 50)


@pytest.mark.parametrize("is_closed", [True, False])
@pytest.mark.parametrize("use_indexes", [True, False])
def test_no_flipped_byte_under_the_crc_goes_unnoticed(log_root, scan, is_closed, use_indexes):
    log = log_root.rows().values(3).values(3).values(3)
    if is_closed:
        log.roll().values(1)
    log.write()
    start, end = log.places[0][1][:2]
    content = log.log_path().read_bytes()
    noticed = set()
    # The CRC covers neither the base offset nor the leader epoch.
    positions = [*range(8, 12), *range(16, end - start)]
    for position in positions:
        flipped = bytearray(content)
        flipped[start + position] ^= 0xFF
        log.log_path().write_bytes(flipped)
        try:
            scan(log.path, use_indexes=use_indexes).rows()
        except SegmentLogError as error:
            noticed.add((position, error.path, error.position_bytes is None))
    assert noticed == {(position, str(log.log_path()), False) for position in positions}


# -- A directory that lives --------


@pytest.fixture
def live(log_root, small_windows):
    """Segments 0 to 39, 40 to 79, 80 to 119 of ten offsets a batch, read a batch at a time."""
    small_windows(100)
    log = log_root.rows()
    for number in range(12):
        log.values(10, b"x" * 100)
        if number in (3, 7):
            log.roll()
    return log.write()


class TestLive:
    """Each happens between planning and reading, or when the first rows were read already."""

    @pytest.fixture(params=["before the reading", "during the reading"])
    def read(self, request, live, scan):
        def read(happen, **options):
            planned = scan(live.path, columns=["offset", "value"], **options)
            batches = planned.batches()
            found = next(batches)["offset"].to_pylist() if request.param == "during the reading" else []
            happen()
            for each in batches:
                found += each["offset"].to_pylist()
            return found

        read.is_during = request.param == "during the reading"
        return read

    @pytest.fixture
    def compacted(self, live, new_log_root):
        """Every second batch of the first two segments, in one file."""
        log = new_log_root().rows()
        for number in range(8):
            log.values(10, b"x" * 100) if number % 2 else log.skip(10)
        return log.write().log_path().read_bytes()

    def replace(self, path, content):
        new = path.with_name(path.name + ".swap")
        new.write_bytes(content)
        os.replace(new, path)

    def test_appended_to(self, live, read):
        def append():
            live.values(10)
            live.write()

        assert read(append) == list(range(120))

    def test_rolled(self, live, read):
        def roll():
            live.roll().values(10)
            live.write()

        assert read(roll) == list(range(120))

    def test_replaced_by_the_same_content(self, live, read):
        def replace():
            for base_offset in (0, 40, 80):
                self.replace(live.log_path(base_offset), live.log_path(base_offset).read_bytes())

        assert read(replace) == list(range(120))

    def test_compacted_while_the_old_files_await_their_removal(self, live, read, compacted):
        def compact():
            for base_offset in (0, 40):
                path = live.log_path(base_offset)
                os.replace(path, f"{path}.deleted")
            live.log_path().write_bytes(compacted)

        assert read(compact) == list(range(120))

    def test_compacted_and_the_old_files_gone(self, live, read, compacted):
        def compact():
            self.replace(live.log_path(0), compacted)
            live.log_path(40).unlink()

        kept = [offset for offset in range(120) if offset >= 80 or offset // 10 % 2]
        # A file that is open is read to its end.
        expected = [*range(40), *(offset for offset in kept if offset >= 40)] if read.is_during else kept
        assert read(compact) == expected

    def test_compacted_with_indexes_of_before(self, live, read, compacted):
        for base_offset in (0, 40):
            live.log_path(base_offset).with_suffix(".index").write_bytes(struct.pack(">ii", 30, 100))
        self.test_compacted_and_the_old_files_gone(live, read, compacted)

    def test_renamed_for_deletion(self, live, read):
        def rename():
            for base_offset in (0, 40):
                live.log_path(base_offset).rename(f"{live.log_path(base_offset)}.deleted")

        assert read(rename) == list(range(120))

    def test_deleted_by_retention(self, live, read):
        def delete():
            live.log_path(0).unlink()
            live.log_path(40).unlink()

        with pytest.raises(DataLossError, match="log to go from offset 80 to 120") as caught:
            read(delete)
        first = 40 if read.is_during else 0
        assert (caught.value.path, caught.value.offset) == (str(live.path), first)
        assert caught.value.last_offset == first + 39

    def test_deleted_by_retention_and_loss_allowed(self, live, read, caplog):
        def delete():
            live.log_path(0).unlink()
            live.log_path(40).unlink()

        assert read(delete, fail_on_data_loss=False) == [*range(40 * read.is_during), *range(80, 120)]
        assert "Reading goes on with what is left" in caplog.text

    def test_deleted_records(self, live, read, log_root):
        """What is logically deleted after planning is still there."""

        def delete_records():
            log_root.checkpoint("log-start-offset-checkpoint", {("events", 0): 55})

        assert read(delete_records) == list(range(120))

    @pytest.mark.parametrize("fail_on_data_loss", [True, False])
    def test_truncated(self, live, read, fail_on_data_loss):
        """As a follower does with what a new leader does not have."""

        def truncate():
            os.truncate(live.log_path(40), live.places[40][2][0])
            live.log_path(80).unlink()

        if fail_on_data_loss:
            with pytest.raises(DataLossError, match="log to go from offset 0 to 60") as caught:
                read(truncate)
            assert (caught.value.offset, caught.value.last_offset) == (40, 79)
        else:
            assert read(truncate, fail_on_data_loss=False) == list(range(60))

    def test_truncated_within_the_file_that_is_read(self, live, scan):
        planned = scan(live.path, columns=["offset"], **bounds_of(80, 120))
        batches = planned.batches()
        assert next(batches)["offset"].to_pylist() == list(range(80, 90))
        os.truncate(live.log_path(80), live.places[80][2][0])
        # What was read ahead is given, then the end is missed.
        with pytest.raises(DataLossError, match="offsets 100 to 119") as caught:
            list(batches)
        assert (caught.value.offset, caught.value.last_offset) == (100, 119)

    @pytest.mark.parametrize("fail_on_data_loss", [True, False])
    @pytest.mark.parametrize("by_renaming", [True, False])
    def test_the_topic_deleted(self, live, read, fail_on_data_loss, by_renaming):
        def delete():
            if by_renaming:
                live.path.rename(live.path.with_name("events-0.0123456789abcdef0123456789abcdef-delete"))
            else:
                shutil.rmtree(live.path)

        if fail_on_data_loss:
            with pytest.raises(DataLossError, match="directory gone") as caught:
                read(delete)
            assert caught.value.path == str(live.path)
        else:
            assert read(delete, fail_on_data_loss=False) == list(range(40 * read.is_during))

    def test_every_file_deleted_and_the_directory_left(self, live, read):
        def delete():
            for path in live.path.iterdir():
                path.unlink()

        with pytest.raises(DataLossError):
            read(delete)

    def test_a_user_who_may_not_read_it_any_more(self, live, read, monkeypatch):
        opening = os.open

        def refuse(path, *arguments, **options):
            if str(path).endswith(".log"):
                raise PermissionError(13, "Permission denied")
            return opening(path, *arguments, **options)

        with pytest.raises(UnreadableError, match="may not open"):
            read(lambda: monkeypatch.setattr(os, "open", refuse))


class ReplacedAgainAndAgain(FileSystem):
    """Each segment is another file by the time it is opened."""

    def __init__(self, every=1):
        super().__init__()
        self.count = 0
        self._every = every

    def open(self, path):
        if path.endswith(".log"):
            self.count += 1
            if self.count % self._every == 0:
                shutil.copyfile(path, path + ".new")
                os.replace(path + ".new", path)
        return super().open(path)


def test_endless_replacement_is_an_error_at_last(live, scan):
    planned = scan(live.path, columns=["offset"])
    planned.filesystem = ReplacedAgainAndAgain()
    with pytest.raises(DataLossError, match="replaced again and again"):
        planned.rows()
    assert planned.filesystem.count < 50


def test_endless_replacement_with_loss_allowed(live, scan, caplog):
    planned = scan(live.path, columns=["offset"], fail_on_data_loss=False)
    planned.filesystem = ReplacedAgainAndAgain()
    assert planned.offsets() == []
    assert caplog.text.count("replaced again and again") == 3


@pytest.mark.parametrize("every", [5, 7, 11, 16])
def test_frequent_replacement_loses_nothing(live, scan, every):
    planned = scan(live.path, columns=["offset"])
    planned.filesystem = ReplacedAgainAndAgain(every)
    assert planned.offsets() == list(range(120))


def test_an_early_end_closes_the_file(live, scan, count_descriptors):
    planned = scan(live.path)
    before = count_descriptors()
    batches = planned.batches()
    next(batches)
    assert count_descriptors() == before + 1
    batches.close()
    assert count_descriptors() == before


def test_an_error_closes_the_file(damaged, scan, overwrite, count_descriptors):
    overwrite(damaged.log_path(20), 1000, b"\xff")
    before = count_descriptors()
    with pytest.raises(CorruptRecordError):
        scan(damaged.path).rows()
    assert count_descriptors() == before


def test_tasks_can_be_read_in_any_order_and_twice(damaged, scan):
    planned = scan(damaged.path, columns=["offset"], max_bytes_per_partition=1)
    found = []
    for task in reversed([*planned.plan.tasks, *planned.plan.tasks]):
        for each in read_task(planned.filesystem, task, planned.schema):
            found += each["offset"].to_pylist()
    assert sorted(found) == sorted([*range(60), *range(60)])


# -- What it costs --------


def many_batches(log_root, count, content, records, codec=0):
    """A log of equal batches: only the base offset, which no CRC covers, differs."""
    log = log_root.rows()
    template = bytearray(log.values(records, content, codec=codec).segments[0].data)
    log.write()
    with log.log_path().open("wb") as file:
        for number in range(count):
            template[:8] = struct.pack(">q", number * records)
            file.write(template)
    if len(template) > 4096:
        # A broker then makes an entry for each batch but the first.
        entries = ((number * records + records - 1, number * len(template)) for number in range(1, count))
        index = b"".join(struct.pack(">ii", *entry) for entry in entries)
        log.log_path().with_suffix(".index").write_bytes(index)
    return log


def anonymous_bytes():
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.partition("RssAnon:")[2].split()[0]) * 1024


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize(
    ("count", "content", "records", "codec"),
    [(200, b"x" * 1000, 1000, 0), (200, b"x" * 1000, 1000, 4), (13_000, b"x" * 1000, 15, 0)],
    ids=["large batches", "batches that inflate a hundredfold", "small batches"],
)
def test_memory_is_bounded_by_the_window(log_root, scan, count, content, records, codec):
    log = many_batches(log_root, count, content, records, codec)
    planned = scan(log.path, max_bytes_per_partition="1g")
    assert len(planned.plan.tasks) == 1
    before_bytes = largest_bytes = anonymous_bytes()
    rows = 0
    for number, found in enumerate(planned.batches()):
        rows += found.num_rows
        if number % 8 == 0:
            largest_bytes = max(largest_bytes, anonymous_bytes())
    assert rows == count * records
    assert largest_bytes - before_bytes < 100 << 20


@pytest.mark.parametrize("use_indexes", [True, False])
def test_one_percent_of_the_offsets_is_two_percent_of_the_bytes(log_root, scan, use_indexes):
    # 1,600 batches of 16 KiB.
    log = many_batches(log_root, 1600, b"x" * 1013, 16)
    planned = scan(log.path, use_indexes=use_indexes, **bounds_of(12_800, 13_056))
    assert planned.offsets() == list(range(12_800, 13_056))
    size = log.log_path().stat().st_size
    assert size == pytest.approx(1600 * 16_384, rel=0.02)
    assert planned.filesystem.statistics.bytes_read <= size * 0.02


def test_a_whole_read_reads_everything_once(log_root, scan):
    log = many_batches(log_root, 500, b"x" * 1000, 16)
    planned = scan(log.path, max_bytes_per_partition="4m")
    assert len(planned.plan.tasks) == 2
    planned.rows()
    size = log.log_path().stat().st_size
    assert size <= planned.filesystem.statistics.bytes_read <= size * 1.01


def test_nothing_of_the_source_changes(mixed, scan):
    def state():
        return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in sorted(mixed.path.iterdir())}

    before = state()
    scan(mixed.path, isolation_level="read_committed", min_partitions=5).rows()
    assert state() == before


def test_arrow_frees_what_was_read(mixed, scan):
    before = pa.total_allocated_bytes()
    for _ in range(3):
        scan(mixed.path).rows()
    assert pa.total_allocated_bytes() - before < 1 << 20
