"""One segment of a partition's log, for reading (the read side of Kafka's ``LogSegment``).

As with Kafka's ``LazyIndex``, no file is opened or examined before it is needed, so that a
partition of 100,000 segments is listed by its file names alone.

No answer depends on the indexes alone: they say where a walk over the batch headers may begin, and
confirm a step of it. An index that disagrees with the log is set aside.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from storage_core.errors import CorruptError, FileReplacedError, SegmentLogError, UnsupportedFormatError
from storage_core.record.batch_header import NO_TIMESTAMP_MS
from storage_core.segment.batch_walk import (
    PAGE_SIZE_BYTES,
    USUAL_MAX_BATCH_BYTES,
    BatchSummary,
    BatchWalk,
    read_batch,
    record_timestamps,
)
from storage_core.segment.damage import MAX_ENCODABLE_BATCH_BYTES
from storage_core.segment.damage_scanner import DamageScanner, TailKind
from storage_core.segment.damage_skipping_reader import BatchLocation, DamageSkippingReader, end_of_batches
from storage_core.segment.file_names import (
    SegmentEnd,
    TimestampOffset,
    log_file_name,
    offset_index_file_name,
    time_index_file_name,
    transaction_index_file_name,
)
from storage_core.segment.index_file import MISSING
from storage_core.segment.offset_index import ENTRY_SIZE_BYTES as OFFSET_ENTRY_BYTES
from storage_core.segment.offset_index import OffsetIndex
from storage_core.segment.time_index import TimeIndex
from storage_core.segment.transaction_index import TransactionIndex

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from storage_core.filesystem import (
        FileStatus,
        FileVersion,
        ReadableFile,
        ReadableFileSystem,
        StorageTraits,
    )
    from storage_core.record.batch_header import BatchHeader
    from storage_core.segment.damage import DamagedRange


DEFAULT_MAX_BATCH_BYTES: Final = 64 * 1024 * 1024
"""The largest batch that a reader accepts, compressed or not."""
_log: Final = logging.getLogger(__name__)
# After this many entries of the offset index that the log contradicts, the index is set aside.
_MAX_REFUTED_ENTRIES: Final = 4
# In most logs, the last entries of the index are closer to the end.
_TAIL_BYTES: Final = 256 << 10


@dataclass(slots=True, eq=False)
class SegmentReader:
    """One segment for reading: its log file, and its indexes, each read at first use.

    Positions that are passed in are batch boundaries: 0, or taken from a batch header.

    Args:
        base_offset: Lower bound of the offsets inside: the number in the file names.
        file_names: All names in the directory, so that absent indexes are not looked for; None if
            the directory was not listed.
        use_indexes: False walks every header instead.
        suffix: Suffix of the file names: ``.deleted`` for a segment that awaits its removal.
        max_batch_bytes: The largest batch that is read, compressed or not.
        known_status: The ``stat`` result of the log file, if it is known. Otherwise it is read
            when it is first needed. The segment ends at that size from then on.
        offset_limit: The offset that no batch reaches: the next segment's base offset, or the log
            end offset; None if that is not known.
        skip_damage: Whether look-ups and walks continue after damage; otherwise damage is an error.

    Attributes:
        known_end: What `end` has returned, or what the segment's writer has reported; None if it is not known.
    """

    filesystem: ReadableFileSystem
    directory: str
    base_offset: int
    file_names: Collection[str] | None = None
    use_indexes: bool = True
    suffix: str = ""
    max_batch_bytes: int = DEFAULT_MAX_BATCH_BYTES
    known_status: FileStatus | None = field(default=None, repr=False)
    offset_limit: int | None = None
    skip_damage: bool = False
    _offset_index: OffsetIndex | None = field(default=None, init=False, repr=False)
    _time_index: TimeIndex | None = field(default=None, init=False, repr=False)
    _transaction_index: TransactionIndex | None = field(default=None, init=False, repr=False)
    known_end: SegmentEnd | None = field(default=None, init=False, repr=False)
    _largest_timestamp: TimestampOffset | None = field(default=None, init=False, repr=False)
    _fetched: ReadableFile | None = field(default=None, init=False, repr=False)

    @property
    def traits(self) -> StorageTraits:
        """Return the traits of where the files lie."""
        return self.filesystem.traits_of(self.directory)

    @property
    def log_path(self) -> str:
        """Path of the file that holds the batches."""
        return self._path(log_file_name(self.base_offset))

    @property
    def status(self) -> FileStatus:
        """The ``stat`` result of the log file when it was first read.

        Raises:
            FileNotFoundError: The file is gone.
        """
        if self.known_status is None:
            status = self.filesystem.status(self.log_path)
            if status is None:
                # Raises what every other access to the file raises.
                with self.filesystem.open(self.log_path) as opened:
                    status = opened.status
            self.known_status = status
        return self.known_status

    @property
    def size_bytes(self) -> int:
        """Size of the log file, a preallocated tail included."""
        return self.status.size_bytes

    @property
    def version(self) -> FileVersion:
        """Version of the log file: a compacted file has a different one."""
        return self.status.version

    @property
    def modified_ms(self) -> int | None:
        """Modification time of the log file; None if the file system does not know it."""
        return self.status.modified_ms if self.traits.has_modification_times else None

    @property
    def is_one_read(self) -> bool:
        """Return True if the whole log file is read as fast as an index, so that its indexes are not worth reading."""
        return self.size_bytes <= max(PAGE_SIZE_BYTES, self.traits.request_cost_bytes)

    def open_log(self) -> ReadableFile:
        """Open the log file.

        Raises:
            FileNotFoundError: The file is gone.
            DataLossError: The path names a different file than before, a compacted one.
        """
        if self._fetched is not None:
            fetched, self._fetched = self._fetched, None
            return fetched
        known = self.known_status
        opened = self.filesystem.open(self.log_path, None if known is None else known.version)
        if self.known_status is None:
            self.known_status = opened.status
        elif (opened.status.version, opened.status.device) != (
            self.known_status.version,
            self.known_status.device,
        ):
            opened.close()
            raise FileReplacedError(
                "Expected the file that was listed, found another one under its name: a cleaner has replaced "
                "it. List the directory again.",
                path=self.log_path,
                offset=self.base_offset,
            )
        return opened

    def fetch_ahead(self) -> None:
        """Begin to fetch the log file for its next use, if that takes one request; `drop_fetched` takes it back."""
        # That use reports what is gone.
        with suppress(SegmentLogError):
            if self._fetched is None and self.traits.request_cost_bytes and self.is_one_read:
                self._fetched = self.open_log()
                self._fetched.expect_reads(0, self.size_bytes)

    def drop_fetched(self) -> None:
        """Close what was fetched ahead and not used."""
        if self._fetched is not None:
            self._fetched.close()
            self._fetched = None

    @property
    def offset_index(self) -> OffsetIndex:
        """The offset index, read at first use."""
        index = self._offset_index
        if index is None:
            path = self._index_path(offset_index_file_name(self.base_offset))
            if path is None:
                index = OffsetIndex.without_entries(self.base_offset, self._why_no_index())
            else:
                index = OffsetIndex.read(self.filesystem, path, self.base_offset, self.size_bytes)
            self._offset_index = index
            self._report("offset index", index.problem)
        return index

    @property
    def time_index(self) -> TimeIndex:
        """The time index, read at first use."""
        index = self._time_index
        if index is None:
            path = self._index_path(time_index_file_name(self.base_offset))
            if path is None:
                index = TimeIndex.without_entries(self.base_offset, self._why_no_index())
            else:
                index = TimeIndex.read(self.filesystem, path, self.base_offset)
            self._time_index = index
            self._report("time index", index.problem)
        return index

    @property
    def transaction_index(self) -> TransactionIndex:
        """The transaction index, read at first use whether or not indexes are to be used."""
        if self._transaction_index is None:
            # The listing does not decide: the file is created by the first abort, which may come after the listing.
            path = self._path(transaction_index_file_name(self.base_offset))
            self._transaction_index = TransactionIndex.read(self.filesystem, path, self.base_offset)
            self._report("transaction index", self._transaction_index.problem)
        return self._transaction_index

    def closed_offset_index(self) -> FileStatus | None:
        """Check that the offset index is cut to its entries.

        While a segment is written to, or recovered, zeros follow the entries of its offset index. They are cut off
        last, when everything else in the segment's index files is complete.

        Returns:
            Its ``stat`` result; None if it is not cut, or does not exist.
        """
        try:
            opened = self.filesystem.open(self._path(offset_index_file_name(self.base_offset)))
        except FileNotFoundError:
            return None
        with opened:
            status = opened.status
            last_entry = opened.read_at(OFFSET_ENTRY_BYTES, max(0, status.size_bytes - OFFSET_ENTRY_BYTES))
        return status if any(last_entry) or not status.size_bytes else None

    def is_offset_index_unchanged(self, status: FileStatus) -> bool:
        """Return True if the offset index still has this ``stat`` result."""
        return self.filesystem.status(self._path(offset_index_file_name(self.base_offset))) == status

    def is_in_place(self) -> bool:
        """Return True if the log file is still the one that was examined before, if any was."""
        known = self.known_status
        if known is None:
            return True
        status = self.filesystem.status(self.log_path)
        return status is not None and (status.version, status.device) == (known.version, known.device)

    def forget_indexes(self) -> None:
        """Free the memory of the indexes. They are read again when they are needed."""
        self._offset_index = self._time_index = self._transaction_index = None

    def forget_transaction_index(self) -> None:
        """Read the transaction index again when it is next needed: it may have been written meanwhile."""
        self._transaction_index = None

    def ignore_offset_index(self, problem: str) -> None:
        """Continue without the offset index, because it was found to be wrong."""
        self._offset_index = OffsetIndex.without_entries(self.base_offset, problem)
        self._report("offset index", problem)

    def ignore_time_index(self) -> None:
        """Continue without the time index, because it was found to be wrong."""
        problem = "it disagrees with the batches that it names"
        self._time_index = TimeIndex.without_entries(self.base_offset, problem)
        self._report("time index", problem)

    def _path(self, file_name: str) -> str:
        return f"{self.directory}/{file_name}{self.suffix}"

    def _index_path(self, file_name: str) -> str | None:
        """Return the path of an index that may be read, or None if it is known to be absent or is not to be used."""
        if not self.use_indexes:
            return None
        if self.file_names is not None and file_name + self.suffix not in self.file_names:
            return None
        return self._path(file_name)

    def _why_no_index(self) -> str:
        return MISSING if self.use_indexes else "indexes are not to be used"

    def _report(self, kind: str, problem: str | None) -> None:
        if problem is not None and self.use_indexes:
            _log.info("%s: %s not used, the log is walked instead: %s", self.log_path, kind, problem)

    def batches(
        self, position_bytes: int = 0, end_position_bytes: int | None = None
    ) -> Iterator[BatchHeader]:
        """Walk the batch headers from a batch boundary on.

        The walk ends without an error at a torn last batch and at a preallocated tail. A caller that
        needs all of a closed segment compares the end with ``size_bytes``.

        Raises:
            CorruptRecordError: The bytes are no batch, or offsets do not ascend.
        """
        with self.open_log() as log_file:
            yield from self._walk(log_file, end_position_bytes).batches(position_bytes)

    def batches_of_transactions(
        self, position_bytes: int = 0
    ) -> Iterator[tuple[BatchSummary, BatchHeader | None]]:
        """Walk as `batches` does, but parse only the headers of transactional batches."""
        with self.open_log() as log_file:
            walk = self._walk(log_file)
            for batch in walk.iter_summaries(position_bytes):
                yield batch, walk.strict.transactional_header(batch)

    def items(self, position_bytes: int = 0) -> Iterator[BatchHeader | DamagedRange]:
        """Yield batches and damaged ranges from a batch boundary on. All bytes are read, and every CRC checked."""
        with self.open_log() as log_file:
            yield from self._scanner(log_file).items(position_bytes, self.base_offset)

    def read_batch(self, header: BatchHeader) -> bytes:
        """Read one whole batch, header included, and check its CRC."""
        with self.open_log() as log_file:
            return read_batch(log_file, header, self.max_batch_bytes)

    def record_offsets(self, header: BatchHeader) -> list[int]:
        """Return the offsets of a batch's records, ascending. This raises what `read_batch` raises."""
        with self.open_log() as log_file:
            offsets, _ = record_timestamps(log_file, header, self.max_batch_bytes)
        ascending: list[int] = offsets.tolist()
        return ascending

    def translate_offset(self, offset: int, boundary_bytes: int = 0) -> BatchHeader | None:
        """Return the first batch whose last offset is at least ``offset``: the one after a gap if it is in a gap.

        The look-up may begin at the boundary of a batch that an earlier one has found.
        """
        with self.open_log() as log_file:
            walk = self._walk(log_file)
            start_bytes = self.start_position(walk, offset, boundary_bytes)
            return walk.first_reaching(offset, start_bytes, partial(self.index_proves_next, walk.strict))

    def locate_offset(self, offset: int) -> BatchLocation:
        """Find the first batch that reaches an offset, and what precedes it. Damage is skipped, whatever `skip_damage` says."""
        with self.open_log() as log_file:
            walk = self._walk(log_file)
            number = -1 if self.is_one_read else self.offset_index.number_at_or_below(offset - 1)
            while True:
                start_bytes = self.proven_position(walk, number)
                found = walk.locate_offset(offset, start_bytes)
                if found.before is not None or start_bytes == 0:
                    return found
                # A walk that begins at the batch looked for does not show what precedes it.
                number -= 1

    def is_preallocated_after(self, position_bytes: int, next_offset: int) -> bool:
        """Return True if nothing follows, or only zeros, which are preallocated space.

        If offsets are missing up to the segment's end, the zeros may be lost data.
        """
        if position_bytes >= self.size_bytes:
            return True
        if self.offset_limit is not None and next_offset < self.offset_limit:
            return False
        with self.open_log() as log_file:
            return self._scanner(log_file).is_blank(position_bytes)

    def check_gap(self, offset: int) -> None:
        """Check the batches before and after an offset that no batch seems to hold.

        If the last offset of the earlier one is damaged, or the first offset of the later one, the gap may be
        an illusion.

        Raises:
            CorruptRecordError: One of them is damaged.
        """
        with self.open_log() as log_file:
            walk = self._walk(log_file)
            before: BatchSummary | None = None
            after: BatchSummary | None = None
            for batch in walk.iter_summaries(self.start_position(walk, offset)):
                if batch.last_offset >= offset:
                    after = batch
                    break
                before = batch
            scanner = self._scanner(log_file)
            lowest_offset = None
            if before is not None:
                if not scanner.is_intact(before.position_bytes):
                    raise scanner.damage_at(before.position_bytes, before.base_offset).error()
                lowest_offset = before.last_offset + 1
            if after is not None:
                position_bytes = after.position_bytes
                if lowest_offset is None:
                    lowest_offset = after.base_offset if position_bytes > 0 else self.base_offset
                if scanner.log_batch_at(position_bytes, lowest_offset) is None:
                    raise scanner.damage_at(position_bytes, lowest_offset).error()

    def stop_position(self, offset: int) -> int:
        """Return where a walk that does not find an offset ends: at a torn batch, at zeros, or at the end of the file."""
        with self.open_log() as log_file:
            walk = self._walk(log_file)
            position_bytes = self.start_position(walk, offset)
            for batch in walk.iter_summaries(position_bytes):
                position_bytes = batch.end_bytes
            return position_bytes

    def end(self) -> SegmentEnd:
        """Find where the valid batches of the segment end. Bad ones at the end are left out if nothing valid follows.

        From then on, every other answer is limited to the bytes before the end. So of a log's last segment, request
        the end first.

        Raises:
            CorruptRecordError: Bytes that are no batch, followed by a valid batch.
        """
        if self.known_end is None:
            with self.open_log() as log_file:
                self.known_end = self._find_end(log_file)
        return self.known_end

    def tail_after(self, end: SegmentEnd) -> tuple[TailKind, int]:
        """Return what follows the end of the valid batches, and the offset at which its headers say that it ends."""
        if end.position_bytes >= self.size_bytes:
            return "none", end.next_offset
        with self.open_log() as log_file:
            rest = DamageScanner(log_file, self.base_offset, self.size_bytes, None, MAX_ENCODABLE_BATCH_BYTES)
            kind = rest.tail_kind(end.position_bytes)
            return kind, rest.declared_end(end.position_bytes, end.next_offset)

    def end_at_file_end(self, offset: int) -> None:
        """End the segment at an offset and with its file: what follows the valid batches is damage."""
        self.known_end = SegmentEnd(offset, self.size_bytes)
        self.offset_limit = offset

    def end_before(self, offset: int) -> None:
        """End the segment with the batches before an offset, because what follows is not committed yet.

        If no batch reaches the offset, nothing was added to this segment, and its end stays.

        Raises:
            CorruptRecordError: Damage on the way there.
        """
        self.offset_limit = offset
        with self.open_log() as log_file:
            walk = self._walk(log_file)
            for batch in walk.iter_summaries(self.start_position(walk, offset - 1)):
                if batch.last_offset >= offset - 1:
                    self.known_end = SegmentEnd(batch.last_offset + 1, batch.end_bytes)
                    self.known_status = replace(self.status, size_bytes=batch.end_bytes)
                    return

    def largest_timestamp(self, *, is_complete: bool) -> TimestampOffset:
        """Find the largest timestamp, and the last offset of the first batch that holds it.

        The time index is complete if a broker has closed it, and so has written the segment's largest timestamp
        to it: that of every segment but the last, and of the last one after a clean shutdown.

        Returns:
            Both; (-1, base offset) if no batch has a timestamp.
        """
        if self._largest_timestamp is None:
            with self.open_log() as log_file:
                self._largest_timestamp = self._find_largest_timestamp(
                    self._walk(log_file), is_complete=is_complete
                )
        return self._largest_timestamp

    def largest_timestamp_ms(self, *, is_complete: bool) -> int:
        """Return the largest timestamp as a broker's look-ups see it: without timestamps, the file's modification time.

        Of a segment in remote storage, its metadata say it: nothing is read.

        Returns:
            Milliseconds since 1970; -1 if neither is known.
        """
        if self.status.newest_timestamp_ms is not None:
            return self.status.newest_timestamp_ms
        timestamp_ms = self.largest_timestamp(is_complete=is_complete).timestamp_ms
        modified_ms = self.modified_ms if timestamp_ms < 0 else None
        return timestamp_ms if modified_ms is None else modified_ms

    def offset_for_timestamp(self, timestamp_ms: int, start_offset: int = 0) -> TimestampOffset | None:
        """Find the first record, markers included, with at least this timestamp and at least this offset.

        This is a broker's algorithm, within one segment.

        Returns:
            The record's timestamp and offset; None if there is none.

        Raises:
            CorruptRecordError: A batch on the way is damaged.
        """
        if self._largest_timestamp is not None and self._largest_timestamp.timestamp_ms < timestamp_ms:
            return None
        with self.open_log() as log_file:
            while True:
                # A walk that skips damage may search only so much: each attempt has a walk of its own.
                walk = self._walk(log_file)
                try:
                    return self._first_record(log_file, walk, timestamp_ms, start_offset)
                except _StaleTimeIndexError:
                    self.ignore_time_index()

    def cut_points(
        self, start_position_bytes: int, end_position_bytes: int, target_bytes: int
    ) -> list[BatchHeader]:
        """Choose the batches at which to cut a range into pieces of at least ``target_bytes``.

        The base offset of a wrapper is the one after the previous batch. There are no cuts after damage: the
        reader of that piece reports it.
        """
        cuts: list[BatchHeader] = []
        with self.open_log() as log_file:
            walk = self._walk(log_file)
            boundary_bytes = start_position_bytes
            goal_bytes = boundary_bytes + max(1, target_bytes)
            while goal_bytes < end_position_bytes:
                try:
                    header = self._batch_at_or_after(walk, goal_bytes, boundary_bytes)
                except CorruptError:
                    break
                if header is None or header.position_bytes >= end_position_bytes:
                    break
                cuts.append(header)
                boundary_bytes = header.position_bytes
                goal_bytes = boundary_bytes + max(1, target_bytes)
        return cuts

    def _scanner(self, log_file: ReadableFile, end_position_bytes: int | None = None) -> DamageScanner:
        end_bytes, end_offset = self.size_bytes, self.offset_limit
        if self.known_end is not None:
            end_bytes = self.known_end.position_bytes
            end_offset = self.known_end.next_offset if end_offset is None else end_offset
        if end_position_bytes is not None:
            end_bytes = min(end_bytes, end_position_bytes)
        return DamageScanner(log_file, self.base_offset, end_bytes, end_offset, self.max_batch_bytes)

    def _walk(self, log_file: ReadableFile, end_position_bytes: int | None = None) -> DamageSkippingReader:
        scanner = self._scanner(log_file, end_position_bytes)
        return DamageSkippingReader(log_file, self.base_offset, scanner, skip_damage=self.skip_damage)

    # The index search: from which entry of the offset index a walk may begin.

    def start_position(self, walk: DamageSkippingReader, offset: int, boundary_bytes: int = 0) -> int:
        """Return where to begin a walk that must meet every batch from ``offset`` on: at a known boundary, or after it."""
        if self.is_one_read:
            return boundary_bytes
        return self._proven_position_after(walk, self.offset_index.number_at_or_below(offset), boundary_bytes)

    def _proven_position_after(self, walk: DamageSkippingReader, number: int, boundary_bytes: int) -> int:
        """Return a `proven_position` after a boundary, or the boundary, below which no entry is checked."""
        index = self.offset_index
        if number < 0 or index.entry(number).position_bytes <= boundary_bytes:
            return boundary_bytes
        return max(boundary_bytes, self.proven_position(walk, number))

    def proven_position(self, walk: DamageSkippingReader, number: int) -> int:
        """Return the position of an entry of the offset index, or of one before it, that the log confirms, or 0.

        If the log refutes several entries in a row, the index is set aside.
        """
        number = min(number, len(self.offset_index) - 1)
        for candidate in range(number, max(number - _MAX_REFUTED_ENTRIES, -1), -1):
            if self._is_entry_confirmed(walk, candidate):
                return self.offset_index.entry(candidate).position_bytes
        if 0 <= number < len(self.offset_index):
            self.ignore_offset_index(f"entry {number} does not name the beginning of such a batch")
        return 0

    def _is_entry_confirmed(self, walk: DamageSkippingReader, number: int) -> bool:
        """Return True if a walk from the previous entry, or from the segment's beginning, ends exactly at an entry.

        The batch there must begin above the previous entry's offset, and not above the entry's own: then a
        look-up of the entry's offset can ignore all batches before it.
        """
        index = self.offset_index
        entry = index.entry(number)
        start_bytes, lowest_offset = 0, self.base_offset
        if number:
            previous = index.entry(number - 1)
            start_bytes, lowest_offset = previous.position_bytes, previous.offset + 1
        far = int(index.positions.searchsorted(start_bytes - USUAL_MAX_BATCH_BYTES)) - 1
        far_bytes = index.entry(far).position_bytes if far >= 0 else 0
        batch = walk.first_at_or_after(entry.position_bytes, start_bytes, far_bytes)
        if batch is None:
            if number == len(index) - 1:
                # The last append was indexed, but is torn: the log ends before it.
                self._offset_index = index.without_last_entry()
            return False
        try:
            return batch.position_bytes == entry.position_bytes and self._begins_between(
                walk.strict, batch, lowest_offset, entry.offset
            )
        except (CorruptError, UnsupportedFormatError):
            return False

    def _begins_between(
        self, walk: BatchWalk, batch: BatchSummary, lowest_offset: int, highest_offset: int
    ) -> bool:
        """Return True if the offset of a batch's first record is between two offsets, both included.

        The batch may end above them: older brokers' entries name the first offset of an append,
        not its last one.
        """
        if batch.last_offset < lowest_offset or batch.base_offset > highest_offset:
            return False
        if batch.base_offset >= lowest_offset and batch.last_offset <= highest_offset:
            return True
        header = walk.batch_at(batch.position_bytes)
        if header is None:
            return False
        if header.is_wrapper and batch.last_offset <= highest_offset:
            return True
        return lowest_offset <= walk.first_offset(header, self.max_batch_bytes) <= highest_offset

    def index_proves_next(self, walk: BatchWalk, before: BatchSummary, after: BatchSummary) -> bool:
        """Return True if the offset index names the batch ``after``, whose offsets directly follow those of ``before``.

        Then the length in the header of ``before`` is right, and its CRC, which covers a whole batch, need not be
        checked. A wrapper's header does not tell whether offsets are missing.
        """
        if self.is_one_read:
            return False
        index = self.offset_index
        number = int(index.positions.searchsorted(after.position_bytes))
        if (
            number == len(index)
            or after.position_bytes != before.end_bytes
            or after.base_offset != before.last_offset + 1
        ):
            return False
        entry = index.entry(number)
        is_named = (
            entry.position_bytes == after.position_bytes
            and after.base_offset <= entry.offset <= after.last_offset
        )
        return is_named and not walk.header(after.position_bytes, after.base_offset).is_wrapper

    def _find_end(self, log_file: ReadableFile) -> SegmentEnd:
        walk = self._walk(log_file)
        stop_bytes = self.size_bytes
        # While the index is read.
        log_file.expect_reads(max(0, stop_bytes - _TAIL_BYTES), stop_bytes)
        number = len(self.offset_index) - 1
        while True:
            start_bytes = self.proven_position(walk, number)
            end = self._end_after(log_file, walk, start_bytes, stop_bytes)
            if end is not None:
                return end
            if start_bytes == 0:
                return SegmentEnd(self.base_offset, 0)
            # Nothing after this entry is valid: search between the previous entry and this one.
            stop_bytes = start_bytes
            number -= 1

    def _end_after(
        self, log_file: ReadableFile, walk: DamageSkippingReader, start_bytes: int, stop_bytes: int
    ) -> SegmentEnd | None:
        """Find where the batches from a boundary on end.

        Returns:
            Their end; None if none of them is valid.
        """
        try:
            end = end_of_batches(
                log_file, self.base_offset, start_bytes, stop_bytes, skip_damage=self.skip_damage
            )
        except CorruptError:
            if start_bytes == 0:
                raise
        else:
            if end is None or start_bytes == 0 or end.position_bytes == stop_bytes:
                return end
            if self._scanner(log_file).is_blank(end.position_bytes):
                return end
        # A torn append, or damage. Or the last entries lead into a record's value: a walk that begins more than a
        # usual batch earlier comes to the batch around it.
        number = int(self.offset_index.positions.searchsorted(start_bytes - USUAL_MAX_BATCH_BYTES)) - 1
        start_bytes = self.proven_position(walk, number)
        return end_of_batches(
            log_file, self.base_offset, start_bytes, stop_bytes, skip_damage=self.skip_damage
        )

    def _batch_at_or_after(
        self, walk: DamageSkippingReader, position_bytes: int, boundary_bytes: int
    ) -> BatchHeader | None:
        """Return the first indexed batch at or after a position, or the first batch there if the index ends before it."""
        number = int(self.offset_index.positions.searchsorted(position_bytes))
        if number < len(self.offset_index):
            proven_bytes = self.proven_position(walk, number)
            if proven_bytes >= position_bytes:
                header = walk.batch_at(proven_bytes)
                if header is None or not (header.is_wrapper or self.skip_damage):
                    return header
                # The previous batch says more about a wrapper's base offset.
                position_bytes = proven_bytes
        # The index ends before: walk from its last entry.
        number = min(number, len(self.offset_index)) - 1
        start_bytes = self._proven_position_after(walk, number, boundary_bytes)
        if self.skip_damage:
            # Do not cut at a damaged batch: the reader of the previous piece has to find its end.
            return walk.locate_first(
                lambda header: header.position_bytes >= position_bytes, start_bytes
            ).found
        for batch in walk.iter_summaries(start_bytes):
            if batch.position_bytes >= position_bytes:
                header = walk.batch_at(batch.position_bytes)
                # The walk knows more about a wrapper's base offset.
                return header and header.with_base_offset(batch.base_offset)
        return None

    # The search by timestamp: the time index says where a walk may begin, and what the largest timestamp is.

    def _find_largest_timestamp(self, walk: DamageSkippingReader, *, is_complete: bool) -> TimestampOffset:
        largest = TimestampOffset(NO_TIMESTAMP_MS, self.base_offset)
        start_bytes = 0
        entry = None if self.is_one_read else self.time_index.last_entry
        named = None if entry is None else self._named_batch(walk, entry)
        if entry is not None and named is None:
            self.ignore_time_index()
        elif entry is not None and named is not None:
            largest, start_bytes = entry, named.end_bytes
        if is_complete and (named is not None or self._seems_without_timestamps(walk)):
            # The end of the log shows whether entries are missing, unless timestamps descend there.
            last_indexed = self.offset_index.last_entry
            tail_bytes = start_bytes
            if last_indexed is not None and last_indexed.position_bytes > start_bytes:
                tail_bytes = max(start_bytes, self.proven_position(walk, len(self.offset_index) - 1))
            if all(
                batch.max_timestamp_ms <= largest.timestamp_ms for batch in walk.iter_summaries(tail_bytes)
            ):
                return largest
        for batch in walk.iter_summaries(start_bytes):
            if batch.max_timestamp_ms > largest.timestamp_ms:
                largest = TimestampOffset(batch.max_timestamp_ms, batch.last_offset)
        return largest

    def _named_batch(self, walk: DamageSkippingReader, entry: TimestampOffset) -> BatchSummary | None:
        """Return the batch that an entry of the time index names.

        Returns:
            Its summary; None if the two disagree.
        """
        for batch in walk.iter_summaries(self.start_position(walk, entry.offset)):
            if batch.last_offset >= entry.offset:
                is_named = batch.base_offset <= entry.offset and batch.max_timestamp_ms == entry.timestamp_ms
                return batch if is_named else None
        return None

    def _seems_without_timestamps(self, walk: DamageSkippingReader) -> bool:
        """Return True if the time index is empty for lack of timestamps: the first batch has none."""
        if self.is_one_read or len(self.time_index) or self.time_index.problem is not None:
            return False
        first = next(walk.iter_summaries(), None)
        return first is not None and len(self.offset_index) > 0 and first.max_timestamp_ms <= NO_TIMESTAMP_MS

    def _first_record(
        self, log_file: ReadableFile, walk: DamageSkippingReader, timestamp_ms: int, start_offset: int
    ) -> TimestampOffset | None:
        """Find the first record with at least this timestamp and at least this offset.

        Raises:
            _StaleTimeIndexError: The time index disagrees with the log, and decided where the search began.
        """
        entry = TimestampOffset(NO_TIMESTAMP_MS, self.base_offset)
        if not self.is_one_read:
            entry = self.time_index.lookup(timestamp_ms)
        # An entry below the start offset does not decide anything, so it need not be right.
        is_unproven = entry.timestamp_ms != NO_TIMESTAMP_MS and entry.offset > start_offset
        start_bytes = self.start_position(walk, max(entry.offset, start_offset))
        before: BatchSummary | None = None
        for batch in walk.iter_summaries(start_bytes):
            if is_unproven:
                is_unproven = not _is_batch_of_entry(batch, entry)
            if batch.max_timestamp_ms < timestamp_ms or batch.last_offset < start_offset:
                before = batch
                continue
            header = walk.batch_at(batch.position_bytes)
            if header is None:
                continue
            found = self._record_of(log_file, header, timestamp_ms, start_offset)
            if found is None:
                continue
            if before is not None and self._is_proven_by_indexes(walk, before, batch, start_bytes, entry):
                return found
            skipped = self._skipped_batch(walk, header, start_bytes, timestamp_ms, start_offset)
            if skipped is None:
                return found
            return self._record_of(log_file, skipped, timestamp_ms, start_offset) or found
        if is_unproven:
            raise _StaleTimeIndexError
        return None

    def _is_proven_by_indexes(
        self,
        walk: DamageSkippingReader,
        before: BatchSummary,
        found: BatchSummary,
        start_bytes: int,
        entry: TimestampOffset,
    ) -> bool:
        """Return True if the time index names the walk's first batch, and the offset index proves the next one."""
        is_first = (
            before.position_bytes == start_bytes and before.base_offset <= entry.offset <= before.last_offset
        )
        if not is_first or before.max_timestamp_ms != entry.timestamp_ms:
            return False
        return self.index_proves_next(walk.strict, before, found)

    def _skipped_batch(
        self,
        walk: DamageSkippingReader,
        found: BatchHeader,
        start_bytes: int,
        timestamp_ms: int,
        start_offset: int,
    ) -> BatchHeader | None:
        """Find the batch that a damaged length has led the walk past.

        Returns:
            The batch that should have been found; None if ``found`` is right.

        Raises:
            CorruptRecordError: Damage before it, which may have held the record.
        """
        if self.skip_damage or walk.strict.is_proven(found.position_bytes, start_bytes):
            return None
        location = walk.locate_first(
            lambda header: header.max_timestamp_ms >= timestamp_ms and header.last_offset >= start_offset,
            start_bytes,
        )
        if location.spanning is not None:
            raise location.spanning.error()
        if location.found is not None and location.found.position_bytes == found.position_bytes:
            return None
        if location.damage is not None:
            raise location.damage.error()
        return location.found

    def _record_of(
        self, log_file: ReadableFile, header: BatchHeader, timestamp_ms: int, start_offset: int
    ) -> TimestampOffset | None:
        try:
            offsets, timestamps_ms = record_timestamps(log_file, header, self.max_batch_bytes)
        except (CorruptError, UnsupportedFormatError):
            if self.skip_damage:
                return None
            raise
        matches = ((timestamps_ms >= timestamp_ms) & (offsets >= start_offset)).nonzero()[0]
        if not len(matches):
            return None
        first = int(matches[0])
        return TimestampOffset(int(timestamps_ms[first]), int(offsets[first]))


class _StaleTimeIndexError(Exception):
    """The time index disagrees with the batches that it names."""


def _is_batch_of_entry(batch: BatchSummary, entry: TimestampOffset) -> bool:
    """Return True if an entry of the time index names a batch, False if it names a later one.

    Raises:
        _StaleTimeIndexError: The batch contradicts the entry.
    """
    if batch.last_offset < entry.offset:
        if batch.max_timestamp_ms >= entry.timestamp_ms:
            raise _StaleTimeIndexError
        return False
    if batch.base_offset > entry.offset or batch.max_timestamp_ms != entry.timestamp_ms:
        raise _StaleTimeIndexError
    return True
