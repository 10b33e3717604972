"""`segmentlog verify` beside Kafka's own ``LogLoader``, on damaged copies of brokers' directories, in one JVM.

What a broker notices is found, what it makes of a log is foretold, and no sound directory is called damaged. To repeat or
to run more: SEGMENTLOG_VERIFY_FIRST and SEGMENTLOG_VERIFY_COPIES.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from storage_core.checkpoint import (
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    read_offset_checkpoint,
)
from storage_core.errors import CorruptError
from storage_core.filesystem import FileSystem
from tests.damage.broker_logs import broker_logs
from tests.damage.campaign import fast_folder
from tests.damage.verified_copies import DamagedCopy, draw_copy, undamaged_copies, verified
from tests.interop.kafka_log import KafkaLog, LoadedLog

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from storage_core.check.partition_check import PartitionReport

FIRST = int(os.environ.get("SEGMENTLOG_VERIFY_FIRST", "0"))
COPIES_PER_LOG = 50
SOAK_COPIES_PER_LOG = int(os.environ.get("SEGMENTLOG_VERIFY_COPIES", "200"))
# Before all timestamps, so that no producer has expired.
NOW_MS = 1
# A broker also decompresses and decodes damaged batches on its way, which may fail in ways of its own.
MOST_UNFORETOLD = 0.01
MOST_UNKNOWN = 0.1


@dataclass
class Beside:
    """What the comparison of many copies has found."""

    problems: list[str] = field(default_factory=list)
    unforetold: list[str] = field(default_factory=list)
    copies: int = 0
    logs: int = 0
    refused: int = 0
    cut: int = 0
    rebuilt: int = 0
    unknown: int = 0


@pytest.fixture(scope="module")
def kafka() -> Iterator[KafkaLog]:
    with KafkaLog() as log:
        yield log


@pytest.fixture
def folder() -> Iterator[Path]:
    """In memory if possible: thousands of files are written."""
    path = Path(tempfile.mkdtemp(prefix="segmentlog-verify-", dir=fast_folder()))
    yield path / "copy"
    shutil.rmtree(path)


def compare(kafka: KafkaLog, copies: Iterable[DamagedCopy], folder: Path) -> Beside:
    beside = Beside()
    for copy in copies:
        beside.copies += 1
        shutil.rmtree(folder, ignore_errors=True)
        copy.write(folder)
        report = verified(folder)
        for partition in report.partitions:
            _compare_partition(kafka, copy, partition, bool(report.roots[0].findings), beside)
    return beside


def _compare_partition(
    kafka: KafkaLog, copy: DamagedCopy, partition: PartitionReport, has_root_findings: bool, beside: Beside
) -> None:
    path = Path(partition.path)
    sizes = {int(each.name[:20]): each.stat().st_size for each in path.glob("*.log")}
    if not sizes:
        return
    has_indexes = all(each.with_suffix(".index").exists() for each in path.glob("*.log"))
    loaded = _loaded(kafka, path, partition)
    beside.logs += 1
    beside.refused += loaded.refusal is not None
    beside.cut += loaded.refusal is None and loaded.segments != sizes
    beside.rebuilt += not has_indexes
    where = f"{copy.text()}\n  {partition.topic}-{partition.partition}"
    is_noticed = loaded.refusal is not None or loaded.segments != sizes or not has_indexes
    if is_noticed and partition.verdict == "sound" and not has_root_findings:
        beside.problems.append(f"{where}: the broker notices, verify does not: {loaded}")
    if partition.start.unknown is not None:
        beside.unknown += 1
        return
    foretold = _foretold(partition, sizes)
    is_refused = (loaded.refusal is not None, foretold.refusal is not None)
    is_foretold = is_refused == (True, True) or loaded == foretold
    if not is_foretold:
        beside.unforetold.append(f"{where}: {loaded}, not {foretold}")
        if partition.verdict != "damage":
            beside.problems.append(beside.unforetold[-1])


def _loaded(kafka: KafkaLog, path: Path, partition: PartitionReport) -> LoadedLog:
    key = (partition.topic, partition.partition)
    return kafka.load(
        path,
        NOW_MS,
        {},
        is_clean=partition.is_clean,
        log_start_offset=_checkpoint(path.parent / LOG_START_OFFSET_CHECKPOINT).get(key, 0),
        recovery_point=_checkpoint(path.parent / RECOVERY_POINT_CHECKPOINT).get(key, 0),
    )


def _checkpoint(path: Path) -> dict[tuple[str, int], int]:
    """As Kafka's ``LogManager`` reads it."""
    try:
        return read_offset_checkpoint(FileSystem(), str(path))
    except CorruptError:
        return {}


def _foretold(partition: PartitionReport, sizes: dict[int, int]) -> LoadedLog:
    start = partition.start
    if start.refusal is not None:
        return LoadedLog(start.refusal)
    segments = {base: start.cuts.get(base, size) for base, size in sizes.items() if base not in start.removed}
    return LoadedLog(
        None, start.log_start_offset, start.log_end_offset, segments or {start.log_end_offset: 0}
    )


def damaged(first: int, count: int) -> Iterator[DamagedCopy]:
    return (
        draw_copy(log, number) for number in range(first, first + count) for log in broker_logs().values()
    )


def test_more_than_500_damaged_copies(kafka: KafkaLog, folder: Path) -> None:
    beside = compare(kafka, damaged(FIRST, COPIES_PER_LOG), folder)
    assert beside.problems == []
    assert len(beside.unforetold) <= MOST_UNFORETOLD * beside.logs, "\n".join(beside.unforetold)
    assert beside.copies >= 1000
    # The comparison is worth something.
    assert beside.unknown <= MOST_UNKNOWN * beside.logs
    assert beside.refused >= 50
    assert beside.cut >= 80
    assert beside.rebuilt >= 20


def test_sound_directories_after_a_clean_stop_and_after_a_crash(kafka: KafkaLog, folder: Path) -> None:
    copies = list(undamaged_copies())
    beside = compare(kafka, copies, folder)
    assert beside.problems == []
    assert beside.unforetold == []
    for copy in copies:
        shutil.rmtree(folder)
        copy.write(folder)
        report = verified(folder)
        # Of that one, a test has cut the log's end off, below its high watermark.
        expected = {"damage"} if copy.log.name.startswith("torn-tail") else {"sound", "unclean"}
        assert {partition.verdict for partition in report.partitions} <= expected, copy.text()


@pytest.mark.soak
def test_thousands_of_damaged_copies(kafka: KafkaLog, folder: Path) -> None:
    beside = compare(kafka, damaged(FIRST + COPIES_PER_LOG, SOAK_COPIES_PER_LOG), folder)
    assert beside.problems == []
    assert len(beside.unforetold) <= MOST_UNFORETOLD * beside.logs, "\n".join(beside.unforetold)
