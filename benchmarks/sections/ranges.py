"""What a narrow read touches: one per cent of the offsets, and of the time."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.data_sets import PARTITIONS, DataSet, data_sets
from benchmarks.log_files import batch_places, describe_log_files
from benchmarks.one_core import run_on_one_core
from benchmarks.producing import ensure_data_sets
from benchmarks.progress import tell
from benchmarks.records import FIRST_TIMESTAMP_MS
from benchmarks.results import Finding, SectionResult, at_most
from benchmarks.settings import Settings
from benchmarks.timing import Series, interleave, share, spread

_SHARE_OF_RECORDS = 100
# Where in each partition the range begins, in hundredths.
_STARTS = (0, 13, 37, 50, 61, 88, 99)
_TIMED_START = 50

_METHOD = f"""\
One per cent of each partition's records, chosen by offsets (`startingOffsets`, `endingOffsets`) or by time
(`startingTimestamp`, `endingTimestamp`), all columns, on one core without Spark. Bytes are those that `pread` gave,
counted in the module that reads every file, over planning and reading: log, indexes, checkpoints. 100 % is the size of
the topic's .log files. A batch is read whole, because its CRC is checked: the batches that hold the rows are the least
that can be read, and where they are large they hold more than one per cent. Range: over {len(_STARTS)} places in the log. Time is that of planning and reading together,
compared with a full read in the same rounds; the range begins in the middle. The broker was stopped cleanly.

What bounds a range of time: a bound becomes an exact offset in planning, which reads and decodes the batch at each end
for it; the task, in a process of its own, reads both again. Where two batches of 1 MiB hold the rows, that is 1.73 % of
the log twice. The CRC of each log's last batch, which tells whether the last append is whole, takes another 0.43 %."""


@dataclass(frozen=True, slots=True)
class _Measured:
    log_bytes: int
    least_bytes: tuple[int, ...]
    offset_bytes: tuple[int, ...]
    time_bytes: tuple[int, ...]
    series: Mapping[str, Series]


def run(settings: Settings) -> SectionResult:
    """Measure every data set."""
    log_directory = ensure_data_sets(settings)
    findings: list[Finding] = []
    raw: dict[str, Any] = {}
    for data_set in data_sets(settings):
        tell(f"ranges {data_set.name}")
        measured = run_on_one_core(_measure, data_set, log_directory, settings.repetitions)
        findings += _findings(data_set, measured)
        raw[data_set.name] = {
            "on_disk": describe_log_files(data_set.log_files(log_directory)),
            "log_bytes": measured.log_bytes,
            "starts_percent": _STARTS,
            "least_bytes": measured.least_bytes,
            "offset_range_bytes": measured.offset_bytes,
            "time_range_bytes": measured.time_bytes,
            "series": {name: one.to_json() for name, one in measured.series.items()},
        }
    return SectionResult("ranges", "Reading one per cent", _METHOD, tuple(findings), raw)


def _measure(data_set: DataSet, log_directory: Path, rounds: int) -> _Measured:
    """Runs in a process of its own."""
    from benchmarks.segmentlog_reading import count_rows
    from storage_core.filesystem import FileSystem

    def bytes_read(options: Mapping[str, object]) -> int:
        filesystem = FileSystem()
        rows = count_rows(filesystem, log_directory, subscribe=data_set.name, **options)
        expected = PARTITIONS * (data_set.records_per_partition // _SHARE_OF_RECORDS)
        if rows != expected:
            raise RuntimeError(f"Expected {expected} rows of {data_set.name}, found {rows} with {options}.")
        return filesystem.statistics.bytes_read

    def read(options: Mapping[str, object]) -> int:
        return count_rows(FileSystem(), log_directory, subscribe=data_set.name, **options)

    series = interleave(
        {
            "full": lambda: read({}),
            "offsets": lambda: read(_offset_range(data_set, _TIMED_START)),
            "time": lambda: read(_time_range(data_set, _TIMED_START)),
        },
        warm_up_rounds=1,
        rounds=rounds,
        peers=["full"],
    )
    return _Measured(
        sum(path.stat().st_size for path in data_set.log_files(log_directory)),
        _least_bytes(data_set, log_directory),
        tuple(bytes_read(_offset_range(data_set, start)) for start in _STARTS),
        tuple(bytes_read(_time_range(data_set, start)) for start in _STARTS),
        series,
    )


def _least_bytes(data_set: DataSet, log_directory: Path) -> tuple[int, ...]:
    """Return for each start the size of the batches that hold the range: checking their CRCs takes no less."""
    places = [place for path in data_set.log_files(log_directory) for place in batch_places(path)]
    bounds = [_bounds(data_set, start) for start in _STARTS]
    return tuple(
        sum(
            place.size_bytes
            for place in places
            if place.base_offset < end and place.base_offset + place.last_offset_delta >= start
        )
        for start, end in bounds
    )


def _bounds(data_set: DataSet, start_percent: int) -> tuple[int, int]:
    start = data_set.records_per_partition * start_percent // 100
    return start, start + data_set.records_per_partition // _SHARE_OF_RECORDS


def _offset_range(data_set: DataSet, start_percent: int) -> dict[str, object]:
    start, end = _bounds(data_set, start_percent)

    def at_offset(offset: int) -> str:
        return json.dumps({data_set.name: {str(partition): offset for partition in range(PARTITIONS)}})

    return {"startingOffsets": at_offset(start), "endingOffsets": at_offset(end)}


def _time_range(data_set: DataSet, start_percent: int) -> dict[str, object]:
    # Record i of each partition is i milliseconds younger than the first.
    start, end = _bounds(data_set, start_percent)
    return {
        "startingTimestamp": str(FIRST_TIMESTAMP_MS + start),
        "endingTimestamp": str(FIRST_TIMESTAMP_MS + end),
    }


def _findings(data_set: DataSet, measured: _Measured) -> list[Finding]:
    found = []
    full = measured.series["full"]
    for kind, sizes, name in (
        ("offset range", measured.offset_bytes, "offsets"),
        ("time range", measured.time_bytes, "time"),
    ):
        percents = [100 * size / measured.log_bytes for size in sizes]
        detail = (
            f"{max(sizes):,} of {measured.log_bytes:,} bytes at the worst place; "
            f"the batches that hold the rows: {100 * max(measured.least_bytes) / measured.log_bytes:.2f} %"
        )
        # Both ends of a range of time are read twice, and a batch of 1 MiB is much of one per cent.
        target = at_most(2.5 if (name, data_set.batches) == ("time", "large") else 2)
        found.append(
            Finding(f"1 % {kind}: bytes read", data_set.description(), spread(percents), "%", target, detail)
        )
        part = measured.series[name]
        time_share = share(part, full)
        found.append(
            Finding(
                f"1 % {kind}: time, of the full read's",
                data_set.description(),
                spread([100 * figure for figure in (time_share.median, time_share.low, time_share.high)]),
                "%",
                None,
                f"{part.median_s * 1000:.1f} ms : {full.median_s * 1000:.0f} ms",
            )
        )
    return found
