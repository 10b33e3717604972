"""Batches for Python: one thread and two, by codec and size of batches, and beside a whole table."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

from benchmarks.progress import tell
from benchmarks.records import FIRST_TIMESTAMP_MS, key_of, make_values, values_of_partition
from benchmarks.results import Finding, SectionResult, Target, at_least
from benchmarks.scratch import new_directory
from benchmarks.settings import Settings
from benchmarks.timing import Series, interleave, ratio

_RECORDS: Final = 2_000_000
_VALUE_SIZE_BYTES: Final = 100
_RECORDS_AT_ONCE: Final = 100_000
_SMALL, _LARGE = 16 << 10, 1 << 20
_TOPIC: Final = "events"
_TABLE, _ONE, _TWO, _CHOSEN = "read_table", "1 thread", "2 threads", "threads=None"
_LARGE_TARGETS: Final[Mapping[str, Target]] = {
    "none": at_least(1.15),
    "gzip": at_least(1.4),
    "zstd": at_least(1.4),
}

_METHOD: Final = f"""\
A partition of values of {_VALUE_SIZE_BYTES} bytes and keys, written by `Log.append` with each codec in batches of
{_SMALL >> 10} KiB and {_LARGE >> 20} MiB before compression, read with `read_batches` to its end, batch by batch, all columns,
files in the page cache. The process has all cores. *Chosen* is without `threads`. `read_table` is with one thread, and
keeps its rows."""


def run(settings: Settings) -> SectionResult:
    """Measure each codec with small and with large batches."""
    findings: list[Finding] = []
    raw: dict[str, Any] = {"cores": os.cpu_count()}
    scratch = new_directory(settings.scratch_directory, "threads")
    for codec in ("none", "gzip", "lz4", "snappy", "zstd"):
        for batch_bytes in (_SMALL, _LARGE):
            subject = f"{codec}, batches of {batch_bytes >> 10} KiB"
            tell(f"threads {subject}")
            root = scratch / f"{codec}-{batch_bytes}"
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                pool.submit(_write, root, codec, batch_bytes, settings.scaled(_RECORDS)).result()
                series = pool.submit(_measure, root, settings.repetitions).result()
            raw[subject] = {name: one.to_json() for name, one in series.items()}
            findings += _findings(
                subject, series, _LARGE_TARGETS.get(codec) if batch_bytes == _LARGE else None
            )
    return SectionResult("threads", "Batches for Python, in threads", _METHOD, tuple(findings), raw)


def _write(root: Path, codec: str, batch_bytes: int, count: int) -> None:
    """Runs in a process of its own."""
    import pyarrow as pa

    from storage_core import LogConfig, LogDirectory

    config = LogConfig(compression_type="uncompressed" if codec == "none" else codec, batch_size=batch_bytes)
    pool = make_values(_VALUE_SIZE_BYTES, _VALUE_SIZE_BYTES)
    with LogDirectory.open(root, config=config) as logs:
        log = logs.create(_TOPIC)
        for start in range(0, count, _RECORDS_AT_ONCE):
            numbers = range(start, min(start + _RECORDS_AT_ONCE, count))
            values = values_of_partition(pool, 0, start, len(numbers))
            columns = {
                "key": pa.array([key_of(0, number) for number in numbers], pa.binary()),
                "value": pa.array(values, pa.binary(), size=len(numbers)),
                "timestamp": pa.array([FIRST_TIMESTAMP_MS + number for number in numbers], pa.int64()),
            }
            log.append(pa.table(columns))


def _measure(root: Path, rounds: int) -> dict[str, Series]:
    """Runs in a process of its own."""
    from storage_core import read_batches, read_table

    def count(threads: int | None) -> int:
        with read_batches(root, threads=threads) as reader:
            return sum(batch.num_rows for batch in reader)

    return interleave(
        {
            _TABLE: lambda: read_table(root, threads=1).num_rows,
            _ONE: lambda: count(1),
            _TWO: lambda: count(2),
            _CHOSEN: lambda: count(None),
        },
        warm_up_rounds=1,
        rounds=rounds,
    )


def _findings(subject: str, series: Mapping[str, Series], target: Target | None) -> Iterator[Finding]:
    one = series[_ONE]
    for name, bound in ((_TWO, target), (_CHOSEN, at_least(0.97))):
        detail = f"{_rate(series[name])} : {_rate(one)} M records/s"
        yield Finding(f"read_batches, {name} : {_ONE}", subject, ratio(one, series[name]), "×", bound, detail)
    detail = f"{_rate(one)} : {_rate(series[_TABLE])} M records/s"
    yield Finding(f"read_batches : {_TABLE}", subject, ratio(series[_TABLE], one), "×", None, detail)


def _rate(series: Series) -> str:
    return f"{series.records_per_second / 1e6:.2f}"
