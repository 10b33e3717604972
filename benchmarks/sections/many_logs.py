"""The same volume over ever more partitions in one process, with a bound on open files."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.memory_sampling import open_files_below, own_memory_bytes
from benchmarks.own_process import run_watched
from benchmarks.progress import tell
from benchmarks.records import FIRST_TIMESTAMP_MS, make_values, values_of_partition
from benchmarks.results import Finding, SectionResult, at_least, at_most
from benchmarks.scratch import give_back_space, new_directory
from benchmarks.settings import Settings
from benchmarks.timing import Series, ratio, spread
from benchmarks.unflushed import UnflushedFileSystem
from benchmarks.writing.directories import TOPIC, settle

if TYPE_CHECKING:
    import pyarrow as pa

_PARTITIONS = (1, 10, 100, 1_000, 10_000)
_JUDGED_PARTITIONS = 1_000
_APPENDS = 16_384
_RECORDS_OF_AN_APPEND = 320
_VALUE_SIZE_BYTES = 100
_MOST_OPEN_FILES = 512
# Of segments; a lock and small files are open besides.
_POOLED_FILES = 500
_MOST_ROUNDS = 2

_VOLUME_GB = _APPENDS * _RECORDS_OF_AN_APPEND * _VALUE_SIZE_BYTES / 1e9

_METHOD = f"""\
One process, one `LogDirectory`, a file system that keeps {_POOLED_FILES} files open. {_APPENDS:,} times `Log.append` of
{_RECORDS_OF_AN_APPEND} records of {_VALUE_SIZE_BYTES} B (32 kB; {_VOLUME_GB:.1f} GB of values), each time to the next
partition in turn, so that a file is wanted again only after all others: the worst order for a cache of open files.
Logs are made before, and closed after; appends do not wait for the disk, and `sync` runs before each round, outside of
its time. *Open files* below the directory and *memory*, anonymous and shared, are sampled every 20 ms from outside while
the process makes, fills and closes the logs. At the end every log holds what it was given. At most {_MOST_ROUNDS} rounds, and
one of more than {_JUDGED_PARTITIONS:,} partitions."""


@dataclass(frozen=True, slots=True)
class _Run:
    """One round over this many partitions."""

    seconds: float
    open_files: int
    memory_bytes: int


def run(settings: Settings) -> SectionResult:
    """Measure every number of partitions in turn."""
    appends = settings.scaled(_APPENDS)
    runs: dict[int, list[_Run]] = {settings.scaled(count): [] for count in _PARTITIONS}
    judged = settings.scaled(_JUDGED_PARTITIONS)
    for number in range(min(settings.repetitions, _MOST_ROUNDS)):
        for partitions, found in runs.items():
            # More than those take long to make.
            if partitions <= judged or not number:
                tell(f"one process, {partitions:,} partitions")
                found.append(_run(settings, partitions, appends))
    findings = _findings(runs, appends, judged)
    raw = {
        f"{partitions} partitions": [
            {"seconds": each.seconds, "open files": each.open_files, "memory, B": each.memory_bytes}
            for each in found
        ]
        for partitions, found in runs.items()
    }
    return SectionResult("many_logs", "Many logs in one process", _METHOD, tuple(findings), raw)


def _run(settings: Settings, partitions: int, appends: int) -> _Run:
    scratch = new_directory(settings.scratch_directory, "many-logs")
    root = scratch / "logs"
    measures = {"memory": own_memory_bytes, "open files": open_files_below(root)}
    settle()
    seconds, watch = run_watched(measures, _measure, root, partitions, appends)
    return _Run(seconds, watch.peak("open files"), watch.peak("memory"))


def _findings(runs: Mapping[int, list[_Run]], appends: int, judged: int) -> list[Finding]:
    records = appends * _RECORDS_OF_AN_APPEND
    series = {count: Series(tuple(run.seconds for run in found), records) for count, found in runs.items()}
    alone = series[min(runs)]
    findings = []
    for count, found in runs.items():
        subject = f"{count:,} partition{'s'[: count - 1]}"
        rates = [records * _VALUE_SIZE_BYTES / seconds / 1e6 for seconds in series[count].seconds]
        findings.append(Finding("append", subject, spread(rates), "MB/s"))
        if series[count] is not alone:
            of_same_rounds = Series(alone.seconds[: len(found)], records)
            figure = ratio(of_same_rounds, series[count])
            target = at_least(0.5) if count == judged else None
            findings.append(Finding("MB/s, of those of one partition", subject, figure, "×", target))
        open_files = spread([run.open_files for run in found])
        findings.append(Finding("open files", subject, open_files, "", at_most(_MOST_OPEN_FILES)))
        findings.append(Finding("memory", subject, spread([run.memory_bytes / 1e6 for run in found]), "MB"))
    return findings


def _measure(root: Path, partitions: int, appends: int) -> float:
    """Return how long the appends took. Runs in a process of its own."""
    from storage_core import LogDirectory

    records = _records()
    filesystem = UnflushedFileSystem(max_open_files=_POOLED_FILES)
    with LogDirectory.open(root, filesystem=filesystem) as logs:
        made = [logs.create(TOPIC, partition) for partition in range(partitions)]
        turns = list(itertools.islice(itertools.cycle(made), appends))
        filesystem.is_flushing = True
        started = time.perf_counter()
        for log in turns:
            log.append(records)
        seconds = time.perf_counter() - started
        filesystem.is_flushing = False
        expected = [
            (appends + partitions - 1 - number) // partitions * records.num_rows
            for number in range(partitions)
        ]
        if [log.log_end_offset for log in made] != expected:
            raise RuntimeError("Expected every log to hold what it was given, found others.")
    give_back_space(root)
    return seconds


def _records() -> pa.RecordBatch:
    import pyarrow as pa

    values = values_of_partition(
        make_values(_VALUE_SIZE_BYTES, _VALUE_SIZE_BYTES), 0, 0, _RECORDS_OF_AN_APPEND
    )
    return pa.record_batch(
        {
            "value": pa.array(values, pa.binary(), size=_RECORDS_OF_AN_APPEND),
            "timestamp": pa.array(
                range(FIRST_TIMESTAMP_MS, FIRST_TIMESTAMP_MS + _RECORDS_OF_AN_APPEND), pa.int64()
            ),
        }
    )
