"""A broker loads what Spark jobs write without complaint; consumers get each row once, in the partition of its key."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.interop.dump_log_segments import complaints_about_indexes
from tests.interop.event_rows import numbers_of
from tests.interop.loaded_from_spark import (
    APPENDED,
    JOBS,
    KEYED_BY_JAVA,
    LARGE,
    SEGMENT_BYTES,
    LoadedFromSpark,
)

pytestmark = pytest.mark.spark

PLACES = [place for job in JOBS.values() for place in job.places]
SMALL = [place for name, job in JOBS.items() if name != LARGE for place in job.places]


def test_a_task_failed_after_writing_rows_to_disk(loaded_from_spark: LoadedFromSpark) -> None:
    assert int(loaded_from_spark.seen.failure.read_text()) > 0


@pytest.mark.parametrize(("topic", "partition"), JOBS[LARGE].places)
def test_segments_were_linked_and_appended_to(
    loaded_from_spark: LoadedFromSpark, topic: str, partition: int
) -> None:
    sizes = [path.stat().st_size for path in (loaded_from_spark.own / f"{topic}-{partition}").glob("*.log")]
    assert loaded_from_spark.seen.large_pieces.exists()
    assert len(sizes) >= 4
    assert max(sizes) <= SEGMENT_BYTES


@pytest.mark.parametrize(("topic", "partition"), PLACES)
def test_broker_loads_it_without_complaints(
    loaded_from_spark: LoadedFromSpark, topic: str, partition: int
) -> None:
    start = loaded_from_spark.clean_start
    assert start.skipped_recovery
    loaded = start.loaded()[topic, partition]
    assert loaded.log_start_offset == 0
    assert loaded.log_end_offset == loaded_from_spark.consumed[topic, partition].num_rows > 0
    assert not start.complaints(topic, partition)
    assert not start.recovered_segments(topic, partition)


def test_clean_start_logs_no_warnings(loaded_from_spark: LoadedFromSpark) -> None:
    assert set(PLACES) <= set(loaded_from_spark.clean_start.loaded())
    assert not loaded_from_spark.clean_start.unusual()


def test_dump_log_segments_accepts_every_index(loaded_from_spark: LoadedFromSpark) -> None:
    own = loaded_from_spark.own
    assert not complaints_about_indexes(own / f"{topic}-{partition}" for topic, partition in PLACES)


@pytest.mark.parametrize("name", JOBS)
def test_consumer_gets_each_row_once_and_as_it_was(loaded_from_spark: LoadedFromSpark, name: str) -> None:
    job = JOBS[name]
    found = np.zeros(job.row_count, np.int64)
    began_ms: set[int] = set()
    for topic, partition in job.places:
        table = loaded_from_spark.consumed[topic, partition]
        assert table["offset"].to_numpy().tolist() == list(range(table.num_rows))
        numbers = numbers_of(table["value"], table["timestamp_ms"])
        # Tasks run one after the other, and each writes its rows in order.
        assert (np.diff(numbers) > 0).all()
        found[numbers] += 1
        expected = job.events.rows(numbers, null_headers=False)
        assert pc.all(pc.equal(expected["topic"], topic)).as_py()
        for column in ("key", "value", "headers"):
            assert table[column].combine_chunks().equals(expected[column]), f"{topic}-{partition} {column}"
        began_ms |= times_of_the_job(table, expected["timestamp"])
    assert (found == 1).all()
    assert len(began_ms) == int(job.null_timestamps)
    started_ms, ended_ms = loaded_from_spark.job_times_ms[name]
    assert all(started_ms <= each <= ended_ms for each in began_ms)


def times_of_the_job(table: pa.Table, expected: pa.Array) -> set[int]:
    """Check explicit timestamps, which become whole milliseconds; return the others."""
    assert pc.unique(table["timestamp_type"]).to_pylist() == [0]
    expected_ms = pc.divide(expected.cast(pa.int64()), 1000)
    filled = pc.if_else(pc.is_null(expected_ms), table["timestamp_ms"], expected_ms)
    assert filled.equals(table["timestamp_ms"])
    return set(pc.unique(table["timestamp_ms"].filter(pc.is_null(expected_ms))).to_pylist())


@pytest.mark.parametrize("name", JOBS)
def test_lookups_by_time_find_the_first_row_at_or_after(
    loaded_from_spark: LoadedFromSpark, name: str
) -> None:
    for topic in JOBS[name].topics:
        timestamps = loaded_from_spark.consumed[topic, 0]["timestamp_ms"].to_numpy()
        answers = loaded_from_spark.looked_up[topic]
        for asked_ms, answer in answers:
            found = np.flatnonzero(timestamps >= asked_ms)
            assert answer == ((timestamps[found[0]], found[0]) if len(found) else None), asked_ms
        # The time of the job is later than all explicit timestamps.
        assert len({answer for _, answer in answers}) == (
            3 if JOBS[name].null_timestamps else len(answers) - 2
        )


def test_keyed_rows_are_partitioned_as_by_kafkas_java_producer(loaded_from_spark: LoadedFromSpark) -> None:
    def partitions_by_key(topic: str) -> dict[bytes, list[int]]:
        keys = [
            pa.table(
                {
                    "key": pc.unique(loaded_from_spark.consumed[topic, number]["key"]),
                    "partition": [number] * count,
                }
            )
            for number in range(7)
            if (count := pc.count_distinct(loaded_from_spark.consumed[topic, number]["key"], "all").as_py())
        ]
        grouped = pa.concat_tables(keys).group_by("key").aggregate([("partition", "list")])
        return dict(zip(grouped["key"].to_pylist(), grouped["partition_list"].to_pylist(), strict=True))

    by_java = partitions_by_key(KEYED_BY_JAVA)
    by_spark = partitions_by_key("spark-seven")
    without_key = by_spark.pop(None)
    assert len(by_java) > 30_000
    assert b"" in by_java
    assert by_spark == by_java
    assert sorted(without_key) == list(range(7))


@pytest.mark.parametrize(("topic", "partition"), PLACES)
def test_idempotent_producer_appends(loaded_from_spark: LoadedFromSpark, topic: str, partition: int) -> None:
    end = loaded_from_spark.consumed[topic, partition].num_rows
    appended = {
        place[2]: row for place, row in loaded_from_spark.appended.items() if place[:2] == (topic, partition)
    }
    assert appended == {end + number: (None, b"appended %d" % number) for number in range(APPENDED)}


@pytest.mark.parametrize(("topic", "partition"), PLACES)
def test_recovery_after_a_kill_reads_only_segments_appended_to(
    loaded_from_spark: LoadedFromSpark, topic: str, partition: int
) -> None:
    start = loaded_from_spark.recovery
    assert start.recovered
    assert not start.complaints(topic, partition)
    last = max(int(path.stem) for path in (loaded_from_spark.root / f"{topic}-{partition}").glob("*.log"))
    assert start.recovered_segments(topic, partition) == [last]
    assert start.loaded()[topic, partition].log_end_offset == (
        loaded_from_spark.consumed[topic, partition].num_rows + APPENDED
    )


@pytest.mark.parametrize(("topic", "partition"), PLACES)
def test_kill_and_recovery_change_no_byte(
    loaded_from_spark: LoadedFromSpark, topic: str, partition: int
) -> None:
    """Only the last segment grew."""
    ours = loaded_from_spark.own / f"{topic}-{partition}"
    theirs = loaded_from_spark.root / f"{topic}-{partition}"
    *closed, last = sorted(ours.glob("*.log"))
    assert (theirs / last.name).read_bytes().startswith(last.read_bytes())
    for log in closed:
        for path in ours.glob(f"{log.stem}.*"):
            assert (theirs / path.name).read_bytes() == path.read_bytes(), path.name


@pytest.mark.parametrize(("topic", "partition"), SMALL)
def test_consumer_gets_everything_after_a_kill(
    loaded_from_spark: LoadedFromSpark, topic: str, partition: int
) -> None:
    before = loaded_from_spark.consumed[topic, partition]
    after = loaded_from_spark.consumed_after_the_kill[topic, partition]
    assert after.num_rows == before.num_rows + APPENDED
    assert after.slice(0, before.num_rows).equals(before)
