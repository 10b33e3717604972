"""A Python function for Spark that decodes framed Avro values with fastavro, as users write it who lack spark-avro."""

from __future__ import annotations

import io
import json
from typing import Any

from pyspark.sql import SparkSession

_FRAME_BYTES = 5


def register_by_fastavro(spark: SparkSession, schema: str) -> None:
    """Register the function ``by_fastavro``, whose type is that of Spark's ``from_avro``."""
    import fastavro

    parsed = fastavro.parse_schema(json.loads(schema))

    def by_fastavro(value: bytes) -> Any:
        return fastavro.schemaless_reader(io.BytesIO(value[_FRAME_BYTES:]), parsed)

    described = spark.sql(f"SELECT from_avro(CAST(NULL AS BINARY), '{schema}', map()) AS value").schema
    spark.udf.register("by_fastavro", by_fastavro, described["value"].dataType)
