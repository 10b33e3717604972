"""Which records survive (``Cleaner.shouldRetainRecord``), by column."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from storage_core.record.batch_header import CONTROL_FLAG, DELETE_HORIZON_FLAG, MAGIC_V2
from storage_core.record.section import Slices

if TYPE_CHECKING:
    from storage_core.compaction.offset_map import OffsetMap
    from storage_core.record.section import RecordColumns, RecordSection

__all__ = ["count_of_unkeyed", "surviving_records"]

_BoolArray = npt.NDArray[np.bool_]


def surviving_records(
    section: RecordSection,
    columns: RecordColumns,
    offset_map: OffsetMap,
    *,
    now_ms: int,
    keeps_legacy_tombstones: bool,
) -> _BoolArray:
    """Per record of some batches that are not discarded as a whole, whether it survives.

    Args:
        section: Where the records lie.
        columns: Their offsets, keys and values.
        offset_map: The last offset of each key. What lies above all that it knows survives.
        now_ms: The time of the pass.
        keeps_legacy_tombstones: Whether tombstones of formats v0 and v1 survive.
    """
    keys, values = columns.keys, columns.values
    assert keys is not None and values is not None  # noqa: S101, PT018  (they were asked for)
    survives = ~_is_judged(section, columns, offset_map)
    rows = np.flatnonzero(~survives & (keys.lengths >= 0))
    found = offset_map.get_many(section.buffer, Slices(keys.starts[rows], keys.lengths[rows]))
    survives[rows] = columns.offsets[rows] >= found
    is_tombstone = values.lengths[rows] < 0
    if is_tombstone.any():
        protects = _protects_tombstones(section.headers, now_ms, keeps_legacy_tombstones)
        survives[rows] &= ~is_tombstone | np.repeat(protects, columns.row_counts)[rows]
    return survives


def count_of_unkeyed(section: RecordSection, columns: RecordColumns, offset_map: OffsetMap) -> int:
    """How many of the records do not survive because they have no key."""
    assert columns.keys is not None  # noqa: S101  (they were asked for)
    is_unkeyed = columns.keys.lengths < 0
    if not is_unkeyed.any():
        return 0
    return int(np.count_nonzero(is_unkeyed & _is_judged(section, columns, offset_map)))


def _is_judged(section: RecordSection, columns: RecordColumns, offset_map: OffsetMap) -> _BoolArray:
    """Per record, whether its key decides: it is data, and the map knows about its offset."""
    is_judged: _BoolArray = columns.offsets <= offset_map.latest_offset
    is_control = (section.headers["attributes"] & CONTROL_FLAG) != 0
    if is_control.any():
        is_judged &= ~np.repeat(is_control, columns.row_counts)
    return is_judged


def _protects_tombstones(headers: npt.NDArray[Any], now_ms: int, keeps_legacy_tombstones: bool) -> _BoolArray:
    """Per batch, whether its tombstones survive: its delete horizon has not passed, or is yet to be set."""
    protects: _BoolArray = (headers["attributes"] & DELETE_HORIZON_FLAG) == 0
    protects |= headers["base_timestamp_ms"] > now_ms
    return np.where(headers["magic"] < MAGIC_V2, keeps_legacy_tombstones, protects)
