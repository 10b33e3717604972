"""What the records of an append have to be like before they are encoded (Kafka's ``LogValidator``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.errors import InvalidRecordError, InvalidTimestampError
from storage_core.record.legacy_message import NO_TIMESTAMP_MS

if TYPE_CHECKING:
    import numpy.typing as npt

    from storage_core.log_config import LogConfig
    from storage_core.record.record_input import Records

__all__ = ["validate_records"]

_UNITS_PER_MS: Final = {"ms": 1, "us": 1_000, "ns": 1_000_000}
_INT64: Final = np.iinfo(np.int64)


def validate_records(records: Records, config: LogConfig, now_ms: int, *, path: str | None = None) -> None:
    """Check keys and timestamps as the configuration of the log asks for. Types are not looked at.

    Raises:
        InvalidRecordError: The log is compacted, and a record has no key.
        InvalidTimestampError: A record's timestamp is too far from the present, or below -1.
    """
    if config.is_compacted:
        _require_keys(records, path)
    if not config.has_log_append_time and "timestamp" in records.schema.names:
        _require_near(records, config, now_ms, path)


def _require_keys(records: Records, path: str | None) -> None:
    row = 0
    if "key" in records.schema.names:
        keys = records.column("key")
        if pa.types.is_dictionary(keys.type):
            # A null may stand among the values that the indexes name.
            keys = keys.cast(keys.type.value_type)
        if not keys.null_count:
            return
        row = pc.index(pc.is_null(keys), True).as_py()
    if records.num_rows:
        raise InvalidRecordError(
            f"Expected a key in every record, because cleanup.policy is compact, found none in record {row}. "
            "Compaction keeps the last record of each key: give each record one.",
            path=path,
        )


def _require_near(records: Records, config: LogConfig, now_ms: int, path: str | None) -> None:
    earliest_ms = max(now_ms - config.message_timestamp_before_max_ms, NO_TIMESTAMP_MS)
    latest_ms = now_ms + config.message_timestamp_after_max_ms
    column = records.column("timestamp")
    if not (pa.types.is_int64(column.type) or pa.types.is_timestamp(column.type)):
        return
    first_row = 0
    for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else (column,):
        row = _first_outside(chunk, earliest_ms, latest_ms)
        if row is not None:
            raise InvalidTimestampError(
                f"Expected a timestamp from {earliest_ms} to {latest_ms} ms, as message.timestamp.before.max.ms "
                f"and message.timestamp.after.max.ms allow at {now_ms}, found "
                f"{_milliseconds(chunk, row)} in record {first_row + row}. Correct the clock or the unit of "
                "the column, or widen the bounds.",
                path=path,
            )
        first_row += len(chunk)


def _first_outside(chunk: pa.Array, earliest_ms: int, latest_ms: int) -> int | None:
    """The first row whose timestamp is neither absent nor between two."""
    if not len(chunk):
        return None
    # The bounds in the column's own unit: a finer one is floored to milliseconds, a second is the full one.
    if _is_in_seconds(chunk):
        lowest, highest = -(-earliest_ms // 1000), latest_ms // 1000
        absent_lowest, absent_highest = 0, -1
    else:
        factor = 1 if pa.types.is_int64(chunk.type) else _UNITS_PER_MS[chunk.type.unit]
        lowest, highest = earliest_ms * factor, latest_ms * factor + factor - 1
        absent_lowest, absent_highest = NO_TIMESTAMP_MS * factor, NO_TIMESTAMP_MS * factor + factor - 1
    lowest, highest = max(lowest, int(_INT64.min)), min(highest, int(_INT64.max))
    values = _integers(chunk, null_value=lowest)
    if values.min() >= lowest and values.max() <= highest:
        return None
    is_wrong = (values < lowest) | (values > highest)
    is_wrong &= (values < absent_lowest) | (values > absent_highest)
    return int(is_wrong.argmax()) if is_wrong.any() else None


def _integers(chunk: pa.Array, null_value: int) -> npt.NDArray[np.int64]:
    """The values in the unit of the column."""
    integers = chunk if pa.types.is_int64(chunk.type) else chunk.view(pa.int64())
    if integers.null_count:
        integers = integers.fill_null(null_value)
    values: npt.NDArray[np.int64] = integers.to_numpy()
    return values


def _is_in_seconds(chunk: pa.Array) -> bool:
    return bool(pa.types.is_timestamp(chunk.type)) and chunk.type.unit == "s"


def _milliseconds(chunk: pa.Array, row: int) -> str:
    value = int(_integers(chunk, null_value=0)[row])
    if _is_in_seconds(chunk):
        return str(value * 1000)
    return str(value if pa.types.is_int64(chunk.type) else value // _UNITS_PER_MS[chunk.type.unit])
