"""The text of index files, byte for byte that of ``kafka-dump-log.sh`` 4.1, and where they disagree with their logs."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from storage_core.dump.log_text import (
    MAX_BATCH_BYTES,
    DumpOptions,
    DumpReport,
    FoundBatch,
    absolute_path,
    base_offset_of_name,
    encoded,
    find_batches,
    open_log,
    read_whole,
    tool_fails,
)
from storage_core.dump.record_iteration import header_of, iterate_records
from storage_core.errors import CorruptError, CorruptIndexError, SegmentLogError
from storage_core.filesystem import ReadableFile, ReadableFileSystem
from storage_core.record.batch_header import (
    HEADER_DTYPE,
    HEADER_SIZE_BYTES,
    MAGIC_V2,
    NO_TIMESTAMP_MS,
    gather,
)
from storage_core.record.batch_window import BatchWindow
from storage_core.record.column_decode import UnevenRecordsError, decode_by_column
from storage_core.record.section import PADDING_BYTES, WINDOW_BYTES, SectionMaker, WantedFields
from storage_core.record.varint import MalformedVarintError
from storage_core.segment.offset_index import ENTRY_SIZE_BYTES as OFFSET_ENTRY_BYTES
from storage_core.segment.offset_index import decode_offset_entries
from storage_core.segment.time_index import ENTRY_SIZE_BYTES as TIME_ENTRY_BYTES
from storage_core.segment.time_index import decode_time_entries
from storage_core.segment.transaction_index import ENTRY_SIZE_BYTES as TRANSACTION_ENTRY_BYTES
from storage_core.segment.transaction_index import decode_transaction_entries

# `AbstractIndex.warmEntries`: look-ups try the last 8 KiB first.
_WARM_BYTES: Final = 8192
# So many entries have their batches decoded together.
_ENTRIES_AT_ONCE: Final = 256
_WANTED: Final = WantedFields(headers=True)


class _Entry(NamedTuple):
    """An index entry: an offset and a position, or an offset and a timestamp."""

    offset: int
    value: int


class IndexText:
    """Prints indexes, and reports their mismatches."""

    def __init__(self, filesystem: ReadableFileSystem, options: DumpOptions, report: DumpReport) -> None:
        self._filesystem = filesystem
        self._options = options
        self._report = report

    def text_of(self, path: str, suffix: str) -> Iterator[bytes]:
        """Dump an index.

        Raises:
            CorruptError: The tool fails here. All that it prints before was yielded.
            OSError: The index or its log cannot be read.
        """
        match suffix:
            case ".index":
                return self._offset_index(path)
            case ".timeindex":
                return self._time_index(path)
            case _:
                return self._transaction_index(path)

    def _offset_index(self, path: str) -> Iterator[bytes]:
        base_offset = base_offset_of_name(path)
        with open_log(self._filesystem, _sibling(path, ".log")) as log_file:
            entries = self._offset_entries(path, base_offset)
            if not entries:
                yield encoded(f"{path} is empty.\n")
            elif self._options.index_sanity_check:
                self._check(path, entries[-1].offset >= base_offset, OFFSET_ENTRY_BYTES)
                yield encoded(f"{path} passed sanity check.\n")
            else:
                for entry in _up_to_zeros(entries, base_offset):
                    self._compare_offset(path, entry, log_file)
                    if not self._options.verify_index_only:
                        yield b"offset: %d position: %d\n" % entry

    def _compare_offset(self, path: str, entry: _Entry, log_file: ReadableFile) -> None:
        """Compare an entry with the batch at its position."""
        start_bytes = self._position(path, entry.value, log_file)
        end_bytes = min(start_bytes + self._options.max_message_size, log_file.status.size_bytes)
        found = next(find_batches(log_file, start_bytes, end_bytes), None)
        if found is None:
            raise _index_fails(path, f"an entry points to position {start_bytes}, where no whole batch is")
        if found.last_offset != entry.offset:
            self._disagree(self._report.offset_mismatches, path, entry.offset, found.last_offset)

    def _time_index(self, path: str) -> Iterator[bytes]:
        base_offset = base_offset_of_name(path)
        with open_log(self._filesystem, _sibling(path, ".log")) as log_file:
            offset_entries = self._offset_entries(_sibling(path, ".index"), base_offset)
            timestamps_ms, relative_offsets = decode_time_entries(self._whole_entries(path, TIME_ENTRY_BYTES))
            entries = list(map(_Entry, (relative_offsets + base_offset).tolist(), timestamps_ms.tolist()))
            if self._options.index_sanity_check:
                is_sound = not entries or (
                    entries[-1].value >= entries[0].value and entries[-1].offset >= base_offset
                )
                self._check(path, is_sound, TIME_ENTRY_BYTES)
                yield encoded(f"{path} passed sanity check.\n")
                return
            yield from self._time_entry_lines(
                path, _up_to_zeros(entries, base_offset), offset_entries, log_file
            )

    def _time_entry_lines(
        self, path: str, entries: list[_Entry], offset_entries: list[_Entry], log_file: ReadableFile
    ) -> Iterator[bytes]:
        timestamps = _LargestTimestamps(log_file)
        before_ms = NO_TIMESTAMP_MS
        for first in range(0, len(entries), _ENTRIES_AT_ONCE):
            here = entries[first : first + _ENTRIES_AT_ONCE]
            named: list[FoundBatch | None] = []
            failure = None
            try:
                for entry in here:
                    named.append(self._named_batch(path, entry, offset_entries, log_file))  # noqa: PERF401  (it fails)
            except CorruptError as error:
                # The tool prints the entries before it fails.
                failure = error
            timestamps.decode([found for found in named if found is not None])
            for entry, found in zip(here, named, strict=False):
                self._compare_timestamp(path, entry, found, before_ms, timestamps)
                if not self._options.verify_index_only:
                    yield b"timestamp: %d offset: %d\n" % (entry.value, entry.offset)
                before_ms = entry.value
            if failure is not None:
                raise failure

    def _named_batch(
        self, path: str, entry: _Entry, offset_entries: list[_Entry], log_file: ReadableFile
    ) -> FoundBatch | None:
        """Find the first batch that ends at or after an entry's offset."""
        start_bytes = self._position(path, _look_up(offset_entries, entry.offset), log_file)
        batches = find_batches(log_file, start_bytes, log_file.status.size_bytes)
        return next((found for found in batches if found.last_offset >= entry.offset), None)

    def _compare_timestamp(
        self,
        path: str,
        entry: _Entry,
        found: FoundBatch | None,
        before_ms: int,
        timestamps: _LargestTimestamps,
    ) -> None:
        """Compare an entry with the records of the batch that it names, and with the entry before it."""
        report = self._report
        if found is None or found.last_offset != entry.offset:
            last_offset = -1 if found is None else found.last_offset
            self._disagree(report.offsets_not_found, path, entry.offset, last_offset)
            return
        largest_ms = timestamps.of(found)
        if largest_ms != entry.value:
            self._disagree(report.timestamp_mismatches, path, entry.value, largest_ms)
        if before_ms >= entry.value:
            self._disagree(report.timestamps_out_of_order, path, entry.value, before_ms)

    def _position(self, path: str, position_bytes: int, log_file: ReadableFile) -> int:
        size_bytes = log_file.status.size_bytes
        if not 0 <= position_bytes <= size_bytes:
            raise _index_fails(path, f"an entry points to position {position_bytes} of {size_bytes}")
        return position_bytes

    def _disagree(self, where: dict[str, list[tuple[int, int]]], path: str, entry: int, found: int) -> None:
        where.setdefault(absolute_path(path), []).append((entry, found))
        self._report.has_damage = True

    def _check(self, path: str, is_ordered: bool, entry_bytes: int) -> None:
        """Check an index as a broker does when it starts."""
        if not is_ordered:
            raise _index_fails(path, "its last entry is below the first, or below the segment's base offset")
        status = self._filesystem.status(path)
        if status is not None and status.size_bytes % entry_bytes:
            raise _index_fails(path, f"its {status.size_bytes} bytes are no multiple of {entry_bytes}")

    def _offset_entries(self, path: str, base_offset: int) -> list[_Entry]:
        relative_offsets, positions_bytes = decode_offset_entries(
            self._whole_entries(path, OFFSET_ENTRY_BYTES)
        ).T
        return list(map(_Entry, (relative_offsets + base_offset).tolist(), positions_bytes.tolist()))

    def _whole_entries(self, path: str, entry_bytes: int) -> bytes:
        data = read_whole(self._filesystem, path)
        return data[: len(data) - len(data) % entry_bytes]

    def _transaction_index(self, path: str) -> Iterator[bytes]:
        base_offset_of_name(path)
        table = decode_transaction_entries(self._whole_entries(path, TRANSACTION_ENTRY_BYTES))
        # Kafka looks at the first byte of a version alone.
        versions = table["version"] >> 8
        if (versions > 0).any():
            raise _index_fails(path, f"it has an entry of the unknown version {int(versions.max())}")
        columns = (
            table[name].tolist()
            for name in ("producer_id", "first_offset", "last_offset", "last_stable_offset")
        )
        for entry in zip(versions.tolist(), *columns, strict=True):
            yield b"version: %d producerId: %d firstOffset: %d lastOffset: %d lastStableOffset: %d\n" % entry


def _sibling(path: str, suffix: str) -> str:
    folder, slash, name = path.rpartition("/")
    return f"{folder}{slash}{name.partition('.')[0]}{suffix}"


def _index_fails(path: str, problem: str) -> CorruptIndexError:
    return CorruptIndexError(
        f"The index is not sound: {problem}. kafka-dump-log.sh ends here, too; `segmentlog verify --indexes-only` says more.",
        path=path,
    )


def _look_up(entries: list[_Entry], offset: int) -> int:
    """Return where to search an offset from, as ``AbstractIndex.largestLowerBoundSlotFor`` does even in unsorted entries."""
    if not entries:
        return 0
    low, high = 0, len(entries) - 1
    first_warm = max(0, high - _WARM_BYTES // OFFSET_ENTRY_BYTES)
    if entries[first_warm].offset < offset:
        low = first_warm
    elif entries[0].offset > offset:
        return 0
    else:
        high = first_warm
    while low < high:
        middle = (low + high + 1) // 2
        found = entries[middle].offset
        if found == offset:
            return entries[middle].value
        if found > offset:
            high = middle - 1
        else:
            low = middle
    return entries[low].value


def _up_to_zeros(entries: list[_Entry], base_offset: int) -> list[_Entry]:
    """Drop the zeros that follow the entries after a crash."""
    for number, entry in enumerate(entries):
        if number > 0 and entry.offset == base_offset:
            return entries[:number]
    return entries


class _LargestTimestamps:
    """Largest timestamps of batches: ordinary batches are decoded together by column, others one by one."""

    def __init__(self, log_file: ReadableFile) -> None:
        self._file = log_file
        self._maker = SectionMaker(MAX_BATCH_BYTES, _WANTED)
        self._known: dict[int, int] = {}

    def decode(self, batches: list[FoundBatch]) -> None:
        """Decode those of some batches that are usual and small."""
        self._known.clear()
        data, starts, positions = bytearray(), [], []
        for found in batches:
            if len(data) + found.size_bytes <= WINDOW_BYTES and found.size_bytes >= HEADER_SIZE_BYTES:
                starts.append(len(data))
                positions.append(found.position_bytes)
                data += self._file.read_at(found.size_bytes, found.position_bytes)
        buffer = np.frombuffer(data + bytes(PADDING_BYTES), np.uint8)
        headers = gather(buffer, np.array(starts, np.int64), HEADER_DTYPE)
        window = BatchWindow(
            *(self._file.path, 0, buffer, np.array(starts, np.int64), headers),
            end=len(data),
            missing_bytes=0,
            is_preallocated_after=False,
        )
        rows = np.flatnonzero((headers["magic"] == MAGIC_V2) & (headers["record_count"] > 0))
        rows = np.setdiff1d(rows, window.crc_mismatches(rows))
        done = 0
        # A batch that cannot be decoded here is read record by record in `of`.
        with contextlib.suppress(SegmentLogError, UnevenRecordsError, MalformedVarintError, IndexError):
            for section in self._maker.sections(window, rows):
                # Kafka looks at all fields of a record.
                columns = decode_by_column(section, _WANTED)
                assert columns.timestamps_ms is not None  # noqa: S101  (they were asked for)
                firsts = np.cumsum(columns.row_counts) - columns.row_counts
                for row, largest_ms in zip(
                    rows[done:].tolist(),
                    np.maximum.reduceat(columns.timestamps_ms, firsts).tolist(),
                    strict=False,
                ):
                    self._known[positions[row]] = max(largest_ms, NO_TIMESTAMP_MS)
                done += len(section.starts)

    def of(self, found: FoundBatch) -> int:
        """Return the largest timestamp of a batch's records in milliseconds; -1 if it has none.

        Raises:
            CorruptRecordError: Kafka's iterator fails.
        """
        known = self._known.get(found.position_bytes)
        if known is not None:
            return known
        path = self._file.path
        if found.size_bytes > MAX_BATCH_BYTES:
            raise tool_fails(f"Found a batch of {found.size_bytes} bytes", path, found.position_bytes)
        batch = memoryview(self._file.read_at(found.size_bytes, found.position_bytes))
        header = header_of(batch, found.position_bytes, path)
        records = iterate_records(batch, header, path=path)
        return max(itertools.chain((NO_TIMESTAMP_MS,), (record.timestamp_ms for record in records)))
