"""Rows of every shape, built column by column from their numbers: the input and the expected output of Spark jobs.

A row's number follows from its value or, where the value is null, from its timestamp.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tests.interop.workload import BASE_TIMESTAMP_MS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
# The columns in Spark's notation.
SCHEMA: Final = "topic string, key binary, value binary, headers array<struct<key: string, value: binary>>, timestamp timestamp"

_KEYS: Final = 30_011
# Timestamps run backwards within this many rows.
_DISORDER: Final = 511
_DIGITS: Final = 10
# This header value is replaced by the row's number.
_NUMBER: Final = b"number"
_HEADERS_BY_KIND: Final[tuple[tuple[tuple[str, bytes | None], ...] | None, ...]] = (
    None,
    None,
    (),
    (("trace-id", _NUMBER),),
    (("null", None), ("empty", b"")),
    (("twice", b"1"), ("other", _NUMBER), ("twice", None)),
    (("", b"empty name"), ("ключ-鍵-🔑", bytes(range(256)))),
    None,
)


@dataclass(frozen=True)
class Events:
    """The rows of a job.

    Attributes:
        topics: Three consecutive rows go to one topic, the next three to the next.
        null_timestamps: Whether some rows have no timestamp.
    """

    topics: tuple[str, ...]
    null_timestamps: bool = True

    def rows(self, numbers: np.ndarray, *, null_headers: bool = True) -> pa.RecordBatch:
        """Return the rows with these numbers; where a row has no headers, the list is null or empty."""
        text = pc.utf8_lpad(pa.array(numbers).cast(pa.string()), _DIGITS, "0")
        timestamps_us = (BASE_TIMESTAMP_MS + (numbers ^ _DISORDER)) * 1000 + numbers % 1000
        no_timestamp = (numbers % 13 == 5) & (numbers % 11 != 3) & self.null_timestamps
        return pa.RecordBatch.from_pydict(
            {
                "topic": pa.array(self.topics).take(pa.array(numbers // 3 % len(self.topics))),
                "key": _keys(numbers),
                "value": _values(numbers, text),
                "headers": _headers(numbers, text, null_headers=null_headers),
                "timestamp": pa.array(timestamps_us, mask=no_timestamp).cast(pa.timestamp("us", "UTC")),
            }
        )


def _keys(numbers: np.ndarray) -> pa.Array:
    key_numbers = numbers * 7919 % _KEYS
    text = pc.binary_join_element_wise(
        pc.if_else(pa.array(key_numbers % 2 == 0), "customer ", "ключ-"),
        pa.array(key_numbers).cast(pa.string()),
        "",
    )
    text = pc.if_else(pa.array(numbers % 997 == 1), "", text)
    return pc.if_else(pa.array(numbers % 5 == 0), None, text).cast(pa.binary())


def _values(numbers: np.ndarray, text: pa.Array) -> pa.Array:
    # Incompressible content.
    noise = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    noise ^= noise >> np.uint64(29)
    noise *= np.uint64(0xBF58476D1CE4E5B9)
    value = pc.binary_join_element_wise(
        text, pa.array(noise).cast(pa.string()), pc.binary_repeat(" segment", pa.array(numbers % 6)), ""
    )
    return pc.if_else(pa.array(numbers % 11 == 3), None, value).cast(pa.binary())


def _headers(numbers: np.ndarray, text: pa.Array, *, null_headers: bool) -> pa.Array:
    kinds = numbers % len(_HEADERS_BY_KIND)
    flat = [header for headers in _HEADERS_BY_KIND for header in headers or ()]
    counts = np.array([len(headers or ()) for headers in _HEADERS_BY_KIND])
    starts = np.cumsum(counts) - counts
    offsets = np.concatenate(([0], np.cumsum(counts[kinds]))).astype(np.int32)
    row = np.repeat(np.arange(len(numbers)), counts[kinds])
    which = starts[kinds][row] + np.arange(len(row)) - offsets[:-1][row]
    values = pc.if_else(
        pa.array(np.array([value == _NUMBER for _, value in flat])[which]),
        text.take(pa.array(row)).cast(pa.binary()),
        pa.array([value for _, value in flat], pa.binary()).take(pa.array(which)),
    )
    names = pa.array([name for name, _ in flat], pa.string()).take(pa.array(which))
    is_null = np.array([headers is None for headers in _HEADERS_BY_KIND])[kinds]
    return pa.ListArray.from_arrays(
        pa.array(offsets),
        pa.StructArray.from_arrays([names, values], ["key", "value"]),
        mask=pa.array(is_null) if null_headers else None,
    )


def numbers_of(value: pa.ChunkedArray, timestamp_ms: pa.ChunkedArray) -> np.ndarray:
    """Return the numbers of these rows."""
    told = pc.binary_slice(value, 0, _DIGITS).cast(pa.string()).cast(pa.int64())
    by_time = np.bitwise_xor(timestamp_ms.to_numpy() - BASE_TIMESTAMP_MS, _DISORDER)
    return pc.coalesce(told, pa.array(by_time)).to_numpy()


def distinct_keys() -> list[str]:
    """Return all distinct non-null keys."""
    keys = _keys(np.arange(5 * _KEYS)).drop_null().unique()
    return keys.cast(pa.string()).to_pylist()


@dataclass(frozen=True)
class Seen:
    """What the tasks of a job saw of their staged files, recorded in files.

    Attributes:
        directory: Holds the files.
        name: Of the job.
    """

    directory: Path
    name: str

    @property
    def failure(self) -> Path:
        """Holds the number of bytes that the failed attempt had on disk."""
        return self.directory / f"{self.name} failed"

    @property
    def large_pieces(self) -> Path:
        """Exists if some rows were staged in a file that becomes a segment."""
        return self.directory / f"{self.name} staged segments"


def row_maker(
    events: Events, root: Path, seen: Seen, *, fails_once: bool = False
) -> Callable[..., Iterator[pa.RecordBatch]]:
    """Return the function with which a Spark job turns row numbers into rows.

    Args:
        events: The rows.
        root: Where the job stages them.
        seen: Records what the tasks saw.
        fails_once: Whether the first attempt of one task fails after some of its rows are on disk.
    """
    return functools.partial(_make_rows, events, root, seen, fails_once)


def _make_rows(
    events: Events, root: Path, seen: Seen, fails_once: bool, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    from pyspark import TaskContext

    context = TaskContext.get()
    attempt = f".segmentlog-stage-*-{context.partitionId()}-{context.taskAttemptId()}*"
    is_to_fail = fails_once and context.partitionId() == 1 and context.attemptNumber() == 0
    for batch in batches:
        yield events.rows(batch.column(0).to_numpy())
        # Includes those of earlier tasks, which are complete.
        if any(root.glob(".segmentlog-stage-*.log")):
            seen.large_pieces.touch()
        size_bytes = sum(path.stat().st_size for path in root.glob(attempt))
        if is_to_fail and size_bytes:
            seen.failure.write_text(str(size_bytes))
            raise RuntimeError("the first attempt ends here")
