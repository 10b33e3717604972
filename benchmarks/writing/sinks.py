"""The whole write, from ``save()`` to its return: compared with Spark's Kafka sink and with a writer that only counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.progress import tell
from benchmarks.results import Finding, Target, at_least
from benchmarks.scratch import give_back_space, new_directory
from benchmarks.settings import Settings
from benchmarks.spark.session import Job, SparkProcess, WriteJob
from benchmarks.timing import Series, Timed, interleave, ratio
from benchmarks.writing.directories import TOPIC, make_topic, rows_in, settle
from benchmarks.writing.kafka_sink import KafkaSink
from benchmarks.writing.rows import frame_of, rows_of

PARTITIONS = 4

_SINGLE_CORE = "local[1]"
_KAFKA = "Kafka sink"
_COUNTING = "counting writer"
_OURS = "segmentlog, flush={}"
_CACHED = ", cached frame"
# One more write, whose rows are compared, comes before them.
_WARM_UP_ROUNDS = 1
_COMPARED = ("records", "keys", "values", "partitions")


def measure_sinks(
    settings: Settings, master: str, bootstrap_servers: str, ours: SparkProcess, kafka: SparkProcess
) -> tuple[list[Finding], dict[str, Any]]:
    """Measure every contender in turn, under one master."""
    tell(f"write {master}")
    rows = rows_of(settings)
    topic = f"{TOPIC}-{master.replace('[', '').replace(']', '')}"
    to_kafka = KafkaSink(kafka, bootstrap_servers, topic, PARTITIONS, rows)
    scratch = new_directory(settings.scratch_directory, "sinks")
    _check_contents(scratch / "compared", ours, to_kafka, rows)
    contenders: dict[str, Callable[[], Timed]] = {}
    for suffix, is_cached in (("", False), (_CACHED, True)):
        contenders[_KAFKA + suffix] = lambda is_cached=is_cached: to_kafka.write(is_cached=is_cached)
        job = WriteJob("counting", frame_of(rows, is_cached=is_cached), {"rows": str(rows)})
        contenders[_COUNTING + suffix] = lambda job=job: _count(ours, job)
        for flush in ("none",) if is_cached else ("none", "commit"):
            job = _our_job(scratch, rows, flush, is_cached=is_cached)
            contenders[_OURS.format(flush) + suffix] = lambda job=job: _write(ours, job)
    series = interleave(
        contenders,
        warm_up_rounds=_WARM_UP_ROUNDS,
        rounds=settings.repetitions,
        peers=[name for name in contenders if name.startswith((_KAFKA, _COUNTING))],
    )
    subject = f"{master}, {rows:,} rows"
    findings = _findings(subject, series, is_single=master == _SINGLE_CORE)
    return findings, {name: one.to_json() for name, one in series.items()}


def _our_job(root: Path, rows: int, flush: str, *, is_cached: bool = False) -> WriteJob:
    options = {"topic": TOPIC, "flush": flush}
    return WriteJob("segmentlog", frame_of(rows, is_cached=is_cached), options, str(root))


def _write(session: SparkProcess, job: WriteJob) -> Timed:
    """Write once into empty partitions of a new directory, and return the rows that are there then."""
    root = new_directory(Path(str(job.path)), "written")
    make_topic(root, PARTITIONS)
    settle()
    seconds = session.run(replace(job, path=str(root)))
    found = rows_in(root)
    give_back_space(root)
    return Timed(seconds, found)


def _count(session: SparkProcess, job: WriteJob) -> Timed:
    settle()
    return Timed(session.run(job), job.frame.rows)


def _check_contents(root: Path, ours: SparkProcess, to_kafka: KafkaSink, rows: int) -> None:
    """Figures of sinks that write different rows, or elsewhere, would mean nothing."""
    make_topic(root, PARTITIONS)
    ours.run(_our_job(root, rows, "none"))
    written = ours.fingerprint(Job("segmentlog", {}, str(root)))
    to_kafka.write()
    sent = to_kafka.fingerprint()
    if written["records"] != rows or any(written[name] != sent[name] for name in _COMPARED):
        raise RuntimeError(f"Expected {rows} rows, those that Kafka's sink wrote, {sent}; found {written}.")


def _findings(subject: str, series: Mapping[str, Series], *, is_single: bool) -> list[Finding]:
    def finding(ours: str, peer: str, target: Target | None) -> Finding:
        mine, theirs = series[ours], series[peer]
        detail = f"{mine.median_s:.2f} s ({_rate(mine)} M rows/s) : {theirs.median_s:.2f} s ({_rate(theirs)} M rows/s)"
        return Finding(f"{ours} : {peer}", subject, ratio(theirs, mine), "×", target, detail)

    none, commit = _OURS.format("none"), _OURS.format("commit")
    counting_target = at_least(0.8 if is_single else 0.6)
    cached_target = at_least(0.8 if is_single else 0.66)
    return [
        finding(none, _KAFKA, at_least(1.3 if is_single else 1.6)),
        finding(commit, _KAFKA, None),
        finding(none, _COUNTING, counting_target),
        finding(commit, _COUNTING, None),
        finding(none + _CACHED, _COUNTING + _CACHED, cached_target),
        finding(none + _CACHED, _KAFKA + _CACHED, None),
        # What no Python writer can be above of.
        finding(_COUNTING, _KAFKA, None),
        finding(_COUNTING + _CACHED, _KAFKA + _CACHED, None),
    ]


def _rate(series: Series) -> str:
    return f"{series.records_per_second / 1e6:.2f}"
