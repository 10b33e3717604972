"""A Spark session in a process of its own: answers requests, one JSON line each, on standard input.

    python spark_worker.py local|connect

Classic and Connect sessions cannot live in one process, and neither may disturb the sessions of other
tests. Request: path, options, and either the file that takes the rows as an Arrow stream, or the log
directory that they are written to, with options. Reply: one JSON line that starts with REPLY_PREFIX,
because Spark may print to standard output as well.
"""

from __future__ import annotations

import json
import sys
from typing import Any

REPLY_PREFIX = "reply "

CONFIGURATION = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.memory": "1g",
    "spark.log.level": "ERROR",
}


def main(kind: str) -> None:
    """Serve requests until standard input ends."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(f"conformance-{kind}")
    builder = builder.remote("local[2]") if kind == "connect" else builder.master("local[2]")
    for key, value in CONFIGURATION.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    try:
        _reply({"version": spark.version})
        for line in sys.stdin:
            _reply(_answer(spark, json.loads(line)))
    finally:
        spark.stop()


def _answer(spark: Any, request: dict[str, Any]) -> dict[str, Any]:
    """Read, or copy, what the request asks for; an error is an answer, too."""
    import pyarrow as pa

    try:
        frame = spark.read.format("segmentlog").options(**request["options"]).load(request["path"])
        if "target" in request:
            writer = frame.write.format("segmentlog").mode("append")
            writer.options(**request["write_options"]).save(request["target"])
            return {}
        rows = frame.toArrow()
    except Exception as error:  # noqa: BLE001  whatever Spark raises is for the test to judge
        return {"error": f"{type(error).__name__}: {error}"}
    with pa.OSFile(request["output"], "wb") as sink, pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return {"rows": rows.num_rows}


def _reply(message: dict[str, Any]) -> None:
    print(REPLY_PREFIX + json.dumps(message), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
