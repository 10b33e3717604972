"""Streaming queries that `benchmarks.spark.worker` runs. Imports nothing but PySpark, whichever it is."""

from __future__ import annotations

import os
import tempfile
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

_PATIENCE_S = 300.0


def run_stream(spark: SparkSession, job: dict[str, Any]) -> dict[str, Any]:
    """Run one of the actions below."""
    actions = {
        "backlog": read_backlog,
        "sink": write_micro_batches,
        "idle": stay_idle,
        "latency": see_appends,
    }
    # In the section's scratch, which is removed when the section is over.
    return actions[job["stream"]](spark, job, tempfile.mkdtemp(prefix="checkpoint-"))


def _source(spark: SparkSession, job: dict[str, Any]) -> DataFrame:
    reader = spark.readStream.format(job["format"]).options(**job["options"])
    return reader.load(job["path"]) if job.get("path") else reader.load()


def read_backlog(spark: SparkSession, job: dict[str, Any], checkpoint: str) -> dict[str, Any]:
    """Read all there is into the sink noop.

    Returns:
        The seconds from the start of the query to its last batch, and those from the end of its first batch, with the rows
        of each.
    """
    spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", "1000")
    writer = _source(spark, job).writeStream.format("noop").option("checkpointLocation", checkpoint)
    started = time.perf_counter()
    query = writer.start()
    query.processAllAvailable()
    seconds = time.perf_counter() - started
    progress = [each for each in query.recentProgress if each["numInputRows"]]
    query.stop()
    rows = [each["numInputRows"] for each in progress]
    ends_s = [_end_s(each) for each in progress]
    return {
        "seconds": seconds,
        "rows": sum(rows),
        "steady_seconds": ends_s[-1] - ends_s[0],
        "steady_rows": sum(rows[1:]),
    }


def _end_s(progress: Any) -> float:
    """Return when a trigger ended, in seconds since 1970."""
    begun = datetime.fromisoformat(progress["timestamp"])
    return begun.timestamp() + float(progress["durationMs"]["triggerExecution"]) / 1000


def write_micro_batches(spark: SparkSession, job: dict[str, Any], checkpoint: str) -> dict[str, Any]:
    """Write micro-batches of 1,000 rows; what each trigger took, without the first ones."""
    wanted, warm_up = job["batches"], 10
    spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", str(wanted + warm_up + 50))
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1000).load()
    frame = rows.selectExpr("cast(value as string) as key", "repeat('v', 100) as value")
    writer = frame.writeStream.format(job["format"]).options(**job["options"])
    query = writer.option("checkpointLocation", checkpoint).start(job["path"])
    end = time.monotonic() + _PATIENCE_S
    while (query.lastProgress or {"batchId": -1})["batchId"] < wanted + warm_up and time.monotonic() < end:
        time.sleep(0.05)
    progress = query.recentProgress
    query.stop()
    taken = [each["durationMs"]["triggerExecution"] for each in progress if each["batchId"] >= warm_up]
    return {"milliseconds": taken[:wanted]}


def stay_idle(spark: SparkSession, job: dict[str, Any], checkpoint: str) -> dict[str, Any]:
    """Run a query that has nothing to read; the processor seconds of its processes, by their kind."""
    writer = _source(spark, job).writeStream.format("noop").option("checkpointLocation", checkpoint)
    query = writer.start()
    query.processAllAvailable()
    time.sleep(job["settle_seconds"])
    before = _processor_seconds()
    time.sleep(job["seconds"])
    after = _processor_seconds()
    query.stop()
    used = {"java": 0.0, "python": 0.0}
    for process, (kind, seconds) in after.items():
        used[kind] += seconds - before.get(process, (kind, 0.0))[1]
    return {kind: seconds / job["seconds"] for kind, seconds in used.items()}


def _processor_seconds() -> dict[int, tuple[str, float]]:
    """Return the kind of each process below this one and what it has used, as the kernel counts it (Linux only)."""
    parents, found = {}, {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            name, _, rest = entry.joinpath("stat").read_text().partition("(")[2].rpartition(")")
        except OSError:
            continue
        fields = rest.split()
        process = int(entry.name)
        parents[process] = int(fields[1])
        seconds = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        found[process] = ("java" if name == "java" else "python", seconds)

    def is_below(process: int) -> bool:
        while process in parents:
            process = parents[process]
            if process == os.getpid():
                return True
        return False

    return {process: used for process, used in found.items() if is_below(process)}


def see_appends(spark: SparkSession, job: dict[str, Any], checkpoint: str) -> dict[str, Any]:
    """Append one record after the other to a log; the milliseconds until a task has seen each of them."""
    import pyarrow as pa

    from storage_core import LogDirectory

    seen = Path(checkpoint) / "seen"
    with LogDirectory.open(job["path"]) as logs:
        log = logs.get_or_create("events", 0)
        query = (
            _source(spark, job)
            .select("offset")
            .writeStream.option("checkpointLocation", checkpoint)
            .foreach(_noting(str(seen)))
            .start()
        )
        query.processAllAvailable()
        delays = []
        for number in range(job["appends"]):
            # At a random phase of the query's triggers.
            time.sleep(0.5 + 0.0137 * (number % 20))
            offset = log.log_end_offset
            log.append(pa.table({"value": [b"v" * 100]}))
            appended_s = time.time()
            delays.append(1000 * (_time_of(seen, offset) - appended_s))
        query.stop()
    return {"milliseconds": delays}


def _noting(path: str) -> Any:
    def note(row: Any) -> None:
        with open(path, "a", encoding="utf-8") as file:
            file.write(f"{row.offset} {time.time()}\n")

    return note


def _time_of(path: Path, offset: int) -> float:
    end = time.monotonic() + _PATIENCE_S
    while time.monotonic() < end:
        lines = path.read_text().splitlines() if path.exists() else []
        for line in lines:
            if line.startswith(f"{offset} "):
                return float(line.split()[1])
        time.sleep(0.005)
    raise RuntimeError(f"Expected offset {offset} to be seen within {_PATIENCE_S} s.")
