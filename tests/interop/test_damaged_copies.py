"""Randomly damaged partitions, compared with a broker's own recovery.

Up to the offset at which the broker truncates a log, we return the rows that its consumer reads. After that,
DROPMALFORMED returns exactly the intact batches. `expectation` decides the cases that bytes alone do not.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import storage_core
from storage_core.errors import CorruptError
from storage_core.filesystem import FileSystem
from storage_core.scan import parse_read_options, plan_scan, project, read_task, record_schema
from tests.interop.broker import KafkaBroker
from tests.interop.clients import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    Row,
    assert_same_rows,
    file_states,
    rows_of,
)
from tests.interop.copies import Copies, Copy
from tests.interop.filled import PARTITIONS, Filled, fill
from tests.interop.judging import SETTINGS

if TYPE_CHECKING:
    from pathlib import Path


SEED = os.environ.get("SEGMENTLOG_DAMAGE_SEED", "1")
SOAK_ROUNDS = int(os.environ.get("SEGMENTLOG_DAMAGE_ROUNDS", "20"))

DAMAGE_COLUMN = "_corrupt_record"


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Filled:
    scratch = tmp_path_factory.mktemp("filled")
    with KafkaBroker(scratch / "broker", SETTINGS) as broker:
        return fill(broker, scratch, SEED)


@pytest.fixture(scope="module")
def copies(filled: Filled, tmp_path_factory: pytest.TempPathFactory) -> Copies:
    return Copies.make(filled, tmp_path_factory.mktemp("copies"), SEED)


@pytest.fixture(params=PARTITIONS, ids=[place.directory for place in PARTITIONS])
def copy(copies: Copies, request: pytest.FixtureRequest) -> Copy:
    each = copies.copy(request.param)
    print(each.directory / each.place.directory, *each.done, sep="\n")
    return each


def test_rows_up_to_where_the_broker_cuts(copy: Copy) -> None:
    if copy.refusal is not None:
        pytest.skip(f"the broker does not start with it: {copy.refusal}")
    check_rows_up_to_the_cut(copy)


def test_remaining_batches(copy: Copy) -> None:
    check_remaining_batches(copy)


def test_committed_rows(copy: Copy) -> None:
    check_committed_rows(copy)


def test_fails_at_damage(copy: Copy) -> None:
    check_failure(copy)


def test_damaged_ranges(copy: Copy) -> None:
    check_damaged_ranges(copy)


def check_rows_up_to_the_cut(copy: Copy) -> None:
    for damaged, kept in copy.files():
        assert damaged.startswith(kept), "the broker truncated something other than the end"
    assert copy.unexplained_error() is None
    end_offset = copy.comparable_end(READ_UNCOMMITTED)
    consumed = copy.consumed_rows(READ_UNCOMMITTED)
    # The expected content of the files that the broker kept is what the broker serves.
    assert_same_rows(below(copy.expected_of_kept, end_offset), consumed)
    assert_same_rows(below(read(copy), end_offset), consumed)


def check_remaining_batches(copy: Copy) -> None:
    for use_indexes in (True, False):
        assert_same_rows(read(copy, use_indexes=use_indexes), copy.expected)


def check_committed_rows(copy: Copy) -> None:
    committed = read(copy, isolation_level=READ_COMMITTED)
    assert_among(copy.committed.required, committed, "missing")
    assert_among(committed, copy.committed.allowed, "too many")
    if copy.refusal is None:
        end_offset = copy.comparable_end(READ_COMMITTED)
        assert_same_rows(below(committed, end_offset), copy.consumed_rows(READ_COMMITTED))


def check_failure(copy: Copy) -> None:
    """FAILFAST returns rows up to the damage, and no wrong row before it fails."""
    rows, error = read_until_it_fails(copy)
    assert_same_rows(rows, copy.expected if error is None else copy.expected[: len(rows)])
    if copy.damage:
        assert isinstance(error, CorruptError), f"read past {copy.damage}"
    if not copy.remains.damage and copy.vouched_tail is None:
        assert error is None


def check_damaged_ranges(copy: Copy) -> None:
    """PERMISSIVE returns the same rows, and reports every byte that belongs to none of them as damaged."""
    table = read_table(copy, mode="PERMISSIVE")
    damage = table.column(DAMAGE_COLUMN)
    assert table.column_names[-1] == DAMAGE_COLUMN
    assert_same_rows(rows_of(table.filter(pc.is_null(damage)).drop_columns([DAMAGE_COLUMN])), copy.expected)
    reported: list[tuple[int, int, int]] = []
    lost: list[range] = []
    for text in damage.drop_null().to_pylist():
        described = json.loads(text)
        assert (described["topic"], described["partition"]) == copy.place
        directory, _, name = described["file"].rpartition("/")
        assert directory.endswith(copy.place.directory)
        reported.append((int(name[:20]), described["startByte"], described["endByte"]))
        lost.append(range(described["startOffset"], described["endOffset"]))
        assert described["error"]
        assert described["reason"].startswith("Expected")
    expected = [
        [(gap.segment, gap.start, gap.end) for gap in each] for each in (copy.damage, copy.remains.damage)
    ]
    if (tail := copy.vouched_tail) is not None:
        expected += [[*each, (tail.segment, tail.start, tail.end)] for each in expected]
    # Either copy of a repeated entry may be the one that counts.
    describe = copy.damaged_bytes if copy.remains.misplaced else joined
    is_expected = any(describe(reported) == describe(each) for each in expected)
    assert is_expected, f"{reported} for {expected[0]}"
    present = {row.offset for row in copy.expected}
    for row in copy.filled.rows[copy.place]:
        is_lost = row.offset not in present and any(
            gap.start_offset <= row.offset < gap.end_offset for gap in copy.damage
        )
        is_reported = any(row.offset in offsets for offsets in lost)
        assert is_reported or not is_lost, f"{row.offset} is lost: {lost}"
        assert not (is_reported and row.offset in present), f"{row.offset} exists: {lost}"


def joined(ranges: list[tuple[int, int, int]]) -> tuple[tuple[int, int, int], ...]:
    """Ranges of bytes, with adjacent ones merged."""
    result: list[tuple[int, int, int]] = []
    for segment, start, end in sorted(ranges):
        if result and result[-1][0] == segment and result[-1][2] == start:
            result[-1] = (segment, result[-1][1], end)
        else:
            result.append((segment, start, end))
    return tuple(result)


def assert_among(some: list[Row], all_rows: list[Row], what: str) -> None:
    found = set(all_rows)
    strays = [row for row in some if row not in found]
    assert not strays, f"{len(strays)} rows {what}, the first is {strays[0]}"


def below(rows: list[Row], offset: int) -> list[Row]:
    return [row for row in rows if row.offset < offset]


def read_table(copy: Copy, **options: object) -> pa.Table:
    topic, partition = copy.place
    return storage_core.read_table(
        str(copy.directory), assign={topic: [partition]}, include_headers=True, **options
    )


def read(copy: Copy, **options: object) -> list[Row]:
    table = read_table(copy, mode="DROPMALFORMED", **options)
    offsets = table.column("offset").to_pylist()
    assert all(before < after for before, after in itertools.pairwise(offsets)), "not in order, or twice"
    return rows_of(table)


def read_until_it_fails(copy: Copy) -> tuple[list[Row], Exception | None]:
    topic, partition = copy.place
    options = parse_read_options(
        {"path": str(copy.directory), "assign": {topic: [partition]}, "include_headers": True}
    )
    schema = project(record_schema(include_headers=True, include_metadata=False), None)
    batches: list[pa.RecordBatch] = []
    error: Exception | None = None
    try:
        for task in plan_scan(FileSystem(), options).tasks:
            batches.extend(read_task(FileSystem(), task, schema))
    except CorruptError as found:
        error = found
    return rows_of(pa.Table.from_batches(batches, schema=schema)), error


def test_reading_all_partitions_at_once_changes_no_file(copies: Copies) -> None:
    before = file_states(copies.judged.directory)
    topics = sorted({place.topic for place in PARTITIONS})
    for mode in ("DROPMALFORMED", "PERMISSIVE"):
        table = storage_core.read_table(
            str(copies.judged.directory), subscribe=topics, include_headers=True, mode=mode
        )
        if mode == "PERMISSIVE":
            table = table.filter(pc.is_null(table.column(DAMAGE_COLUMN))).drop_columns([DAMAGE_COLUMN])
        expected = [row for place in PARTITIONS for row in copies.copy(place).expected]
        assert_same_rows(rows_of(table), sorted(expected, key=lambda row: row[:3]))
    assert file_states(copies.judged.directory) == before


def test_enough_copies_were_compared(copies: Copies) -> None:
    summary = copies.summary()
    print(summary)
    assert summary.damaged - summary.refused >= 200
    assert summary.undamaged >= 10
    assert summary.truncated >= 120
    assert summary.rows_up_to_the_cut > 10_000
    assert summary.rows_beyond > 5_000


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(SOAK_ROUNDS))
def test_other_damage_soak(filled: Filled, tmp_path: Path, seed: int) -> None:
    copies = Copies.make(filled, tmp_path, f"soak {seed}")
    failures = []
    for place in PARTITIONS:
        copy = copies.copy(place)
        checks = (check_remaining_batches, check_committed_rows, check_failure, check_damaged_ranges)
        for check in checks if copy.refusal else (check_rows_up_to_the_cut, *checks):
            try:
                check(copy)
            except Exception as error:  # noqa: BLE001  (every copy is checked; all failures are shown)
                failures.append(f"{place.directory} {check.__name__} {copy.done}: {error!r:.400}")
    assert not failures, "\n".join(failures)
    shutil.rmtree(tmp_path)
