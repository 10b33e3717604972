"""A broker's directory restored by Spark with its offsets: a new broker serves every record at its old offset."""

from __future__ import annotations

import pytest

from tests.interop.clients import ISOLATION_LEVELS, READ_COMMITTED, READ_UNCOMMITTED, Row, assert_same_rows
from tests.interop.dump_log_segments import complaints_about_indexes
from tests.interop.restored_by_spark import COMMITTED, RESTORED, Restored, source_of
from tests.interop.source_broker import COMPACTED, DELETED, EXPIRED, TRANSACTIONS

pytestmark = pytest.mark.spark

# The directory name of a topic and partition.
NAME = "{0[0]}-{0[1]}".format


def expected_rows(restored: Restored, place: tuple[str, int]) -> list[Row]:
    """What a consumer of the source got: all records, or only the committed ones where only those were restored."""
    level = READ_COMMITTED if place[0] == COMMITTED else READ_UNCOMMITTED
    rows = restored.source.consumed[level][source_of(place)].rows
    return [row._replace(topic=place[0]) for row in rows]


def test_the_source_has_gaps_of_all_kinds(restored_by_spark: Restored) -> None:
    source = restored_by_spark.source
    all_rows, committed = source.consumed[READ_UNCOMMITTED], source.consumed[READ_COMMITTED]
    start, end = source.offsets[TRANSACTIONS, 0]
    last = all_rows[TRANSACTIONS, 0].rows[-1].offset
    assert last < end - 1, "no marker at the end"
    assert committed[TRANSACTIONS, 0].rows[-1].offset < last, "no aborted records at the end"
    assert source.offsets[DELETED, 0] == (137, 300)
    assert source.offsets[DELETED, 1] == (100, 100)
    assert source.offsets[DELETED, 2] == (0, 0)
    assert source.offsets[EXPIRED, 0] == (60, 60)
    start, end = source.offsets[COMPACTED, 0]
    assert 40 <= len(all_rows[COMPACTED, 0].rows) < (end - start) // 2
    assert any(None in dict(row.headers).values() for row in all_rows[DELETED, 0].rows)


@pytest.mark.parametrize("place", RESTORED, ids=NAME)
def test_broker_loads_it_without_complaints(restored_by_spark: Restored, place: tuple[str, int]) -> None:
    start = restored_by_spark.start
    assert start.skipped_recovery
    assert not start.recovered_segments(*place)
    loaded = start.loaded()[place]
    assert (loaded.log_start_offset, loaded.log_end_offset) == restored_by_spark.offsets[place]
    assert not start.complaints(*place)


def test_start_logs_no_warnings(restored_by_spark: Restored) -> None:
    assert set(RESTORED) <= set(restored_by_spark.start.loaded())
    assert not restored_by_spark.start.unusual()


def test_dump_log_segments_accepts_every_index(restored_by_spark: Restored) -> None:
    uncommitted = [place for place in RESTORED if place[0] != COMMITTED]
    committed = [place for place in RESTORED if place[0] == COMMITTED]
    for places in (uncommitted, committed):
        assert not complaints_about_indexes(map(restored_by_spark.own_partition, places))


@pytest.mark.parametrize("place", RESTORED, ids=NAME)
def test_log_start_and_log_end_are_those_of_the_source(
    restored_by_spark: Restored, place: tuple[str, int]
) -> None:
    assert restored_by_spark.offsets[place] == restored_by_spark.source.offsets[source_of(place)]


@pytest.mark.parametrize("isolation_level", ISOLATION_LEVELS)
@pytest.mark.parametrize("place", RESTORED, ids=NAME)
def test_every_record_is_where_it_was(
    restored_by_spark: Restored, place: tuple[str, int], isolation_level: str
) -> None:
    """The restored logs contain no transactions, so both isolation levels read the same."""
    consumed = restored_by_spark.consumed[isolation_level][place]
    assert consumed.error is None
    assert_same_rows(consumed.rows, expected_rows(restored_by_spark, place))
    assert consumed.end_offset == restored_by_spark.source.offsets[source_of(place)][1]


@pytest.mark.parametrize("place", [place for place in RESTORED if place[0] != COMMITTED], ids=NAME)
def test_group_continues_where_it_was(restored_by_spark: Restored, place: tuple[str, int]) -> None:
    committed = restored_by_spark.source.group_offsets[place]
    rows = restored_by_spark.source.consumed[READ_UNCOMMITTED][place].rows
    assert_same_rows(restored_by_spark.continued[place], [row for row in rows if row.offset >= committed])


def test_group_had_read_part_of_the_records(restored_by_spark: Restored) -> None:
    source = restored_by_spark.source
    for place in ((TRANSACTIONS, 0), (TRANSACTIONS, 1), (DELETED, 0), (COMPACTED, 0)):
        start, end = source.offsets[place]
        assert start < source.group_offsets[place] < end
        assert restored_by_spark.continued[place]
