"""Many small partitions compared with one large one of the same size, through Spark."""

from __future__ import annotations

from pathlib import Path

from benchmarks.data_sets import DataSet, data_set_named
from benchmarks.producing import ensure_data_sets
from benchmarks.results import Finding, SectionResult, at_most
from benchmarks.scratch import new_directory
from benchmarks.settings import Settings
from benchmarks.spark.session import Job, segmentlog_session
from benchmarks.timing import Series, Timed, interleave, share

_MASTER = "local[2]"
_PARTITIONS = 1_000
_PARTITION_BYTES = 1 << 20
_SOURCE = "100b-none-small"
_WARM_UP_ROUNDS = 2

_METHOD = f"""\
{_PARTITIONS:,} partitions of one 1 MiB segment, and one partition of one segment of the same total size (1 GiB), both
of batches copied from the data set `{_SOURCE}`, with index files. Spark `{_MASTER}`, from `load()` to the last row in
the `noop` sink, in one session, in turn, from the third run on."""


def run(settings: Settings) -> SectionResult:
    """Make both, read both."""
    source = data_set_named(settings, _SOURCE)
    log_directory = ensure_data_sets(settings, (source,))
    partitions = settings.scaled(_PARTITIONS)
    scratch = new_directory(settings.scratch_directory, "partitions")
    many, one = scratch / "many", scratch / "one"
    records = _fill(source, log_directory, many, one, partitions)
    series = _measure(settings, records, one)
    finding = Finding(
        "time of many small partitions, of the large one's",
        f"{partitions:,} × 1 MiB : 1 × {partitions} MiB",
        share(series[many], series[one]),
        "×",
        at_most(1.5),
        f"{series[many].median_s:.2f} s : {series[one].median_s:.2f} s",
    )
    raw = {name: series[path].to_json() for name, path in (("many", many), ("one", one))}
    return SectionResult("partitions", "Many partitions", _METHOD, (finding,), raw)


def _fill(source: DataSet, log_directory: Path, many: Path, one: Path, partitions: int) -> dict[Path, int]:
    from benchmarks.synthetic import SourceBatches, write_partition

    batches = SourceBatches.read(source.log_files(log_directory)[0])
    in_many = sum(
        write_partition(many / f"events-{partition}", batches, segment_sizes_bytes=[_PARTITION_BYTES])
        for partition in range(partitions)
    )
    in_one = write_partition(one / "events-0", batches, segment_sizes_bytes=[partitions * _PARTITION_BYTES])
    return {many: in_many, one: in_one}


def _measure(settings: Settings, records: dict[Path, int], one: Path) -> dict[Path, Series]:
    with segmentlog_session(settings, _MASTER) as session:
        jobs = {str(path): Job("segmentlog", {}, str(path)) for path in records}
        for path, count in records.items():
            found = session.fingerprint(jobs[str(path)])["records"]
            if found != count:
                raise RuntimeError(f"Expected {count} records, found {found}.")
        contenders = {
            str(path): lambda job=jobs[str(path)], count=count: Timed(session.run(job), count)
            for path, count in records.items()
        }
        series = interleave(
            contenders, warm_up_rounds=_WARM_UP_ROUNDS, rounds=settings.repetitions, peers=[str(one)]
        )
    return {path: series[str(path)] for path in records}
