"""Choosing the producer snapshot to start from (Kafka's ``ProducerStateManager.truncateAndReload``)."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from storage_core.checkpoint import read_producer_snapshot
from storage_core.errors import CorruptSnapshotError
from storage_core.segment.file_names import SNAPSHOT_SUFFIX, base_offset_of, snapshot_file_name

if TYPE_CHECKING:
    from storage_core.checkpoint import ProducerStateEntry
    from storage_core.directory.segments import Segments
    from storage_core.filesystem import FileSystem

__all__ = ["ProducerSnapshot", "newest_producer_snapshot"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ProducerSnapshot:
    """The producers known before ``offset``."""

    offset: int
    producers: tuple[ProducerStateEntry, ...]


def newest_producer_snapshot(
    filesystem: FileSystem, path: str, segments: Segments, *, above_offset: int, up_to_offset: int
) -> ProducerSnapshot | None:
    """The newest usable snapshot within some offsets.

    A damaged one makes room for the next older one. One that belongs to no segment counts only
    as the newest of all.

    Args:
        filesystem: Where to read.
        path: The partition's directory.
        segments: The segments of the log, and the names of the files beside them.
        above_offset: A snapshot here or below is of no use: the log start offset.
        up_to_offset: The highest offset that a snapshot may have.
    """
    for offset in reversed(_kept_offsets(segments)):
        if not above_offset < offset <= up_to_offset:
            continue
        try:
            producers = read_producer_snapshot(filesystem, os.path.join(path, snapshot_file_name(offset)))
        except CorruptSnapshotError as error:
            _log.warning("Ignored a producer snapshot, and took an older one or the log: %s", error)
            continue
        if producers is not None:
            return ProducerSnapshot(offset, producers)
    return None


def _kept_offsets(segments: Segments) -> list[int]:
    """Offsets of the snapshots that a starting broker would keep, ascending."""
    names = (name for name in segments.file_names if name.endswith(SNAPSHOT_SUFFIX))
    offsets = {offset for name in names if (offset := base_offset_of(name)) is not None}
    strays = offsets.difference(segments.base_offsets)
    kept = offsets - strays
    if strays and (not segments or max(strays) >= segments.base_offsets[-1]):
        kept.add(max(strays))
    return sorted(kept)
