"""What ``kafka-dump-log.sh`` 4.1 (``kafka.tools.DumpLogSegments``) says of files, byte for byte: logs, indexes, snapshots.

The text comes in pieces, so that nothing large is held. Where the tool fails with an exception, the pieces end with an
error, and what it would not have printed is not printed here. Its reports at the end, which go to standard error, are kept
in `DumpReport`.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final

from storage_core.dump.log_text import (
    MAX_INT32,
    DumpOptions,
    DumpReport,
    LogText,
    absolute_path,
    decrement_sequence,
    encoded,
    first_line,
    open_log,
    read_whole,
)
from storage_core.errors import CorruptSnapshotError
from storage_core.options.paths import is_uri

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from storage_core.checkpoint.partition_files import ProducerStateEntry
    from storage_core.dump.record_lines import RecordLines
    from storage_core.filesystem import ReadableFileSystem


SUFFIXES: Final = (".log", ".checkpoint", ".index", ".timeindex", ".snapshot", ".txnindex")
"""Of the files that the tool knows."""


class LogDump:
    """Dumps files, one after the other. ``report_error`` takes a line for standard error at once."""

    def __init__(
        self, filesystem: ReadableFileSystem, options: DumpOptions, report_error: Callable[[str], object]
    ) -> None:
        self.report = DumpReport()
        self._filesystem = filesystem
        self._options = options
        self._report_error = report_error

    def file(self, path: str) -> Iterator[bytes]:
        """Dump one file.

        Raises:
            CorruptError: The tool fails here. All that it prints before was yielded.
            OptionError: The file's name is none of its kind.
            OSError: The file, or one that it is compared with, cannot be read.
        """
        shown = java_path(path)
        name = shown.rpartition("/")[2]
        yield encoded(f"Dumping {shown}\n")
        match os.path.splitext("_" + name)[1]:
            case ".log" | ".checkpoint":
                yield from self._log(shown, name)
            case ".index" | ".timeindex" | ".txnindex" as suffix:
                from storage_core.dump.index_text import IndexText  # noqa: PLC0415  (numpy takes long to import)

                yield from IndexText(self._filesystem, self._options, self.report).text_of(shown, suffix)
            case ".snapshot":
                yield from self._snapshot(shown)
            case _:
                self.report.has_unknown = True
                self._report_error(f"Ignoring unknown file {shown}")

    def _log(self, path: str, name: str) -> Iterator[bytes]:
        yield encoded(first_line(path, name))
        max_bytes = None if self._options.max_bytes == MAX_INT32 else self._options.max_bytes
        records: RecordLines | None = None
        with open_log(self._filesystem, path) as log_file:
            if self._options.record_format is not None:
                from storage_core.dump.record_lines import RecordLines  # noqa: PLC0415  (Arrow takes long to import)

                records = RecordLines(path, self._options.record_format)
            text = LogText(log_file, max_bytes, records)
            try:
                yield from text.pieces()
            finally:
                self.report.has_damage |= text.has_damage
                if records is not None and records.gaps.pairs:
                    self.report.offset_gaps[absolute_path(path)] = records.gaps.pairs

    def _snapshot(self, path: str) -> Iterator[bytes]:
        from storage_core.checkpoint.partition_files import parse_producer_snapshot  # noqa: PLC0415  (likewise)

        try:
            producers = parse_producer_snapshot(read_whole(self._filesystem, path), path)
        except CorruptSnapshotError as error:
            self.report.has_damage = True
            self._report_error(str(error))
            return
        yield "".join(map(_producer_text, producers)).encode("ascii")


def java_path(path: str) -> str:
    """Normalize a path as ``java.io.File`` does: no doubled slashes, and none at the end."""
    if is_uri(path):
        return path
    return re.sub("//+", "/", path).rstrip("/") or path[:1]


def _producer_text(producer: ProducerStateEntry) -> str:
    first_offset = producer.current_transaction_first_offset
    transaction = "OptionalLong.empty" if first_offset is None else f"OptionalLong[{first_offset}]"
    text = (
        f"producerId: {producer.producer_id} producerEpoch: {producer.producer_epoch} "
        f"coordinatorEpoch: {producer.coordinator_epoch} currentTxnFirstOffset: {transaction} "
        f"lastTimestamp: {producer.timestamp_ms} "
    )
    if producer.last_offset >= 0:
        last_sequence, delta = producer.last_sequence, producer.offset_delta
        text += (
            f"firstSequence: {decrement_sequence(last_sequence, delta)} lastSequence: {last_sequence} "
            f"lastOffset: {producer.last_offset} offsetDelta: {delta} timestamp: {producer.timestamp_ms}"
        )
    return f"{text}\n"
