"""Typed values through Spark, compared with Spark's own ``from_avro`` and with a function in Python that uses fastavro."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from benchmarks.progress import tell
from benchmarks.results import Finding, SectionResult, at_least
from benchmarks.scratch import new_directory
from benchmarks.settings import Settings
from benchmarks.spark.programs import SPARK_AVRO
from benchmarks.spark.session import Job, SparkProcess, spark_avro_session
from benchmarks.timing import Series, Timed, interleave, ratio
from benchmarks.typed_records import AVRO_SCHEMAS, write_typed_log_directory

_RECORDS = 1_000_000
_PARTITIONS = 4
_MASTERS = ("local[1]", "local[2]")
_WARM_UP_ROUNDS = 2
# Cheap, so that decoding counts, and the same in whichever order tasks end.
_ALL_FIELDS = (
    "count(value) AS records",
    "sum(value.id) AS id",
    "sum(length(value.customer)) AS customer",
    "sum(CAST(value.amount AS BIGINT)) AS amount",
    "sum(CAST(value.paid AS INT)) AS paid",
    "sum(value.items) AS items",
    "sum(length(value.note)) AS note",
    "unix_millis(max(value.at)) AS at",
    "sum(CAST(value.weight AS BIGINT)) AS weight",
)
_ONE_FIELD = ("sum(CAST(value.amount AS BIGINT)) AS amount",)

_SCHEMA = json.dumps(AVRO_SCHEMAS["flat"])
_FROM_AVRO = f"from_avro(substring(value, 6), '{_SCHEMA}', map()) AS value"
_TO_SINK = ", to the sink noop"
_OURS = "valueFormat=registry"
_PEER = "from_avro over our bytes"
_FUNCTION = "UDF with fastavro"
_OURS_ONE = "valueFormat=registry, columns=value.amount"
_PEER_ONE = "from_avro over our bytes, columns=value"
_BYTES = "the bytes alone"

_METHOD = f"""\
Wall time of a query from `load()` on, in one session of Spark {SPARK_AVRO.spark_version} with `conf/spark-defaults.conf` and spark-avro of
that version. {_RECORDS:,} records of 8 flat fields lie in {_PARTITIONS} partitions, in Confluent's frames, beside the registry's topic, and
were written by segmentlog. Queries are sums over all 8 fields, so that Spark can skip none, if nothing else is said.
*from_avro over our bytes* is `from_avro(substring(value, 6), …)` on the column `value` of the same source; *UDF with fastavro* decodes
that column by `schemaless_reader`. All read the default seven columns, unless `columns` says other ones. Sums were equal."""


def run(settings: Settings) -> SectionResult:
    """Measure with one core, and with two."""
    directory = new_directory(settings.scratch_directory, "typed-values-spark")
    findings: list[Finding] = []
    raw: dict[str, Any] = {}
    logs = directory / "logs"
    records = settings.scaled(_RECORDS)
    write_typed_log_directory(logs, {"flat": records}, _PARTITIONS)
    for master in _MASTERS:
        tell(f"values-spark {master}")
        with spark_avro_session(settings, master, directory / f"packages-{master}") as spark:
            series = _measure(spark, _jobs(str(logs)), records, settings.repetitions)
        findings += _findings(f"{master}, {records:,} records", series)
        raw[master] = {name: one.to_json() for name, one in series.items()}
    return SectionResult("values-spark", "Typed values through Spark", _METHOD, tuple(findings), raw)


def _jobs(path: str) -> dict[str, Job]:
    options = {"subscribe": "flat"}
    typed = {**options, "valueFormat": "registry"}
    return {
        _OURS: Job("segmentlog", typed, path, ["value"], _ALL_FIELDS),
        _PEER: Job("segmentlog", options, path, [_FROM_AVRO], _ALL_FIELDS),
        _FUNCTION: Job("segmentlog", options, path, ["by_fastavro(value) AS value"], _ALL_FIELDS, _SCHEMA),
        _OURS + _TO_SINK: Job("segmentlog", typed, path, ["value"]),
        _PEER + _TO_SINK: Job("segmentlog", options, path, [_FROM_AVRO]),
        _BYTES + _TO_SINK: Job("segmentlog", options, path, ["value"]),
        _OURS_ONE: Job("segmentlog", {**typed, "columns": "value.amount"}, path, ["value"], _ONE_FIELD),
        _PEER_ONE: Job("segmentlog", {**options, "columns": "value"}, path, [_FROM_AVRO], _ONE_FIELD),
    }


def _measure(spark: SparkProcess, jobs: Mapping[str, Job], records: int, rounds: int) -> dict[str, Series]:
    found = {name: spark.aggregates(jobs[name]) for name in (_OURS, _PEER, _FUNCTION)}
    if len({json.dumps(each) for each in found.values()}) != 1:
        raise RuntimeError(f"Expected the same sums from all, found {found}.")
    return interleave(
        {name: lambda job=job: Timed(spark.run(job), records) for name, job in jobs.items()},
        warm_up_rounds=_WARM_UP_ROUNDS,
        rounds=rounds,
        peers=[_PEER, _FUNCTION],
    )


def _findings(subject: str, series: Mapping[str, Series]) -> list[Finding]:
    wanted = [
        (_OURS, _PEER, at_least(1.5)),
        (_OURS, _FUNCTION, at_least(4)),
        (_OURS + _TO_SINK, _PEER + _TO_SINK, None),
        (_OURS + _TO_SINK, _BYTES + _TO_SINK, None),
        (_OURS_ONE, _PEER_ONE, None),
    ]
    return [
        Finding(
            f"{ours} : {peer}",
            subject,
            ratio(series[peer], series[ours]),
            "×",
            target,
            f"{series[ours].median_s:.2f} s : {series[peer].median_s:.2f} s",
        )
        for ours, peer, target in wanted
    ]
