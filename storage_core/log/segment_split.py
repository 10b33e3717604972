"""Splitting a segment whose offsets do not fit its indexes (Kafka's ``LocalLog.splitOverflowedSegment``).

Old versions of Kafka compacted too much into one segment. A crash at any point leaves either the original or the
whole of what replaces it; see `replace_segments`.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING

from storage_core.errors import CorruptRecordError
from storage_core.log.replace_segments import rename_files
from storage_core.segment.file_names import CLEANED_SUFFIX
from storage_core.segment.log_segment import LogSegment

if TYPE_CHECKING:
    from storage_core.filesystem import FileSystem
    from storage_core.log_config import LogConfig

__all__ = ["split_segment"]

_log = logging.getLogger(__name__)


def split_segment(
    filesystem: FileSystem, path: str, segment: LogSegment, config: LogConfig, now_ms: int
) -> list[LogSegment]:
    """Replace a segment by several whose offsets fit.

    Args:
        filesystem: Where to work.
        path: The partition's directory.
        segment: The segment. It is gone when this returns.
        config: The log's configuration.
        now_ms: The time.

    Returns:
        What took its place, in order.

    Raises:
        CorruptRecordError: Its batches do not go to its end; nothing has changed then.
    """
    parts = _copy(filesystem, path, segment, config, now_ms)
    rename_files(filesystem, path, parts, [segment])
    segment.delete()
    _log.warning("Split %s into %d segments: its offsets did not fit one.", segment.path, len(parts))
    return parts


def _copy(
    filesystem: FileSystem, path: str, segment: LogSegment, config: LogConfig, now_ms: int
) -> list[LogSegment]:
    parts: list[LogSegment] = []
    position_bytes = 0
    # One that is damaged has its segment recovered, whatever it says.
    aborted = deque(segment.transaction_index.read().entries)
    while position_bytes < segment.size_bytes:
        window = next(segment.windows(position_bytes), None)
        if window is None or not len(window.headers):
            raise CorruptRecordError(
                "Expected a whole batch in a segment that is to be split, found none. Open the log directory with "
                "recovery='kafka' to cut it off.",
                path=segment.path,
                position_bytes=position_bytes,
            )
        part = LogSegment.create(
            filesystem,
            path,
            int(window.headers["base_offset"][0]),
            config,
            now_ms=now_ms,
            suffix=CLEANED_SUFFIX,
        )
        position_bytes += part.append_from_file(segment, position_bytes)
        next_offset = part.read_next_offset()
        while aborted and aborted[0].last_offset < next_offset:
            part.append_aborted_transaction(aborted.popleft())
        part.seal()
        part.flush()
        parts.append(part)
    return parts
