"""What the first read of a session costs its Python processes, beside a source that has nothing to read."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.data_sets import PARTITIONS, DataSet, data_set_named
from benchmarks.memory_sampling import processor_seconds, python_descendants
from benchmarks.peers.one_row import FORMAT_NAME, TASKS_OPTION
from benchmarks.producing import ensure_data_sets
from benchmarks.progress import tell
from benchmarks.results import Finding, SectionResult, at_most
from benchmarks.settings import Settings
from benchmarks.spark.session import Job, segmentlog_session
from benchmarks.timing import Timed, difference, interleave, spread

_MASTER = "local[2]"
_DATA_SET = "100b-none-small"
_RECORDS_PER_PARTITION = 400_000
_OURS, _ONE_ROW = "segmentlog", "one row a task"
_COUNT = ("count(1) AS records",)
# Workers take a moment to end, or to wait again, when the driver has its answer.
_PAUSE_S = 0.5

_METHOD = f"""\
`load()` and `count()` as the first that a new session of `{_MASTER}` does with Python: {PARTITIONS * _RECORDS_PER_PARTITION:,} records of the
data set `{_DATA_SET}`. The time is the processor time, user and system, of all Python processes below the driver: planning,
tasks, and the daemons that they are forked from. *{_ONE_ROW}* is a Python data source with as many tasks, which imports
pyarrow, as Spark does itself. Each has a session of its own in each round. Bytecode is there, as after an install."""


def run(settings: Settings) -> SectionResult:
    """Start sessions in turn."""
    data_set = data_set_named(settings, _DATA_SET)
    log_directory = ensure_data_sets(settings, [data_set])
    ours = _our_job(settings, data_set, log_directory)
    tasks = _count_tasks(ours)
    contenders = {
        _OURS: _contender(settings, ours, PARTITIONS * settings.scaled(_RECORDS_PER_PARTITION)),
        _ONE_ROW: _contender(
            settings, Job(FORMAT_NAME, {TASKS_OPTION: str(tasks)}, aggregates=_COUNT), tasks
        ),
    }
    series = interleave(contenders, warm_up_rounds=1, rounds=settings.repetitions, peers=[_ONE_ROW])
    subject = f"first load() and count(), {series[_OURS].records:,} records in {tasks} tasks"
    findings = [
        Finding(
            f"Python's processor time, beyond that of {_ONE_ROW}",
            subject,
            difference(series[_OURS], series[_ONE_ROW]),
            "s",
            at_most(1.2),
        ),
        *(
            Finding(f"Python's processor time, {name}", subject, spread(one.seconds), "s")
            for name, one in series.items()
        ),
    ]
    raw = {name: one.to_json() for name, one in series.items()}
    return SectionResult("start", "The first read of a session", _METHOD, tuple(findings), raw)


def _our_job(settings: Settings, data_set: DataSet, log_directory: Path) -> Job:
    ends = dict.fromkeys(map(str, range(PARTITIONS)), settings.scaled(_RECORDS_PER_PARTITION))
    options = {"subscribe": data_set.name, "endingOffsets": json.dumps({data_set.name: ends})}
    return Job("segmentlog", options, str(log_directory), aggregates=_COUNT)


def _count_tasks(job: Job) -> int:
    from benchmarks.segmentlog_reading import plan_read
    from storage_core.filesystem import FileSystem

    return len(plan_read(FileSystem(), Path(str(job.path)), **job.options).tasks)


def _contender(settings: Settings, job: Job, rows: int) -> Callable[[], Timed]:
    def count() -> Timed:
        tell(f"first count of {job.format}")
        with segmentlog_session(settings, _MASTER) as session:
            before = processor_seconds(python_descendants(session.process_id))
            found = session.aggregates(job)["records"]
            time.sleep(_PAUSE_S)
            used = processor_seconds(python_descendants(session.process_id)) - before
        if found != rows:
            raise RuntimeError(f"Expected {rows} rows from {job.format}, found {found}.")
        return Timed(used, rows)

    return count
