"""``segmentlog verify``: logs checked, and checked deeply, beside a broker's own recovery."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from benchmarks.one_core import run_on_one_core
from benchmarks.progress import tell
from benchmarks.records import FIRST_TIMESTAMP_MS
from benchmarks.results import Finding, SectionResult, at_least
from benchmarks.scratch import new_directory
from benchmarks.sections.views import make_log
from benchmarks.settings import Settings
from benchmarks.timing import Series, Timed, interleave, ratio, spread

_SEGMENT_BYTES: Final = 256 << 20
# Bytes of log by the size of its batches.
_LOGS: Final = {16 << 10: 1 << 30, 1 << 10: 256 << 20}
_TARGET_BATCH_BYTES: Final = 16 << 10
_RECORDS_PER_BATCH: Final = 10
_VERIFY: Final = "verify"
_DEEP: Final = "verify --deep"
_BROKER: Final = "recovery by Kafka's UnifiedLog"

_METHOD: Final = f"""\
Logs of uncompressed batches of one size, with {_RECORDS_PER_BATCH} records each, in segments of
{_SEGMENT_BYTES >> 20} MiB with indexes, made by the benchmark. *verify* plans and checks an unopened directory as the
command does: every CRC, offsets, indexes, epochs, producers, checkpoints; *--deep* decodes every record, too. Rates are
bytes of log per second. *{_BROKER}* loads the same log without a clean-shutdown marker in a JVM that is warm: it checks
every CRC and writes the indexes anew. One core, files in the page cache."""


def run(settings: Settings) -> SectionResult:
    """Measure verification of large and of small batches."""
    findings: list[Finding] = []
    raw: dict[str, Any] = {}
    scratch = new_directory(settings.scratch_directory, "verify")
    for batch_bytes, log_bytes in _LOGS.items():
        subject = f"{batch_bytes >> 10} KiB batches"
        tell(f"verify {subject}")
        root = scratch / str(batch_bytes)
        size_bytes = make_log(root, batch_bytes, settings.scaled(log_bytes))
        series = run_on_one_core(_measure, root, settings.repetitions)
        raw[subject] = {name: one.to_json() for name, one in series.items()}
        findings += _findings(subject, batch_bytes, size_bytes, series)
    return SectionResult("verify", "Verifying a log", _METHOD, tuple(findings), raw)


def _findings(
    subject: str, batch_bytes: int, size_bytes: int, series: Mapping[str, Series]
) -> Iterator[Finding]:
    for name in (_VERIFY, _DEEP, _BROKER):
        rates = [size_bytes / seconds / 1e9 for seconds in series[name].seconds]
        is_target = name == _VERIFY and batch_bytes == _TARGET_BATCH_BYTES
        yield Finding(name, subject, spread(rates), "GB/s", at_least(1.5) if is_target else None)
    yield Finding(f"{_VERIFY}, beside {_BROKER}", subject, ratio(series[_BROKER], series[_VERIFY]), "×")


def _measure(root: Path, rounds: int) -> dict[str, Series]:
    """Runs in a process of its own. Each contender checks the log once a round."""
    from tests.interop.kafka_log import KafkaLog

    with KafkaLog() as kafka:
        contenders: dict[str, Callable[[], int | Timed]] = {
            _VERIFY: lambda: _verify(root, is_deep=False),
            _DEEP: lambda: _verify(root, is_deep=True),
            _BROKER: lambda: _recover(kafka, root),
        }
        return interleave(contenders, warm_up_rounds=1, rounds=rounds, peers=[_BROKER])


def _verify(root: Path, *, is_deep: bool) -> int:
    from storage_core.check.verify import plan_verification, verify
    from storage_core.filesystem import FileSystem
    from storage_core.options import options_of

    filesystem = FileSystem()
    report = verify(filesystem, plan_verification(filesystem, options_of([root], {}), is_deep=is_deep))
    if report.counts["damage"]:
        raise RuntimeError(f"Expected a sound log, found {list(report.findings)}.")
    return 1


def _recover(kafka: Any, root: Path) -> Timed:
    """Recover a copy by hard links of the log files: the broker's indexes and snapshots go elsewhere."""
    copy = new_directory(root.parent, "recovered") / "events-0"
    copy.mkdir()
    for path in (root / "events-0").glob("*.log"):
        os.link(path, copy / path.name)
    started = time.perf_counter()
    loaded = kafka.load(copy, FIRST_TIMESTAMP_MS, {}, is_clean=False)
    seconds = time.perf_counter() - started
    if loaded.refusal is not None:
        raise RuntimeError(f"Expected the log to be loaded, found {loaded.refusal}.")
    return Timed(seconds, 1)
