"""Segments that hold messages of format v0 and v1, with the indexes that brokers of their days wrote."""

from __future__ import annotations

import itertools
import os
import struct
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.errors import BatchTooLargeError, CorruptRecordError
from storage_core.filesystem import FileSystem
from storage_core.segment import SegmentEnd, SegmentReader, TimestampOffset
from tests.examples import examples
from tests.record.legacy_encoding import GZIP, LOG_APPEND_TIME, Message, Wrapper, plain_messages


@dataclass
class Entry:
    """One message, wrapper or batch, and the timestamp in its header."""

    data: bytes
    records: list  # (offset, timestamp)
    last_offset: int
    timestamp_ms: int

    @property
    def first_offset(self):
        return self.records[0][0] if self.records else self.last_offset


def of(message):
    """Return the entry of a message or wrapper."""
    rows = message.rows if isinstance(message, Wrapper) else [message.row]
    records = [(offset, timestamp_ms) for offset, timestamp_ms, *_ in rows]
    (timestamp_ms,) = struct.unpack_from(">q", message.encode(), 18) if message.magic else (-1,)
    return Entry(message.encode(), records, records[-1][0], timestamp_ms)


@dataclass
class Written:
    """A segment that takes appends of several entries each, as brokers before 4.0 did.

    Attributes:
        names: What an entry of the offset index names: the "last" or the "first" offset of an append,
            or the offset in its "first header".
        names_record: Whether an entry of the time index names the record with the timestamp.
    """

    base_offset: int = 0
    names: str = "last"
    names_record: bool = False
    interval_bytes: int = 200
    log: bytes = b""
    entries: list = field(default_factory=list)
    places: list = field(default_factory=list)  # (position, end position)
    index: list = field(default_factory=list)
    times: list = field(default_factory=list)
    largest: tuple = (-1, 0)
    since_entry_bytes: int = 0

    def append(self, *entries):
        position = len(self.log)
        data = b"".join(entry.data for entry in entries)
        for entry in entries:
            self._note_largest(entry)
        if self.since_entry_bytes > self.interval_bytes:
            named = {
                "last": entries[-1].last_offset,
                "first": entries[0].first_offset,
                "first header": self._offset_in_header(entries[0]),
            }
            self.index.append((named[self.names], position))
            self._add_time()
            self.since_entry_bytes = 0
        self.since_entry_bytes += len(data)
        for entry in entries:
            self.places.append((len(self.log), len(self.log) + len(entry.data)))
            self.log += entry.data
            self.entries.append(entry)
        return self

    @staticmethod
    def _offset_in_header(entry):
        return struct.unpack_from(">q", entry.data)[0]

    def _note_largest(self, entry):
        if entry.timestamp_ms > self.largest[0]:
            named = [o for o, timestamp_ms in entry.records if timestamp_ms == entry.timestamp_ms]
            offset = named[0] if self.names_record and named else entry.last_offset
            self.largest = (entry.timestamp_ms, offset)

    def _add_time(self):
        if self.largest[0] > (self.times[-1][0] if self.times else -1):
            self.times.append(self.largest)

    def write(self, directory, *, is_closed=True):
        if is_closed:
            self._add_time()
        stem = directory / f"{self.base_offset:020d}"
        stem.with_suffix(".log").write_bytes(self.log)
        base = self.base_offset
        stem.with_suffix(".index").write_bytes(
            b"".join(struct.pack(">ii", offset - base, position) for offset, position in self.index)
        )
        stem.with_suffix(".timeindex").write_bytes(
            b"".join(struct.pack(">qi", timestamp_ms, offset - base) for timestamp_ms, offset in self.times)
        )
        return self

    def first_at_or_after(self, timestamp_ms, start_offset=0):
        """Return the first of the entries that are young enough by their headers, as Kafka looks it up."""
        found = (
            TimestampOffset(found_ms, offset)
            for entry in self.entries
            if entry.timestamp_ms >= timestamp_ms
            for offset, found_ms in entry.records
            if found_ms >= timestamp_ms and offset >= start_offset
        )
        return next(found, None)

    def place_reaching(self, offset):
        """Position of the first entry whose last offset is at least this one."""
        found = (
            place[0]
            for place, entry in zip(self.places, self.entries, strict=True)
            if entry.last_offset >= offset
        )
        return next(found, None)


def open_segment(directory, base_offset=0, **options):
    return SegmentReader(FileSystem(), str(directory), base_offset, **options)


def wrapper_of(offsets, *, magic=1, timestamp_ms=1000, value=b"v" * 50):
    messages = tuple(Message(offset, timestamp_ms + offset, None, value, magic) for offset in offsets)
    return of(Wrapper(messages, GZIP, magic))


@pytest.fixture
def wrappers(tmp_path):
    """Sixty wrappers of three records, of which the middle one is gone, an append each: offsets 0 to 179."""
    written = Written(interval_bytes=150)
    for number in range(60):
        written.append(wrapper_of((3 * number, 3 * number + 2)))
    return written.write(tmp_path)


# ---- whatever a broker wrote ----

TIMES = st.integers(-1, 60)
APPENDS = st.lists(
    st.lists(
        st.tuples(
            st.sampled_from(
                [
                    "message 0",
                    "message 1",
                    "wrapper 0",
                    "wrapper 1",
                    "v0 in wrapper 1",
                    "v1 in wrapper 0",
                    "batch",
                ]
            ),
            st.integers(0, 3),  # gap in front
            st.lists(st.tuples(st.integers(0, 2), TIMES), min_size=1, max_size=4),  # gaps and timestamps
            st.sampled_from([None, None, None, 30]),  # log append time
            st.sampled_from([0, 40, 300]),  # size of values
        ),
        min_size=1,
        max_size=4,
    ),
    max_size=14,
)


def make_entry(shape, next_offset, make_batch):
    kind, gap, records, append_time_ms, size = shape
    magic = int(kind[-1]) if kind != "batch" else 2
    if kind.startswith("message"):
        records = records[:1]
    offset = next_offset + gap
    placed = []
    for inner_gap, timestamp_ms in records:
        offset += inner_gap
        placed.append((offset, timestamp_ms))
        offset += 1
    if kind == "batch":
        first = placed[0][0]
        data = make_batch(
            first,
            tuple(timestamp_ms for _, timestamp_ms in placed),
            offset_deltas=[each - first for each, _ in placed],
            log_append_time_ms=append_time_ms,
            value=bytes(size),
        )
        if append_time_ms is not None:
            placed = [(each, append_time_ms) for each, _ in placed]
        return Entry(data, placed, placed[-1][0], max(timestamp_ms for _, timestamp_ms in placed))
    is_append_time = magic == 1 and append_time_ms is not None
    attributes = LOG_APPEND_TIME if is_append_time else 0
    if kind.startswith("message"):
        ((offset, timestamp_ms),) = placed
        timestamp_ms = append_time_ms if is_append_time else timestamp_ms
        return of(Message(offset, timestamp_ms, None, bytes(size), magic, attributes))
    inner_magic = int(kind[1]) if kind.startswith("v") else magic
    messages = tuple(
        Message(each, timestamp_ms, None, bytes(size), inner_magic) for each, timestamp_ms in placed
    )
    timestamp_ms = append_time_ms if is_append_time else None
    return of(Wrapper(messages, GZIP, magic, timestamp_ms=timestamp_ms, attributes=attributes))


def write_appends(appends, directory, make_batch, **options):
    written = Written(1000, **options)
    next_offset = 1000
    for shapes in appends:
        entries = []
        for shape in shapes:
            entries.append(make_entry(shape, next_offset, make_batch))
            next_offset = entries[-1].last_offset + 1
        written.append(*entries)
    return written.write(directory)


@examples(120)
@given(
    appends=APPENDS,
    names=st.sampled_from(["last", "first", "first header"]),
    names_record=st.booleans(),
    interval_bytes=st.sampled_from([0, 100, 500]),
    use_indexes=st.booleans(),
)
def test_answers_equal_a_linear_search(
    tmp_path_factory, monkeypatch, make_batch, appends, names, names_record, interval_bytes, use_indexes
):
    monkeypatch.setattr("storage_core.segment.segment_reader.PAGE_SIZE_BYTES", 0)
    directory = tmp_path_factory.mktemp("segment")
    written = write_appends(
        appends,
        directory,
        make_batch,
        names=names,
        names_record=names_record,
        interval_bytes=interval_bytes,
    )
    opened = open_segment(directory, 1000, use_indexes=use_indexes)
    next_offset = written.entries[-1].last_offset + 1 if written.entries else 1000
    assert opened.end() == SegmentEnd(next_offset, len(written.log))
    for offset in range(999, next_offset + 2):
        header = opened.translate_offset(offset)
        assert (header and header.position_bytes) == written.place_reaching(offset)
    for timestamp_ms in (0, 1, 15, 29, 30, 31, 45, 59, 60, 61):
        for start_offset in (0, 1003, next_offset - 2):
            expected = written.first_at_or_after(timestamp_ms, start_offset)
            assert opened.offset_for_timestamp(timestamp_ms, start_offset) == expected
    largest_ms = max((entry.timestamp_ms for entry in written.entries), default=-1)
    assert opened.largest_timestamp(is_complete=True).timestamp_ms == largest_ms
    if use_indexes:
        # What a broker wrote is never set aside.
        assert opened.offset_index.problem is None
        assert opened.time_index.problem is None


@examples(60)
@given(
    appends=APPENDS,
    names=st.sampled_from(["last", "first"]),
    use_indexes=st.booleans(),
    target_bytes=st.sampled_from([1, 100, 400]),
)
def test_cuts_lie_between_batches(
    tmp_path_factory, monkeypatch, make_batch, appends, names, use_indexes, target_bytes
):
    monkeypatch.setattr("storage_core.segment.segment_reader.PAGE_SIZE_BYTES", 0)
    directory = tmp_path_factory.mktemp("segment")
    written = write_appends(appends, directory, make_batch, names=names, interval_bytes=100)
    opened = open_segment(directory, 1000, use_indexes=use_indexes)
    positions = [place[0] for place in written.places]
    for header in opened.cut_points(0, len(written.log), target_bytes):
        number = positions.index(header.position_bytes)
        before, entry = written.entries[number - 1 : number + 1]
        assert before.last_offset < header.base_offset <= entry.first_offset


# ---- entries of the offset index ----


def proven(opened, number):
    with opened.open_log() as log_file:
        return opened.proven_position(opened._walk(log_file), number)


@pytest.mark.parametrize("names", ["last", "first", "first header"])
def test_entries_of_every_broker_are_proven(tmp_path, names):
    written = Written(names=names)
    for number in range(40):
        first = 10 * number
        if number % 3:
            written.append(wrapper_of((first + 5, first + 7)), of(Message(first + 9, 5)))
        else:
            written.append(*[of(each) for each in plain_messages(4, start=first, magic=number % 2)])
    written.write(tmp_path)
    opened = open_segment(tmp_path)
    assert len(written.index) > 10
    assert [proven(opened, number) for number in range(len(written.index))] == [
        position for _, position in written.index
    ]
    assert opened.offset_index.problem is None


@pytest.mark.parametrize("change", [(-3, 0), (-1, 0), (0, 1), (0, -1), (1, 0)])
def test_a_false_entry_for_a_wrapper_changes_no_answer(tmp_path, wrappers, change):
    offset, position = wrappers.index[10]
    wrappers.index[10] = (offset + change[0], position + change[1])
    wrappers.write(tmp_path)
    opened = open_segment(tmp_path)
    for target in range(180):
        assert opened.translate_offset(target).position_bytes == wrappers.place_reaching(target)


def test_an_entry_before_its_wrapper_is_no_entry_of_it(tmp_path, wrappers):
    offset, position = wrappers.index[10]
    wrappers.index[10] = (offset - 3, position)
    wrappers.write(tmp_path)
    opened = open_segment(tmp_path)
    assert proven(opened, 10) == wrappers.index[9][1]


def test_an_entry_for_a_damaged_wrapper_is_not_believed(tmp_path, wrappers):
    # Its first offset could be told only by its records.
    wrappers.index = [(offset - 1, position) for offset, position in wrappers.index]
    position = wrappers.index[10][1]
    log = bytearray(wrappers.log)
    log[position + 60] ^= 1
    wrappers.log = bytes(log)
    wrappers.write(tmp_path)
    opened = open_segment(tmp_path)
    assert proven(opened, 9) == wrappers.index[9][1]
    assert proven(opened, 10) == wrappers.index[9][1]


# ---- records in wrappers ----


@pytest.mark.parametrize("use_indexes", [True, False])
def test_an_offset_in_a_wrapper_leads_to_the_wrapper(tmp_path, wrappers, use_indexes):
    opened = open_segment(tmp_path, use_indexes=use_indexes)
    for offset in range(180):
        header = opened.translate_offset(offset)
        assert header.position_bytes == wrappers.places[offset // 3][0]
        assert header.base_offset <= offset // 3 * 3
        assert header.last_offset == offset // 3 * 3 + 2
    assert opened.translate_offset(180) is None


def test_a_gap_in_a_wrapper_is_passed_over(tmp_path, wrappers):
    opened = open_segment(tmp_path)
    for start_offset in range(180):
        # Offset 1 of each wrapper is gone.
        expected = start_offset + 1 if start_offset % 3 == 1 else start_offset
        found = opened.offset_for_timestamp(0, start_offset)
        assert found == TimestampOffset(1000 + expected, expected)


def test_read_batch_checks_the_crc_of_a_wrapper(tmp_path, wrappers):
    opened = open_segment(tmp_path)
    header = opened.translate_offset(4)
    assert opened.read_batch(header) == wrappers.entries[1].data
    log = bytearray(wrappers.log)
    log[header.position_bytes + 50] ^= 1
    wrappers.log = bytes(log)
    wrappers.write(tmp_path)
    opened = open_segment(tmp_path)
    with pytest.raises(CorruptRecordError, match="CRC") as caught:
        opened.read_batch(opened.translate_offset(4))
    assert caught.value.position_bytes == header.position_bytes
    assert caught.value.last_offset == 5
    with pytest.raises(CorruptRecordError):
        opened.check_gap(6)
    opened.check_gap(9)


def test_a_wrapper_that_inflates_beyond_the_limit_is_not_decoded(tmp_path):
    Written().append(wrapper_of(range(20), value=bytes(10_000))).write(tmp_path)
    opened = open_segment(tmp_path, max_batch_bytes=50_000)
    with pytest.raises(BatchTooLargeError, match="maxDecompressedBatchBytes"):
        opened.offset_for_timestamp(1000)


def test_the_answers_of_a_broker_about_log_append_times(tmp_path):
    messages = plain_messages(3, timestamp_ms=500)
    wrapper = Wrapper(messages, GZIP, 1, timestamp_ms=2000, attributes=LOG_APPEND_TIME)
    Written().append(of(wrapper)).append(of(Message(3, 3000, attributes=LOG_APPEND_TIME))).write(tmp_path)
    opened = open_segment(tmp_path)
    assert opened.offset_for_timestamp(501) == TimestampOffset(2000, 0)
    assert opened.offset_for_timestamp(501, 2) == TimestampOffset(2000, 2)
    assert opened.offset_for_timestamp(2001) == TimestampOffset(3000, 3)


# ---- without timestamps ----


@pytest.fixture
def without_timestamps(tmp_path):
    """Format v0: a thousand messages of 136 bytes, last changed at 1,234,567 ms."""
    written = Written(interval_bytes=4096)
    for number in range(1000):
        written.append(of(Message(number, magic=0, value=bytes(110))))
    written.write(tmp_path)
    os.utime(tmp_path / f"{0:020d}.log", ns=(0, 1_234_567_000_000))
    return written


@pytest.mark.parametrize("use_indexes", [True, False])
@pytest.mark.parametrize("is_complete", [True, False])
def test_the_age_of_the_file_counts(tmp_path, without_timestamps, is_complete, use_indexes):
    opened = open_segment(tmp_path, use_indexes=use_indexes)
    assert opened.largest_timestamp(is_complete=is_complete) == TimestampOffset(-1, 0)
    assert opened.largest_timestamp_ms(is_complete=is_complete) == 1_234_567
    assert opened.offset_for_timestamp(0) is None


def test_that_there_are_no_timestamps_costs_little(tmp_path, without_timestamps):
    opened = open_segment(tmp_path)
    opened.largest_timestamp_ms(is_complete=True)
    assert opened.offset_for_timestamp(0) is None
    assert opened.filesystem.statistics.bytes_read < len(without_timestamps.log) / 8


@pytest.mark.parametrize("where", [0, 999])
def test_an_empty_time_index_beside_timestamps_is_not_believed(tmp_path, without_timestamps, where):
    entries = list(without_timestamps.entries)
    # As long as the one that it replaces, but with a timestamp.
    entries[where] = of(Message(where, 5000, value=bytes(102)))
    without_timestamps.log = b"".join(entry.data for entry in entries)
    without_timestamps.write(tmp_path)
    opened = open_segment(tmp_path)
    assert opened.largest_timestamp(is_complete=True) == TimestampOffset(5000, where)
    assert opened.offset_for_timestamp(1) == TimestampOffset(5000, where)


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_without_either_index_every_header_is_looked_at(tmp_path, without_timestamps, suffix):
    entries = list(without_timestamps.entries)
    entries[500] = of(Message(500, 5000, value=bytes(102)))
    without_timestamps.log = b"".join(entry.data for entry in entries)
    without_timestamps.write(tmp_path)
    (tmp_path / f"{0:020d}{suffix}").unlink()
    opened = open_segment(tmp_path)
    assert opened.largest_timestamp(is_complete=True) == TimestampOffset(5000, 500)


# ---- cutting ----


@pytest.mark.parametrize("use_indexes", [True, False])
def test_wrappers_are_cut_right_after_the_previous_batch(tmp_path, wrappers, use_indexes):
    opened = open_segment(tmp_path, use_indexes=use_indexes)
    cuts = opened.cut_points(0, len(wrappers.log), 400)
    assert len(cuts) >= 10
    assert all(header.base_offset == header.last_offset - 2 for header in cuts)
    positions = [0, *(header.position_bytes for header in cuts)]
    assert all(after - before >= 400 for before, after in itertools.pairwise(positions))


def test_cutting_stops_at_damage_among_old_messages(tmp_path, wrappers):
    position = wrappers.places[30][0]
    log = bytearray(wrappers.log)
    log[position + 16] = 77
    wrappers.log = bytes(log)
    wrappers.write(tmp_path)
    cuts = open_segment(tmp_path, use_indexes=False).cut_points(0, len(log), 300)
    assert cuts
    assert all(header.position_bytes < position for header in cuts)
