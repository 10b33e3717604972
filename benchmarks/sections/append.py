"""Encoding and appending on one core, compared with the batch builders of aiokafka and kafka-python."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.one_core import run_on_one_core
from benchmarks.progress import tell
from benchmarks.records import FIRST_TIMESTAMP_MS, KEY_SIZE_BYTES, key_of, make_values, values_of_partition
from benchmarks.results import Finding, SectionResult, Target, at_least, at_most
from benchmarks.scratch import give_back_space, new_directory
from benchmarks.settings import Settings
from benchmarks.timing import Series, Timed, interleave, ratio, spread

if TYPE_CHECKING:
    import pyarrow as pa

_RECORDS = 1_000_000
# kafka-python's rate is per record: it is given fewer.
_FEW_RECORDS = 100_000
_VALUE_SIZE_BYTES = 100
_BATCH_SIZE_BYTES = 16_384
_CODECS = ("gzip", "snappy", "lz4", "zstd")
_SINGLE_RECORDS = 5_000

_ENCODE = "segmentlog encode"
_APPEND = "segmentlog encode and append"
_AIOKAFKA = "aiokafka builder"
_KAFKA_PYTHON = "kafka-python builder"

_METHOD = f"""\
One process bound to one core. Values of {_VALUE_SIZE_BYTES} bytes, keys null or of {KEY_SIZE_BYTES} bytes, a
timestamp a record, batches of {_BATCH_SIZE_BYTES} bytes, not compressed unless a codec is named. *Encode* makes
batches of an Arrow table; *append* is `Log.append` of the whole table, which also checks the records, writes them and
keeps the indexes, and does not force them to disk. The builders are given Python objects that are ready, and make
batches in memory, no more. aiokafka is checked to run its Cython builder, kafka-python to use the `crc32c` package;
kafka-python builds fewer records, and its rate is per record. A single record is a record batch of one row."""


def run(settings: Settings) -> SectionResult:
    """Measure with and without keys, every codec, and one record at a time."""
    findings: list[Finding] = []
    raw: dict[str, Any] = {}
    scratch = new_directory(settings.scratch_directory, "append")
    count, few = settings.scaled(_RECORDS), settings.scaled(_FEW_RECORDS)
    for name, has_keys in (("null keys", False), (f"keys of {KEY_SIZE_BYTES} B", True)):
        tell(f"append {name}")
        subject = f"{count:,} records, {name}"
        series = run_on_one_core(_measure, scratch, count, few, has_keys, settings.repetitions)
        findings += _findings(subject, series)
        raw[subject] = {one: each.to_json() for one, each in series.items()}
    tell("append by codec")
    by_codec = run_on_one_core(_measure_codecs, count, settings.repetitions)
    raw["codecs"] = {one: each.to_json() for one, each in by_codec.items()}
    findings += [
        _rate_finding(f"encode, {codec}", f"{count:,} records, null keys", series, None)
        for codec, series in by_codec.items()
    ]
    tell("append of one record")
    singles = run_on_one_core(
        _measure_single, scratch, settings.scaled(_SINGLE_RECORDS), settings.repetitions
    )
    raw["single records, µs"] = singles
    for name, target in (("encode", at_most(20)), ("append", at_most(50))):
        findings.append(
            Finding(f"{name} of one record", "median of a round", spread(singles[name]), "µs", target)
        )
    return SectionResult("append", "Encoding and appending on one core", _METHOD, tuple(findings), raw)


def _measure(scratch: Path, count: int, few: int, has_keys: bool, rounds: int) -> dict[str, Series]:
    """Runs in a process of its own."""
    from benchmarks.peers import batch_builders

    table = _table(count, has_keys=has_keys)
    keys, values, times = (table[name].to_pylist() for name in ("key", "value", "timestamp"))
    aiokafka, kafka_python = batch_builders.aiokafka_builder(), batch_builders.kafka_python_builder()
    return interleave(
        {
            _ENCODE: lambda: _encode(table, 0),
            _APPEND: lambda: _append(scratch, table),
            _AIOKAFKA: lambda: batch_builders.build_batches(aiokafka, keys, values, times, _BATCH_SIZE_BYTES),
            _KAFKA_PYTHON: lambda: batch_builders.build_batches(
                kafka_python, keys[:few], values[:few], times[:few], _BATCH_SIZE_BYTES
            ),
        },
        warm_up_rounds=1,
        rounds=rounds,
        peers=[_AIOKAFKA, _KAFKA_PYTHON],
    )


def _measure_codecs(count: int, rounds: int) -> dict[str, Series]:
    """Runs in a process of its own."""
    table = _table(count, has_keys=False)
    contenders = {
        codec: lambda number=number: _encode(table, number) for number, codec in enumerate(_CODECS, 1)
    }
    return interleave(contenders, warm_up_rounds=1, rounds=rounds)


def _measure_single(scratch: Path, count: int, rounds: int) -> dict[str, list[float]]:
    """Return the median time of one record in each round, in microseconds. Runs in a process of its own."""
    from storage_core import LogDirectory

    record = _table(1, has_keys=False).select(["value"]).to_batches()[0]
    medians: dict[str, list[float]] = {"encode": [], "append": []}
    for _ in range(rounds):
        with LogDirectory.open(new_directory(scratch, "single")) as logs:
            log = logs.create("events")
            medians["encode"].append(_median_us(_encode, count, record, 0))
            medians["append"].append(_median_us(log.append, count, record))
    return medians


def _median_us(write: Callable[..., Any], count: int, *arguments: Any) -> float:
    times = []
    for _ in range(count):
        started = time.perf_counter()
        write(*arguments)
        times.append((time.perf_counter() - started) * 1e6)
    return statistics.median(times)


def _table(count: int, *, has_keys: bool) -> pa.Table:
    import pyarrow as pa

    pool = make_values(_VALUE_SIZE_BYTES, _VALUE_SIZE_BYTES)
    keys = [key_of(0, index) if has_keys else None for index in range(count)]
    return pa.table(
        {
            "key": pa.array(keys, pa.binary()),
            "value": pa.array(values_of_partition(pool, 0, 0, count), pa.binary(), size=count),
            "timestamp": pa.array(range(FIRST_TIMESTAMP_MS, FIRST_TIMESTAMP_MS + count), pa.int64()),
        }
    )


def _encode(records: pa.Table | pa.RecordBatch, codec: int) -> int:
    from storage_core.record.encode import BatchEncoding, encode_records

    encoding = BatchEncoding(codec, batch_size_bytes=_BATCH_SIZE_BYTES)
    count = 0
    for batches in encode_records(records, encoding, default_timestamp_ms=FIRST_TIMESTAMP_MS):
        count += int(batches.headers["record_count"].sum())
    return count


def _append(scratch: Path, table: pa.Table) -> Timed:
    from storage_core import LogConfig, LogDirectory

    root = new_directory(scratch, "written")
    with LogDirectory.open(root, config=LogConfig(batch_size=_BATCH_SIZE_BYTES)) as logs:
        log = logs.create("events")
        started = time.perf_counter()
        info = log.append(table)
        seconds = time.perf_counter() - started
    give_back_space(root)
    return Timed(seconds, info.last_offset + 1)


def _findings(subject: str, series: Mapping[str, Series]) -> list[Finding]:
    encode, append = series[_ENCODE], series[_APPEND]
    ratios = [
        Finding(
            f"{ours} : {peer}",
            subject,
            ratio(series[peer], series[ours]),
            "×",
            target,
            f"{_rate(series[ours])} : {_rate(series[peer])} M records/s",
        )
        for ours in (_APPEND, _ENCODE)
        for peer, target in ((_KAFKA_PYTHON, at_least(8)), (_AIOKAFKA, at_least(1)))
    ]
    return [
        _rate_finding("encode", subject, encode, at_least(3)),
        _rate_finding("encode and append", subject, append, at_least(1.5)),
        *ratios,
    ]


def _rate_finding(measure: str, subject: str, series: Series, target: Target | None) -> Finding:
    rates = [series.records / seconds / 1e6 for seconds in series.seconds]
    return Finding(measure, subject, spread(rates), "M records/s", target)


def _rate(series: Series) -> str:
    return f"{series.records_per_second / 1e6:.2f}"
