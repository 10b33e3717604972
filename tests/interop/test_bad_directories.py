"""The checks of the other modules detect bad directories and accept a good one.

A broker's start and `DumpLogSegments` prove something about a log only if they report damage.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from tests.interop.broker import KafkaBroker
from tests.interop.broker_start import BrokerStart, start_and_watch
from tests.interop.clients import Consumed, consume_partitions, new_producer
from tests.interop.dump_log_segments import complaints_about_indexes
from tests.interop.placing import place
from tests.interop.produced import BROKER_SETTINGS, create_topics, small_records
from tests.interop.workload import send

if TYPE_CHECKING:
    from pathlib import Path


SOURCE = "source"
RECORDS = 300

_FIRST = f"{0:020}"


def leave(partition: Path) -> None:
    del partition


def lose_index(partition: Path) -> None:
    (partition / f"{_FIRST}.index").unlink()


def break_index(partition: Path) -> None:
    with open(partition / f"{_FIRST}.index", "r+b") as index:
        index.write((5).to_bytes(4, "big"))


def break_index_size(partition: Path) -> None:
    with open(partition / f"{_FIRST}.index", "ab") as index:
        index.write(b"\0\0\0")


def break_time_index(partition: Path) -> None:
    with open(partition / f"{_FIRST}.timeindex", "r+b") as index:
        index.write(bytes(7) + b"\1")


def tear(partition: Path) -> None:
    """Tear the log although the clean-shutdown marker says that no recovery is needed."""
    last = max(partition.glob("*.log"))
    os.truncate(last, last.stat().st_size - 5)


def spoil_snapshots(partition: Path) -> None:
    for path in partition.glob("*.snapshot"):
        path.write_bytes(b"\0\1" + bytes(8))


def change_topic_id(partition: Path) -> None:
    (partition / "partition.metadata").write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAABA")


def leave_stray_index(partition: Path) -> None:
    (partition / f"{9999:020}.index").write_bytes(b"")


DAMAGE = {
    each.__name__.replace("_", "-"): each
    for each in (
        leave,
        lose_index,
        break_index,
        break_index_size,
        break_time_index,
        tear,
        spoil_snapshots,
        change_topic_id,
        leave_stray_index,
    )
}


BAD_INDEXES = ("break-index", "break-index-size", "break-time-index")


@dataclass(frozen=True, slots=True)
class BadDirectories:
    start: BrokerStart
    index_complaints: dict[str, list[str]]
    consumed: dict[str, Consumed]


@pytest.fixture(scope="module")
def bad(tmp_path_factory: pytest.TempPathFactory) -> BadDirectories:
    scratch = tmp_path_factory.mktemp("noticed")
    with KafkaBroker(scratch / "broker", BROKER_SETTINGS) as broker:
        settings = {"internal_segment_bytes": 3_000, "index_interval_bytes": 100}
        create_topics(broker, dict.fromkeys((SOURCE, *DAMAGE), settings))
        send(new_producer(broker, linger_ms=1000), SOURCE, iter(small_records(RECORDS)))
        broker.stop()
        index_complaints = {}
        for topic, damage in DAMAGE.items():
            place(broker.log_directory, broker.log_directory, topic, source_topic=SOURCE)
            partition = broker.log_directory / f"{topic}-0"
            damage(partition)
            if topic == "leave" or topic in BAD_INDEXES:
                # One partition per run: after a failure, the tool skips the remaining files.
                index_complaints[topic] = complaints_about_indexes([partition])
        start = start_and_watch(broker)
        consumed = consume_partitions(broker, [(topic, 0) for topic in DAMAGE], patience_s=5.0)
        broker.kill()
    shutil.rmtree(scratch)
    return BadDirectories(start, index_complaints, {topic: each for (topic, _), each in consumed.items()})


def test_good_directory_causes_no_complaints(bad: BadDirectories) -> None:
    for topic in (SOURCE, "leave"):
        assert not bad.start.complaints(topic)
        assert bad.start.loaded()[topic, 0].log_end_offset == RECORDS
    assert not bad.index_complaints["leave"]
    assert len(bad.consumed["leave"].rows) == RECORDS
    assert bad.start.skipped_recovery


@pytest.mark.parametrize("topic", ["lose-index", "spoil-snapshots", "change-topic-id", "leave-stray-index"])
def test_clean_start_reports_it(bad: BadDirectories, topic: str) -> None:
    assert bad.start.complaints(topic)
    assert any(topic in line for line in bad.start.unusual())


@pytest.mark.parametrize("topic", BAD_INDEXES)
def test_dump_log_segments_reports_it(bad: BadDirectories, topic: str) -> None:
    assert bad.index_complaints[topic]


def test_torn_log_under_a_marker_loses_records(bad: BadDirectories) -> None:
    assert bad.start.loaded()["tear", 0].log_end_offset < RECORDS
    assert len(bad.consumed["tear"].rows) < RECORDS


def test_wrong_topic_id_gives_an_empty_log(bad: BadDirectories) -> None:
    assert not bad.consumed["change-topic-id"].rows
