"""Written again: what was read by column is appended to a log of our own, and read back from there."""

from __future__ import annotations

import tempfile
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import storage_core
from conformance.rules import READ_COMMITTED
from conformance.ways.way import Way
from storage_core import LogConfig, LogDirectory
from storage_core.errors import InvalidTimestampError

if TYPE_CHECKING:
    from conformance.case_under_test import CaseUnderTest
    from conformance.expected import ExpectedPartition

_CODECS: Final = ("uncompressed", "gzip", "snappy", "lz4", "zstd")
_RECORD: Final = ("key", "value", "timestamp", "headers")
# Where one append ends and the next one begins: few rows and many, so that they are encoded in every way.
_APPENDS: Final = (0, 1, 2, 10, 40, 1000)
# Of more partitions than this, each codec is tried on a part.
_MANY_PARTITIONS: Final = 50
_LARGEST_NUMBER: Final = (1 << 63) - 1


def _write(case: CaseUnderTest, codec: str) -> None:
    """Write every record that a consumer saw, at consecutive offsets, in many segments."""
    partitions = case.partitions
    if len(partitions) > _MANY_PARTITIONS:
        partitions = partitions[_CODECS.index(codec) :: len(_CODECS)]
    config = LogConfig(
        compression_type=codec,
        batch_size=2000,
        segment_index_bytes=400,
        index_interval_bytes=100,
        message_timestamp_after_max_ms=_LARGEST_NUMBER,
    )
    source = _read(case)
    with tempfile.TemporaryDirectory(dir=case.logs.parent) as root:
        with LogDirectory.open(root, config=config) as logs:
            written = {part.name: _append(case, logs, part, _of(source, part)) for part in partitions}
        copy = storage_core.read_table(root, include_headers=True, **case.selection())
    for part in partitions:
        rows, expected = _of(copy, part), written[part.name]
        offsets = pa.chunked_array([range(len(expected))], pa.int64())
        case.check_equal(rows["offset"].equals(offsets), True, f"{part.name}, {codec}: offsets from 0 on")
        same = rows.select(_RECORD).combine_chunks().equals(expected.select(_RECORD).combine_chunks())
        case.check_equal(same, True, f"{part.name}, {codec}: records as they were read first")


def _read(case: CaseUnderTest) -> pa.Table:
    """Return what a consumer sees of all partitions, except damage."""
    tables = []
    for span in case.spans():
        tables.append(case.read(case.bounded(span), READ_COMMITTED))
        case.check_rows(tables[-1], span, READ_COMMITTED, f"read_table of {dict(span)}")
    return pa.concat_tables(tables)


def _of(rows: pa.Table, part: ExpectedPartition) -> pa.Table:
    return rows.filter((pc.field("topic") == part.topic) & (pc.field("partition") == part.partition))


def _append(case: CaseUnderTest, logs: LogDirectory, part: ExpectedPartition, rows: pa.Table) -> pa.Table:
    """Append rows, some at a time; returns those that were taken."""
    log = logs.create(part.topic, part.partition)
    is_timely = pc.greater_equal(rows["timestamp"].cast(pa.int64()), -1000)
    if not pc.all(is_timely, min_count=0).as_py():
        # A broker may keep what a producer made of no timestamp; an append refuses it.
        with pytest.raises(InvalidTimestampError):
            log.append(rows.select(_RECORD))
        case.check_equal(log.log_end_offset, 0, f"{part.name}: log end after a refused append")
        rows = rows.filter(is_timely)
    borders = [*(border for border in _APPENDS if border < len(rows)), len(rows)]
    for start, end in pairwise(borders):
        info = log.append(rows.select(_RECORD).slice(start, end - start))
        case.check_equal((info.first_offset, info.last_offset), (start, end - 1), f"{part.name}: append")
    return rows


WAYS = tuple(
    Way("written", codec, partial(_write, codec=codec), is_quick=codec == "uncompressed") for codec in _CODECS
)
