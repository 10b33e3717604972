"""What a broker makes of a partition's directory when it starts (Kafka's ``LogLoader``), found out without changing a byte.

`storage_core.log.log_loader` loads a log for this package, which is stricter: it cuts where offsets are out of order. A
broker looks at less, and this module says at what:

    clean shutdown     no batch is checked. The log end is found by the last offset index alone
    unclean            from the segment of the recovery point on, each CRC is checked and the indexes are rebuilt. After the
                       first invalid batch, the rest of the segment and all later segments are removed
    any                a segment without an offset index, or with a transaction index that contradicts its name, is
                       recovered. Offset and time indexes themselves are not checked
    refused            files that a broker must read, and cannot

Source: ``LogLoader``, ``LogSegment.recover``, ``FileRecords`` and ``FileLogInputStream`` of Apache Kafka 4.1.0.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from storage_core.errors import CorruptError, UnsupportedFormatError
from storage_core.record.batch_header import (
    CRC_LAYOUTS,
    HEADER_SIZE_BYTES,
    LENGTH_POSITION,
    LOG_OVERHEAD_BYTES,
    MAGIC_POSITION,
    MAGIC_V2,
    MIN_LENGTH,
    MIN_V2_LENGTH,
)
from storage_core.record.section import batch_section
from storage_core.segment.damage import BatchProbe
from storage_core.segment.file_names import offset_index_file_name
from storage_core.segment.index_file import LARGEST_RELATIVE_OFFSET
from storage_core.segment.offset_index import ENTRY_SIZE_BYTES as OFFSET_ENTRY_BYTES
from storage_core.segment.offset_index import decode_offset_entries
from storage_core.segment.segment_reader import DEFAULT_MAX_BATCH_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from storage_core.filesystem import FileSystem, OpenFile


_HEAD: Final = struct.Struct(">qi4xb")
_LAST_OFFSET_DELTA: Final = struct.Struct(">23xi")
# A broker's default of ``index.interval.bytes``: the topic's own value is not in the directory.
_INDEX_INTERVAL_BYTES: Final = 4096
# A file position is an int in Kafka.
_LARGEST_FILE_BYTES: Final = (1 << 31) - 1

Failure = Literal["overflow", "disorder"]


@dataclass(frozen=True, slots=True)
class BrokerScan:
    """How a broker reads one log file.

    Attributes:
        valid_bytes: Where its recovery cuts the file.
        next_offset: The offset after the last batch before that.
        failure: Why the recovery fails: an offset that the indexes cannot hold, or an index entry that does not ascend.
        header_error_bytes: Where a reader that checks no CRC fails; None if it gets to the end.
        is_splittable: Whether the last offset exceeds the indexes, too, so that a broker splits the segment.
    """

    valid_bytes: int
    next_offset: int
    failure: Failure | None = None
    header_error_bytes: int | None = None
    is_splittable: bool = False


def scan_as_broker(log_file: OpenFile, base_offset: int, proven_bytes: int) -> BrokerScan:
    """Read a log file by a broker's rules. The batches before ``proven_bytes`` are known to be valid and in order."""
    size_bytes = log_file.status.size_bytes
    probe = BatchProbe(log_file, size_bytes)
    next_offset, valid_bytes = base_offset, 0
    indexed_bytes, indexed_offset = 0, -1
    is_recovering = True
    failure: Failure | None = None
    error_bytes: int | None = None
    last_offset = base_offset - 1
    for position_bytes, length, magic, last_offset in _headers(log_file, 0, size_bytes):
        if length < MIN_LENGTH:
            error_bytes = position_bytes
            break
        if not is_recovering:
            continue
        end_bytes = position_bytes + LOG_OVERHEAD_BYTES + length
        if position_bytes >= proven_bytes and not _is_valid(probe, position_bytes, end_bytes, magic):
            is_recovering = False
            continue
        if not 0 <= last_offset - base_offset <= LARGEST_RELATIVE_OFFSET:
            failure, is_recovering = "overflow", False
            continue
        if position_bytes - indexed_bytes > _INDEX_INTERVAL_BYTES:
            if last_offset <= indexed_offset:
                failure, is_recovering = "disorder", False
                continue
            indexed_bytes, indexed_offset = position_bytes, last_offset
        next_offset, valid_bytes = _as_long(last_offset + 1), end_bytes
    end_offset = _as_long(last_offset + 1)
    is_splittable = end_offset > base_offset and end_offset - 1 - base_offset > LARGEST_RELATIVE_OFFSET
    if failure == "overflow" and is_splittable:
        return BrokerScan(size_bytes, end_offset, failure, error_bytes, is_splittable)
    return BrokerScan(valid_bytes, next_offset, failure, error_bytes)


def _headers(log_file: OpenFile, position_bytes: int, end_bytes: int) -> Iterator[tuple[int, int, int, int]]:
    """Position, length, magic and last offset of each batch that a broker sees; the last one may have too small a length."""
    while position_bytes < end_bytes - MAGIC_POSITION - 1:
        head = log_file.read_at(HEADER_SIZE_BYTES, position_bytes)
        if len(head) <= MAGIC_POSITION:
            return
        offset, length, magic = _HEAD.unpack_from(head)
        if length >= MIN_LENGTH and position_bytes > end_bytes - LOG_OVERHEAD_BYTES - length:
            return
        last_offset = offset
        if magic >= MAGIC_V2 and len(head) == HEADER_SIZE_BYTES:
            last_offset = _as_long(offset + _LAST_OFFSET_DELTA.unpack_from(head)[0])
        yield position_bytes, length, magic, last_offset
        if length < MIN_LENGTH:
            return
        position_bytes += LOG_OVERHEAD_BYTES + length


def _as_long(number: int) -> int:
    """A sum of longs, which wraps in Java."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def _is_valid(probe: BatchProbe, position_bytes: int, end_bytes: int, magic: int) -> bool:
    # A magic above 2 counts as 2: no CRC covers it there.
    layout_magic = min(max(magic, 0), MAGIC_V2)
    if layout_magic == MAGIC_V2 and end_bytes - position_bytes < MIN_V2_LENGTH + LOG_OVERHEAD_BYTES:
        return False
    layout = CRC_LAYOUTS[layout_magic]
    expected = probe.read_at(4, position_bytes + layout.position)
    return probe.crc(layout_magic, position_bytes + layout.start, end_bytes) == int.from_bytes(
        expected, "big"
    )


@dataclass(frozen=True, slots=True)
class BrokerSegment:
    """A segment as a broker finds it.

    Attributes:
        file_names: Of its log file and its offset index, which is None if it is missing.
        is_offset_index_right: Whether the log confirms all entries of its offset index.
        is_transaction_index_wrong: Whether its transaction index names a marker below the segment.
        scan: How a broker reads its log file.
    """

    base_offset: int
    size_bytes: int
    log_file_name: str
    offset_index_file_name: str | None
    is_offset_index_right: bool
    is_transaction_index_wrong: bool
    scan: BrokerScan


@dataclass(frozen=True, slots=True)
class BrokerStart:
    """What a broker does with a partition at its next start.

    Attributes:
        refusal: Why it does not start with it; None if it does.
        refused_segment: Base offset of the segment that is to blame for that; None if none is.
        recovered: Base offsets of the segments whose indexes it rebuilds.
        cuts: Where it cuts log files, by base offset.
        removed: Base offsets of the segments that it removes.
        log_start_offset: Where the log starts then.
        log_end_offset: Where it ends.
        stray: Why it sets the directory aside, and serves an empty partition instead; None if it does not.
    """

    refusal: str | None = None
    refused_segment: int | None = None
    recovered: frozenset[int] = frozenset()
    cuts: Mapping[int, int] = field(default_factory=dict)
    removed: frozenset[int] = frozenset()
    log_start_offset: int = 0
    log_end_offset: int = 0
    stray: str | None = None


class _RefusedError(Exception):
    """A broker would not load the log because of one of its segments."""

    def __init__(self, segment: BrokerSegment, reason: str) -> None:
        super().__init__(reason)
        self.base_offset = segment.base_offset


@dataclass(frozen=True, slots=True)
class KnownOfLog:
    """What a broker knows of a log before it reads its segments.

    Attributes:
        snapshots: The offsets of the producer snapshots that can be read, ascending.
        has_snapshots: Whether there are any, readable or not.
        refusal: Why it does not come so far.
    """

    is_clean: bool
    recovery_point: int
    log_start_offset: int
    snapshots: Sequence[int] = ()
    has_snapshots: bool = False
    refusal: str | None = None


def start_of_broker(
    filesystem: FileSystem, directory: str, segments: Sequence[BrokerSegment], known: KnownOfLog
) -> BrokerStart:
    """Find out what a broker would do. The segments are those after interrupted replacements are completed."""
    loading = _Loading(filesystem, directory, segments, known)
    if known.refusal is not None:
        return BrokerStart(known.refusal, None, log_end_offset=loading.log_end_offset)
    try:
        loading.load()
    except _RefusedError as refused:
        return BrokerStart(str(refused), refused.base_offset, log_end_offset=loading.log_end_offset)
    first = next((each.base_offset for each in loading.kept), known.log_start_offset)
    return BrokerStart(
        None,
        None,
        frozenset(loading.recovered),
        loading.cuts,
        frozenset(loading.removed),
        max(known.log_start_offset, first),
        loading.log_end_offset,
    )


class _Loading:
    """Loads one log, in the order of Kafka's ``LogLoader``."""

    def __init__(
        self, filesystem: FileSystem, directory: str, segments: Sequence[BrokerSegment], known: KnownOfLog
    ) -> None:
        self.recovered: set[int] = set()
        self.cuts: dict[int, int] = {}
        self.removed: set[int] = set()
        self.log_end_offset = max(
            (each.scan.next_offset for each in segments), default=known.log_start_offset
        )
        self._filesystem = filesystem
        self._directory = directory
        self._segments = segments
        self._known = known
        self._bases = [each.base_offset for each in segments]
        # The offsets of the producer snapshots that are left, ascending.
        self._snapshots = list(known.snapshots)

    @property
    def kept(self) -> list[BrokerSegment]:
        """The segments that are left."""
        return [each for each in self._segments if each.base_offset not in self.removed]

    def load(self) -> None:
        for number, segment in enumerate(self._segments):
            if segment.size_bytes > _LARGEST_FILE_BYTES:
                raise _RefusedError(
                    segment,
                    f"{segment.log_file_name} has {segment.size_bytes} bytes, more than a broker can address",
                )
            if segment.offset_index_file_name is None or segment.is_transaction_index_wrong:
                if segment.scan.failure == "disorder":
                    raise _RefusedError(segment, _disorder(segment))
                self._recover(segment, number)
        if not self._known.is_clean:
            self._recover_unflushed()
        self._find_end()
        self._rebuild_producers()

    def _recover_unflushed(self) -> None:
        bases = self._bases
        first = max(0, bisect_right(bases, self._known.recovery_point) - 1)
        for number, segment in enumerate(self._segments[first:], first):
            was_cut = segment.base_offset in self.cuts
            if segment.scan.failure == "disorder":
                # It empties the segment.
                self.recovered.add(segment.base_offset)
                self.cuts[segment.base_offset] = 0
            else:
                self._recover(segment, number)
            if segment.base_offset in self.cuts and not was_cut:
                self.removed.update(bases[number + 1 :])
                return

    def _recover(self, segment: BrokerSegment, number: int) -> None:
        self._replay(number, self._known.log_start_offset, segment.base_offset)
        if segment.scan.failure == "overflow" and not segment.scan.is_splittable:
            raise _RefusedError(
                segment,
                f"{segment.log_file_name} has a batch whose offsets its indexes cannot hold, from byte "
                f"{segment.scan.valid_bytes} on",
            )
        self.recovered.add(segment.base_offset)
        if segment.scan.next_offset > max([segment.base_offset, *self._snapshots[-1:]]):
            self._snapshots.append(segment.scan.next_offset)
        if segment.scan.valid_bytes < segment.size_bytes:
            self.cuts[segment.base_offset] = segment.scan.valid_bytes

    def _find_end(self) -> None:
        kept = self.kept
        self.log_end_offset = self._known.log_start_offset
        if not kept:
            return
        log_end_offset = self._next_offset(kept[-1])
        if log_end_offset < self._known.log_start_offset:
            self.removed.update(each.base_offset for each in kept)
        else:
            self.log_end_offset = log_end_offset

    def _next_offset(self, segment: BrokerSegment) -> int:
        """The offset after a segment (``LogSegment.readNextOffset``)."""
        if segment.base_offset in self.recovered:
            cut_bytes = self.cuts.get(segment.base_offset)
            return segment.base_offset if cut_bytes == 0 else segment.scan.next_offset
        with self._filesystem.open(f"{self._directory}/{segment.log_file_name}") as log_file:
            offset, position_bytes = self._look_up(segment, None)
            start_bytes = _search(log_file, segment, offset, position_bytes)
            if start_bytes is None:
                return segment.base_offset
            next_offset = segment.base_offset
            for position_bytes, length, _, last_offset in _headers(log_file, start_bytes, segment.size_bytes):
                if length < MIN_LENGTH:
                    raise _RefusedError(segment, _no_batch(segment, position_bytes))
                next_offset = _as_long(last_offset + 1)
            return next_offset

    def _look_up(self, segment: BrokerSegment, offset: int | None) -> tuple[int, int]:
        """An offset, the last one of the offset index if none is given, and where a search for it begins."""
        name = segment.offset_index_file_name or offset_index_file_name(segment.base_offset)
        with self._filesystem.open(f"{self._directory}/{name}") as opened:
            index = _BrokerIndex(opened, segment.base_offset)
            wanted = index.last_offset if offset is None else offset
            return wanted, index.position_of(wanted)

    def _rebuild_producers(self) -> None:
        kept, end_offset = self.kept, self.log_end_offset
        bases = {each.base_offset for each in kept}
        if self._known.is_clean and not self._known.has_snapshots:
            return
        latest = max(self._snapshots, default=0)
        self._snapshots = [each for each in self._snapshots if each in bases or each == latest]
        first = kept[0].base_offset if kept else 0
        self._replay(len(kept), max(self._known.log_start_offset, first), end_offset)

    def _replay(self, count: int, log_start_offset: int, end_offset: int) -> None:
        """Replay the producers of the first segments from the newest snapshot on: damaged headers fail it.

        Source: ``UnifiedLog.rebuildProducerState``.
        """
        known = self._snapshots
        known = known[bisect_right(known, log_start_offset) : bisect_right(known, end_offset)]
        self._snapshots = known
        start_offset = known[-1] if known else log_start_offset
        if start_offset < end_offset:
            first = max(0, bisect_right(self._bases, start_offset, hi=count) - 1)
            last = bisect_left(self._bases, end_offset, hi=count)
            for segment in self._segments[first:last]:
                self._read_headers(segment, max(start_offset, segment.base_offset))
            known.append(end_offset)

    def _read_headers(self, segment: BrokerSegment, offset: int) -> None:
        size_bytes = self.cuts.get(segment.base_offset, segment.size_bytes)
        error_bytes = segment.scan.header_error_bytes
        if segment.base_offset in self.recovered:
            if error_bytes is not None and error_bytes < size_bytes:
                raise _RefusedError(segment, _no_batch(segment, error_bytes))
            return
        if error_bytes is None and segment.is_offset_index_right:
            return
        with self._filesystem.open(f"{self._directory}/{segment.log_file_name}") as log_file:
            start_bytes = _search(log_file, segment, *self._look_up(segment, offset))
            if start_bytes is None:
                return
            for position_bytes, length, _, _ in _headers(log_file, start_bytes, size_bytes):
                if length < MIN_LENGTH:
                    raise _RefusedError(segment, _no_batch(segment, position_bytes))


class _BrokerIndex:
    """An offset index as a broker reads it: by its length, whatever it holds."""

    def __init__(self, opened: OpenFile, base_offset: int) -> None:
        self._opened = opened
        self._base_offset = base_offset
        self._count = opened.status.size_bytes // OFFSET_ENTRY_BYTES

    def _entry(self, number: int) -> tuple[int, int]:
        data = self._opened.read_at(OFFSET_ENTRY_BYTES, number * OFFSET_ENTRY_BYTES)
        # A running broker may have cut the file meanwhile.
        (relative_offset, position_bytes), *_ = decode_offset_entries(
            data.ljust(OFFSET_ENTRY_BYTES, b"\0")
        ).tolist()
        return self._base_offset + relative_offset, position_bytes

    @property
    def last_offset(self) -> int:
        return self._entry(self._count - 1)[0] if self._count else self._base_offset

    def position_of(self, offset: int) -> int:
        """Where a search for an offset begins: a binary search, as in Kafka's ``AbstractIndex``."""
        if not self._count or self._entry(0)[0] > offset:
            return 0
        low, high = 0, self._count - 1
        while low < high:
            middle = (low + high + 1) >> 1
            found = self._entry(middle)[0]
            if found > offset:
                high = middle - 1
            elif found < offset:
                low = middle
            else:
                return self._entry(middle)[1]
        return self._entry(low)[1]


def _search(log_file: OpenFile, segment: BrokerSegment, offset: int, position_bytes: int) -> int | None:
    """The position of the batch that reaches an offset (``FileRecords.searchForOffsetFromPosition``)."""
    probe = BatchProbe(log_file, segment.size_bytes)
    previous: tuple[int, int] | None = None
    for found_bytes, length, magic, last_offset in _headers(
        log_file, max(0, position_bytes), segment.size_bytes
    ):
        if length < MIN_LENGTH:
            raise _RefusedError(segment, _no_batch(segment, found_bytes))
        # Of a wrapper the last offset does as well, but a broker decompresses it for its first one.
        base_offset = last_offset
        if magic >= MAGIC_V2:
            base_offset = int.from_bytes(log_file.read_at(LENGTH_POSITION, found_bytes), "big", signed=True)
        else:
            _decompress(log_file, segment, probe, found_bytes)
        if base_offset == offset:
            return found_bytes
        if base_offset > offset:
            return previous[0] if previous is not None and previous[1] >= offset else found_bytes
        previous = found_bytes, last_offset
    return previous[0] if previous is not None and previous[1] >= offset else None


def _decompress(log_file: OpenFile, segment: BrokerSegment, probe: BatchProbe, position_bytes: int) -> None:
    """Read the messages in a wrapper, whatever its CRC."""
    header = probe.header(position_bytes)
    if header is None or not header.is_wrapper or header.size_bytes > DEFAULT_MAX_BATCH_BYTES:
        return
    data = log_file.read_at(header.size_bytes, position_bytes)
    try:
        batch_section(data, header, path=log_file.path, limit_bytes=DEFAULT_MAX_BATCH_BYTES)
    except (CorruptError, UnsupportedFormatError) as error:
        raise _RefusedError(
            segment,
            f"it decompresses a batch at byte {position_bytes} of {segment.log_file_name}: {error.args[0]}",
        ) from error


def _no_batch(segment: BrokerSegment, position_bytes: int) -> str:
    return f"it reads {segment.log_file_name}, which has no batch at byte {position_bytes}"


def _disorder(segment: BrokerSegment) -> str:
    return f"it rebuilds the indexes of {segment.log_file_name}, whose offsets do not ascend"
