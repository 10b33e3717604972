"""Directories that `storage_core` writes work like a broker's own: it loads, serves, continues and recovers them.

A broker is silent about a good log, so the tests also assert that it logged loading each one.
`test_recovery_beside_broker` shows that the broker and `DumpLogSegments` do report bad ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.interop.clients import ISOLATION_LEVELS, READ_UNCOMMITTED, Row, assert_same_rows
from tests.interop.crash_appender import rows_of_appender
from tests.interop.dump_log_segments import complaints_about_indexes
from tests.interop.handed_over import APPENDED, CRASHED, CRASHED_AND_RECOVERED, FIRST, SECOND, HandedOver
from tests.interop.produced import CONTINUED, PRODUCED, small_records
from tests.interop.written_by_log import WRITTEN

if TYPE_CHECKING:
    from pathlib import Path


# Record timestamps do not determine these results: a segment without timestamps uses its file's time, and a segment
# with deleted records still counts their timestamps.
TOLD_BY_SEGMENTS = {
    "own-old-formats",
    "own-empty-in-the-middle",
    *(topic for topic, written in WRITTEN.items() if written.starts_at),
}
# A log counts bytes since the last index entry from its opening on, so recovery writes different index entries.
OPENED_TWICE = {"own-reopened"}

PLACED = (*WRITTEN, *CRASHED_AND_RECOVERED)


def topic_id(partition: Path) -> str:
    return (partition / "partition.metadata").read_text().split()[-1]


def expected_rows(handed_over: HandedOver, topic: str) -> list[Row]:
    if topic in WRITTEN:
        return handed_over.writings[topic].rows
    end = handed_over.consumed[FIRST, READ_UNCOMMITTED][topic].end_offset
    return rows_of_appender(topic, end)


@pytest.mark.parametrize("topic", WRITTEN)
def test_the_log_has_the_intended_shape(handed_over: HandedOver, topic: str) -> None:
    partition = handed_over.own / f"{topic}-0"
    assert len(list(partition.glob("*.log"))) >= WRITTEN[topic].segments
    assert (handed_over.own / ".kafka_cleanshutdown").exists()
    if "epochs" in topic:
        assert (partition / "leader-epoch-checkpoint").read_text() == "0\n3\n0 0\n1 400\n2 800\n"


@pytest.mark.parametrize("topic", PLACED)
def test_broker_loads_it_without_complaints(handed_over: HandedOver, topic: str) -> None:
    start = handed_over.clean_start
    assert start.skipped_recovery
    loaded = start.loaded()[topic, 0]
    assert loaded.topic_id == topic_id(handed_over.stopped / f"{topic}-0")
    if topic in WRITTEN:
        assert loaded.log_start_offset == WRITTEN[topic].starts_at
        assert loaded.log_end_offset == handed_over.writings[topic].loaded_end
    assert not start.complaints(topic)


def test_clean_start_logs_no_warnings(handed_over: HandedOver) -> None:
    loaded = handed_over.clean_start.loaded()
    assert {topic for topic, _ in loaded} >= {*PLACED, *PRODUCED}
    assert not handed_over.clean_start.unusual()


@pytest.mark.parametrize("isolation_level", ISOLATION_LEVELS)
@pytest.mark.parametrize("topic", PLACED)
def test_consumer_reads_the_records(handed_over: HandedOver, topic: str, isolation_level: str) -> None:
    consumed = handed_over.consumed[FIRST, isolation_level][topic]
    assert consumed.error is None
    assert_same_rows(consumed.rows, expected_rows(handed_over, topic))


@pytest.mark.parametrize("topic", PLACED)
def test_lookups_by_time_agree(handed_over: HandedOver, topic: str) -> None:
    rows = expected_rows(handed_over, topic)
    for asked_ms, brokers, ours in handed_over.looked_up[topic]:
        assert ours == brokers, f"{asked_ms}"
        if topic not in TOLD_BY_SEGMENTS:
            found = next((row for row in rows if row.timestamp_ms >= asked_ms), None)
            assert brokers == (None if found is None else (found.timestamp_ms, found.offset)), f"{asked_ms}"


@pytest.mark.parametrize("topic", PLACED)
def test_lookup_of_the_largest_timestamp_agrees(handed_over: HandedOver, topic: str) -> None:
    brokers, ours = handed_over.largest[topic]
    assert ours == brokers


def test_dump_log_segments_accepts_every_index(handed_over: HandedOver) -> None:
    partitions = [handed_over.root_of(topic) / f"{topic}-0" for topic in PLACED]
    assert not complaints_about_indexes(partitions)


@pytest.mark.parametrize("topic", PLACED)
def test_idempotent_producer_appends(handed_over: HandedOver, topic: str) -> None:
    before = handed_over.consumed[FIRST, READ_UNCOMMITTED][topic]
    appended = handed_over.appended[topic]
    assert sorted(appended) == list(range(before.end_offset, before.end_offset + APPENDED))
    values = [value for _, (_, value) in sorted(appended.items())]
    assert values == [record.value for record in small_records(APPENDED, first=100_000)]


@pytest.mark.parametrize("topic", PLACED)
def test_everything_survives_a_kill_of_the_broker(handed_over: HandedOver, topic: str) -> None:
    assert handed_over.recovery.recovered
    assert not handed_over.recovery.complaints(topic)
    consumed = handed_over.consumed[SECOND, READ_UNCOMMITTED][topic]
    assert consumed.error is None
    assert_same_rows(consumed.rows[:-APPENDED], expected_rows(handed_over, topic))
    found = {row.offset: (row.key, row.value) for row in consumed.rows[-APPENDED:]}
    assert found == handed_over.appended[topic]


@pytest.mark.parametrize("topic", PLACED)
def test_recovery_of_every_segment_changes_no_byte(handed_over: HandedOver, topic: str) -> None:
    """The broker rebuilds the same indexes; only the last segment grew."""
    ours = handed_over.root_of(topic) / f"{topic}-0"
    theirs = handed_over.recovered / f"{topic}-0"
    *closed, last = sorted(ours.glob("*.log"))
    assert (theirs / last.name).read_bytes().startswith(last.read_bytes())
    for log in closed:
        for path in sorted(ours.glob(f"{log.stem}.*")):
            if path.suffix == ".log" or (path.suffix != ".snapshot" and topic not in OPENED_TWICE):
                assert (theirs / path.name).read_bytes() == path.read_bytes(), path.name


@pytest.mark.parametrize("topic", [*CRASHED_AND_RECOVERED, *CRASHED])
def test_nothing_acknowledged_is_lost_in_a_crash(handed_over: HandedOver, topic: str) -> None:
    """SIGKILL during appends, then our recovery or the broker's."""
    occasion = FIRST if topic in CRASHED_AND_RECOVERED else SECOND
    consumed = handed_over.consumed[occasion, READ_UNCOMMITTED][topic]
    assert consumed.error is None
    assert consumed.end_offset > handed_over.acknowledged[topic]
    assert_same_rows(consumed.rows, rows_of_appender(topic, consumed.end_offset))


def test_append_in_the_brokers_own_root(handed_over: HandedOver) -> None:
    consumed = handed_over.consumed[FIRST, READ_UNCOMMITTED][CONTINUED]
    records = [record.value for record in small_records(400)]
    assert [row.value for row in consumed.rows[:400]] == records
    assert_same_rows(consumed.rows[400:500], handed_over.continued)
    assert not handed_over.clean_start.complaints(CONTINUED)


def test_append_in_the_brokers_own_root_changes_no_other_log(handed_over: HandedOver) -> None:
    changed = [name for name in handed_over.changed if name.startswith(("kafka-", "damaged-", "__"))]
    assert not changed


def test_append_in_the_brokers_own_root_leaves_its_marker(handed_over: HandedOver) -> None:
    """It holds the broker's epoch: with another epoch, the cluster assumes a crash and elects an unclean leader."""
    assert ".kafka_cleanshutdown" not in handed_over.changed
    assert "-> RECOVERING" not in handed_over.clean_start.text
