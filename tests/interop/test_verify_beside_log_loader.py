"""`segmentlog verify` beside Kafka's own ``LogLoader``, on damaged copies of brokers' directories, in one JVM.

What a broker notices is found, what it makes of a log is foretold, and no sound directory is called damaged. We read the
rows that a broker serves if it checks a log as a whole, up to where it cuts the log or keeps a batch whose offset was
changed. To repeat or to run more: SEGMENTLOG_VERIFY_FIRST and SEGMENTLOG_VERIFY_COPIES.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from storage_core import read_table
from storage_core.checkpoint import (
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    read_offset_checkpoint,
)
from storage_core.errors import CorruptError
from storage_core.filesystem import FileSystem
from tests.damage.broker_logs import broker_logs
from tests.damage.campaign import fast_folder
from tests.damage.reference import partition_truths
from tests.damage.verified_copies import DamagedCopy, draw_copy, undamaged_copies, verified
from tests.interop.kafka_log import KafkaLog, KafkaRecord, LoadedLog

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from storage_core.check.partition_check import PartitionReport
    from tests.damage.base_log import BaseLog
    from tests.damage.entries import Entry

FIRST = int(os.environ.get("SEGMENTLOG_VERIFY_FIRST", "0"))
COPIES_PER_LOG = 12
SOAK_COPIES_PER_LOG = int(os.environ.get("SEGMENTLOG_VERIFY_COPIES", "240"))
# Before all timestamps, so that no producer has expired.
NOW_MS = 1
# A broker also decompresses and decodes damaged batches on its way, which may fail in ways of its own.
MOST_UNFORETOLD = 0.01
MOST_UNKNOWN = 0.1
# A broker does not check to which offsets the names of files belong.
_FOREIGN_FILES = {"swapped files", "copied over another file", "renamed a file"}


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
    """Return a folder, in memory if possible: thousands of files are written."""
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
        # A load changes files.
        shutil.rmtree(untrusted(folder), ignore_errors=True)
        shutil.copytree(folder, untrusted(folder), symlinks=True)
        for partition in report.partitions:
            _compare_partition(kafka, copy, partition, bool(report.roots[0].findings), beside)
    return beside


def untrusted(folder: Path) -> Path:
    """Return the copy of a log directory that Kafka loads as if nothing vouched for any segment."""
    return folder.with_name("untrusted")


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
    is_comparable = not any(each.kind in _FOREIGN_FILES for each in copy.mutations)
    if loaded.refusal is None and is_comparable:
        beside.problems += _wrong_rows(kafka, partition, _comparable_end(copy, partition), where)
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
    return kafka.load(
        path,
        NOW_MS,
        {},
        is_clean=partition.is_clean,
        log_start_offset=_from_checkpoint(path.parent / LOG_START_OFFSET_CHECKPOINT, partition),
        recovery_point=_from_checkpoint(path.parent / RECOVERY_POINT_CHECKPOINT, partition),
    )


def _from_checkpoint(path: Path, partition: PartitionReport) -> int:
    """Return a partition's offset as Kafka's ``LogManager`` reads it."""
    try:
        offsets = read_offset_checkpoint(FileSystem(), str(path))
    except CorruptError:
        return 0
    return offsets.get((partition.topic, partition.partition), 0)


def _read(path: Path, partition: PartitionReport) -> list[KafkaRecord]:
    """Return what we read of a damaged log."""
    columns = ["offset", "timestamp", "timestampType", "key", "value"]
    place = {partition.topic: [partition.partition]}
    table = read_table(path.parent, assign=place, mode="DROPMALFORMED", columns=columns)
    offsets, times, *others = (
        table[name].cast("int64").to_pylist() if name == "timestamp" else table[name].to_pylist()
        for name in columns
    )
    return list(map(KafkaRecord, offsets, (time_us // 1000 for time_us in times), *others))


def _comparable_end(copy: DamagedCopy, partition: PartitionReport) -> int:
    """Return the offset below which a broker that checks a log as a whole keeps the rows that we read.

    No CRC covers an offset: a broker serves a batch with a changed one as it is. To us it is out of order, and either
    this batch or one beside it is left out. A segment with a damaged transaction index, or without an offset index, is
    checked by itself: the broker cuts it at the damage and keeps the segments after it.
    """
    key = (partition.topic, partition.partition)
    ends = [sys.maxsize]
    for segment in partition_truths(copy.log, copy.files)[key].segments:
        name = segment.path.removesuffix(".log")
        aborted = f"{name}.txnindex"
        is_changed = aborted in copy.files and copy.files[aborted] != copy.log.files.get(aborted)
        if is_changed or f"{name}.index" not in copy.files:
            ends.append(segment.base_offset)
        ends += [
            _first_offset_before(copy.log, found.original)
            for found in segment.known
            if found.original is not None and found.original.topic_partition == key and found.shift
        ]
    return min(ends)


def _first_offset_before(log: BaseLog, entry: Entry) -> int:
    """Return the first offset of the entry before this one; 0 if it is the first of its partition."""
    entries = (each for path in log.entries.values() for each in path)
    return max(
        (
            each.first_offset
            for each in entries
            if each.topic_partition == entry.topic_partition and each.first_offset < entry.first_offset
        ),
        default=0,
    )


def _wrong_rows(kafka: KafkaLog, partition: PartitionReport, end: int, where: str) -> Iterator[str]:
    """Compare our rows below an offset with those that Kafka reads of what it keeps if nothing vouches for any segment.

    They are compared up to where its log ends, or is not in order: it does not check the order.
    """
    path = untrusted(Path(partition.path).parent) / Path(partition.path).name
    log_start_offset = _from_checkpoint(path.parent / LOG_START_OFFSET_CHECKPOINT, partition)
    ours = _read(path, partition)
    loaded = kafka.load(path, NOW_MS, {}, is_clean=False, log_start_offset=log_start_offset)
    if loaded.refusal is not None:
        return
    theirs: list[KafkaRecord] = []
    end = min(end, loaded.log_end_offset)
    for segment in sorted(path.glob("*.log")):
        found = kafka.records(segment.read_bytes())
        if isinstance(found, str):
            # A magic that no CRC covers.
            end = min(end, int(segment.stem))
            break
        for record in found:
            if theirs and record.offset <= theirs[-1].offset:
                end = min(end, record.offset)
            theirs.append(record)
    bounds = range(loaded.log_start_offset, end)
    ours = [record for record in ours if record.offset in bounds]
    theirs = [record for record in theirs if record.offset in bounds]
    if ours != theirs:
        first = next(
            (pair for pair in zip(ours, theirs, strict=False) if pair[0] != pair[1]), "the longer one"
        )
        yield f"{where}: {len(ours)} rows, not {len(theirs)} up to {end}, and first {first}"


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


def test_damaged_copies(kafka: KafkaLog, folder: Path) -> None:
    beside = compare(kafka, damaged(FIRST, COPIES_PER_LOG), folder)
    assert beside.problems == []
    assert len(beside.unforetold) <= MOST_UNFORETOLD * beside.logs, "\n".join(beside.unforetold)
    assert beside.copies >= 200
    # The comparison is worth something.
    assert beside.unknown <= MOST_UNKNOWN * beside.logs
    assert beside.refused >= 12
    assert beside.cut >= 18
    assert beside.rebuilt >= 5


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
