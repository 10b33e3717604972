"""One job to ever more partitions: its speed, the memory and the open files of its processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.memory_sampling import ProcessWatch, open_files_below, own_memory_bytes, python_descendants
from benchmarks.progress import tell
from benchmarks.results import Finding, at_least, at_most
from benchmarks.scratch import give_back_space, new_directory
from benchmarks.settings import Settings
from benchmarks.spark.session import SparkProcess, WriteJob
from benchmarks.timing import Series, Timed, interleave, ratio, spread
from benchmarks.writing.directories import TOPIC, rows_in, settle
from benchmarks.writing.kafka_sink import KafkaSink
from benchmarks.writing.rows import ROW_BYTES, frame_of, rows_of

_PARTITIONS = (1, 100, 1_000, 10_000)
_MANY = 1_000
# How fast many partitions are, at least, beside one.
_FLUSHES = {"commit": 0.33, "none": 0.5}
_LIMIT_MEGABYTES = 500
# A round takes as long as several of all others together.
_MOST_ROUNDS_OF_VERY_MANY = 1
_MOST_ROUNDS_OF_KAFKA = 2


@dataclass(frozen=True, slots=True)
class _Target:
    """A log directory with a topic of this many partitions, which grows from run to run."""

    root: Path
    rows: int
    partitions: int

    def job(self, flush: str) -> WriteJob:
        options = {"topic": TOPIC, "partitions": str(self.partitions), "flush": flush}
        return WriteJob("segmentlog", frame_of(self.rows), options, str(self.root))

    def contender(self, session: SparkProcess, flush: str) -> Callable[[], Timed]:
        def run() -> Timed:
            settle()
            return Timed(session.run(self.job(flush)), self.rows)

        return run


def measure_many_partitions(
    settings: Settings, master: str, bootstrap_servers: str, ours: SparkProcess, kafka: SparkProcess
) -> tuple[list[Finding], dict[str, Any]]:
    """Make the topics, watching; then append to them in turn; then Kafka's sink to one and many."""
    rows = rows_of(settings)
    counts = [partitions if partitions == 1 else settings.scaled(partitions) for partitions in _PARTITIONS]
    findings: list[Finding] = []
    raw: dict[str, Any] = {}
    scratch = new_directory(settings.scratch_directory, "many")
    targets = [_Target(scratch / str(count), rows, count) for count in counts]
    for target in targets:
        made, raw[f"making {target.partitions} partitions"] = _make(ours, master, target)
        findings += made
    *fewer, most = targets
    series = _append(ours, fewer, settings.repetitions)
    series |= _append(ours, [most], min(settings.repetitions, _MOST_ROUNDS_OF_VERY_MANY))
    for target in targets:
        runs = 1 + sum(len(series[target.partitions, flush].seconds) for flush in _FLUSHES)
        _check_rows(target, rows_in(target.root), runs)
        give_back_space(target.root)
    tell("write to many partitions of the broker")
    many = settings.scaled(_MANY)
    to_kafka = _send(
        kafka, bootstrap_servers, (1, many), rows, min(settings.repetitions, _MOST_ROUNDS_OF_KAFKA)
    )
    every = {(count, f"flush={flush}"): one for (count, flush), one in series.items()}
    every |= {(count, "Kafka sink"): one for count, one in to_kafka.items()}
    for (count, name), one in sorted(every.items(), key=lambda item: (item[0][1], item[0][0])):
        findings.append(_rate_finding(f"one job, {name}", _subject(master, rows, count), one))
        raw[f"{count} partitions, {name}"] = one.to_json()
    findings += [
        _ratio_finding(master, many, series[1, flush], series[many, flush], flush) for flush in _FLUSHES
    ]
    return findings, raw


def _make(session: SparkProcess, master: str, target: _Target) -> tuple[list[Finding], dict[str, Any]]:
    """Measure the first job, which makes the topic."""
    tell(f"write to {target.partitions:,} new partitions")
    process_id = session.process_id
    settle()
    measures = {"memory": own_memory_bytes, "files": open_files_below(target.root)}
    with ProcessWatch(lambda: python_descendants(process_id), measures) as watch:
        seconds = session.run(target.job("commit"))
    subject, samples = _subject(master, target.rows, target.partitions), f"{watch.samples} samples"
    memory_mb, most_files = watch.peak("memory") / 1e6, watch.peak("files")
    findings = [
        _rate_finding("one job that makes the partitions, watched", subject, Series((seconds,), target.rows)),
        Finding(
            "memory of a Python process",
            subject,
            spread([memory_mb]),
            "MB",
            at_most(_LIMIT_MEGABYTES),
            samples,
        ),
        Finding("open files of a process", subject, spread([most_files]), "files", None, samples),
    ]
    raw = {
        "seconds": seconds,
        "memory_bytes": sorted(watch.peaks["memory"].values()),
        "open_files": sorted(watch.peaks["files"].values()),
    }
    return findings, raw


def _append(session: SparkProcess, targets: list[_Target], rounds: int) -> dict[tuple[int, str], Series]:
    """Times by partitions and flush."""
    tell(f"write to {', '.join(f'{target.partitions:,}' for target in targets)} partitions in turn")
    pairs = {f"{target.partitions} {flush}": (target, flush) for target in targets for flush in _FLUSHES}
    contenders = {name: target.contender(session, flush) for name, (target, flush) in pairs.items()}
    single = [name for name, (target, _) in pairs.items() if target.partitions == 1]
    series = interleave(contenders, warm_up_rounds=0, rounds=rounds, peers=single)
    return {(target.partitions, flush): series[name] for name, (target, flush) in pairs.items()}


def _send(
    session: SparkProcess, bootstrap_servers: str, counts: tuple[int, ...], rows: int, rounds: int
) -> dict[int, Series]:
    """Times of Kafka's sink, by partitions."""
    sinks = {
        str(count): KafkaSink(session, bootstrap_servers, f"{TOPIC}-to-{count}", count, rows)
        for count in counts
    }
    contenders = {name: sink.write for name, sink in sinks.items()}
    series = interleave(contenders, warm_up_rounds=1, rounds=rounds)
    return {int(name): one for name, one in series.items()}


def _subject(master: str, rows: int, partitions: int) -> str:
    return f"{master}, {rows:,} rows to {partitions:,} partition{'s' if partitions > 1 else ''}"


def _ratio_finding(master: str, many: int, single: Series, several: Series, flush: str) -> Finding:
    return Finding(
        f"speed to many partitions, of that to one, flush={flush}",
        f"{master}, {many:,} : 1 partitions",
        ratio(single, several),
        "×",
        at_least(_FLUSHES[flush]),
        f"{several.median_s:.2f} : {single.median_s:.2f} s",
    )


def _rate_finding(measure: str, subject: str, series: Series) -> Finding:
    rates = [series.records * ROW_BYTES / seconds / 1e6 for seconds in series.seconds]
    return Finding(measure, subject, spread(rates), "MB/s", None, f"{series.median_s:.2f} s")


def _check_rows(target: _Target, found: int, runs: int) -> None:
    if found != runs * target.rows:
        raise RuntimeError(f"Expected {runs * target.rows} rows in {target.root}, found {found}.")
