"""Planning over very many segments, and finding one offset among them."""

from __future__ import annotations

import os
import random
import statistics
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.one_core import run_on_one_core
from benchmarks.results import Finding, SectionResult, at_most
from benchmarks.scratch import new_directory
from benchmarks.settings import Settings
from benchmarks.timing import spread

if TYPE_CHECKING:
    from storage_core.directory import PartitionLog

_PLANNED_SEGMENTS = 10_000
_PLANNED_PARTITIONS = 100
_FEW_SEGMENTS = 1_000
_MANY_SEGMENTS = 100_000
_BATCHES_PER_SEGMENT = 3
_LOOKUPS = 500
_KINDS = ("first", "again")
_STATISTICS = ("median", "mean")
_TOPIC = "events"

_METHOD = f"""\
Directories of segments of {_BATCHES_PER_SEGMENT} one-record batches each, with offset index and time index, made by
the benchmark. Planning is `plan_scan` with default options, from an unopened directory to finished tasks. A look-up
takes an offset to its segment and the position of its batch, with the listing loaded: *first* in segments that nothing
was read of yet (opens the index and proves the entry in the log), *again* for the same offsets. {_LOOKUPS} random
offsets a round, each in another segment. Median and mean of a round are shown: the mean contains what Python's garbage
collector takes to walk a long listing. One core, directory entries and files in
the system's cache."""


def run(settings: Settings) -> SectionResult:
    """Measure planning and look-ups."""
    planned = settings.scaled(_PLANNED_SEGMENTS)
    # Few are as few in a quick run: below a thousand, the fixed cost of a round would count.
    few, many = _FEW_SEGMENTS, settings.scaled(_MANY_SEGMENTS)
    findings: list[Finding] = []
    raw: dict[str, Any] = {}
    scratch = new_directory(settings.scratch_directory, "planning")
    one, hundred = scratch / "one-partition", scratch / "hundred-partitions"
    _make_partition(one, 0, planned)
    for partition in range(_PLANNED_PARTITIONS):
        _make_partition(hundred, partition, planned // _PLANNED_PARTITIONS)
    for name, root in (("1 partition", one), (f"{_PLANNED_PARTITIONS} partitions", hundred)):
        seconds = run_on_one_core(_time_planning, root, planned, settings.repetitions)
        raw[f"planning, {name}"] = seconds
        subject = f"{planned:,} segments in {name}"
        findings.append(Finding("planning", subject, spread(seconds), "s", at_most(1)))
    few_root, many_root = scratch / "few", scratch / "many"
    _make_partition(few_root, 0, few)
    _make_partition(many_root, 0, many)
    looked_up = run_on_one_core(_time_lookups, {few: few_root, many: many_root}, settings.repetitions)
    raw["look-ups, µs"] = {
        f"{count} segments, {kind}, {statistic}": figures
        for (count, kind, statistic), figures in looked_up.items()
    }
    for kind in _KINDS:
        for statistic in _STATISTICS:
            in_few, in_many = looked_up[few, kind, statistic], looked_up[many, kind, statistic]
            findings += _lookup_findings(f"{kind}, {statistic}", few, in_few, many, in_many)
    return SectionResult("planning", "Planning and look-ups", _METHOD, tuple(findings), raw)


def _lookup_findings(
    name: str, few: int, in_few: list[float], many: int, in_many: list[float]
) -> list[Finding]:
    few_spread, many_spread = spread(in_few), spread(in_many)
    ratios = [big / small for small, big in zip(in_few, in_many, strict=True)]
    return [
        Finding(f"offset → position, {name}", f"{few:,} segments", few_spread, "µs", at_most(100)),
        Finding(f"offset → position, {name}", f"{many:,} segments", many_spread, "µs", at_most(100)),
        Finding(
            f"offset → position, {name}: growth",
            f"{many:,} : {few:,} segments",
            spread(ratios),
            "×",
            at_most(2),
        ),
    ]


def _make_partition(root: Path, partition: int, segments: int) -> None:
    from benchmarks.synthetic import write_tiny_segments

    write_tiny_segments(root / f"{_TOPIC}-{partition}", segments, batches_per_segment=_BATCHES_PER_SEGMENT)


def _time_planning(root: Path, segments: int, rounds: int) -> list[float]:
    """Runs in a process of its own. Seconds by round."""
    from benchmarks.segmentlog_reading import plan_read
    from storage_core.filesystem import FileSystem

    seconds = []
    for _ in range(rounds + 1):
        started = time.perf_counter()
        plan = plan_read(FileSystem(), root)
        seconds.append(time.perf_counter() - started)
        if plan.planned_segments != segments:
            raise RuntimeError(f"Expected a plan of {segments} segments, found {plan.planned_segments}.")
    return seconds[1:]


def _time_lookups(roots: dict[int, Path], rounds: int) -> dict[tuple[int, str, str], list[float]]:
    """Runs in a process of its own. Microseconds of a look-up by round: segments, kind, statistic -> figures."""
    for root in roots.values():
        _bring_into_cache(root)
    chance = random.Random(1)
    found: dict[tuple[int, str, str], list[float]] = defaultdict(list)
    for round_number in range(rounds + 1):
        for count, root in roots.items():
            segments = chance.sample(range(count), min(_LOOKUPS, count))
            offsets = [
                segment * _BATCHES_PER_SEGMENT + chance.randrange(_BATCHES_PER_SEGMENT)
                for segment in segments
            ]
            # The first round warms up.
            for kind, times_us in zip(_KINDS, _look_up_twice(root, offsets), strict=True):
                if round_number:
                    found[count, kind, "median"].append(statistics.median(times_us))
                    found[count, kind, "mean"].append(statistics.fmean(times_us))
    return dict(found)


def _bring_into_cache(root: Path) -> None:
    # A file that was only listed is looked up by the kernel at its first use: that would measure the file system.
    for directory, _, names in os.walk(root):
        for name in names:
            with open(os.path.join(directory, name), "rb") as file:
                file.read()


def _look_up_twice(root: Path, offsets: list[int]) -> list[list[float]]:
    from storage_core.directory import PartitionLog, find_partitions
    from storage_core.filesystem import FileSystem

    filesystem = FileSystem()
    (partition,) = find_partitions(filesystem, [str(root)])
    log = PartitionLog.load(filesystem, partition)
    # The listing includes where the log ends; every read plans with it.
    if log.log_end_offset < max(offsets):
        raise RuntimeError(f"Expected a log end above {max(offsets)}, found {log.log_end_offset}.")
    return [_look_up(log, offsets) for _ in _KINDS]


def _look_up(log: PartitionLog, offsets: list[int]) -> list[float]:
    times_us = []
    for offset in offsets:
        started = time.perf_counter()
        place = log.first_batch_at_or_after(offset)
        times_us.append((time.perf_counter() - started) * 1e6)
        if place is None or place[1].base_offset != offset:
            raise RuntimeError(f"Expected the batch of offset {offset}, found {place}.")
    return times_us
