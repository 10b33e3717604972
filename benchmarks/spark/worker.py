"""One Spark session that runs the jobs it is told on standard input and answers with their times.

Started by `benchmarks.spark.session`. Runs under either PySpark, so it imports nothing but PySpark.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from pyspark.sql import DataFrame, SparkSession

# Marks an answer: Spark may print to standard output too. As in benchmarks.spark.session.
_REPLY_PREFIX = "benchmark-reply "

# Frames that are written, by their description.
_frames: dict[str, DataFrame] = {}


def main() -> None:
    """Serve jobs, one JSON line each, until standard input ends."""
    configuration = json.loads(sys.argv[1])
    builder = SparkSession.builder
    for name, value in configuration.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    _reply({"version": spark.version})
    for line in sys.stdin:
        job = json.loads(line)
        try:
            _reply(_run(spark, job))
        # Whatever it is: the parent gets the text and decides.
        except Exception as error:  # noqa: BLE001
            _reply({"error": f"{type(error).__name__}: {error}"})


def _run(spark: SparkSession, job: dict[str, Any]) -> dict[str, Any]:
    _register(spark, job["format"])
    if job["action"] == "stream":
        from benchmarks.spark.streams import run_stream

        return run_stream(spark, job)
    if job["action"] == "write":
        return {"seconds": _write(spark, job)}
    if job["action"] == "read":
        return _read(spark, job)
    raise ValueError(f"Expected action read, write or stream, found {job['action']}.")


def _read(spark: SparkSession, job: dict[str, Any]) -> dict[str, Any]:
    if job["avro_schema"]:
        from benchmarks.peers.fastavro_function import register_by_fastavro

        register_by_fastavro(spark, job["avro_schema"])
    started = time.perf_counter()
    frame = _load(spark, job)
    if not job["aggregates"]:
        frame.write.format("noop").mode("overwrite").save()
        return {"seconds": time.perf_counter() - started}
    row = frame.selectExpr(*job["aggregates"]).collect()[0]
    return {"seconds": time.perf_counter() - started, "aggregates": row.asDict()}


def _load(spark: SparkSession, job: dict[str, Any]) -> DataFrame:
    reader = spark.read.format(job["format"]).options(**job["options"])
    frame = reader.load(job["path"]) if job.get("path") else reader.load()
    return frame.selectExpr(*job["select"]) if job.get("select") else frame


def _write(spark: SparkSession, job: dict[str, Any]) -> float:
    frame = _frame(spark, job["frame"])
    writer = frame.write.format(job["format"]).mode("append").options(**job["options"])
    started = time.perf_counter()
    if job["path"]:
        writer.save(job["path"])
    else:
        writer.save()
    return time.perf_counter() - started


def _frame(spark: SparkSession, described: dict[str, Any]) -> DataFrame:
    description = json.dumps(described)
    if description not in _frames:
        numbers = spark.range(0, described["rows"], 1, described["input_partitions"])
        if described["is_cached"]:
            # Its plan differs from that of the same rows uncached: Spark would take those from the cache, too.
            frame = numbers.where("id >= 0").selectExpr(*described["columns"]).cache()
            frame.count()
        else:
            frame = numbers.selectExpr(*described["columns"])
        _frames[description] = frame
    return _frames[description]


def _register(spark: SparkSession, format_name: str) -> None:
    if format_name == "segmentlog":
        import spark_segmentlog

        spark_segmentlog.register(spark)
    elif format_name == "ready_made":
        from benchmarks.peers.ready_made import ReadyMadeSource

        spark.dataSource.register(ReadyMadeSource)
    elif format_name == "one_row":
        from benchmarks.peers.one_row import OneRowSource

        spark.dataSource.register(OneRowSource)
    elif format_name == "counting":
        from benchmarks.peers.counting_writer import CountingSink

        spark.dataSource.register(CountingSink)
    elif format_name == "timed_segmentlog":
        from benchmarks.peers.timed_segmentlog import TimedSegmentLog

        spark.dataSource.register(TimedSegmentLog)


def _reply(answer: dict[str, Any]) -> None:
    print(_REPLY_PREFIX + json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
