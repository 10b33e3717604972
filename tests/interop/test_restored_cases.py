"""Every conformance case: read with Spark, written with its offsets into a stopped broker's directory, consumed.

These tests are the column `broker` of the conformance matrix; see `tests/conformance/README.md`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from conformance.archives import case_names
from conformance.matrix import CHECKS_PROPERTY
from conformance.restored import restored_partitions, restored_rows
from conformance.rules import READ_COMMITTED

from tests.interop.clients import ISOLATION_LEVELS, assert_same_rows, rows_of
from tests.interop.conftest import broker_in
from tests.interop.dump_log_segments import complaints_about_indexes
from tests.interop.restored_cases import BROKER_SETTINGS, RestoredCases, named, restore_cases

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def restored(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestoredCases]:
    """All cases in the directory of one broker."""
    scratch = tmp_path_factory.mktemp("restored-cases")
    with broker_in(scratch, BROKER_SETTINGS) as broker:
        yield restore_cases(spark, broker, scratch)


@pytest.fixture
def count(request: pytest.FixtureRequest) -> Callable[[int], None]:
    """Report the number of comparisons to the matrix."""
    return lambda checks: request.node.user_properties.append((CHECKS_PROPERTY, checks))


@pytest.mark.parametrize("isolation_level", ISOLATION_LEVELS)
@pytest.mark.parametrize("case_name", case_names())
def test_consumer_gets_the_records_at_their_offsets(
    restored: RestoredCases, case_name: str, isolation_level: str, count: Callable[[int], None]
) -> None:
    case = restored.case(case_name)
    expected = rows_of(restored_rows(case, READ_COMMITTED))
    for partition in case.partitions:
        topic = named(case_name, partition.topic)
        consumed = restored.consumed[isolation_level][topic, partition.partition]
        assert consumed.error is None, consumed.error
        wanted = [
            row._replace(topic=topic) for row in expected if row[:2] == (partition.topic, partition.partition)
        ]
        assert_same_rows(consumed.rows, wanted)
    count(len(case.partitions))


@pytest.mark.parametrize("case_name", case_names())
def test_log_start_and_log_end_are_the_old_ones(
    restored: RestoredCases, case_name: str, count: Callable[[int], None]
) -> None:
    """As ListOffsets reports them; reads end at the log end under either isolation level."""
    partitions = restored_partitions(restored.case(case_name), READ_COMMITTED)
    for partition in partitions:
        place = (named(case_name, partition.topic), partition.partition)
        assert restored.bounds[place] == (partition.log_start_offset, partition.end_offset), place
        for consumed in restored.consumed.values():
            assert consumed[place].end_offset == partition.end_offset, place
    count(len(partitions))


@pytest.mark.parametrize("case_name", case_names())
def test_broker_loads_the_logs_without_complaints(
    restored: RestoredCases, case_name: str, count: Callable[[int], None]
) -> None:
    partitions = restored.case(case_name).partitions
    loaded = restored.start.loaded()
    for partition in partitions:
        topic = named(case_name, partition.topic)
        assert loaded[topic, partition.partition].topic_id == restored.topic_ids[topic]
        assert not restored.start.complaints(topic, partition.partition)
    count(len(partitions))


def test_the_start_is_a_clean_one(restored: RestoredCases) -> None:
    assert restored.start.skipped_recovery
    assert not restored.start.unusual()
    assert not list(restored.root.glob("*-stray"))


def test_dump_log_segments_accepts_every_index(restored: RestoredCases) -> None:
    assert not complaints_about_indexes(
        restored.root / f"{named(name, partition.name)}"
        for name, case in restored.cases.items()
        for partition in restored_partitions(case, READ_COMMITTED)
    )


def test_logs_have_the_segments_that_they_need(restored: RestoredCases) -> None:
    """Those of two logs that begin where they end have lost the empty segment of offset 0 that the broker had created."""
    segments = {
        path.name: [int(each.stem) for each in path.glob("*.log")] for path in restored.root.glob("*-[0-9]")
    }
    assert {name for name, base_offsets in segments.items() if len(base_offsets) > 1} == {
        "timestamps.ts-switch-0",
        "v2-lz4.lz4-large-0",
        "v2-lz4.lz4-rd-0",
        "v2-snappy.snappy-large-0",
        "v2-zstd.zstd-large-0",
    }
    assert (segments["retention.ret-all-0"], segments["delete-records.delrec-4"]) == ([55], [224])
