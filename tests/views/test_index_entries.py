"""The view ``index`` lists every entry, and says of each whether the log agrees: where it does not, look-ups would err."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import pytest
from conformance.archives import unpack_case
from hypothesis import given
from hypothesis import strategies as st

from storage_core import read_table
from storage_core.filesystem import FileSystem
from storage_core.segment import SegmentReader
from storage_core.views.index_comparison import compare_indexes
from tests.examples import examples
from tests.scan.damaged_log import DamagedLog

EXAMPLES = Path(__file__).parent.parent.parent / "examples" / "data"
LOG = "00000000000000000000.log"


def entries(path, **options):
    return read_table(path, view="index", **options).to_pylist()


def judged(path, base_offset=0, end_offset=None):
    return compare_indexes(
        FileSystem(), SegmentReader(FileSystem(), str(path), base_offset, offset_limit=end_offset)
    )


@pytest.fixture
def payments(tmp_path):
    """Return a partition with transactions, as a broker left it."""
    shutil.copytree(EXAMPLES / "payments-0", tmp_path / "payments-0")
    return tmp_path / "payments-0"


@pytest.fixture
def segment(tmp_path):
    """Four batches of three records, 1,000 ms apart, and a right index of the second and the fourth."""
    log = DamagedLog()
    for number in range(4):
        log.batch(max_timestamp_ms=1000 * (number + 1))
    log.write(tmp_path)
    sizes = [len(piece.data) for piece in log.segments[0].pieces]
    write_index(tmp_path, [(5, sizes[0]), (11, sum(sizes[:3]))])
    write_time_index(tmp_path, [(2000, 5), (4000, 11)])
    return tmp_path / "events-0"


def write_index(root, pairs):
    data = b"".join(struct.pack(">ii", *pair) for pair in pairs)
    (root / "events-0" / "00000000000000000000.index").write_bytes(data)


def write_time_index(root, pairs):
    data = b"".join(struct.pack(">qi", *pair) for pair in pairs)
    (root / "events-0" / "00000000000000000000.timeindex").write_bytes(data)


def test_entries_of_a_broker_agree_with_its_log():
    rows = entries(EXAMPLES)
    assert [row for row in rows if not row["agrees"] or row["problem"] is not None] == []
    assert {row["kind"] for row in rows} == {"offset", "time", "transaction"}


def test_an_entry_of_each_kind_is_shown_in_full(payments):
    rows = entries(payments)
    first = {kind: next(row for row in rows if row["kind"] == kind) for kind in ("offset", "transaction")}
    data = (payments / "00000000000000000000.index").read_bytes()
    offset, position = struct.unpack_from(">ii", data)
    assert first["offset"] == {
        "topic": "payments",
        "partition": 0,
        "segment": LOG,
        "kind": "offset",
        "entry": 0,
        "offset": offset,
        "lastOffset": None,
        "position": position,
        "timestamp": None,
        "timestampMs": None,
        "producerId": None,
        "lastStableOffset": None,
        "agrees": True,
        "problem": None,
    }
    data = (payments / "00000000000000000000.txnindex").read_bytes()
    _, producer_id, first_offset, last_offset, last_stable_offset = struct.unpack_from(">hqqqq", data)
    shown = first["transaction"]
    assert (shown["producerId"], shown["offset"], shown["lastOffset"], shown["lastStableOffset"]) == (
        producer_id,
        first_offset,
        last_offset,
        last_stable_offset,
    )


def test_timestamps_are_shown_in_both_units(segment):
    row = next(row for row in entries(segment) if row["kind"] == "time")
    assert (row["timestampMs"], row["timestamp"].timestamp(), row["offset"]) == (2000, 2.0, 5)


@pytest.mark.parametrize(
    ("pairs", "problem"),
    [
        ([(5, 1)], "no batch begins at its position"),
        ([(1, "second")], "its offset is below those of the batch at its position"),
        (
            [(11, "second"), (12, "fourth")],
            "its offset is that of a later batch than the one at its position",
        ),
        ([(5, "end")], "the log ends before it"),
        ([(5, "second"), (5, "fourth")], "it does not ascend from the entry before it"),
        ([(-2, "second")], "it is negative"),
    ],
)
def test_a_wrong_entry_of_an_offset_index_is_named(segment, pairs, problem):
    sizes = (segment / LOG).stat().st_size // 4
    places = {"second": sizes, "fourth": 3 * sizes, "end": 4 * sizes}
    write_index(segment.parent, [(offset, places.get(place, place)) for offset, place in pairs])
    rows = [row for row in entries(segment) if row["kind"] == "offset"]
    assert problem in [row["problem"] for row in rows]
    assert all(row["agrees"] == (row["problem"] is None) for row in rows)


@pytest.mark.parametrize(
    ("pairs", "problem"),
    [
        ([(2001, 5)], "the batch that holds its offset has another largest timestamp"),
        ([(4000, 12)], "the log ends before it"),
        ([(3000, 8), (2000, 11)], "it does not ascend from the entry before it"),
        ([(-5, 5)], "it is negative"),
    ],
)
def test_a_wrong_entry_of_a_time_index_is_named(segment, pairs, problem):
    write_time_index(segment.parent, pairs)
    assert problem in [row["problem"] for row in entries(segment) if row["kind"] == "time"]


def test_an_entry_that_skips_a_larger_timestamp_is_named(tmp_path):
    DamagedLog().batch(max_timestamp_ms=9000).batch(max_timestamp_ms=2000).write(tmp_path)
    write_index(tmp_path, [])
    write_time_index(tmp_path, [(2000, 5)])
    (row,) = entries(tmp_path / "events-0")
    assert row["problem"] == "a batch before the one that holds its offset has a larger timestamp"


@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [
        ("version", 7, "its version is unknown"),
        ("producer", 123_456, "no abort marker of its producer is at its last offset"),
        ("first", +1, "its first offset is not where the transaction begins"),
        ("stable", 1 << 40, "its last stable offset is beyond the marker"),
    ],
)
def test_a_wrong_entry_of_a_transaction_index_is_named(payments, field, value, problem):
    path = payments / "00000000000000000000.txnindex"
    data = bytearray(path.read_bytes())
    layout = struct.Struct(">hqqqq")
    last_start = len(data) - layout.size
    fields = dict(
        zip(
            ("version", "producer", "first", "last", "stable"),
            layout.unpack_from(data, last_start),
            strict=True,
        )
    )
    fields[field] = fields["first"] + value if field == "first" else value
    layout.pack_into(data, last_start, *fields.values())
    path.write_bytes(data)
    row = [row for row in entries(payments) if row["kind"] == "transaction"][len(data) // layout.size - 1]
    assert (row["agrees"], row["problem"]) == (False, problem)


def test_entries_of_a_damaged_part_of_the_log_are_neither_right_nor_wrong(segment):
    log = segment / LOG
    data = bytearray(log.read_bytes())
    data[len(data) // 4 + 70] ^= 1
    log.write_bytes(data)
    shown = [(row["kind"], row["entry"], row["agrees"], row["problem"]) for row in entries(segment)]
    assert shown == [
        ("offset", 0, None, "the log is damaged there"),
        ("offset", 1, True, None),
        ("time", 0, None, "the log is damaged there"),
        ("time", 1, True, None),
    ]


def test_a_missing_and_a_torn_file_have_a_row_of_their_own(segment):
    (segment / "00000000000000000000.timeindex").unlink()
    with (segment / "00000000000000000000.index").open("ab") as file:
        file.write(b"torn")
    shown = [(row["kind"], row["entry"], row["agrees"], row["problem"]) for row in entries(segment)]
    assert shown == [
        ("offset", None, False, "the file has 20 bytes, which is no multiple of 8"),
        ("offset", 0, True, None),
        ("offset", 1, True, None),
        ("time", None, False, "the file is missing"),
    ]


def test_preallocated_space_has_no_entries(segment):
    for name in ("00000000000000000000.index", "00000000000000000000.timeindex"):
        with (segment / name).open("ab") as file:
            file.write(bytes(10_000 // 24 * 24))
    assert [row["agrees"] for row in entries(segment)] == [True] * 4


def test_bounds_and_conditions_limit_the_rows(segment):
    assert [row["offset"] for row in entries(segment, starting_offsets={"events": {"0": 6}})] == [11, 11]
    assert [row["offset"] for row in entries(segment, ending_offsets={"events": {"0": 11}})] == [5, 5]
    rows = entries(segment, where="offset > 5 AND timestamp >= '1970-01-01T00:00:00Z'")
    assert [(row["kind"], row["offset"]) for row in rows] == [("time", 11)]


@given(number=st.integers(0, 15), change=st.integers(1, 255))
@examples(60)
def test_changed_bytes_are_noticed_or_harmless(tmp_path_factory, number, change):
    """An entry that counts as right leads no look-up past the batch that it looks for."""
    root = tmp_path_factory.mktemp("changed")
    log = DamagedLog()
    for _ in range(4):
        log.batch()
    log.write(root)
    size = len(log.segments[0].pieces[0].data)
    write_index(root, [(5, size), (11, 3 * size)])
    path = root / "events-0" / "00000000000000000000.index"
    data = bytearray(path.read_bytes())
    data[number] ^= change
    path.write_bytes(data)
    index, _, _ = judged(root / "events-0").indexes
    positions = {3 * batch: batch * size for batch in range(4)}
    for entry in range(len(index)):
        offset, position = struct.unpack_from(">ii", data, 8 * entry)
        if index.problem_of(entry) is None:
            assert position in positions.values()
            # The batch of each offset from the entry's own on begins at or after its position.
            assert positions[offset // 3 * 3] >= position


def test_a_batch_that_is_too_large_to_decode_is_no_damage(payments):
    segment = SegmentReader(FileSystem(), str(payments), 0, max_batch_bytes=100)
    assert compare_indexes(FileSystem(), segment).damage == ()


def test_an_index_beside_damage_in_old_formats_is_right(tmp_path):
    """The offset of a wrapper is known once it is read: after damage it is not below what is lost."""
    logs, _ = unpack_case("mixed-magic", tmp_path / "case")
    checked = 0
    for path in sorted(logs.glob("mixed-*/*.log")):
        content = path.read_bytes()
        position = 0
        while position < len(content):
            size = 12 + struct.unpack_from(">i", content, position + 8)[0]
            damaged = bytearray(content)
            damaged[position + size - 3] ^= 0x10
            path.write_bytes(damaged)
            compared = judged(path.parent, int(path.stem))
            checked += 1
            position += size
            is_last = position == len(content)
            assert is_last or not any(len(index.wrong_numbers) for index in compared.indexes), (
                path,
                position,
            )
        path.write_bytes(content)
    assert checked > 50
