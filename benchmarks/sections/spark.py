"""Reading through Spark, compared with Spark's own Kafka source and a source whose batches are ready.

Three contenders read the same topic in turn: segmentlog reads the directory of the running broker, the Kafka source
asks that broker, and the ready-made source serves segmentlog's own batches from mapped Arrow files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.data_sets import DataSet, data_sets
from benchmarks.producing import ensure_data_sets, make_broker
from benchmarks.progress import tell
from benchmarks.results import Finding, SectionResult, Target, at_least
from benchmarks.scratch import new_directory
from benchmarks.settings import Settings
from benchmarks.spark.programs import KAFKA_SOURCE
from benchmarks.spark.session import Job, SparkProcess, kafka_source_session, segmentlog_session
from benchmarks.timing import Series, Timed, interleave, ratio

_SINGLE_CORE = "local[1]"
# Other shapes of the same read take long, so they have to do with one core and one kind of values.
_VARIANTS_VALUES = (100, 100)
_LARGE_VALUES = (1000, 1000)
_FEW_COLUMNS = ("offset", "timestamp")
# A third warm run is the first that counts: one for the comparison of contents, one more, then the measured ones.
_WARM_UP_ROUNDS = 1

_OURS = "segmentlog"
_KAFKA = "Kafka source"
_KAFKA_IMPATIENT = "Kafka source, kafka.fetch.max.wait.ms=10"
_READY = "ready-made source"
_OURS_FEW = "segmentlog, offset and timestamp"
_KAFKA_FEW = "Kafka source, offset and timestamp"

_METHOD = f"""\
Each read goes from `load()` through planning to the last row in Spark's `noop` sink. segmentlog and the ready-made
source run in one session of this environment's Spark with `conf/spark-defaults.conf`. The Kafka source runs in a
session of Spark {KAFKA_SOURCE.spark_version}, which its connector asks for, with the same settings, and reads the running broker whose directory segmentlog reads meanwhile. Sessions are kept; every source has
read the same data twice before the first measured round, and count and sums of all columns were equal. The ready-made
source serves the batches that segmentlog made of the same rows, from Arrow files that stay mapped in the workers: what
no reader written in Python can beat. The Kafka source runs with its default settings, as its users run it; part of its
time is idle waiting of up to `fetch.max.wait.ms` (500 ms) for each partition, so with one core a run that hardly waits
is shown as well."""

_TWO_CORES = """

What bounds two cores: both are busy all the time. Of 1.9 processor seconds for 4 M rows (100 B, none, 16 KiB batches),
Spark's own Java takes 1.1, decoding 0.35, and the rest is Spark's Python and planning. With zstd it is 0.87 of 2.2 for
decoding, of which 0.41 are libzstd itself: a batch of 16 KiB takes it 13.7 µs, be it alone or one of many in a stream, and
segmentlog's own calls less than 1 µs. The socket is no bound: writing 1.3 M rows into it takes a worker 0.03 s beside 0.46 s for
reading them. So these change nothing that could be measured: Arrow's memory pool (system, jemalloc, mimalloc), malloc's
thresholds, buffers of the socket of 1 MiB or none, 1, 2 or 4 batches ahead, a switch interval of 0.5 to 50 ms, Arrow's older
metadata. Windows of 1 MiB in place of 4, and so smaller Arrow batches, cost 20 to 30 % more of Python's time, 8 MiB as
much as 4. Reading without a second thread that prefetches is 14 % slower."""


def run(settings: Settings, master: str) -> SectionResult:
    """Measure every data set under one master."""
    log_directory = ensure_data_sets(settings)
    findings: list[Finding] = []
    raw: dict[str, Any] = {}
    with (
        make_broker(settings) as broker,
        segmentlog_session(settings, master) as ours,
        kafka_source_session(settings, master) as kafka,
    ):
        for data_set in data_sets(settings):
            tell(f"spark {master} {data_set.name}")
            ready_made = new_directory(settings.scratch_directory, f"ready-made-{data_set.name}")
            _make_ready(ready_made, log_directory, data_set)
            jobs = _jobs(data_set, log_directory, broker.bootstrap_servers, ready_made)
            if master == _SINGLE_CORE and data_set.value_sizes_bytes == _VARIANTS_VALUES:
                jobs |= _variants(data_set, log_directory, broker.bootstrap_servers)
            series = _measure(data_set, jobs, ours, kafka, settings.repetitions)
            findings += _findings(data_set, series, is_single=master == _SINGLE_CORE)
            raw[data_set.name] = {name: one.to_json() for name, one in series.items()}
    raw["sessions"] = {
        _OURS: {"version": ours.version, "configuration": ours.configuration},
        _KAFKA: {"version": kafka.version},
    }
    return SectionResult(
        f"spark-{master.replace('[', '').replace(']', '')}",
        f"Reading through Spark, {master}",
        _METHOD if master == _SINGLE_CORE else _METHOD + _TWO_CORES,
        tuple(findings),
        raw,
    )


def _jobs(data_set: DataSet, log_directory: Path, bootstrap_servers: str, ready_made: Path) -> dict[str, Job]:
    kafka = {"kafka.bootstrap.servers": bootstrap_servers, "subscribe": data_set.name}
    ours = {"subscribe": data_set.name}
    path = str(log_directory)
    return {
        _OURS: Job("segmentlog", ours, path),
        _KAFKA: Job("kafka", kafka),
        _READY: Job("ready_made", {}, str(ready_made)),
    }


def _variants(data_set: DataSet, log_directory: Path, bootstrap_servers: str) -> dict[str, Job]:
    kafka = {"kafka.bootstrap.servers": bootstrap_servers, "subscribe": data_set.name}
    ours = {"subscribe": data_set.name, "columns": ",".join(_FEW_COLUMNS)}
    return {
        _KAFKA_IMPATIENT: Job("kafka", {**kafka, "kafka.fetch.max.wait.ms": "10"}),
        _OURS_FEW: Job("segmentlog", ours, str(log_directory)),
        _KAFKA_FEW: Job("kafka", kafka, select=_FEW_COLUMNS),
    }


def _measure(
    data_set: DataSet, jobs: Mapping[str, Job], ours: SparkProcess, kafka: SparkProcess, rounds: int
) -> dict[str, Series]:
    def session_of(job: Job) -> SparkProcess:
        return kafka if job.format == "kafka" else ours

    def contender(job: Job) -> Callable[[], Timed]:
        return lambda: Timed(session_of(job).run(job), data_set.records)

    _check_contents(
        data_set, {name: session_of(jobs[name]).fingerprint(jobs[name]) for name in (_OURS, _KAFKA, _READY)}
    )
    contenders = {name: contender(job) for name, job in jobs.items()}
    peers = [name for name in (_KAFKA, _READY, _KAFKA_FEW) if name in jobs]
    return interleave(contenders, warm_up_rounds=_WARM_UP_ROUNDS, rounds=rounds, peers=peers)


def _check_contents(data_set: DataSet, fingerprints: Mapping[str, Mapping[str, int]]) -> None:
    """Figures of sources that read different rows would mean nothing."""
    expected = fingerprints[_KAFKA]
    for name, fingerprint in fingerprints.items():
        if fingerprint != expected or fingerprint["records"] != data_set.records:
            raise RuntimeError(f"Expected {expected} of {data_set.name} from {name}, found {fingerprint}.")


def _make_ready(directory: Path, log_directory: Path, data_set: DataSet) -> None:
    """Write the batches of segmentlog's tasks, one Arrow file for each."""
    from benchmarks.peers.ready_made import write_ready_made
    from benchmarks.segmentlog_reading import plan_read, task_batches
    from storage_core.filesystem import FileSystem

    plan = plan_read(FileSystem(), log_directory, subscribe=data_set.name)
    for number, task in enumerate(plan.tasks):
        write_ready_made(directory / f"{number:05d}.arrow", task_batches(FileSystem(), task))


def _findings(data_set: DataSet, series: Mapping[str, Series], *, is_single: bool) -> list[Finding]:
    def finding(ours: str, peer: str, target: Target | None) -> Finding:
        mine, theirs = series[ours], series[peer]
        detail = f"{mine.median_s:.2f} s ({_rate(mine)} M rows/s) : {theirs.median_s:.2f} s ({_rate(theirs)} M rows/s)"
        return Finding(f"{ours} : {peer}", data_set.description(), ratio(theirs, mine), "×", target, detail)

    wanted = [
        (_OURS, _KAFKA, at_least(_kafka_target(data_set, is_single=is_single))),
        (_OURS, _READY, at_least(0.85 if is_single else 0.6)),
        (_OURS_FEW, _KAFKA_FEW, at_least(8)),
        (_OURS, _KAFKA_IMPATIENT, None),
    ]
    return [finding(ours, peer, target) for ours, peer, target in wanted if peer in series]


def _kafka_target(data_set: DataSet, *, is_single: bool) -> float:
    if data_set.compression == "zstd":
        return 3.5 if is_single else 3.3
    # A fifth of the records, each of ten times the size.
    if data_set.value_sizes_bytes == _LARGE_VALUES:
        return 3.3 if is_single else 2.5
    return 4 if is_single else 3.3


def _rate(series: Series) -> str:
    return f"{series.records_per_second / 1e6:.2f}"
