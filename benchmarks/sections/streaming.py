"""Streams: a backlog beside Spark's Kafka source, micro-batches beside Spark's file sink, idle queries, and latency."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.data_sets import DataSet, data_set_named
from benchmarks.producing import ensure_data_sets, make_broker
from benchmarks.progress import tell
from benchmarks.results import Finding, SectionResult, at_least, at_most
from benchmarks.scratch import new_directory
from benchmarks.settings import Settings
from benchmarks.spark.programs import KAFKA_SOURCE
from benchmarks.spark.session import SparkProcess, StreamJob, kafka_source_session, segmentlog_session
from benchmarks.timing import Spread, Timed, interleave, ratio, series_of, share, spread

_MASTER = "local[2]"
_DATA_SET = "100b-none-small"
_OFFSETS_PER_TRIGGER = 500_000
_OURS, _KAFKA = "segmentlog", "Kafka source"
_ROWS = "1,000 rows a batch"
_BATCHES = 100
_PARTITIONS = 1_000
_IDLE_S, _SETTLE_S = 20.0, 8.0
_APPENDS = 50

_METHOD = f"""\
All with {_MASTER}. *Backlog*: the records of a topic, from the earliest offset, {_OFFSETS_PER_TRIGGER:,} offsets a trigger, into
the sink `noop`; from the start of the query to the end of the last batch, and from the end of the first batch, so without the
start: what a longer backlog comes to. The Kafka source runs in a session of Spark
{KAFKA_SOURCE.spark_version}, as in the batch reads, and asks the broker whose directory segmentlog reads meanwhile. Both have
read the same backlog before. *Micro-batches*: `rate-micro-batch`, {_ROWS}, keys and values of 100 B; the median of
`triggerExecution` over {_BATCHES} batches, a round of each sink in turn; both flush as they do by default. *Idle*: a
query of a directory of {_PARTITIONS:,} partitions in which nothing happens, at the default trigger; processor time of
the Python processes and of the JVM, as a share of one core, beside the same query of one partition. *Latency*: from the
return of `Log.append` to the moment at which a task has the row, with the default trigger.

What bounds the backlog: of the processor time of a query in a warm session, Java takes 3.1 s, where one batch read of the same
rows takes 1.3 s, the tasks' Python 1.0 s, and two Python processes that Spark starts for each query 0.42 s each, 0.15 s of it
for segmentlog's modules. To plan a batch takes segmentlog 2 ms, and to find its end 0.3 ms. The Kafka source pays Spark's
bookkeeping, too."""


def run(settings: Settings) -> SectionResult:
    """Measure all four."""
    data_set = data_set_named(settings, _DATA_SET)
    log_directory = ensure_data_sets(settings, [data_set])
    findings: list[Finding] = []
    raw: dict[str, Any] = {}

    def add(name: str, measure: Callable[[], tuple[list[Finding], Any]]) -> None:
        if settings.wants(name):
            found, raw[name] = measure()
            findings.extend(found)

    with segmentlog_session(settings, _MASTER) as ours:
        with make_broker(settings) as broker, kafka_source_session(settings, _MASTER) as kafka:
            servers = broker.bootstrap_servers
            add("backlog", lambda: _backlog(settings, data_set, log_directory, servers, ours, kafka))
        scratch = new_directory(settings.scratch_directory, "streaming")
        add("micro-batches", lambda: _micro_batches(settings, scratch, ours))
        add("latency", lambda: _latency(settings, scratch, ours))
        add("idle", lambda: _idle(settings, scratch, ours))
    return SectionResult("streaming", "Streams", _METHOD, tuple(findings), raw)


def _backlog(
    settings: Settings,
    data_set: DataSet,
    log_directory: Path,
    bootstrap_servers: str,
    ours: SparkProcess,
    kafka: SparkProcess,
) -> tuple[list[Finding], Any]:
    tell("backlog")
    options = {
        "subscribe": data_set.name,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": str(settings.scaled(_OFFSETS_PER_TRIGGER)),
    }
    jobs = {
        _OURS: (
            ours,
            StreamJob("backlog", "segmentlog", {**options, "endingAt": "logEnd"}, str(log_directory)),
        ),
        _KAFKA: (
            kafka,
            StreamJob("backlog", "kafka", {**options, "kafka.bootstrap.servers": bootstrap_servers}),
        ),
    }

    # Of each run, that of the warm-up included.
    steady: dict[str, list[Timed]] = {name: [] for name in jobs}

    def contender(name: str, session: SparkProcess, job: StreamJob) -> Callable[[], Timed]:
        def read() -> Timed:
            answer = session.stream(job)
            if answer["rows"] != data_set.records:
                raise RuntimeError(f"Expected {data_set.records} rows of {job.format}, found {answer}.")
            steady[name].append(Timed(answer["steady_seconds"], answer["steady_rows"]))
            return Timed(answer["seconds"], answer["rows"])

        return read

    contenders = {name: contender(name, *job) for name, job in jobs.items()}
    series = interleave(contenders, warm_up_rounds=1, rounds=settings.repetitions, peers=[_KAFKA])
    between = {name: series_of(name, runs[1:]) for name, runs in steady.items()}
    findings = []
    for what, each, target in (("backlog", series, 1.6), ("between the batches of a backlog", between, 2.2)):
        mine, theirs = each[_OURS], each[_KAFKA]
        detail = f"{mine.median_s:.2f} s : {theirs.median_s:.2f} s"
        subject = f"{what} of {data_set.records:,} records, {data_set.description()}"
        findings.append(
            Finding(f"{_OURS} : {_KAFKA}", subject, ratio(theirs, mine), "×", at_least(target), detail)
        )
    return findings, {
        "whole": {name: one.to_json() for name, one in series.items()},
        "between batches": {name: one.to_json() for name, one in between.items()},
    }


def _micro_batches(settings: Settings, scratch: Path, session: SparkProcess) -> tuple[list[Finding], Any]:
    tell("micro-batches")
    batches = settings.scaled(_BATCHES)

    def contender(format_name: str, options: dict[str, str]) -> Callable[[], Timed]:
        def write() -> Timed:
            target = new_directory(scratch, format_name)
            job = StreamJob("sink", format_name, options, str(target), {"batches": batches})
            taken = session.stream(job)["milliseconds"]
            return Timed(spread(taken).median / 1000, 1)

        return write

    contenders = {
        "segmentlog": contender("segmentlog", {"topic": "events"}),
        "parquet": contender("parquet", {}),
    }
    series = interleave(contenders, warm_up_rounds=1, rounds=settings.repetitions, peers=["parquet"])
    ours, theirs = series["segmentlog"], series["parquet"]
    detail = f"{1000 * ours.median_s:.0f} ms : {1000 * theirs.median_s:.0f} ms"
    figure = share(ours, theirs)
    found = Finding(
        "time of a micro-batch, of that of the parquet sink", _ROWS, figure, "×", at_most(0.95), detail
    )
    return [found], {name: one.to_json() for name, one in series.items()}


def _latency(settings: Settings, scratch: Path, session: SparkProcess) -> tuple[list[Finding], Any]:
    tell("latency")
    more = {"appends": max(settings.scaled(_APPENDS), 10)}
    job = StreamJob("latency", "segmentlog", {"startingOffsets": "latest"}, str(scratch / "latency"), more)
    milliseconds = session.stream(job)["milliseconds"]
    seconds = spread([each / 1000 for each in milliseconds])
    found = Finding("an append is seen after", "one partition of a log of ours", seconds, "s", at_most(0.1))
    return [found], milliseconds


def _idle(settings: Settings, scratch: Path, session: SparkProcess) -> tuple[list[Finding], Any]:
    findings, raw = [], {}
    more = {"seconds": _IDLE_S, "settle_seconds": _SETTLE_S}
    for count in (1, settings.scaled(_PARTITIONS)):
        tell(f"idle, {count} partitions")
        path = scratch / f"idle-{count}"
        _make_partitions(path, count)
        answer = session.stream(StreamJob("idle", "segmentlog", {}, str(path), more))
        subject = f"{count:,} partitions"
        for kind in ("python", "java"):
            share = 100 * answer[kind]
            target = at_most(10) if kind == "python" and count > 1 else None
            findings.append(Finding(f"idle query: {kind}", subject, Spread(share, share, share), "%", target))
        raw[subject] = answer
    return findings, raw


def _make_partitions(path: Path, count: int) -> None:
    import pyarrow as pa

    from storage_core import LogDirectory

    with LogDirectory.open(path) as logs:
        for number in range(count):
            logs.create("events", number).append(pa.table({"value": [b"v" * 100]}))
