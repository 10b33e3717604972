"""A driver with two streaming queries, whose processes are killed at steps that a file names.

Started with a folder, a log directory, and perhaps ``drain``. Both queries read the log directory: one appends to
``<folder>/copied``, one writes Parquet to ``<folder>/parquet``. ``<folder>/step`` names a step, and what is killed there: the
``driver`` (all processes of its session: the JVM, the Python workers), or the ``worker`` that has come to the step. Whoever
comes to it first deletes the file. A query that fails is started again. With ``drain``, the driver ends once there is
nothing left to read.
"""

from __future__ import annotations

import os
import signal
import warnings
from pathlib import Path

from spark_segmentlog.data_source import SegmentLogDataSource
from spark_segmentlog.stream_reader import SegmentLogStreamReader
from spark_segmentlog.stream_writer import SegmentLogStreamWriter

STEP_FILE = "SEGMENTLOG_STEP_FILE"
SESSION = "SEGMENTLOG_SESSION"
# The steps of a micro-batch.
STEPS = (
    "offset log written",
    "tasks running",
    "staged",
    "journal written",
    "published",
    "visible",
    "before Spark's commit log",
)
TOPICS = "plain,transactional"
# Rows of a partition go to one partition, so that their order can be told.
COPIED = (
    "topic",
    "partition % 3 AS partition",
    "concat(partition, ':', offset) AS key",
    "value",
)


def reached(step: str) -> None:
    """Kill if this is the step that the file names."""
    path = Path(os.environ[STEP_FILE])
    try:
        wanted, _, target = path.read_text().partition(":")
        if wanted != step:
            return
        path.unlink()
    except FileNotFoundError:
        return
    if target == "driver":
        kill_session(int(os.environ[SESSION]))
    os.kill(os.getpid(), signal.SIGKILL)


def kill_session(session: int) -> None:
    """Kill every process of a session but the one that calls this."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid() and _session_of(entry) == session:
            try:
                os.kill(int(entry.name), signal.SIGKILL)
            except ProcessLookupError:
                continue


def _session_of(entry: Path) -> int | None:
    try:
        return int(entry.joinpath("stat").read_text().rpartition(")")[2].split()[3])
    except OSError:
        return None


class KilledReader(SegmentLogStreamReader):
    """Comes to the steps of a source."""

    def partitions(self, start, end):
        if start != end:
            reached("offset log written")
        return super().partitions(start, end)

    def read(self, partition):
        for number, batch in enumerate(super().read(partition)):
            if number == 0:
                reached("tasks running")
            yield batch


class KilledWriter(SegmentLogStreamWriter):
    """Comes to the steps of a sink."""

    def write(self, iterator):
        message = super().write(iterator)
        if message.rows.manifest is not None:
            reached("staged")
        return message

    def commit(self, messages, batchId):  # noqa: N803  (Spark names it)
        from storage_core.commit import job
        from storage_core.commit_replay import replay

        finish, append = job.finish_commit, replay.append_commit

        def finish_commit(*arguments, fresh=None, **options):
            if fresh is not None:
                reached("journal written")
            return finish(*arguments, fresh=fresh, **options)

        def append_commit(*arguments, **options):
            reached("published")
            append(*arguments, **options)
            reached("visible")

        job.finish_commit, replay.append_commit = finish_commit, append_commit
        try:
            super().commit(messages, batchId)
        finally:
            job.finish_commit, replay.append_commit = finish, append
        reached("before Spark's commit log")


class KilledSource(SegmentLogDataSource):
    """The data source, with readers and writers that come to steps."""

    @classmethod
    def name(cls):
        return cls.__name__

    def streamReader(self, schema):  # noqa: N802  (Spark names it)
        made = super().streamReader(schema)
        made.__class__ = KilledReader
        return made

    def streamWriter(self, schema, overwrite):  # noqa: N802  (Spark names it)
        made = super().streamWriter(schema, overwrite)
        made.__class__ = KilledWriter
        return made


class SourceOfCopied(KilledSource):
    """Of the query that appends to a log."""


class SourceOfParquet(KilledSource):
    """Of the other query. With one source, two queries that are planned at once fail now and then.

    Spark serialises an unguarded map that belongs to the registered source (java.io.OptionalDataException).
    """


def start_query(spark, folder: Path, logs: str, name: str, source_class: type[KilledSource], limit: int):
    """Start one of the queries; it goes on where it was when the driver was killed."""
    reader = spark.readStream.format(source_class.name()).option("subscribe", TOPICS)
    options = {
        "startingOffsets": "earliest",
        "isolationLevel": "read_committed",
        "maxOffsetsPerTrigger": limit,
    }
    source = reader.options(**options).load(logs)
    if name == "copied":
        writer = source.selectExpr(*COPIED).writeStream.format(source_class.name()).option("partitions", 3)
    else:
        writer = source.select("topic", "partition", "offset", "value").writeStream.format("parquet")
    return writer.option("checkpointLocation", str(folder / f"checkpoint-{name}")).start(str(folder / name))


def main(folder: str, logs: str, *mode: str) -> None:
    # PySpark warns about packages that this program does not use.
    warnings.simplefilter("ignore")
    os.environ[SESSION] = str(os.getsid(0))
    os.environ[STEP_FILE] = f"{folder}/step"
    from pyspark.errors import StreamingQueryException
    from pyspark.sql import SparkSession

    from tests.spark_settings import SPARK_SETTINGS

    builder = SparkSession.builder.master("local[2,4]")
    for name, value in SPARK_SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.config("spark.driver.memory", "512m").getOrCreate()
    sources = {"copied": SourceOfCopied, "parquet": SourceOfParquet}
    for source in sources.values():
        spark.dataSource.register(source)
    # Many batches while there are kills, and few for what is left in the end.
    limit = 100_000 if mode == ("drain",) else 400
    queries = {
        name: start_query(spark, Path(folder), logs, name, source, limit) for name, source in sources.items()
    }
    print("started", flush=True)
    if mode == ("drain",):
        for query in queries.values():
            query.processAllAvailable()
            query.stop()
        print("drained", flush=True)
        return
    while True:
        for name, query in queries.items():
            try:
                has_ended = query.awaitTermination(0.2)
            except StreamingQueryException:
                has_ended = True
            if has_ended:
                queries[name] = start_query(spark, Path(folder), logs, name, sources[name], limit)
