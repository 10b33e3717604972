"""The columns of the matrix, each a list of ways of reading.

To add a column, write a module with a tuple of `Way` and name it in WAYS. Ways run in this order:
Spark's are next to each other because only one session lives at a time, and the last one looks at what
all the others left.
"""

from __future__ import annotations

from conformance.ways import (
    bounds,
    counts,
    damage,
    errors,
    indexes,
    offsets,
    restored,
    s3,
    spark,
    splits,
    streams,
    tables,
    topics,
    unchanged,
    written,
)
from conformance.ways.way import Way

__all__ = ["COLUMNS", "WAYS", "Way"]

WAYS: tuple[Way, ...] = (
    *tables.WAYS,
    *counts.WAYS,
    *offsets.WAYS,
    *bounds.WAYS,
    *topics.WAYS,
    *splits.WAYS,
    *indexes.WAYS,
    *errors.WAYS,
    *damage.WAYS,
    *written.WAYS,
    *restored.WAYS,
    *streams.WAYS,
    *spark.WAYS,
    *s3.WAYS,
    *unchanged.WAYS,
)

COLUMNS: tuple[str, ...] = tuple(dict.fromkeys(way.column for way in WAYS))
