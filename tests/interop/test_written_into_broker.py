"""Spark writes into the directory of a stopped broker: the broker loads and serves it, and old clients continue."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.compute as pc
import pytest

from tests.interop.dump_log_segments import complaints_about_indexes
from tests.interop.earlier_clients import (
    EMPTY,
    GROWN,
    IDEMPOTENT,
    KILLED,
    LOST,
    OPEN,
    OVERWRITTEN,
    SENT,
    TRANSACTIONS,
    places_of,
)
from tests.interop.event_rows import Events, numbers_of
from tests.interop.killed_commit import ROWS_OF_KILLED_JOB, values_of_killed_job
from tests.interop.written_into_broker import (
    AFTER_THE_JOBS,
    AFTER_THE_REPLAYS,
    BEFORE,
    LARGE_JOB,
    OVERWRITTEN_ROWS,
    SMALL_JOBS,
    WrittenIntoBroker,
)

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa


pytestmark = pytest.mark.spark

# The directory name of a topic and partition.
NAME = "{0[0]}-{0[1]}".format

WRITTEN = places_of(*GROWN, OVERWRITTEN)
DELETED_BELOW_THE_LOG_START = r"Deleting segments due to log start offset 600 breach: "
VERSIONS_OF_KILLED_JOBS = (1, 2)


def values(table: pa.Table) -> list[bytes]:
    return table["value"].to_pylist()


def contents(partition: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in partition.iterdir()}


def added(written: WrittenIntoBroker, topic: str, partition: int) -> pa.Table:
    """Return what a consumer gets after the earlier records, which must be unchanged."""
    before = written.consumed[BEFORE][topic, partition]
    after = written.consumed[AFTER_THE_JOBS][topic, partition]
    if topic == LOST:
        return after
    assert after.slice(0, before.num_rows).equals(before)
    return after.slice(before.num_rows)


@pytest.mark.parametrize(("topic", "partition"), WRITTEN)
def test_broker_loads_it_without_complaints(
    written_into_broker: WrittenIntoBroker, topic: str, partition: int
) -> None:
    start = written_into_broker.clean_start
    assert start.skipped_recovery
    assert not start.recovered_segments(topic, partition)
    loaded = start.loaded()[topic, partition]
    assert loaded.topic_id == written_into_broker.topic_ids[topic]
    offsets = (loaded.log_start_offset, loaded.log_end_offset)
    assert offsets == written_into_broker.offsets[AFTER_THE_JOBS][topic, partition]
    complaints = start.complaints(topic, partition)
    if topic == OVERWRITTEN:
        # The broker soon deletes records below the log start, as after DeleteRecords.
        complaints = [line for line in complaints if not re.search(DELETED_BELOW_THE_LOG_START, line)]
    assert not complaints


def test_starts_log_no_warnings(written_into_broker: WrittenIntoBroker) -> None:
    for start in (written_into_broker.clean_start, written_into_broker.last_start):
        assert set(WRITTEN) <= set(start.loaded())
        assert not start.unusual()
    assert not list(written_into_broker.root.glob("*-stray"))


def test_dump_log_segments_accepts_every_index(written_into_broker: WrittenIntoBroker) -> None:
    root = written_into_broker.root
    assert not complaints_about_indexes(root / f"{topic}-{number}" for topic, number in WRITTEN)


@pytest.mark.parametrize("topic", GROWN)
def test_three_jobs_append_after_the_existing_records(
    written_into_broker: WrittenIntoBroker, topic: str
) -> None:
    expected = np.concatenate([np.arange(job.start, job.stop) for job in (*SMALL_JOBS, LARGE_JOB)])
    found = []
    for _, partition in places_of(topic):
        table = added(written_into_broker, topic, partition)
        _, end_before = written_into_broker.offsets[BEFORE][topic, partition]
        first = 0 if topic == LOST else end_before
        assert table["offset"].to_pylist() == list(range(first, first + table.num_rows))
        numbers = numbers_of(table["value"], table["timestamp_ms"])
        assert (np.diff(numbers) > 0).all()
        rows = Events(GROWN).rows(numbers, null_headers=False)
        for column in ("key", "value", "headers"):
            assert table[column].combine_chunks().equals(rows[column]), column
        explicit = rows["timestamp"].is_valid()
        expected_ms = pc.divide(rows["timestamp"].cast("int64"), 1000).filter(explicit)
        assert table["timestamp_ms"].combine_chunks().filter(explicit).equals(expected_ms)
        found.append(numbers)
    of_topic = expected[expected // 3 % len(GROWN) == GROWN.index(topic)]
    assert sorted(np.concatenate(found).tolist()) == of_topic.tolist()


@pytest.mark.parametrize(("topic", "partition"), places_of(*(topic for topic in GROWN if topic != LOST)))
def test_small_pieces_are_appended_and_large_ones_become_segments(
    written_into_broker: WrittenIntoBroker, topic: str, partition: int
) -> None:
    """The jobs change no existing byte."""
    large = written_into_broker.seen
    assert large.large_pieces.exists()
    assert not dataclasses.replace(large, name="small").large_pieces.exists()
    name = f"{topic}-{partition}"
    before = {
        name: content
        for name, content in contents(written_into_broker.source.directory / name).items()
        if name.endswith(".log")
    }
    after = contents(written_into_broker.root / name)
    *closed, last = sorted(before)
    assert all(after[log] == before[log] for log in closed)
    assert after[last].startswith(before[last])
    assert len(after[last]) > len(before[last])
    assert len([log for log in after if log.endswith(".log")]) >= len(before) + 2


def test_a_lost_partition_starts_empty(written_into_broker: WrittenIntoBroker) -> None:
    """The root's checkpoints still name the lost partition."""
    assert written_into_broker.offsets[BEFORE][LOST, 0] == (SENT // 2, SENT)
    for place in places_of(LOST):
        start, end = written_into_broker.offsets[AFTER_THE_JOBS][place]
        assert start == 0
        assert end == written_into_broker.consumed[AFTER_THE_JOBS][place].num_rows > 0


def test_overwriting_leaves_only_the_new_rows(written_into_broker: WrittenIntoBroker) -> None:
    for place in places_of(OVERWRITTEN):
        _, end_before = written_into_broker.offsets[BEFORE][place]
        start, end = written_into_broker.offsets[AFTER_THE_JOBS][place]
        table = written_into_broker.consumed[AFTER_THE_JOBS][place]
        has_rows = place[1] == 1
        assert end_before == 600
        assert start == end_before
        assert end == end_before + (OVERWRITTEN_ROWS if has_rows else 0)
        assert table["offset"].to_pylist() == list(range(start, end))
        assert values(table) == [b"new %d" % number for number in range(end - start)]


@pytest.mark.parametrize("place", places_of(IDEMPOTENT, TRANSACTIONS), ids=NAME)
def test_snapshot_after_the_rows_keeps_the_earlier_producers(
    written_into_broker: WrittenIntoBroker, place: tuple[str, int]
) -> None:
    before = written_into_broker.producers[BEFORE][place]
    assert len(before) == 1
    assert written_into_broker.producers[AFTER_THE_JOBS][place] == before


@pytest.mark.parametrize("place", places_of(IDEMPOTENT, TRANSACTIONS), ids=NAME)
def test_earlier_producers_continue(written_into_broker: WrittenIntoBroker, place: tuple[str, int]) -> None:
    _, end = written_into_broker.offsets[AFTER_THE_JOBS][place]
    continued = {each[2]: row for each, row in written_into_broker.continued.items() if each[:2] == place}
    assert continued == {end + number: (None, b"after %d" % number) for number in range(SENT)}
    table = written_into_broker.consumed[AFTER_THE_REPLAYS][place]
    assert values(table)[-SENT:] == [b"after %d" % number for number in range(SENT)]


@pytest.mark.parametrize("place", places_of(IDEMPOTENT), ids=NAME)
def test_sequence_numbers_continue(written_into_broker: WrittenIntoBroker, place: tuple[str, int]) -> None:
    (before,) = written_into_broker.producers[BEFORE][place]
    (after,) = written_into_broker.producers[AFTER_THE_REPLAYS][place]
    assert before.last_sequence == SENT - 1
    assert after[:3] == (before.producer_id, before.producer_epoch, 2 * SENT - 1)


def test_a_job_after_an_open_transaction_is_refused(written_into_broker: WrittenIntoBroker) -> None:
    """Consumers would not see its rows. The transaction continues and is committed."""
    assert (
        f"Expected no open transaction in {OPEN}-0, found one from offset 0"
        in written_into_broker.errors[OPEN]
    )
    assert written_into_broker.offsets[AFTER_THE_JOBS][OPEN, 0] == (0, SENT)
    assert written_into_broker.consumed[AFTER_THE_JOBS][OPEN, 0].num_rows == 0
    table = written_into_broker.consumed[AFTER_THE_REPLAYS][OPEN, 0]
    assert values(table) == [b"before %d" % number for number in range(SENT)]


def test_a_job_on_a_running_broker_is_refused(written_into_broker: WrittenIntoBroker) -> None:
    assert "LogDirectoryLockedError" in written_into_broker.errors[EMPTY]
    assert str(written_into_broker.root) in written_into_broker.errors[EMPTY]


def test_broker_refuses_to_start_with_an_unfinished_commit(written_into_broker: WrittenIntoBroker) -> None:
    assert len(written_into_broker.refusals) == 2
    for refusal in written_into_broker.refusals:
        assert f"{written_into_broker.root}/segmentlog.commit-in-progress" in refusal
        assert "not in the form of topic-partition" in refusal


@pytest.mark.parametrize("place", places_of(KILLED), ids=NAME)
def test_rows_of_killed_commits_appear_once_after_the_replays(
    written_into_broker: WrittenIntoBroker, place: tuple[str, int]
) -> None:
    topic, partition = place
    before = written_into_broker.consumed[AFTER_THE_JOBS][place]
    after = written_into_broker.consumed[AFTER_THE_REPLAYS][place]
    assert after.slice(0, before.num_rows).equals(before)
    expected = [
        value
        for version in VERSIONS_OF_KILLED_JOBS
        for value in values_of_killed_job(topic, partition, version)
    ]
    assert values(after.slice(before.num_rows)) == expected
    assert len(expected) == 2 * ROWS_OF_KILLED_JOB
    assert after["offset"].to_pylist() == list(range(after.num_rows))


def test_broker_starts_clean_after_the_replays(written_into_broker: WrittenIntoBroker) -> None:
    start = written_into_broker.last_start
    assert start.skipped_recovery
    for place in places_of(KILLED, *GROWN, OVERWRITTEN):
        assert not start.complaints(*place)
        assert not start.recovered_segments(*place)
    names = {path.name for path in written_into_broker.root.iterdir()}
    assert not [name for name in names if name.startswith((".segmentlog-journal", ".segmentlog-stage"))]
    assert "segmentlog.commit-in-progress" not in names


@pytest.mark.parametrize("place", places_of(EMPTY, LOST, OVERWRITTEN), ids=NAME)
def test_partitions_without_later_jobs_are_unchanged(
    written_into_broker: WrittenIntoBroker, place: tuple[str, int]
) -> None:
    before = written_into_broker.consumed[AFTER_THE_JOBS][place]
    assert written_into_broker.consumed[AFTER_THE_REPLAYS][place].equals(before)
