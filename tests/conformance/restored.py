"""A case restored to another directory: how Spark reads and writes it, and what a consumer reads afterwards.

Rows keep their offsets, and logs their start and end. Old formats, transactions and append times become plain
batches of format v2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from conformance.case_under_test import INTERNAL_TOPICS
from conformance.expected import ROW_SCHEMA
from conformance.rules import READ_COMMITTED

if TYPE_CHECKING:
    from pathlib import Path

    from conformance.case_under_test import CaseUnderTest, Options
    from conformance.expected import ExpectedPartition

_CREATE_TIME = 0


def options_to_read(case: CaseUnderTest, isolation_level: str) -> Options:
    """Return all that can be read, also around damage."""
    options = {**case.selection(), "include_headers": True, "isolation_level": isolation_level}
    return {**options, "mode": "DROPMALFORMED"} if case.rules.damaged else options


def options_to_write(source: Path) -> Options:
    """Offsets as they are in ``source``."""
    return {"preserve_offsets": True, "offsets_from": source}


def restored_rows(case: CaseUnderTest, isolation_level: str) -> pa.Table:
    """Return the rows of the copy, for a consumer of either isolation level.

    Each record has a timestamp of its own in format v2, or -1, and its type is create time.
    """
    whole = {part.name: (part.log_start_offset, part.end_offset) for part in case.partitions}
    rows = case.expected_rows(whole, isolation_level)
    place = ROW_SCHEMA.get_field_index("timestampType")
    kinds = pa.repeat(pa.scalar(_CREATE_TIME, pa.int32()), rows.num_rows)
    return rows.set_column(place, ROW_SCHEMA.field(place), kinds)


def restored_partitions(case: CaseUnderTest, isolation_level: str) -> list[ExpectedPartition]:
    """Return all partitions of the topics that are restored: those with rows, and those without any committed record.

    If a topic has offsets and committed records, but no rows, a write cannot know whether it was part of the read.
    """
    topics = set(restored_rows(case, isolation_level)["topic"].to_pylist())
    committed = set(restored_rows(case, READ_COMMITTED)["topic"].to_pylist())
    ended = {partition.topic for partition in case.partitions if partition.end_offset > 0}
    topics |= ended - committed - INTERNAL_TOPICS
    return [partition for partition in case.partitions if partition.topic in topics]
