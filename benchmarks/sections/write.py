"""Writing through Spark and committing, compared with Spark's Kafka sink, a writer that only counts, and a file per partition."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.producing import make_broker
from benchmarks.results import Finding, SectionResult
from benchmarks.scratch import new_directory
from benchmarks.settings import Settings
from benchmarks.spark.programs import KAFKA_SOURCE
from benchmarks.spark.session import kafka_source_session, segmentlog_session
from benchmarks.writing.large_pieces import LARGE_VALUE_BYTES, measure_large_pieces
from benchmarks.writing.many_partitions import measure_many_partitions
from benchmarks.writing.pack_file import measure_pack_file
from benchmarks.writing.rows import INPUT_PARTITIONS, KEY_BYTES, VALUE_BYTES
from benchmarks.writing.sinks import PARTITIONS, measure_sinks
from benchmarks.writing.small_pieces import ROWS_IN_A_PIECE, measure_small_pieces

_ONE_CORE, _TWO_CORES = "local[1]", "local[2]"

_PARTS_THROUGH_SPARK = {
    _ONE_CORE: {_ONE_CORE: measure_sinks},
    _TWO_CORES: {
        _TWO_CORES: measure_sinks,
        "large pieces": measure_large_pieces,
        "many partitions": measure_many_partitions,
    },
}

_METHOD = f"""\
Rows `key, value` of {KEY_BYTES} and {VALUE_BYTES} B, not compressed. In every session they come from the same
expression: `spark.range` in {INPUT_PARTITIONS} input partitions, key and value the padded number of the row; *cached
frame*: the same rows from Spark's cache, the hardest case, for nothing else takes time then. Time runs from `save()`
to its return; MB count keys and values. Before each run, outside of its time, `sync` brings to the disk what earlier ones have written.

*Kafka sink*: that of Spark {KAFKA_SOURCE.spark_version}, in a session of that version, with its own default settings
(acks included), into a live local broker, which does not flush. segmentlog and the *counting writer*, a
`DataSourceArrowWriter` whose `write()` counts rows and the upper bound of any Python writer, run in one session of this environment's Spark with
`conf/spark-defaults.conf`. Broker and Python workers run next to Spark's own threads, so `local[1]` uses more than one
core in all of them. Sink and segmentlog write to a topic of {PARTITIONS} partitions that exists; a first write
of each is read back and compared: count, sums of keys and values, and partitions are equal. `flush=none` and the
broker leave it to the system when bytes reach the disk; `flush=commit`, the default, waits for them.

*Large pieces*: values of {LARGE_VALUE_BYTES} B; the time of `commit()` on the driver, of the whole write. *Small
pieces*: {ROWS_IN_A_PIECE} rows each, staged and committed by `StageWriter` and `CommitJob` without Spark; the time of
`commit()`.

*One job*: the same rows to ever more partitions, by key. The first job makes the partitions, and is watched: with
pauses of 20 ms, anonymous and shared memory of all Python processes below the session (workers and commit), and how many files
in the log directory each has open; the largest sample of any one. Later ones append, and are timed. *One file per
partition*: `StageWriter` with what goes to its pack file appended to a file for each partition instead, as many of
them open at a time and flushed by as many threads; one task, everything flushed.

What bounds a cached frame: without Spark, to hash, sort, encode, checksum and write these 2,000,000 rows takes 0.75 s of
processor time, and to commit them 0.1 s. What bounds 1,000 partitions: their commit takes 1.7 s on a file system in memory,
0.07 s for four, because each new partition is five new files; staging takes 0.2 s more.

What takes long has fewer rounds: one for the job to the most partitions, at most two for small pieces, for staging
and for Kafka's sink to many partitions."""


def run(settings: Settings) -> SectionResult:
    """Measure all parts, those with Spark first."""
    findings: list[Finding] = []
    raw: dict[str, Any] = {}

    def add(name: str, measure: Callable[[], tuple[list[Finding], dict[str, Any]]]) -> None:
        if settings.wants(name):
            found, raw[name] = measure()
            findings.extend(found)

    with make_broker(settings, new_directory(settings.scratch_directory, "broker")) as broker:
        servers = broker.bootstrap_servers
        for master, parts in _PARTS_THROUGH_SPARK.items():
            if not any(map(settings.wants, parts)):
                continue
            with (
                segmentlog_session(settings, master) as ours,
                kafka_source_session(settings, master) as kafka,
            ):
                raw["sessions"] = {
                    "segmentlog": {"version": ours.version, "configuration": ours.configuration},
                    "Kafka sink": {"version": kafka.version},
                }
                for name, measure in parts.items():
                    add(name, partial(measure, settings, master, servers, ours, kafka))
    add("staging", lambda: measure_pack_file(settings))
    add("small pieces", lambda: measure_small_pieces(settings))
    return SectionResult("write", "Writing", _METHOD, tuple(findings), raw)
