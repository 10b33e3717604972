"""The text of a log file, byte for byte that of ``kafka-dump-log.sh`` 4.1 (``kafka.tools.DumpLogSegments.dumpLog``).

Batches are found as Kafka's ``FileLogInputStream`` finds them, which trusts a length and looks at no CRC. Without records
this needs neither numpy nor Arrow, which take longer to import than most files take to dump.
"""

from __future__ import annotations

import errno
import os
import re
import zlib
from dataclasses import dataclass, field
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn, Protocol, TypeAlias

from storage_core.errors import BatchTooLargeError, CorruptError, CorruptRecordError, OptionError
from storage_core.options.paths import is_uri
from storage_core.record.batch_layout import (
    CODEC_MASK,
    CODEC_NAMES,
    CONTROL_FLAG,
    CRC_START,
    DELETE_HORIZON_FLAG,
    HEADER_SIZE_BYTES,
    LENGTH_AND_MAGIC,
    LENGTH_POSITION,
    LOG_APPEND_TIME_FLAG,
    LOG_OVERHEAD_BYTES,
    MAGIC_POSITION,
    MAGIC_V2,
    MAX_OFFSET,
    MESSAGE,
    MIN_LENGTH,
    MIN_V2_LENGTH,
    NO_TIMESTAMP_MS,
    TRANSACTIONAL_FLAG,
    V2_HEADER,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from storage_core.filesystem import ReadableFile, ReadableFileSystem


def _load_crc32c() -> Callable[[memoryview], int]:
    """Load the function of the package ``crc32c`` from its extension module.

    The package itself looks up its version, for which it reads the metadata of what is installed. That takes as long as
    all else that a dump of a small file imports.
    """
    package = find_spec("crc32c")
    spec = None if package is None else PathFinder.find_spec("_crc32c", package.submodule_search_locations)
    if spec is None or spec.loader is None:
        from crc32c import crc32c  # noqa: PLC0415  (what another version of the package may need)

        return crc32c
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    function: Callable[[memoryview], int] = module.crc32c
    return function


_crc32c: Final = _load_crc32c()
MAX_INT32: Final = (1 << 31) - 1
"""As ``--max-bytes``: no limit."""
DEFAULT_MAX_MESSAGE_BYTES: Final = 5 << 20
MAX_BATCH_BYTES: Final = 256 << 20
"""The heap that `kafka-dump-log.sh` has by default: it fails on larger batches, too."""
# Fits a processor's cache. With records, it is large enough to decode many batches at once.
_WINDOW_BYTES: Final = 1 << 20
_RECORDS_WINDOW_BYTES: Final = 4 << 20
# The decoders read up to this many bytes beyond the last record.
_PADDING_BYTES: Final = 16
_NO_SEQUENCE: Final = -1
_POSITION: Final = " position: "
# Attributes, leader epoch, producer id, producer epoch, base sequence.
_Shared: TypeAlias = tuple[int, int, int, int, int]
# `FileLogInputStream` reads a header up to the magic, and nothing if no more bytes are left.
_SHORTEST_END_BYTES: Final = MAGIC_POSITION + 1
_MESSAGE_CRC_START: Final = 16
_BOOLEANS: Final = ("false", "true")
_MAX_FILE_BYTES: Final = 1 << 28
_BOOTSTRAP_NAME: Final = "bootstrap.checkpoint"
# `Snapshots.parse`: 20 digits of the offset, a dash, 10 of the epoch.
_SNAPSHOT_NAME: Final = re.compile(r"(.{20}).(.{10}).*\.checkpoint", re.DOTALL)
_INTEGER: Final = re.compile(r"[+-]?[0-9]+")
_MAX_INT64: Final = (1 << 63) - 1
_INT32: Final = 1 << 32
_INT64: Final = 1 << 64


@dataclass(frozen=True, slots=True)
class RecordFormat:
    """The parts of a record that are printed; the decoder is one of `internal_records.MESSAGE_DECODERS`, or else UTF-8."""

    has_content: bool
    has_metadata: bool = True
    decoder: str | None = None


@dataclass(frozen=True, slots=True)
class DumpOptions:
    """Choice of what to print, named like the tool's flags.

    Attributes:
        record_format: How records are printed; None to print batches alone.
        max_bytes: The largest part of a log that is read; `MAX_INT32` for no limit.
    """

    record_format: RecordFormat | None = None
    max_bytes: int = MAX_INT32
    max_message_size: int = DEFAULT_MAX_MESSAGE_BYTES
    verify_index_only: bool = False
    index_sanity_check: bool = False


@dataclass(slots=True)
class DumpReport:
    """Report that the tool prints to standard error, and whether anything is wrong.

    Attributes:
        offset_mismatches: By index file: offsets of entries, and of the batches where they point.
        timestamp_mismatches: By time index: timestamps of entries, and the largest of the batches.
        timestamps_out_of_order: By time index: timestamps of entries, and of the entries before them.
        offsets_not_found: By time index: offsets of entries, and of the batches found instead.
        offset_gaps: By log: offsets, and those that follow them.
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


def java_int(value: int) -> int:
    """Wrap as 32-bit arithmetic does."""
    return (value + _INT32 // 2) % _INT32 - _INT32 // 2


def java_long(value: int) -> int:
    """Wrap as 64-bit arithmetic does."""
    return (value + _INT64 // 2) % _INT64 - _INT64 // 2


def increment_sequence(sequence: int, increment: int) -> int:
    """Add to a sequence number, as ``DefaultRecordBatch.incrementSequence`` does: the largest is followed by 0."""
    if sequence > java_int(MAX_INT32 - increment):
        return java_int(increment - (MAX_INT32 - sequence) - 1)
    return java_int(sequence + increment)


def decrement_sequence(sequence: int, decrement: int) -> int:
    """Subtract from a sequence number, as ``DefaultRecordBatch.decrementSequence`` does: the largest comes before 0."""
    if sequence < decrement:
        return java_int(MAX_INT32 - java_int(decrement - sequence) + 1)
    return java_int(sequence - decrement)


def tool_fails(found: str, path: str, position_bytes: int) -> CorruptRecordError:
    """Return the error for a place where Kafka's tool ends with an exception."""
    return CorruptRecordError(
        f"{found}: kafka-dump-log.sh ends here, too. `segmentlog verify` checks what follows.",
        path=path,
        position_bytes=position_bytes,
    )


def open_log(filesystem: ReadableFileSystem, path: str) -> ReadableFile:
    """Open a log file; one of more than 2 GiB fails, as in Kafka."""
    log_file = filesystem.open(path)
    if log_file.status.size_bytes > MAX_INT32:
        log_file.close()
        raise tool_fails("Found more bytes than a segment can have", path, MAX_INT32)
    return log_file


def read_whole(filesystem: ReadableFileSystem, path: str) -> bytes:
    """Read a file that is not a log.

    Raises:
        LogDirectoryError: It is too large.
        FileNotFoundError: It does not exist.
    """
    data = filesystem.read_file(path, _MAX_FILE_BYTES)
    if data is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    return data


def encoded(text: str) -> bytes:
    """Return a text with a path in it as bytes."""
    return text.encode(errors="surrogateescape")


def absolute_path(path: str) -> str:
    """Make a path absolute as the tool does, without resolving anything."""
    return path if is_uri(path) else os.path.join(os.getcwd(), path)


def first_line(path: str, name: str) -> str:
    """Return the line before the batches, which tells what the name of a log file or a snapshot says.

    Raises:
        OptionError: It says no offset.
    """
    if name.endswith(".log"):
        return f"Log starting offset: {base_offset_of_name(path)}\n"
    if name == _BOOTSTRAP_NAME:
        return "KRaft bootstrap snapshot\n"
    found = _SNAPSHOT_NAME.fullmatch(name)
    if found is None:
        raise OptionError(f"Expected a snapshot's name of offset and epoch, found {name}.")
    offset = _integer(found[1], _MAX_INT64, name)
    return f"Snapshot end offset: {offset}, epoch: {_integer(found[2], MAX_INT32, name)}\n"


def base_offset_of_name(path: str) -> int:
    """Return the offset with which a file's name begins.

    Raises:
        OptionError: It begins with none.
    """
    name = path.rpartition("/")[2]
    return _integer(name.partition(".")[0], _MAX_INT64, name)


def _integer(text: str, largest: int, name: str) -> int:
    number = int(text) if _INTEGER.fullmatch(text) else largest + 1
    if not -largest - 1 <= number <= largest:
        raise OptionError(f"Expected a file's name to begin with an offset, found {name}.")
    return number


class FoundBatch(NamedTuple):
    """Position, size, format and last offset of a batch."""

    position_bytes: int
    size_bytes: int
    magic: int
    last_offset: int


def find_batches(log_file: ReadableFile, position_bytes: int, end_bytes: int) -> Iterator[FoundBatch]:
    """Find the batches from a position on, as ``FileLogInputStream`` does.

    Raises:
        CorruptRecordError: Kafka's class fails here.
    """
    while position_bytes < end_bytes - _SHORTEST_END_BYTES:
        header = log_file.read_at(HEADER_SIZE_BYTES, position_bytes)
        if len(header) < min(HEADER_SIZE_BYTES, end_bytes - position_bytes):
            # The file became shorter.
            raise _short_header(len(header), log_file.path, position_bytes)
        length, magic = LENGTH_AND_MAGIC.unpack_from(header, LENGTH_POSITION)
        if length < MIN_LENGTH:
            raise too_short(length, log_file.path, position_bytes)
        size_bytes = LOG_OVERHEAD_BYTES + length
        if position_bytes > end_bytes - size_bytes:
            return
        if magic < MAGIC_V2:
            last_offset = MESSAGE.unpack_from(header)[0]
        elif len(header) < HEADER_SIZE_BYTES:
            raise _short_header(len(header), log_file.path, position_bytes)
        else:
            base_offset, _, _, _, _, _, delta, *_ = V2_HEADER.unpack(header)
            last_offset = java_long(base_offset + delta)
        yield FoundBatch(position_bytes, size_bytes, magic, last_offset)
        position_bytes += size_bytes


def _short_header(size_bytes: int, path: str, position_bytes: int) -> CorruptRecordError:
    return tool_fails(f"Found only {size_bytes} bytes for the header of a batch", path, position_bytes)


def too_short(length: int, path: str, position_bytes: int) -> CorruptRecordError:
    """Return the error for a length that no format has."""
    return tool_fails(
        f"Found a record size of {length}, below {MIN_LENGTH}, where a batch should begin",
        path,
        position_bytes,
    )


@dataclass(slots=True)
class Batches:
    """Consecutive batches in a buffer, and the line of text for each.

    Attributes:
        buffer: The bytes, padded.
        unusual: The numbers of the batches that are damaged, not of format v2, or too short for it.
        tail: What Kafka's tool prints of the batch after them before it fails.
    """

    buffer: bytearray
    position_bytes: int
    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    unusual: set[int] = field(default_factory=set)
    has_damage: bool = False
    tail: str = ""


class RecordsText(Protocol):
    """Adds the records to the lines of their batches."""

    def text_of(self, batches: Batches) -> Iterator[bytes]:
        """Yield the text of batches with their records.

        Raises:
            CorruptError: Kafka's tool fails here.
        """


class LogText:
    """The text of one open log file, or of its batches within so many bytes.

    Attributes:
        has_damage: Whether a CRC was wrong, or bytes were left that are no batch.
    """

    def __init__(self, log_file: ReadableFile, max_bytes: int | None, records: RecordsText | None) -> None:
        self.valid_bytes = 0
        self.has_damage = False
        self._file = log_file
        self._path = log_file.path
        self._records = records
        self._window_bytes = _WINDOW_BYTES if records is None else _RECORDS_WINDOW_BYTES
        self._is_whole = max_bytes is None
        size_bytes = log_file.status.size_bytes
        self._end_bytes = size_bytes if max_bytes is None else min(size_bytes, max_bytes)
        self._buffer = bytearray()
        self._shared: _Shared | None = None
        self._middle = self._time = self._codec = ""

    def pieces(self) -> Iterator[bytes]:
        """Yield the lines of the batches, window by window, and a line about bytes left at the end.

        Raises:
            CorruptError: Kafka's tool fails here. All that it prints before was yielded.
        """
        needed_bytes = 0
        while self.valid_bytes < self._end_bytes - _SHORTEST_END_BYTES:
            wanted_bytes = min(max(self._window_bytes, needed_bytes), self._end_bytes - self.valid_bytes)
            if wanted_bytes > len(self._buffer) - _PADDING_BYTES:
                self._buffer = bytearray(wanted_bytes + _PADDING_BYTES)
            view = memoryview(self._buffer)[:wanted_bytes]
            size_bytes = self._file.read_into(view, self.valid_bytes)
            if size_bytes < wanted_bytes:
                # The file was truncated meanwhile.
                self._end_bytes = self.valid_bytes + size_bytes
            batches = Batches(self._buffer, self.valid_bytes)
            failure = None
            try:
                needed_bytes = self._walk(view[:size_bytes], batches)
            except CorruptError as error:
                failure = error
            self.has_damage |= batches.has_damage
            yield from self._text_of(batches)
            if failure is not None:
                raise failure
            if batches.starts:
                self.valid_bytes += batches.ends[-1]
            elif needed_bytes == 0:
                break
        yield from self._trailing()

    def _text_of(self, batches: Batches) -> Iterator[bytes]:
        if self._records is not None:
            yield from self._records.text_of(batches)
        elif text := "".join([*batches.lines, batches.tail]):
            yield text.encode("ascii")

    def _trailing(self) -> Iterator[bytes]:
        left_bytes = self._end_bytes - self.valid_bytes
        if left_bytes > 0 and self._is_whole:
            self.has_damage = True
            name = self._path.rpartition("/")[2]
            yield f"Found {left_bytes} invalid bytes at the end of {name}\n".encode(errors="surrogateescape")

    def _walk(self, view: memoryview, batches: Batches) -> int:
        """Walk the batches of a window.

        Returns:
            How many bytes the batch after them needs; 0 if there is none.

        Raises:
            CorruptError: Kafka's tool fails at the batch after them.
        """
        start = 0
        while True:
            start = self._walk_v2(view, start, batches)
            position_bytes = batches.position_bytes + start
            left_bytes = self._end_bytes - position_bytes
            if left_bytes <= _SHORTEST_END_BYTES:
                return 0
            if len(view) - start <= _SHORTEST_END_BYTES:
                return self._window_bytes
            length, magic = LENGTH_AND_MAGIC.unpack_from(view, start + LENGTH_POSITION)
            if length < MIN_LENGTH:
                raise too_short(length, self._path, position_bytes)
            size_bytes: int = LOG_OVERHEAD_BYTES + length
            if size_bytes > left_bytes:
                return 0
            if size_bytes > MAX_BATCH_BYTES:
                raise BatchTooLargeError(
                    f"Expected a batch of at most {MAX_BATCH_BYTES} bytes, found one of {size_bytes}. With its "
                    "default heap, kafka-dump-log.sh fails here, too.",
                    path=self._path,
                    position_bytes=position_bytes,
                )
            if start + size_bytes > len(view):
                return size_bytes
            batches.unusual.add(len(batches.lines))
            batches.starts.append(start)
            batches.ends.append(start + size_bytes)
            if magic < MAGIC_V2:
                self._add_message(view[start : start + size_bytes], batches)
            else:
                self._add_unusual(view[start : start + size_bytes], batches)
            start += size_bytes

    def _walk_v2(self, view: memoryview, start: int, batches: Batches) -> int:
        """Walk the ordinary batches of format v2 from ``start``; return where the last one ends."""
        unpack = V2_HEADER.unpack_from
        add_line, add_start, add_end = batches.lines.append, batches.starts.append, batches.ends.append
        size_bytes, position = len(view), batches.position_bytes
        last_start = size_bytes - HEADER_SIZE_BYTES
        crc32c = _crc32c
        known, middle, time, codec = self._shared, self._middle, self._time, self._codec
        # One loop without calls: files have tens of thousands of batches, and a call costs as much as a CRC.
        while start <= last_start:
            (
                base_offset,
                length,
                epoch,
                magic,
                crc,
                attributes,
                delta,
                base_ms,
                max_ms,
                producer_id,
                producer_epoch,
                base_sequence,
                count,
            ) = unpack(view, start)
            end = start + LOG_OVERHEAD_BYTES + length
            last_offset = base_offset + delta
            if magic != MAGIC_V2 or length < MIN_V2_LENGTH or end > size_bytes or last_offset > MAX_OFFSET:
                break
            shared = (attributes, epoch, producer_id, producer_epoch, base_sequence)
            if shared != known:
                if attributes & CODEC_MASK >= len(CODEC_NAMES):
                    break
                self._set_shared(shared, delta, base_ms)
                known, middle, time, codec = self._shared, self._middle, self._time, self._codec
            if crc32c(view[start + CRC_START : end]) == crc:
                validity = "true"
            else:
                validity = "false"
                batches.has_damage = True
                batches.unusual.add(len(batches.lines))
            add_line(
                f"baseOffset: {base_offset} lastOffset: {last_offset} count: {count}{middle}{position + start}"
                f"{time}{max_ms} size: {end - start}{codec}{crc} isvalid: {validity}\n"
            )
            add_start(start)
            add_end(end)
            start = end
        return int(start)

    def _set_shared(self, shared: _Shared, delta: int, base_ms: int) -> None:
        """Remember the parts of a line that most batches of a file share."""
        attributes, base_sequence = shared[0], shared[-1]
        self._middle = _middle_text(shared, delta, base_ms)
        self._time, self._codec = _time_text(attributes), _codec_text(MAGIC_V2, attributes)
        # Batches do not share their last sequence and delete horizon.
        is_shared = base_sequence == _NO_SEQUENCE and not attributes & DELETE_HORIZON_FLAG
        self._shared = shared if is_shared else None

    def _add_message(self, message: memoryview, batches: Batches) -> None:
        """Add the line of a message of format v0 or v1."""
        position_bytes = batches.position_bytes + batches.starts[-1]
        offset, _, crc, magic, attributes, timestamp_ms = MESSAGE.unpack_from(message, 0)
        beginning = f"offset: {offset}"
        if magic < 0 or attributes & CODEC_MASK >= len(CODEC_NAMES):
            self._stop(batches, beginning, f"Found magic {magic} and attributes {attributes:#04x}")
        if magic == 0:
            time = f" NoTimestampType: {NO_TIMESTAMP_MS}"
        else:
            time = f"{_time_text(attributes)}{timestamp_ms}"
        is_valid = zlib.crc32(message[_MESSAGE_CRC_START:]) == crc
        batches.has_damage |= not is_valid
        batches.lines.append(
            f"{beginning} position: {position_bytes}{time} size: {len(message)}{_codec_text(magic, attributes)}{crc} "
            f"isvalid: {_BOOLEANS[is_valid]}\n"
        )

    def _add_unusual(self, batch: memoryview, batches: Batches) -> None:
        """Add the line of an odd batch: too short for its header, with an unknown codec, or of a later format."""
        position_bytes = batches.position_bytes + batches.starts[-1]
        header = bytes(batch[:HEADER_SIZE_BYTES])
        if len(header) < HEADER_SIZE_BYTES:
            # Kafka takes the bytes that follow for the rest of the header.
            header = self._file.read_at(HEADER_SIZE_BYTES, position_bytes)
        if len(header) < HEADER_SIZE_BYTES:
            self._stop(batches, "", f"Found only {len(header)} bytes for the header of a batch")
        base_offset, _, epoch, magic, crc, attributes, delta, base_ms, max_ms, *producer, count = (
            V2_HEADER.unpack(header)
        )
        middle = _middle_text((attributes, epoch, producer[0], producer[1], producer[2]), delta, base_ms)
        beginning = f"baseOffset: {base_offset} lastOffset: {java_long(base_offset + delta)} count: {count}"
        if attributes & CODEC_MASK >= len(CODEC_NAMES):
            # The tool has printed this much before it looks at the codec.
            beginning += middle.removesuffix(_POSITION)
            self._stop(batches, beginning, f"Found codec number {attributes & CODEC_MASK}")
        is_valid = len(batch) >= HEADER_SIZE_BYTES and _crc32c(batch[CRC_START:]) == crc
        batches.has_damage |= not is_valid
        batches.lines.append(
            f"{beginning}{middle}{position_bytes}{_time_text(attributes)}{max_ms} size: {len(batch)}"
            f"{_codec_text(magic, attributes)}{crc} isvalid: {_BOOLEANS[is_valid]}\n"
        )

    def _stop(self, batches: Batches, printed: str, found: str) -> NoReturn:
        """Fail as the tool does in the middle of a batch's line."""
        position_bytes = batches.position_bytes + batches.starts[-1]
        batches.unusual.discard(len(batches.lines))
        batches.starts.pop()
        batches.ends.pop()
        batches.tail = printed
        raise tool_fails(found, self._path, position_bytes)


def _middle_text(shared: _Shared, delta: int, base_ms: int) -> str:
    attributes, epoch, producer_id, producer_epoch, base_sequence = shared
    last_sequence = (
        _NO_SEQUENCE if base_sequence == _NO_SEQUENCE else increment_sequence(base_sequence, delta)
    )
    horizon = f"OptionalLong[{base_ms}]" if attributes & DELETE_HORIZON_FLAG else "OptionalLong.empty"
    return (
        f" baseSequence: {base_sequence} lastSequence: {last_sequence} producerId: {producer_id} "
        f"producerEpoch: {producer_epoch} partitionLeaderEpoch: {epoch} "
        f"isTransactional: {_BOOLEANS[bool(attributes & TRANSACTIONAL_FLAG)]} "
        f"isControl: {_BOOLEANS[bool(attributes & CONTROL_FLAG)]} deleteHorizonMs: {horizon}{_POSITION}"
    )


def _time_text(attributes: int) -> str:
    return " LogAppendTime: " if attributes & LOG_APPEND_TIME_FLAG else " CreateTime: "


def _codec_text(magic: int, attributes: int) -> str:
    return f" magic: {magic} compresscodec: {CODEC_NAMES[attributes & CODEC_MASK]} crc: "
