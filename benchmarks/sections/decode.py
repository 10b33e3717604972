"""Decoding to Arrow on one core, compared with the record parsers of aiokafka and kafka-python.

Every contender starts from the files (in the page cache) and checks every CRC. segmentlog plans its read as
always; the parsers are handed windows of whole batches, cut beforehand.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.data_sets import DataSet, data_sets
from benchmarks.log_files import describe_log_files
from benchmarks.one_core import run_on_one_core
from benchmarks.producing import ensure_data_sets
from benchmarks.progress import tell
from benchmarks.results import Finding, SectionResult, at_least
from benchmarks.settings import Settings
from benchmarks.timing import Series, interleave, ratio

_OURS = "segmentlog"
_AIOKAFKA_ARROW = "aiokafka to Arrow"
_AIOKAFKA_ITERATION = "aiokafka bare iteration"
_KAFKA_PYTHON_ARROW = "kafka-python to Arrow"
_KAFKA_PYTHON_ITERATION = "kafka-python bare iteration"

_METHOD = """\
One process bound to one core; files in the page cache; every contender checks every CRC. *To Arrow* means the seven
columns of Spark's Kafka source; *bare iteration* creates each record object and touches no field. aiokafka is
checked to run its Cython parser, kafka-python to use the `crc32c` package. segmentlog's time includes planning the
read; the parsers get windows of whole batches cut beforehand. kafka-python reads one partition of the four, and
its rate is per record.

What bounds zstd in small batches, measured alone: of 1.45 s for 29,632 batches of 16 KiB, libzstd takes 0.54 s (18 µs a
batch, called directly with one context), Arrow's reused stream around it 0.1 s, the loop over batches 0.06 s. Kafka's
clients leave the content size out of a frame, so no library decompresses many of them in one call. One at a time, all
that were tried are slower than the stream's 22 µs: python-zstandard 26 µs, cramjam 29 µs, `pyarrow.Codec` 37 µs."""


def run(settings: Settings) -> SectionResult:
    """Measure every data set."""
    log_directory = ensure_data_sets(settings)
    findings: list[Finding] = []
    raw: dict[str, Any] = {}
    for data_set in data_sets(settings):
        tell(f"decode {data_set.name}")
        series = run_on_one_core(_measure, data_set, log_directory, settings.repetitions)
        findings += _findings(data_set, series)
        raw[data_set.name] = {
            "on_disk": describe_log_files(data_set.log_files(log_directory)),
            "series": {name: one.to_json() for name, one in series.items()},
        }
    return SectionResult("decode", "Decoding to Arrow on one core", _METHOD, tuple(findings), raw)


def _measure(data_set: DataSet, log_directory: Path, rounds: int) -> dict[str, Series]:
    """Runs in a process of its own."""
    # Imported here: the parent never needs them.
    from benchmarks.peers import record_parsers
    from benchmarks.peers.input import describe_inputs
    from benchmarks.segmentlog_reading import count_rows
    from storage_core.filesystem import FileSystem

    inputs = describe_inputs(data_set.log_files(log_directory))
    sample = inputs[:1]
    aiokafka = record_parsers.aiokafka_parser()
    kafka_python = record_parsers.kafka_python_parser()
    series = interleave(
        {
            _OURS: lambda: count_rows(FileSystem(), log_directory, subscribe=data_set.name),
            _AIOKAFKA_ARROW: lambda: record_parsers.build_arrow(aiokafka, inputs),
            _AIOKAFKA_ITERATION: lambda: record_parsers.iterate(aiokafka, inputs),
            _KAFKA_PYTHON_ARROW: lambda: record_parsers.build_arrow(kafka_python, sample),
            _KAFKA_PYTHON_ITERATION: lambda: record_parsers.iterate(kafka_python, sample),
        },
        warm_up_rounds=1,
        rounds=rounds,
        peers=[_AIOKAFKA_ARROW, _AIOKAFKA_ITERATION, _KAFKA_PYTHON_ARROW, _KAFKA_PYTHON_ITERATION],
    )
    for name in (_OURS, _AIOKAFKA_ARROW, _AIOKAFKA_ITERATION):
        if series[name].records != data_set.records:
            raise RuntimeError(
                f"Expected {data_set.records} records from {name}, found {series[name].records}."
            )
    return series


def _findings(data_set: DataSet, series: Mapping[str, Series]) -> list[Finding]:
    is_small = data_set.batches == "small"
    targets = {
        _AIOKAFKA_ARROW: at_least(3 if is_small else 2.5),
        _AIOKAFKA_ITERATION: at_least(0.9 if is_small else 0.7),
        _KAFKA_PYTHON_ARROW: at_least(12),
        # The harder reading of the target: kafka-python without the work of building columns.
        _KAFKA_PYTHON_ITERATION: at_least(12),
    }
    ours = series[_OURS]
    return [
        Finding(
            f"segmentlog : {peer}",
            data_set.description(),
            ratio(series[peer], ours),
            "×",
            target,
            f"{_rate(ours)} : {_rate(series[peer])} M records/s",
        )
        for peer, target in targets.items()
    ]


def _rate(series: Series) -> str:
    return f"{series.records_per_second / 1e6:.2f}"
