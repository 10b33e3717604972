"""A Spark Connect session in a process of its own: answers requests, one JSON line each, on standard input.

Classic and Connect sessions cannot live in one process. Request: path, options, and the file that takes the rows as an
Arrow stream; or a program, and the names that it knows. Reply: one JSON line that starts with REPLY_PREFIX, because Spark
may print to standard output as well.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from tests.spark_settings import SPARK_SETTINGS

REPLY_PREFIX = "reply "


def main() -> None:
    """Serve requests until standard input ends."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName("conformance").remote("local[2]")
    for key, value in SPARK_SETTINGS.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    try:
        _reply({"version": spark.version})
        for line in sys.stdin:
            _reply(_answer(spark, json.loads(line)))
    finally:
        spark.stop()


def _answer(spark: Any, request: dict[str, Any]) -> dict[str, Any]:
    """Run or read what the request asks for; an error is an answer, too."""
    try:
        if "program" in request:
            names = {"spark": spark, **request["names"]}
            exec(request["program"], names)
            return {"answers": names["answers"]}
        return _read(spark, request)
    except Exception as error:  # noqa: BLE001  whatever Spark raises is for the test to judge
        return {"error": f"{type(error).__name__}: {error}"}


def _read(spark: Any, request: dict[str, Any]) -> dict[str, Any]:
    import pyarrow as pa

    frame = spark.read.format("segmentlog").options(**request["options"]).load(request["path"])
    rows = frame.toArrow()
    with pa.OSFile(request["output"], "wb") as sink, pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return {"rows": rows.num_rows}


def _reply(message: dict[str, Any]) -> None:
    print(REPLY_PREFIX + json.dumps(message), flush=True)


if __name__ == "__main__":
    main()
