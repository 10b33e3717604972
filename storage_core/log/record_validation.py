"""What the records of an append have to be like (Kafka's ``LogValidator.validateRecord``), and which of them are not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.errors import InvalidRecordError, InvalidTimestampError, RecordError
from storage_core.record.legacy_message import NO_TIMESTAMP_MS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from storage_core.log_config import LogConfig
    from storage_core.record.record_input import Records

__all__ = ["RecordErrors", "validate_records"]

_UNITS_PER_MS: Final = {"ms": 1, "us": 1_000, "ns": 1_000_000}
_INT64: Final = np.iinfo(np.int64)
# An append can be refused for every one of millions of records.
_MOST_KEPT: Final = 10_000
_MOST_IN_A_MESSAGE: Final = 3
_NO_ROWS: Final = np.zeros(0, np.int64)

_Int64Array = npt.NDArray[np.int64]


class RecordErrors:
    """Collects the records for which an append is refused.

    Args:
        earliest_ms: The timestamps that the log takes: from here on,
        latest_ms: up to here.
        now_ms: The time, which decides of these; for messages.
        of_batches: Whether the records stand in batches that a producer made; otherwise in a table.
    """

    def __init__(self, earliest_ms: int, latest_ms: int, now_ms: int, *, of_batches: bool) -> None:
        self._bounds = (
            f"a timestamp from {earliest_ms} to {latest_ms} ms, as message.timestamp.before.max.ms and "
            f"message.timestamp.after.max.ms allow at {now_ms}"
        )
        self._of_batches = of_batches
        self._count = 0
        self._errors: list[RecordError] = []
        self._without_key = _Places()
        self._untimely = _Places()
        self._marked_batches: list[int] = []

    def add(
        self,
        without_key: _Int64Array,
        untimely: _Int64Array = _NO_ROWS,
        timestamps_ms: Iterable[int] = (),
        *,
        batch_number: int = 0,
    ) -> None:
        """Add records of one batch, or of a table, that have no key, and others whose timestamps are too far off.

        Args:
            without_key: Their indexes, ascending.
            untimely: Likewise.
            timestamps_ms: The timestamps of these.
            batch_number: The batch.
        """
        room = _MOST_KEPT - len(self._errors)
        self._count += len(without_key) + len(untimely)
        key_rows, time_rows = without_key[:room].tolist(), untimely[:room].tolist()
        times = list(zip(time_rows, timestamps_ms, strict=False))
        self._without_key.add(
            len(without_key), [self._place(row, batch_number) for row in key_rows[:_MOST_IN_A_MESSAGE]]
        )
        self._untimely.add(
            len(untimely),
            [
                f"{timestamp_ms} in {self._place(row, batch_number)}"
                for row, timestamp_ms in times[:_MOST_IN_A_MESSAGE]
            ],
        )
        key_message = "Expected a key, because cleanup.policy is compact, found none."
        errors = [RecordError(row, key_message, batch_number) for row in key_rows]
        errors += [
            RecordError(row, f"Expected {self._bounds}, found {timestamp_ms}.", batch_number)
            for row, timestamp_ms in times
        ]
        errors.sort()
        self._errors += errors[:room]

    def add_marked_batch(self, record_count: int, batch_number: int) -> None:
        """Add all records of a batch that its producer has marked with log append time."""
        message = "Expected the create time, because only a log gives log append time, found a batch marked with it."
        self._count += record_count
        room = _MOST_KEPT - len(self._errors)
        self._errors += [RecordError(row, message, batch_number) for row in range(min(record_count, room))]
        self._marked_batches.append(batch_number)

    def raise_if_any(self, path: str | None) -> None:
        """Refuse the append if there are any.

        Raises:
            InvalidTimestampError: Some of them because of their timestamps.
            InvalidRecordError: All of them because they have no key.
        """
        if not self._count:
            return
        found = []
        if self._without_key.count:
            found.append(
                "Expected a key in every record, because cleanup.policy is compact, found none in "
                f"{self._without_key}. Compaction keeps the last record of each key: give each record one."
            )
        if self._untimely.count:
            wrong = "the producer's clock" if self._of_batches else "the clock or the unit of the column"
            found.append(
                f"Expected {self._bounds}, found {self._untimely}. Correct {wrong}, or widen the bounds."
            )
        if self._marked_batches:
            found.append(
                f"Expected the create time in a producer's records, found batch {self._marked_batches[0]} marked "
                "with log append time. Only a log gives that."
            )
        is_of_time = self._untimely.count or self._marked_batches
        raise (InvalidTimestampError if is_of_time else InvalidRecordError)(
            " ".join(found), record_errors=tuple(self._errors), record_error_count=self._count, path=path
        )

    def _place(self, row: int, batch_number: int) -> str:
        return f"record {row} of batch {batch_number}" if self._of_batches else f"record {row}"


class _Places:
    """How many, and where the first few are."""

    def __init__(self) -> None:
        self.count = 0
        self._first: list[str] = []

    def add(self, count: int, first: list[str]) -> None:
        self.count += count
        self._first += first[: _MOST_IN_A_MESSAGE - len(self._first)]

    def __str__(self) -> str:
        more = self.count - len(self._first)
        return ", ".join(self._first) + (f" and {more} more" if more else "")


def validate_records(records: Records, config: LogConfig, now_ms: int, *, path: str | None = None) -> None:
    """Check keys and timestamps as the configuration of the log asks for. Types are not looked at.

    Raises:
        InvalidRecordError: The log is compacted, and records have no key.
        InvalidTimestampError: Timestamps are too far from the present, or below -1.
    """
    without_key = _rows_without_key(records) if config.is_compacted else _NO_ROWS
    untimely = _NO_ROWS
    if not config.has_log_append_time and "timestamp" in records.schema.names:
        untimely = _untimely_rows(records.column("timestamp"), *_bounds_ms(config, now_ms))
    if without_key is _NO_ROWS is untimely:
        return
    untimely = untimely[~np.isin(untimely, without_key)]
    timestamps_ms = _timestamps_ms(records.column("timestamp"), untimely) if len(untimely) else ()
    errors = RecordErrors(*_bounds_ms(config, now_ms), now_ms, of_batches=False)
    errors.add(without_key, untimely, timestamps_ms)
    errors.raise_if_any(path)


def _bounds_ms(config: LogConfig, now_ms: int) -> tuple[int, int]:
    earliest_ms = max(now_ms - config.message_timestamp_before_max_ms, NO_TIMESTAMP_MS)
    return earliest_ms, now_ms + config.message_timestamp_after_max_ms


def _rows_without_key(records: Records) -> _Int64Array:
    if "key" not in records.schema.names:
        return np.arange(records.num_rows)
    keys = records.column("key")
    if pa.types.is_dictionary(keys.type):
        # A null may stand among the values that the indexes name.
        keys = keys.cast(keys.type.value_type)
    if not keys.null_count:
        return _NO_ROWS
    return np.asarray(pc.is_null(keys)).nonzero()[0]


def _untimely_rows(column: pa.Array | pa.ChunkedArray, earliest_ms: int, latest_ms: int) -> _Int64Array:
    if not (pa.types.is_int64(column.type) or pa.types.is_timestamp(column.type)):
        return _NO_ROWS
    found = []
    first_row = 0
    for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else (column,):
        rows = _rows_outside(chunk, earliest_ms, latest_ms)
        if len(rows):
            found.append(rows + first_row)
        first_row += len(chunk)
    return np.concatenate(found) if found else _NO_ROWS


def _rows_outside(chunk: pa.Array, earliest_ms: int, latest_ms: int) -> _Int64Array:
    """The rows whose timestamps are neither absent nor between two."""
    if not len(chunk):
        return _NO_ROWS
    # The bounds in the column's own unit: a finer one is floored to milliseconds, a second is the full one.
    if _is_in_seconds(chunk.type):
        lowest, highest = -(-earliest_ms // 1000), latest_ms // 1000
        absent_lowest, absent_highest = 0, -1
    else:
        factor = _units_per_ms(chunk.type)
        lowest, highest = earliest_ms * factor, latest_ms * factor + factor - 1
        absent_lowest, absent_highest = NO_TIMESTAMP_MS * factor, NO_TIMESTAMP_MS * factor + factor - 1
    lowest, highest = max(lowest, int(_INT64.min)), min(highest, int(_INT64.max))
    integers = chunk if pa.types.is_int64(chunk.type) else chunk.view(pa.int64())
    if integers.null_count:
        integers = integers.fill_null(lowest)
    values: _Int64Array = integers.to_numpy()
    if values.min() >= lowest and values.max() <= highest:
        return _NO_ROWS
    is_wrong = (values < lowest) | (values > highest)
    is_wrong &= (values < absent_lowest) | (values > absent_highest)
    return is_wrong.nonzero()[0]


def _timestamps_ms(column: pa.Array | pa.ChunkedArray, rows: _Int64Array) -> list[int]:
    """The timestamps of some rows, of which none is null; seconds may be more milliseconds than fit 64 bits."""
    values: list[int] = column.take(pa.array(rows[:_MOST_KEPT])).cast(pa.int64()).to_pylist()
    if _is_in_seconds(column.type):
        return [value * 1000 for value in values]
    factor = _units_per_ms(column.type)
    return [value // factor for value in values]


def _units_per_ms(kind: pa.DataType) -> int:
    return 1 if pa.types.is_int64(kind) else _UNITS_PER_MS[kind.unit]


def _is_in_seconds(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind)) and kind.unit == "s"
