"""Tail a log directory with Spark while another program writes to it, and print what comes.

    python examples/tail_live_directory.py /var/lib/kafka/data --topics orders   # a broker's, as long as you like
    python examples/tail_live_directory.py                                       # appends to a log of its own, and ends

With a broker's directory, nothing but its files is touched, and only for reading: no consumer, no group, no load. Rows come
once the broker's checkpoint says that they are below the high watermark, which takes up to five seconds.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent

# Set before Spark starts: its workers run this Python, and its settings come from conf/.
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
os.environ.setdefault("SPARK_CONF_DIR", str(HERE.parent / "conf"))

import pyarrow as pa  # noqa: E402  (after the environment)
from pyspark.sql import DataFrame, SparkSession  # noqa: E402
from pyspark.sql.streaming import StreamingQuery  # noqa: E402

from storage_core import LogDirectory  # noqa: E402


def print_batch(frame: DataFrame, batch_id: int) -> None:
    """Print the first rows of a micro-batch."""
    for row in frame.orderBy("topic", "partition", "offset").limit(20).collect():
        print(
            f"batch {batch_id}: {row.topic}-{row.partition} {row.offset}: {bytes(row.value or b'').decode()}"
        )


def tail(spark: SparkSession, path: str, topics: str | None, checkpoint: str) -> StreamingQuery:
    """Start a query of what is appended from now on; it goes on after a restart where it was."""
    reader = spark.readStream.format("segmentlog").option("columns", "topic,partition,offset,value")
    if topics is not None:
        reader = reader.option("subscribe", topics)
    writer = reader.load(path).writeStream.option("checkpointLocation", checkpoint)
    return writer.foreachBatch(print_batch).start()


def tail_own_log(spark: SparkSession) -> None:
    """Append to a log, and see what is appended come out of a query."""
    with tempfile.TemporaryDirectory() as folder, LogDirectory.open(f"{folder}/logs") as logs:
        log = logs.create("readings", 0)
        log.append(pa.table({"value": [b"before the query"]}))
        query = tail(spark, f"{folder}/logs", None, f"{folder}/checkpoint")
        query.processAllAvailable()
        for number in range(3):
            log.append(pa.table({"value": [b"reading %d" % number]}))
            query.processAllAvailable()
        query.stop()


def main() -> None:
    """Read the command line, and tail."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path", nargs="?", help="a log directory; without one, a log is made and appended to")
    parser.add_argument("--topics", help="comma separated; all but the internal ones by default")
    parser.add_argument("--checkpoint", default="checkpoint", help="where the query keeps its offsets")
    arguments = parser.parse_args()
    spark = SparkSession.builder.master("local[2]").getOrCreate()
    if arguments.path is None:
        tail_own_log(spark)
    else:
        tail(spark, arguments.path, arguments.topics, arguments.checkpoint).awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
