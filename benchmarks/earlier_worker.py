"""Reads with whichever `storage_core` is first on the path: a JSON object a line in, one out.

Run by the section ``earlier`` as a script, so that it needs nothing of this package.
"""

from __future__ import annotations

import json
import os
import sys
import time

import storage_core
from storage_core.filesystem import FileSystem
from storage_core.scan import parse_read_options, plan_scan, project, read_task, record_schema


def main() -> None:
    """Answer until standard input ends."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    for line in sys.stdin:
        task = json.loads(line)
        answer = _read(task) if task else {"package": storage_core.__file__}
        print(json.dumps(answer), flush=True)


def _read(task: dict[str, str]) -> dict[str, float]:
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
    return {"seconds": time.process_time() - started, "rows": rows}


def _range(task: dict[str, str]) -> dict[str, object]:
    """One per cent from the middle of each partition: by offsets, or by the times of its records."""
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
    # Records of the data sets are a millisecond apart.
    first_timestamp_ms = 1_748_736_000_000
    middle, length = middles[0], lengths[0]
    return {
        "startingTimestamp": str(first_timestamp_ms + middle),
        "endingTimestamp": str(first_timestamp_ms + middle + length),
    }


if __name__ == "__main__":
    main()
