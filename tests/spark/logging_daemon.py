"""A daemon for Spark's Python workers that opens a log directory before it forks them.

Spark starts it with ``spark.python.daemon.module``, which programs use to load shared modules once. The environment
names the log directory.
"""

from __future__ import annotations

import os

import pyarrow as pa
import pyspark.daemon

from storage_core import LogDirectory

ROOT_VARIABLE = "SEGMENTLOG_TEST_ROOT"

logs = LogDirectory.open(os.environ[ROOT_VARIABLE])
log = logs.get_or_create("events")
log.append(pa.table({"value": pa.array([b"0", b"1", b"2"])}))

if __name__ == "__main__":
    pyspark.daemon.manager()
