"""Notice, while segments are read one after the other, that they do not belong to one log.

A batch that reaches into the next segment is damage, which a `SpanReader` finds. What is noticed here has no wrong byte:
offsets that are missing up to the next segment, and leader epochs that go back.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

import numpy as np

from storage_core.directory import INTERNAL_TOPICS, LogDirectoryFiles
from storage_core.record.batch_header import MAGIC_V2

if TYPE_CHECKING:
    from storage_core.filesystem import FileSystem
    from storage_core.record.batch_window import BatchWindow
    from storage_core.scan.spans import LogSpan


_log = logging.getLogger(__name__)


class SegmentOrder:
    """What a task has seen of the segments that it reads."""

    def __init__(self) -> None:
        self._directory = ""
        self._epoch = -1

    def check(self, window: BatchWindow, span: LogSpan) -> None:
        """Compare the leader epoch that a window begins with with the one that was read last, and warn if it is lower."""
        first, last = window.headers[0], window.headers[-1]
        if first["magic"] != MAGIC_V2 or last["magic"] != MAGIC_V2:
            self._epoch = -1
            return
        epoch = int(first["leader_epoch"])
        if span.directory == self._directory and 0 <= epoch < self._epoch:
            _log.warning(
                "%s: leader epochs go back from %d to %d at offset %d of %s-%d. Its segments may be those of several "
                "logs, as after files of two copies were merged, or a topic was created anew.",
                *(window.path, self._epoch, epoch, first["base_offset"], span.topic, span.partition),
            )
        self._directory, self._epoch = span.directory, int(last["leader_epoch"])

    def forget(self) -> None:
        """Forget what was seen, because damage followed it."""
        self._epoch = -1

    @staticmethod
    def check_end(filesystem: FileSystem, window: BatchWindow, span: LogSpan) -> None:
        """Warn if offsets are missing after the last window of a closed segment, in a log that is not compacted.

        A log is compacted if the cleaner's checkpoint names it, or if offsets are missing elsewhere in the window.
        """
        end_offset = span.segment_end_offset
        headers = window.headers
        next_offset = int(headers[-1]["base_offset"]) + int(headers[-1]["last_offset_delta"]) + 1
        if end_offset is None or span.end_offset < end_offset or next_offset >= end_offset:
            return
        if span.topic in INTERNAL_TOPICS or _has_holes(window):
            return
        root = LogDirectoryFiles(filesystem, os.path.dirname(span.directory))
        if (span.topic, span.partition) in root.cleaner_offsets:
            return
        _log.warning(
            "%s: offsets %d to %d of %s-%d are missing before the next segment, though the log does not look compacted. "
            "A segment may be lost.",
            *(window.path, next_offset, end_offset - 1, span.topic, span.partition),
        )


def _has_holes(window: BatchWindow) -> bool:
    """Return True if offsets are missing within or between the batches of a window; of older formats that is not known."""
    headers = window.headers
    base_offsets = headers["base_offset"].astype(np.int64)
    next_offsets = base_offsets + headers["last_offset_delta"] + 1
    is_holed = (headers["magic"] != MAGIC_V2) | (headers["record_count"] <= headers["last_offset_delta"])
    return bool(is_holed.any() or (base_offsets[1:] != next_offsets[:-1]).any())
