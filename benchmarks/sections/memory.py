"""The anonymous memory that reading one large partition takes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.data_sets import DataSet, data_set_named
from benchmarks.memory_sampling import ProcessWatch, anonymous_memory_bytes, python_descendants
from benchmarks.producing import ensure_data_sets
from benchmarks.results import Finding, SectionResult, at_most
from benchmarks.scratch import give_back_space, new_directory
from benchmarks.settings import CHECKOUT, Settings
from benchmarks.spark.session import Job, segmentlog_session
from benchmarks.timing import spread

_SEGMENT_BYTES = 1 << 30
_SEGMENTS = 4
_SOURCES = ("100b-none-small", "100b-zstd-large")
_LIMIT_MEGABYTES = 350
_ROUNDS = 2
_MEASURES = {"memory": anonymous_memory_bytes}

_METHOD = f"""\
One partition of {_SEGMENTS} segments of 1 GiB, of batches copied from a data set, all columns. The kernel's RssAnon of
each process is sampled every 20 ms; the figure is the largest sample of any one process. *Spark worker*: all Python
processes below a Spark `local[1]` session, {_ROUNDS} reads in one session. *Plain loop*: `plan_scan` and `read_task`
in a process without Spark."""

_PLAIN_LOOP = """
import sys
from pathlib import Path
from benchmarks.segmentlog_reading import count_rows
from storage_core.filesystem import FileSystem
print(count_rows(FileSystem(), Path(sys.argv[1])))
"""


def run(settings: Settings) -> SectionResult:
    """Make the partitions, read them, watch."""
    findings: list[Finding] = []
    raw: dict[str, Any] = {}
    sources = tuple(data_set_named(settings, name) for name in _SOURCES)
    log_directory = ensure_data_sets(settings, sources)
    for source in sources:
        path = new_directory(settings.scratch_directory, source.name)
        records = _make_partition(settings, source, log_directory, path)
        size_bytes = sum(log.stat().st_size for log in path.rglob("*.log"))
        watches = {
            "Spark worker": _watch_spark(settings, path, records),
            "plain loop": _watch_plain_loop(path, records),
        }
        give_back_space(path)
        for name, watch in watches.items():
            peak_mb = watch.peak("memory") / 1e6
            subject = f"{size_bytes / 2**30:.1f} GiB; {source.description()}"
            detail = f"{records:,} records, {watch.samples} samples"
            finding = Finding(name, subject, spread([peak_mb]), "MB", at_most(_LIMIT_MEGABYTES), detail)
            findings.append(finding)
            raw[f"{source.name}, {name}"] = {
                "peaks_bytes": sorted(watch.peaks["memory"].values()),
                "samples": watch.samples,
            }
    return SectionResult("memory", "Memory", _METHOD, tuple(findings), raw)


def _watch_spark(settings: Settings, path: Path, records: int) -> ProcessWatch:
    job = Job("segmentlog", {}, str(path))
    with segmentlog_session(settings, "local[1]") as session:
        process_id = session.process_id
        with ProcessWatch(lambda: python_descendants(process_id), _MEASURES) as watch:
            for _ in range(_ROUNDS):
                session.run(job)
            found = session.fingerprint(job)["records"]
    _check(records, found)
    return watch


def _watch_plain_loop(path: Path, records: int) -> ProcessWatch:
    command = [sys.executable, "-c", _PLAIN_LOOP, str(path)]
    with (
        subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True) as process,
        ProcessWatch(lambda: [process.pid], _MEASURES) as watch,
    ):
        output, _ = process.communicate()
    if process.returncode != 0:
        raise RuntimeError(f"The plain loop ended with status {process.returncode}.")
    _check(records, int(output))
    return watch


def _check(expected: int, found: int) -> None:
    if found != expected:
        raise RuntimeError(f"Expected {expected} records, found {found}.")


def _make_partition(settings: Settings, source: DataSet, log_directory: Path, path: Path) -> int:
    """Make the large partition in a log directory; return its number of records."""
    from benchmarks.synthetic import SourceBatches, write_partition

    batches = SourceBatches.read(source.log_files(log_directory)[0])
    sizes = [settings.scaled(_SEGMENT_BYTES)] * _SEGMENTS
    return write_partition(path / "events-0", batches, segment_sizes_bytes=sizes)
