"""What ``kafka-dump-log.sh`` 4.1 (``kafka.tools.DumpLogSegments``) says of files, byte for byte: logs, indexes, snapshots.

The text comes in pieces, so that nothing large is held. Where the tool fails with an exception, the pieces end with an
error, and what it would not have printed is not printed here. Its reports at the end, which go to standard error, are kept
in `DumpReport`.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from storage_core.dump.log_text import (
    MAX_INT32,
    LogText,
    absolute_path,
    decrement_sequence,
    first_line,
    open_log,
    read_whole,
)
from storage_core.errors import CorruptSnapshotError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from storage_core.checkpoint.partition_files import ProducerStateEntry
    from storage_core.dump.record_lines import RecordLines
    from storage_core.filesystem import FileSystem, OpenFile


DEFAULT_MAX_MESSAGE_BYTES: Final = 5 << 20
SUFFIXES: Final = (".log", ".checkpoint", ".index", ".timeindex", ".snapshot", ".txnindex")
"""Of the files that the tool knows."""


@dataclass(frozen=True, slots=True)
class RecordFormat:
    """The parts of a record that are printed.

    Attributes:
        has_content: Whether keys and values are.
        has_metadata: Whether offset, timestamp, sizes, sequence and header keys are.
        decoder: Which of `internal_records.MESSAGE_DECODERS` makes the texts of keys and values; None for UTF-8.
    """

    has_content: bool
    has_metadata: bool = True
    decoder: str | None = None


@dataclass(frozen=True, slots=True)
class DumpOptions:
    """What to print, named as the tool's flags.

    Attributes:
        record_format: How records are printed; None to print batches alone.
        max_bytes: The largest part of a log that is read; `MAX_INT32` for no limit.
        max_message_size: The largest batch that an index entry may point to.
        verify_index_only: Compare indexes with the log, and print no entries.
        index_sanity_check: Look at indexes as a broker's start does, and print no entries.
    """

    record_format: RecordFormat | None = None
    max_bytes: int = MAX_INT32
    max_message_size: int = DEFAULT_MAX_MESSAGE_BYTES
    verify_index_only: bool = False
    index_sanity_check: bool = False


@dataclass(slots=True)
class DumpReport:
    """What the tool prints to standard error, and whether anything is wrong.

    Attributes:
        offset_mismatches: By index file: offsets of entries, and of the batches where they point.
        timestamp_mismatches: By time index: timestamps of entries, and the largest of the batches.
        timestamps_out_of_order: By time index: timestamps of entries, and of the entries before them.
        offsets_not_found: By time index: offsets of entries, and of the batches found instead.
        offset_gaps: By log: offsets, and those that follow them.
        has_damage: Whether a file is damaged, or an index disagrees with its log.
        has_unknown: Whether a file was of no known kind.
    """

    offset_mismatches: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    timestamp_mismatches: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    timestamps_out_of_order: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    offsets_not_found: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    offset_gaps: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    has_damage: bool = False
    has_unknown: bool = False

    def lines(self) -> Iterator[str]:
        """Yield the lines that the tool prints after all files."""
        for path, pairs in self.offset_mismatches.items():
            yield f"Mismatches in :{path}"
            # The tool puts each pair before the others.
            yield from (f"  Index offset: {entry}, log offset: {found}" for entry, found in reversed(pairs))
        for path, pairs in self.timestamp_mismatches.items():
            yield f"Found timestamp mismatch in :{path}"
            yield from (f"  Index timestamp: {entry}, log timestamp: {found}" for entry, found in pairs)
        for path, pairs in self.timestamps_out_of_order.items():
            yield f"Found out of order timestamp in :{path}"
            yield from (
                f"  Index timestamp: {entry}, Previously indexed timestamp: {before}"
                for entry, before in pairs
            )
        for pairs in self.offsets_not_found.values():
            yield "The following indexed offsets are not found in the log."
            yield from (f"Indexed offset: {entry}, found log offset: {found}" for entry, found in pairs)
        for path, pairs in self.offset_gaps.items():
            yield f"Non-consecutive offsets in {path}"
            yield from (f"  {before} is followed by {after}" for before, after in reversed(pairs))


class LogDump:
    """Dumps files, one after the other.

    Attributes:
        report: What is reported at the end.

    Args:
        filesystem: Reads the files; nothing is written.
        options: What to print.
        report_error: Takes a line for standard error at once.
    """

    def __init__(
        self,
        filesystem: FileSystem,
        options: DumpOptions,
        report_error: Callable[[str], object],
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
        yield _encoded(f"Dumping {shown}\n")
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
        yield _encoded(first_line(path, name))
        with open_log(self._filesystem, path) as log_file:
            records = self._records(path)
            try:
                yield from self._batches(log_file, records)
            finally:
                if records is not None and records.gaps.pairs:
                    self.report.offset_gaps[absolute_path(path)] = records.gaps.pairs

    def _batches(self, log_file: OpenFile, records: RecordLines | None) -> Iterator[bytes]:
        max_bytes = None if self._options.max_bytes == MAX_INT32 else self._options.max_bytes
        text = LogText(log_file, max_bytes, records)
        try:
            yield from text.pieces()
        finally:
            self.report.has_damage |= text.has_damage

    def _records(self, path: str) -> RecordLines | None:
        if self._options.record_format is None:
            return None
        from storage_core.dump.record_lines import RecordLines  # noqa: PLC0415  (Arrow takes long to import)

        return RecordLines(path, self._options.record_format)

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
    return re.sub("//+", "/", path).rstrip("/") or path[:1]


def _encoded(text: str) -> bytes:
    return text.encode(errors="surrogateescape")


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
