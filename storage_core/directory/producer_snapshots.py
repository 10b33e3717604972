"""Choosing the producer snapshot to start from (Kafka's ``ProducerStateManager.truncateAndReload``)."""

from __future__ import annotations

import bisect
import logging
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from storage_core.checkpoint import read_producer_snapshot
from storage_core.errors import CorruptSnapshotError
from storage_core.segment.file_names import SNAPSHOT_SUFFIX, snapshot_file_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from storage_core.checkpoint import ProducerStateEntry
    from storage_core.directory.segments import Segments
    from storage_core.filesystem import FileSystem

__all__ = ["ProducerSnapshot", "kept_snapshot_offsets", "newest_producer_snapshot"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ProducerSnapshot:
    """The producers known before ``offset``."""

    offset: int
    producers: tuple[ProducerStateEntry, ...]


def newest_producer_snapshot(
    filesystem: FileSystem, path: str, offsets: Sequence[int], *, above_offset: int, up_to_offset: int
) -> ProducerSnapshot | None:
    """The newest usable snapshot within some offsets. A damaged one makes room for the next older one.

    Args:
        filesystem: Where to read.
        path: The partition's directory.
        offsets: Those of the snapshots that count, ascending: `kept_snapshot_offsets`.
        above_offset: A snapshot here or below is of no use: the log start offset.
        up_to_offset: The highest offset that a snapshot may have.
    """
    for index in reversed(range(bisect.bisect_right(offsets, up_to_offset))):
        offset = offsets[index]
        if offset <= above_offset:
            break
        try:
            producers = read_producer_snapshot(filesystem, os.path.join(path, snapshot_file_name(offset)))
        except CorruptSnapshotError as error:
            _log.warning("Ignored a producer snapshot, and took an older one or the log: %s", error)
            continue
        if producers is not None:
            return ProducerSnapshot(offset, producers)
    return None


def kept_snapshot_offsets(segments: Segments) -> Sequence[int]:
    """Offsets of the snapshots that a starting broker would keep, ascending.

    One that belongs to no segment counts only as the newest of all.
    """
    offsets = segments.file_names.base_offsets(SNAPSHOT_SUFFIX)
    is_kept = np.isin(offsets, segments.base_offsets)
    if len(offsets) and (not segments or offsets[-1] >= segments.base_offsets[-1]):
        # The newest of all; if a segment begins with it, it counts in any case.
        is_kept[-1] = True
    kept: list[int] = np.asarray(offsets, np.int64)[is_kept].tolist()
    return kept
