"""A writer and its tasks as Spark runs them, as if in other processes, one after the other; and the resulting rows."""

from __future__ import annotations

import os
import pickle

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql.datasource import CaseInsensitiveDict, WriterCommitMessage
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)

import storage_core
from spark_segmentlog import SegmentLogDataSource

KINDS = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "headers": ArrayType(StructType().add("key", StringType()).add("value", BinaryType())),
}


def writer_of(path, *columns, overwrite=False, **options):
    """Make a writer for some columns; ``__`` becomes a dot."""
    given = {"path": str(path), **{name.replace("__", "."): str(text) for name, text in options.items()}}
    schema = StructType()
    for name in columns:
        schema.add(name, KINDS[name])
    return SegmentLogDataSource(CaseInsensitiveDict(given)).writer(schema, overwrite=overwrite)


def sent(thing):
    """Return a copy, as another process receives it."""
    return pickle.loads(cloudpickle.dumps(thing))


def stage(writer, batches, task=0, attempt=0):
    """Run a task as Spark does."""

    class Context:
        def partitionId(self):  # noqa: N802
            return task

        def taskAttemptId(self):  # noqa: N802
            return attempt

        def getLocalProperty(self, name):  # noqa: N802
            """Return None: no configuration is set in the session."""
            return

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pyspark.TaskContext.get", Context)
        return sent(sent(writer).write(iter(batches)))


def write(writer, *tasks):
    """Write as Spark does, with a list of batches for each task."""
    messages = [stage(writer, batches, task, 10 + task) for task, batches in enumerate(tasks)]
    assert all(isinstance(message, WriterCommitMessage) for message in messages)
    sent(writer).commit(messages)


def batch(**columns):
    return pa.record_batch(columns)


def rows(path, **options):
    """Return all rows of a log directory, ordered by topic, partition and offset."""
    table = storage_core.read_table(path, include_headers=True, **options)
    return table.sort_by([("topic", "ascending"), ("partition", "ascending"), ("offset", "ascending")])


def staged_files(path):
    return [name for name in os.listdir(path) if name.startswith(".segmentlog-stage")]


def clear_line(error):
    """Return the line of an error in the driver or a task that states the mistake."""
    lines = [line.strip() for line in str(error).strip().splitlines()]
    return next(line for line in reversed(lines) if "Error: " in line)
