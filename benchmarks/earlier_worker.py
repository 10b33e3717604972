"""Does one job with whichever `storage_core` is first on the path: a JSON object a line in, one out.

Run by the section ``earlier`` as a script, so that it needs nothing of this package. It uses only what is public, so
that every commit can answer.
"""

from __future__ import annotations

import json
import os
import sys
import time
from functools import cache
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pyarrow as pa

import storage_core
from storage_core import LogConfig, LogDirectory
from storage_core.filesystem import FileSystem
from storage_core.scan import parse_read_options, plan_scan, project, read_task, record_schema

_FIRST_TIMESTAMP_MS = 1_748_736_000_000
"""Records of the data sets are a millisecond apart."""
_VALUE_SIZE_BYTES = 100
_ROWS_OF_A_BATCH = 10_000


def main() -> None:
    """Answer until standard input ends."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    for line in sys.stdin:
        task = json.loads(line)
        answer = _JOBS[task["job"]](task) if task else {"package": storage_core.__file__}
        print(json.dumps(answer), flush=True)


def _read(task: dict[str, Any]) -> dict[str, float]:
    options: dict[str, object] = {"path": task["path"], "subscribe": task["topic"]}
    columns = None
    if task["read"] == "offset and timestamp":
        columns = ("offset", "timestamp")
    elif task["read"] != "all columns":
        options |= _range(task)
    started = time.process_time()
    filesystem = FileSystem()
    plan = plan_scan(filesystem, parse_read_options(options))
    schema = project(record_schema(), columns)
    rows = sum(batch.num_rows for each in plan.tasks for batch in read_task(filesystem, each, schema))
    return {"seconds": time.process_time() - started, "records": rows}


def _range(task: dict[str, Any]) -> dict[str, object]:
    """Read one per cent from the middle of each partition: by offsets, or by the times of its records."""
    plan = plan_scan(FileSystem(), parse_read_options({"path": task["path"], "subscribe": task["topic"]}))
    middles = {each.log.partition: each.end_offset // 2 for each in plan.partitions}
    lengths = {each.log.partition: each.end_offset // 100 for each in plan.partitions}
    if task["read"] == "1 % of the offsets":
        ends = {number: middle + lengths[number] for number, middle in middles.items()}
        return {
            "startingOffsets": json.dumps(
                {task["topic"]: {str(key): value for key, value in middles.items()}}
            ),
            "endingOffsets": json.dumps({task["topic"]: {str(key): value for key, value in ends.items()}}),
        }
    middle, length = middles[0], lengths[0]
    return {
        "startingTimestamp": str(_FIRST_TIMESTAMP_MS + middle),
        "endingTimestamp": str(_FIRST_TIMESTAMP_MS + middle + length),
    }


def _plan(task: dict[str, Any]) -> dict[str, float]:
    started = time.process_time()
    plan = plan_scan(FileSystem(), parse_read_options({"path": task["path"]}))
    return {"seconds": time.process_time() - started, "records": len(plan.tasks)}


def _append(task: dict[str, Any]) -> dict[str, float]:
    """`Log.append` of one table."""
    records = _records(task["records"])
    # Nothing is deleted between two rounds; see benchmarks/scratch.py.
    with LogDirectory.open(mkdtemp(dir=task["path"]), config=LogConfig(batch_size=16_384)) as logs:
        log = logs.create("events")
        started = time.process_time()
        info = log.append(records)
        seconds = time.process_time() - started
    return {"seconds": seconds, "records": info.last_offset + 1}


def _stage(task: dict[str, Any]) -> dict[str, float]:
    """Do what one Spark task does for a `save()`: route, encode and stage rows."""
    from pyspark.sql.types import BinaryType, StructField, StructType, TimestampType

    from spark_segmentlog import SegmentLogDataSource

    records = _records(task["records"])
    # As Spark hands them over.
    timestamps = (records["timestamp"].to_numpy() * 1000).astype("datetime64[us]")
    records = records.set_column(2, "timestamp", pa.array(timestamps, pa.timestamp("us", "UTC")))
    rows = records.to_batches(max_chunksize=_ROWS_OF_A_BATCH)
    options = {
        "path": mkdtemp(dir=task["path"]),
        "topic": "events",
        "partitions": str(task["partitions"]),
        "flush": "none",
    }
    schema = StructType(
        [
            StructField("key", BinaryType()),
            StructField("value", BinaryType()),
            StructField("timestamp", TimestampType()),
        ]
    )
    writer = SegmentLogDataSource(options).writer(schema, overwrite=False)
    started = time.process_time()
    staged = writer.write(iter(rows))
    seconds = time.process_time() - started
    writer.commit([staged])
    return {"seconds": seconds, "records": task["records"]}


@cache
def _records(count: int) -> pa.Table:
    """Records with keys of eight bytes and values that are slices of random bytes."""
    values = np.random.default_rng(1).integers(0, 256, count * _VALUE_SIZE_BYTES, np.uint8).tobytes()
    keys = np.arange(count, dtype=">i8").tobytes()
    return pa.table(
        {
            "key": pa.array([keys[start : start + 8] for start in range(0, len(keys), 8)], pa.binary()),
            "value": pa.array(
                [
                    values[start : start + _VALUE_SIZE_BYTES]
                    for start in range(0, len(values), _VALUE_SIZE_BYTES)
                ],
                pa.binary(),
            ),
            "timestamp": pa.array(range(_FIRST_TIMESTAMP_MS, _FIRST_TIMESTAMP_MS + count), pa.int64()),
        }
    )


_JOBS = {"read": _read, "plan": _plan, "append": _append, "stage": _stage}

if __name__ == "__main__":
    main()
