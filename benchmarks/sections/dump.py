"""`segmentlog dump` beside `kafka-dump-log.sh`: whole processes, from their start to their end, on the same log."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from benchmarks.progress import tell
from benchmarks.records import FIRST_TIMESTAMP_MS
from benchmarks.results import Finding, SectionResult, Target, at_least
from benchmarks.scratch import new_directory
from benchmarks.settings import CHECKOUT, Settings
from benchmarks.timing import Series, interleave, ratio
from benchmarks.writing.directories import settle

_TOPIC: Final = "events"
_CODECS: Final = ("uncompressed", "zstd")
_BATCH_BYTES: Final = 16 << 10
_VALUE_BYTES: Final = 100
# Length, attributes, two deltas, key of 10 bytes with its length, length of the value, header count.
_RECORD_BYTES: Final = _VALUE_BYTES + 20
_LOG_BYTES: Final = 1 << 30
_RECORDS_AT_ONCE: Final = 100_000
_MOST_ROUNDS: Final = 3
_OURS: Final = "segmentlog dump"
_TOOL: Final = "kafka-dump-log"
_US_PER_MS: Final = 1000
# By the flags of both, the least ratio.
_TARGETS: Final[Mapping[str, Target | None]] = {
    "": at_least(3),
    "--print-data-log": at_least(3),
    "--deep-iteration": None,
}
# As kafka-run-class.sh starts a tool.
_JVM_OPTIONS: Final = (
    "-Xmx256M",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-XX:MaxInlineLevel=15",
    "-Djava.awt.headless=true",
)

_METHOD: Final = f"""\
A log of 1 GiB before compression in one segment: {_VALUE_BYTES}-byte values, half of them random, half repetitive text,
10-byte keys, batches of {_BATCH_BYTES >> 10} KiB. Time is that of the whole process, the start of Python or of the JVM
included, as many cores as it likes, file in the page cache, output to /dev/null. *{_TOOL}* is
`kafka.tools.DumpLogSegments` with the options that kafka-dump-log.sh gives its JVM. Both print the same bytes: before
anything is timed, their digests are compared. At most {_MOST_ROUNDS} rounds. Batches alone take about as long as Python's
start, and reading and checking every byte of the file."""


def run(settings: Settings) -> SectionResult:
    """Dump a log with and without records, with and without compression."""
    findings: list[Finding] = []
    raw: dict[str, Any] = {}
    rounds = min(settings.repetitions, _MOST_ROUNDS)
    scratch = new_directory(settings.scratch_directory, "dump")
    for codec in _CODECS:
        tell(f"log to dump, {codec}")
        records = settings.scaled(_LOG_BYTES // _RECORD_BYTES)
        log = _make_log(scratch / codec, codec, records)
        settle()
        for flags in _TARGETS:
            tell(f"dump {flags or 'of batches'}, {codec}")
            commands = _commands(log, flags.split())
            _require_equal_texts(commands)
            series = interleave(
                {name: _running(command) for name, command in commands.items()},
                warm_up_rounds=0,
                rounds=rounds,
                peers=[_TOOL],
            )
            findings += _findings(codec, flags, records, series)
            raw[f"{codec} {flags}"] = {name: one.to_json() for name, one in series.items()}
    return SectionResult("dump", "Dumping a log", _METHOD, tuple(findings), raw)


def _findings(codec: str, flags: str, records: int, series: Mapping[str, Series]) -> Iterator[Finding]:
    theirs, ours = series[_TOOL], series[_OURS]
    detail = f"{ours.median_s:.2f} : {theirs.median_s:.2f} s"
    subject = f"{records:,} records, {codec}, {flags or 'batches alone'}"
    yield Finding(f"{_OURS} : {_TOOL}", subject, ratio(theirs, ours), "×", _TARGETS[flags], detail)


def _make_log(root: Path, codec: str, records: int) -> Path:
    import numpy as np
    import pyarrow as pa

    from storage_core import LogConfig, LogDirectory

    generator = np.random.default_rng(1)
    text = b"status=active region=eu-west price=100 currency=EUR "[: _VALUE_BYTES // 2]
    config = LogConfig(segment_bytes=(1 << 31) - 1, batch_size=_BATCH_BYTES, compression_type=codec)
    with LogDirectory.open(root) as logs:
        log = logs.create(_TOPIC, 0, config)
        for first in range(0, records, _RECORDS_AT_ONCE):
            numbers = range(first, min(first + _RECORDS_AT_ONCE, records))
            letters = generator.integers(97, 123, (len(numbers), _VALUE_BYTES // 2), np.uint8)
            times = (np.array(numbers) + FIRST_TIMESTAMP_MS) * _US_PER_MS
            log.append(
                pa.table(
                    {
                        "key": pa.array([b"%010d" % number for number in numbers], pa.binary()),
                        "value": pa.array([row.tobytes() + text for row in letters], pa.binary()),
                        "timestamp": pa.array(times, pa.timestamp("us")),
                    }
                )
            )
    (path,) = (root / f"{_TOPIC}-0").glob("*.log")
    return path


def _commands(log: Path, flags: list[str]) -> dict[str, list[str]]:
    from tests.interop.jars import java_command, kafka_jars

    tool = [java_command(), *_JVM_OPTIONS, "-cp", f"{kafka_jars()}/*", "kafka.tools.DumpLogSegments"]
    return {
        _OURS: [sys.executable, "-m", "storage_core.cli", "dump", *flags, "--files", str(log)],
        _TOOL: [*tool, *flags, "--files", str(log)],
    }


def _running(command: list[str]) -> Callable[[], int]:
    def run_once() -> int:
        subprocess.run(
            command, check=True, cwd=CHECKOUT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        return 1

    return run_once


def _require_equal_texts(commands: Mapping[str, list[str]]) -> None:
    digests = {name: _digest(command) for name, command in commands.items()}
    if len(set(digests.values())) != 1:
        raise RuntimeError(f"Expected the same text of both, found {digests}.")


def _digest(command: list[str]) -> str:
    digest = hashlib.sha256()
    with subprocess.Popen(
        command, cwd=CHECKOUT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        while piece := process.stdout.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()
