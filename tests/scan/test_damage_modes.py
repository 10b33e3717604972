"""Damage in every mode: which rows are left, and what is said of the others, is known from how a log was damaged."""

from __future__ import annotations

import json
import logging
import random
import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import storage_core.record.section as sections_module
import storage_core.scan.read as read_module
from storage_core import read_table
from storage_core.errors import BatchTooLargeError, CorruptError, CorruptRecordError, SegmentLogError
from tests.examples import examples
from tests.record.encoding import Batch, Record
from tests.scan.damaged_log import DamagedLog, Lost, damage

SPLITS = [
    {},
    {"max_records_per_partition": 1},
    {"max_records_per_partition": 2},
    {"max_records_per_partition": 3},
    {"max_records_per_partition": 7},
    {"min_partitions": 2},
    {"min_partitions": 5},
    {"min_partitions": 20},
    {"max_bytes_per_partition": 1},
    {"max_bytes_per_partition": 300},
    {"max_bytes_per_partition": 1500},
]
WINDOWS_BYTES = (100, 700, 5000, 4 << 20)


def bounded(start, end):
    return {
        "starting_offsets": {"events": {"0": start}},
        "ending_offsets": {"events": {"0": end}},
    }


def read(path, mode, **options):
    """Return the offsets of the rows, and the damaged ranges that rows describe, each at its place."""
    columns = ["offset", "_corrupt_record"] if mode == "PERMISSIVE" else ["offset"]
    table = read_table(str(path), mode=mode, columns=columns, **options).to_pydict()
    described = table.get("_corrupt_record", [None] * len(table["offset"]))
    return [
        offset if text is None else lost_of(json.loads(text))
        for offset, text in zip(table["offset"], described, strict=True)
    ]


def lost_of(fields):
    base_offset = int(fields["file"].rpartition("/")[2].removesuffix(".log"))
    return Lost(
        base_offset, fields["startByte"], fields["endByte"], fields["startOffset"], fields["endOffset"]
    )


def offsets_of(items):
    return [item for item in items if not isinstance(item, Lost)]


def lost_in(items):
    return [item for item in items if isinstance(item, Lost)]


def built(rng):
    """Return a log of some segments, in one format or in several."""
    log = DamagedLog(rng.choice((0, 0, 1000)))
    kind = rng.choice(("v2", "v2", "compressed", "mixed", "v0", "v1"))
    is_equal = rng.random() < 0.3
    size = rng.choice((1, 20, 200, 900))
    for number in range(rng.choice((1, 2, 3))):
        for _ in range(rng.choice((1, 3, 6, 12))):
            count = 1 if is_equal else rng.randint(1, 5)
            value = bytes([97 + log.next_offset % 26]) * (
                size if is_equal else rng.choice((1, size, size * 2))
            )
            magic = {"v0": 0, "v1": 1, "mixed": rng.choice((0, 1, 2))}.get(kind, 2)
            if magic < 2:
                log.messages(magic, count, value, codec=rng.choice((0, 1, 2, 3)))
            else:
                codec = rng.randrange(5) if kind == "compressed" else 0
                log.batch(count, value, codec=codec, rest=0 if is_equal else rng.choice((0, 0, 2)))
            if not is_equal and rng.random() < 0.15:
                log.skip(rng.randint(1, 4))
        # Mostly there is an empty last segment: then nothing is taken for a torn append.
        if rng.random() < 0.9 or number == 0:
            log.roll()
    return log


@pytest.fixture
def use_windows(monkeypatch):
    def use_windows(size_bytes):
        monkeypatch.setattr(read_module, "WINDOW_BYTES", size_bytes)
        monkeypatch.setattr(sections_module, "WINDOW_BYTES", size_bytes)
        monkeypatch.setattr(sections_module, "_FULL_SECTION_BYTES", size_bytes * 3 // 4)

    return use_windows


ANY = examples(150)


@ANY
@given(
    seed=st.integers(0, 2**32),
    damages=st.sampled_from([1, 1, 2, 3]),
    split=st.sampled_from(SPLITS),
    window_bytes=st.sampled_from(WINDOWS_BYTES),
    is_bounded=st.booleans(),
    use_indexes=st.booleans(),
)
@example(seed=0, damages=0, split={}, window_bytes=4 << 20, is_bounded=False, use_indexes=True)
# A message that is not compressed, in a wrapper whose head is damaged.
@example(seed=12374, damages=2, split={}, window_bytes=100, is_bounded=False, use_indexes=False)
def test_what_is_left_is_read_and_what_is_lost_is_reported_once(
    tmp_path_factory, use_windows, seed, damages, split, window_bytes, is_bounded, use_indexes
):
    rng = random.Random(seed)
    log = built(rng).note_indexes(rng.choice((0, 300, 1000)))
    damage(log, rng, damages)
    path = log.write(tmp_path_factory.mktemp("logs"))
    use_windows(window_bytes)
    start, end = log.segments[0].base_offset, log.log_end_offset
    options = {**split, "use_indexes": use_indexes}
    if is_bounded:
        start, end = sorted((rng.randint(start, end), rng.randint(start, end)))
        options |= bounded(start, end)
    expected = [offset for offset in log.offsets if start <= offset < end]

    assert read(path, "DROPMALFORMED", **options) == expected
    items = read(path, "PERMISSIVE", **options)
    assert offsets_of(items) == expected
    wanted = [lost for lost in log.lost if lost.concerns(start, end)]
    # Where nothing is lost, damage at a bound may be found or not, and an index may lead past it.

    def is_sure(lost):
        is_nothing_lost = lost.start_offset == lost.end_offset
        return not (is_nothing_lost and (use_indexes or lost.start_offset in (start, end)))

    assert list(filter(is_sure, lost_in(items))) == list(filter(is_sure, wanted))
    places = [item.start_offset - 0.5 if isinstance(item, Lost) else item for item in items]
    assert places == sorted(places)
    try:
        assert read(path, "FAILFAST", **options) == expected
    except CorruptError as error:
        assert error.path is not None  # noqa: PT017  (not every damage is within the bounds)
        assert error.position_bytes is not None  # noqa: PT017  (likewise)
    else:
        assert not any(map(is_sure, wanted))


# -- Known damage, every split --------


@pytest.fixture
def log(tmp_path):
    """Return two segments of six batches of four offsets and 300 bytes, and an empty one."""
    log = DamagedLog()
    for number in range(12):
        log.batch(4, bytes([97 + number]) * 60)
        if number in (5, 11):
            log.roll()
    return log.note_indexes()


def flip(log, segment, number):
    """Damage the content of a batch."""
    piece = log.segments[segment].pieces[number]
    piece.lose(piece.data[:100] + bytes([piece.data[100] ^ 1]) + piece.data[101:])


@pytest.mark.parametrize(
    "split",
    [
        pytest.param(split, marks=[pytest.mark.thorough] * (place % 4 > 0))
        for place, split in enumerate(SPLITS)
    ],
)
@pytest.mark.parametrize("isolation_level", ["read_uncommitted", "read_committed"])
class TestOnce:
    def check(self, log, tmp_path, split, isolation_level, start, end):
        path = log.write(tmp_path)
        options = {**split, "isolation_level": isolation_level, **bounded(start, end)}
        kept = [offset for offset in log.offsets if start <= offset < end]
        assert read(path, "DROPMALFORMED", **options) == kept
        items = read(path, "PERMISSIVE", **options)
        assert offsets_of(items) == kept
        assert lost_in(items) == [lost for lost in log.lost if lost.concerns(start, end)]

    @pytest.mark.cases(4, 20)
    @pytest.mark.parametrize(
        ("start", "end"), [(0, 48), (8, 12), (9, 10), (0, 9), (11, 30), (12, 48), (0, 8)]
    )
    def test_one_batch(self, log, tmp_path, split, isolation_level, start, end):
        flip(log, 0, 2)
        self.check(log, tmp_path, split, isolation_level, start, end)

    @pytest.mark.cases(4, 16)
    @pytest.mark.parametrize(("start", "end"), [(0, 48), (21, 23), (23, 25), (24, 26), (22, 48), (0, 24)])
    def test_around_the_border_of_two_segments(self, log, tmp_path, split, isolation_level, start, end):
        flip(log, 0, 5)
        flip(log, 1, 0)
        self.check(log, tmp_path, split, isolation_level, start, end)

    @pytest.mark.cases(4, 16)
    @pytest.mark.parametrize(("start", "end"), [(0, 48), (24, 48), (30, 40), (0, 25), (23, 24), (47, 48)])
    def test_a_whole_segment(self, log, tmp_path, split, isolation_level, start, end):
        for number in range(6):
            flip(log, 1, number)
        self.check(log, tmp_path, split, isolation_level, start, end)

    @pytest.mark.cases(4, 12)
    @pytest.mark.parametrize("wrong_length", ["flipped", "beyond the end", "to a later batch"])
    def test_a_length(self, log, tmp_path, split, isolation_level, wrong_length):
        piece = log.segments[0].pieces[2]
        size = len(piece.data)
        length = {"flipped": size - 12 ^ 0x40, "beyond the end": 1 << 20, "to a later batch": 3 * size - 12}
        piece.lose(piece.data[:8] + struct.pack(">i", length[wrong_length]) + piece.data[12:])
        for start, end in ((0, 48), (9, 13), (13, 48), (10, 11), (17, 20)):
            self.check(log, tmp_path, split, isolation_level, start, end)

    def test_bytes_between_two_batches(self, log, tmp_path, split, isolation_level):
        log.segments[0].pieces.insert(3, type(log.segments[0].pieces[0])(b"\xff" * 40))
        for start, end in ((0, 48), (0, 13), (12, 13), (11, 14), (13, 48)):
            self.check(log, tmp_path, split, isolation_level, start, end)


def test_each_mode_says_what_is_damaged(log, tmp_path, caplog):
    flip(log, 0, 2)
    flip(log, 0, 4)
    path = log.write(tmp_path)
    with caplog.at_level(logging.WARNING):
        read(path, "DROPMALFORMED")
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2
    file = str(path / "00000000000000000000.log")
    size = len(log.segments[0].pieces[0].data)
    assert all(file in line and "CRC" in line and "events-0" in line for line in lines)
    assert f"bytes {2 * size} to {3 * size - 1}, offsets 8 to 11" in lines[0]
    with pytest.raises(CorruptRecordError) as caught:
        read(path, "FAILFAST")
    error = caught.value
    assert (error.path, error.offset, error.last_offset) == (file, 8, 11)
    assert (error.position_bytes, error.end_position_bytes) == (2 * size, 3 * size)
    table = read_table(str(path), mode="PERMISSIVE")
    assert table.schema.names[-1] == "_corrupt_record"
    (first, _) = (row for row in table.to_pylist() if row["_corrupt_record"] is not None)
    described = json.loads(first.pop("_corrupt_record"))
    assert described.pop("reason").startswith("Expected a record batch with CRC 0x")
    assert described == {
        "file": file, "topic": "events", "partition": 0, "startByte": 2 * size, "endByte": 3 * size,
        "startOffset": 8, "endOffset": 12, "error": "CorruptRecordError",
    }  # fmt: skip
    assert first == {name: {"topic": "events", "partition": 0}.get(name) for name in table.schema.names[:-1]}


def test_rows_before_damage_come_before_the_error(log, tmp_path, scan):
    flip(log, 1, 3)
    planned = scan(log.write(tmp_path), columns=["offset"])
    found = []
    with pytest.raises(CorruptRecordError):  # noqa: PT012  (what was yielded before counts)
        for batch in planned.batches():
            found += batch["offset"].to_pylist()
    assert found == list(range(36))


def test_the_columns_name_and_a_projection_without_it(log, tmp_path, caplog):
    flip(log, 0, 2)
    path = str(log.write(tmp_path))
    named = read_table(path, mode="PERMISSIVE", column_name_of_corrupt_record="bad", columns=["bad", "topic"])
    assert named.schema.names == ["bad", "topic"]
    assert len([text for text in named["bad"].to_pylist() if text]) == 1
    caplog.clear()
    without = read_table(path, mode="PERMISSIVE", columns=["offset"])
    assert without["offset"].to_pylist() == [offset for offset in range(48) if offset // 4 != 2]
    assert "Left out damaged bytes" in caplog.text


def test_a_condition_does_not_apply_to_damage(log, tmp_path):
    flip(log, 0, 2)
    path = log.write(tmp_path)
    items = read(path, "PERMISSIVE", where="value IS NULL")
    assert [(lost.start_offset, lost.end_offset) for lost in items] == [(8, 12)]
    items = read(path, "PERMISSIVE", where="offset >= 40")
    assert offsets_of(items) == list(range(40, 48))


# -- Records that contradict their header, although the CRC is right --------


class TestContradictions:
    @pytest.fixture(params=[0, 1, 4])
    def codec(self, request):
        return request.param

    def replaced(self, log, number, **fields):
        """Let a batch be replaced by another of the same offsets."""
        piece = log.segments[0].pieces[number]
        made = Batch(
            tuple(Record(delta, delta, None, b"x" * 60) for delta in range(4)), 4 * number, **fields
        ).encode()
        piece.lose(made)

    @pytest.mark.cases(6, 16)
    @pytest.mark.parametrize(
        "fields",
        [
            {"count": 5},
            {"count": 3},
            {"count": -1},
            {"records_bytes": b"\x01\x02\x03"},
            {"records_bytes": b"\xff" * 40},
        ],
    )
    @pytest.mark.parametrize("numbers", [[0], [2], [5], [1, 2], [0, 3, 5], range(6)])
    def test_one_batch_is_lost_and_its_neighbours_are_not(self, log, tmp_path, codec, fields, numbers):
        for number in numbers:
            self.replaced(log, number, codec=codec, **fields)
        path = log.write(tmp_path)
        expected = []
        for number in range(12):
            lost = log.segments[0].pieces[number] if number < 6 else None
            if lost is not None and not lost.is_batch:
                start = sum(len(piece.data) for piece in log.segments[0].pieces[:number])
                expected.append(Lost(0, start, start + len(lost.data), 4 * number, 4 * number + 4))
            else:
                expected += range(4 * number, 4 * number + 4)
        for options in ({}, {"max_records_per_partition": 3}, {"max_bytes_per_partition": 300}):
            columns = ["offset", "value", "_corrupt_record"]
            table = read_table(str(path), mode="PERMISSIVE", columns=columns, **options).to_pylist()
            items = [
                row["offset"]
                if row["_corrupt_record"] is None
                else lost_of(json.loads(row["_corrupt_record"]))
                for row in table
            ]
            assert items == expected
        with pytest.raises(SegmentLogError) as caught:
            read_table(str(path))
        assert caught.value.offset == 4 * min(numbers)

    def test_a_codec_that_there_is_none_of(self, log, tmp_path):
        self.replaced(log, 2, attributes=7)
        items = read_table(str(log.write(tmp_path)), mode="PERMISSIVE", columns=["value", "_corrupt_record"])
        (text,) = (text for text in items["_corrupt_record"].to_pylist() if text is not None)
        assert json.loads(text)["error"] == "UnsupportedFormatError"
        assert items.num_rows == 45

    @pytest.mark.parametrize("codec", [1, 2, 3, 4])
    def test_a_batch_that_inflates_beyond_the_limit(self, log, tmp_path, codec):
        records = b"\0" * 3_000_000
        self.replaced(log, 2, codec=codec, records_bytes=records)
        path = log.write(tmp_path)
        options = {"max_decompressed_batch_bytes": 1 << 20, "columns": ["value", "offset", "_corrupt_record"]}
        table = read_table(str(path), mode="PERMISSIVE", **options)
        (text,) = (text for text in table["_corrupt_record"].to_pylist() if text is not None)
        described = json.loads(text)
        assert (described["error"], described["startOffset"], described["endOffset"]) == (
            "BatchTooLargeError", 8, 12
        )  # fmt: skip
        with pytest.raises(BatchTooLargeError):
            read_table(str(path), max_decompressed_batch_bytes=1 << 20)


# -- Timestamps that do not fit --------

NANOSECONDS = 1_700_000_000_000_000_000


class TestTimestamps:
    @pytest.fixture
    def path(self, log_root, record_of):
        log = log_root.rows()
        log.append(record_of(0, 5), record_of(1, NANOSECONDS), record_of(2, 6))
        log.append(record_of(0, -NANOSECONDS), record_of(1, 7))
        log.append(record_of(0, 8))
        return log.write().path

    def test_left_out(self, path, caplog):
        table = read_table(str(path), mode="DROPMALFORMED")
        assert table["offset"].to_pylist() == [0, 2, 4, 5]
        lines = [record.getMessage() for record in caplog.records]
        assert len(lines) == 1
        assert "2 records of events-0" in lines[0]
        assert f"offset 1 of {path}" in lines[0]
        assert str(NANOSECONDS) in lines[0]

    @pytest.mark.parametrize("options", [{"where": "value = 'v'"}, {"max_records_per_partition": 1}])
    def test_left_out_whatever_else_is_asked_for(self, path, options):
        table = read_table(str(path), mode="DROPMALFORMED", include_metadata=True, **options)
        assert table["offset"].to_pylist() == [0, 2, 4, 5]
        assert [row["timestampMs"] for row in table["_metadata"].to_pylist()] == [5, 6, 7, 8]

    def test_null_and_described(self, path):
        table = read_table(str(path), mode="PERMISSIVE", include_metadata=True)
        assert table["offset"].to_pylist() == list(range(6))
        assert table["timestamp"].is_null().to_pylist() == [False, True, False, True, False, False]
        assert [row["timestampMs"] for row in table["_metadata"].to_pylist()] == [
            5, NANOSECONDS, 6, -NANOSECONDS, 7, 8
        ]  # fmt: skip
        described = table["_corrupt_record"].to_pylist()
        assert [text is None for text in described] == [True, False, True, False, True, True]
        fields = json.loads(described[3])
        assert (fields["error"], fields["startOffset"], fields["endOffset"]) == ("TimestampRangeError", 3, 4)
        assert fields["file"] == str(path / "00000000000000000000.log")
        assert str(-NANOSECONDS) in fields["reason"]

    def test_a_condition_on_them_is_unknown(self, path):
        later = read_table(str(path), mode="PERMISSIVE", where="timestamp > '1970-01-01'")
        assert later["offset"].to_pylist() == [0, 2, 4, 5]
        null = read_table(str(path), mode="PERMISSIVE", where="timestamp IS NULL")
        assert null["offset"].to_pylist() == [1, 3]

    def test_without_the_column_for_damage_they_are_null(self, path, caplog):
        table = read_table(str(path), mode="PERMISSIVE", columns=["timestamp", "offset"])
        assert table["timestamp"].null_count == 2
        assert "2 timestamps are null" in caplog.text

    @pytest.mark.parametrize("mode", ["FAILFAST", "DROPMALFORMED", "PERMISSIVE"])
    def test_without_their_column_they_do_not_matter(self, path, mode):
        table = read_table(str(path), mode=mode, columns=["offset"])
        assert table["offset"].to_pylist() == list(range(6))
