"""The records of a batch as Kafka's own iterators give them, one by one: what a dump shows of odd and damaged batches.

The decoders of `storage_core.record` refuse records that contradict their batch. Kafka's iterators
(``DefaultRecordBatch.RecordIterator``, ``AbstractLegacyRecordBatch.DeepRecordsIterator``) look at neither CRCs nor offsets.
They fail only where bytes cannot be a record, and of a batch that is not compressed they give the records before that.
"""

from __future__ import annotations

import dataclasses
import zlib
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn

from storage_core.dump.log_text import MAX_BATCH_BYTES, increment_sequence, java_long, tool_fails
from storage_core.errors import BatchTooLargeError, CorruptRecordError, SegmentLogError
from storage_core.record.batch_header import (
    CODEC_MASK,
    CODEC_NAMES,
    CRC_LAYOUTS,
    HEADER_SIZE_BYTES,
    KEY_LENGTH_POSITIONS,
    LENGTH_BYTES,
    LENGTH_POSITION,
    LOG_APPEND_TIME_FLAG,
    LOG_OVERHEAD_BYTES,
    MAGIC_POSITION,
    MAGIC_V2,
    MESSAGE_SIZE_BYTES,
    MIN_LENGTH,
    MIN_LENGTH_BY_MAGIC,
    NO_TIMESTAMP_MS,
    V2_HEADER,
    BatchHeader,
    parse_batch_header,
    unpack_message,
)
from storage_core.record.compression import UndecodableError, as_lenient_as_kafka
from storage_core.record.section import (
    MAX_ROWS,
    PADDING_BYTES,
    RECORD_COST_BYTES,
    RECORD_HEADER_COST_BYTES,
    batch_section,
)
from storage_core.record.varint import (
    VARINT_LIMIT_BYTES,
    VARLONG_LIMIT_BYTES,
    MalformedVarintError,
    read_varint,
)
from storage_core.segment.segment_reader import DEFAULT_MAX_BATCH_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator


# A magic is a signed byte.
_MAX_MAGIC: Final = 0x7F
_CRC: Final = CRC_LAYOUTS[0]
_CRC_BYTES: Final = _CRC.start - _CRC.position
# As many as readers accept by default. Python needs more memory for them than the tool's heap has.
_MOST_HEADERS: Final = DEFAULT_MAX_BATCH_BYTES // RECORD_HEADER_COST_BYTES
_MOST_MESSAGES: Final = DEFAULT_MAX_BATCH_BYTES // (4 * RECORD_COST_BYTES)


class IteratedRecord(NamedTuple):
    """A record, or a message of format v0 or v1.

    Attributes:
        key_size: As the record says it; -1 for null in format v2, any negative number before.
        value: None if it is null; of a message, also if it does not fit.
        headers: Of format v2: keys and values.
        crc: Of a message, its CRC.
        is_valid: Of a message, whether the CRC holds.
    """

    offset: int
    timestamp_ms: int
    sequence: int
    key_size: int
    key: bytes | None
    value_size: int
    value: bytes | None
    headers: tuple[tuple[bytes, bytes | None], ...] = ()
    crc: int = 0
    is_valid: bool = True


def header_of(batch: memoryview, position_bytes: int, path: str) -> BatchHeader:
    """Parse the header of a whole batch. A magic above 2 is read as format v2.

    Raises:
        CorruptRecordError: It has fewer bytes than a header.
    """
    if batch[MAGIC_POSITION] > _MAX_MAGIC:
        raise tool_fails("Found a negative magic", path, position_bytes)
    if batch[MAGIC_POSITION] < MAGIC_V2:
        return _message_header(batch, position_bytes, path)
    if len(batch) < HEADER_SIZE_BYTES:
        raise tool_fails(f"Found a batch of {len(batch)} bytes", path, position_bytes)
    base_offset, length, *rest = V2_HEADER.unpack_from(batch)
    return BatchHeader(position_bytes, base_offset, length + LOG_OVERHEAD_BYTES, *rest)


def _message_header(batch: memoryview, position_bytes: int, path: str) -> BatchHeader:
    """Parse the header of a message, even of one that is too short: Kafka may not look at what it lacks."""
    head = bytearray(batch[:MESSAGE_SIZE_BYTES])
    length = max(len(batch) - LOG_OVERHEAD_BYTES, MIN_LENGTH_BY_MAGIC[head[MAGIC_POSITION]])
    head[LENGTH_POSITION:LOG_OVERHEAD_BYTES] = length.to_bytes(LENGTH_BYTES, "big")
    header = parse_batch_header(head, 0, position_bytes, path=path)
    return dataclasses.replace(header, size_bytes=len(batch))


def iterate_records(
    batch: memoryview, header: BatchHeader, *, path: str, has_fields: bool = True
) -> Iterator[IteratedRecord]:
    """Iterate over the records of one whole batch of any format.

    Args:
        batch: All of its bytes.
        header: Its header. A magic above 2 is treated as 2, as in Kafka.
        path: The file, for errors.
        has_fields: Whether more than the offset of a message is needed. If not, Kafka does not meet malformed fields.

    Raises:
        CorruptRecordError: Kafka's iterator fails here, or they inflate to more than `MAX_BATCH_BYTES`; records before were given.
    """
    if header.magic < MAGIC_V2:
        return _iterate_messages(batch, header, path, has_fields)
    return _V2Records(batch, header, path).iterate()


class _V2Records:
    def __init__(self, batch: memoryview, header: BatchHeader, path: str) -> None:
        self._batch = batch
        self._header = header
        self._path = path
        self._header_count = 0

    def iterate(self) -> Iterator[IteratedRecord]:
        header = self._header
        if header.record_count == 0:
            return
        if header.record_count < 0:
            self._fail(f"Found invalid record count {header.record_count}")
        data = self._data()
        if header.codec:
            # Kafka decompresses all records before it gives the first. Many would fill the memory.
            if header.record_count <= MAX_ROWS:
                yield from list(self._records(data))
                return
            for _ in self._records(data):
                pass
        yield from self._records(data)

    def _data(self) -> memoryview:
        return _decompressed(self._batch, self._header, HEADER_SIZE_BYTES, self._path)

    def _records(self, data: memoryview) -> Iterator[IteratedRecord]:
        position = self._header_count = 0
        last = self._header.record_count - 1
        for number in range(self._header.record_count):
            try:
                record, position = self._record(data, position)
            except MalformedVarintError as error:
                self._fail(f"Found an invalid structure in record {number}: {error}")
            if number == last and position < len(data):
                self._fail(f"Found {len(data) - position} bytes after the last record")
            yield record

    def _record(self, data: memoryview, position: int) -> tuple[IteratedRecord, int]:
        header = self._header
        size_bytes, start = read_varint(data, position, VARINT_LIMIT_BYTES)
        if size_bytes > len(data) - start:
            self._fail(f"Found a record of {size_bytes} bytes where {len(data) - start} are left")
        # The attributes of a record are unused.
        timestamp_delta, position = read_varint(data, start + 1, VARLONG_LIMIT_BYTES)
        offset_delta, position = read_varint(data, position, VARINT_LIMIT_BYTES)
        key, position = self._byte_string(data, position)
        value, position = self._byte_string(data, position)
        header_count, position = read_varint(data, position, VARINT_LIMIT_BYTES)
        if not 0 <= header_count <= len(data) - position:
            self._fail(f"Found an invalid number of record headers: {header_count}")
        self._header_count += header_count
        if self._header_count > _MOST_HEADERS:
            _fail_too_large(f"{_MOST_HEADERS} record headers", header, self._path)
        headers = []
        for _ in range(header_count):
            name, position = self._byte_string(data, position)
            if name is None:
                self._fail("Found a record header without a key")
            content, position = self._byte_string(data, position)
            headers.append((name, content))
        if position - start != size_bytes:
            self._fail(f"Found a record of {position - start} bytes where its length says {size_bytes}")
        is_append_time = header.attributes & LOG_APPEND_TIME_FLAG
        base = header.base_sequence
        record = IteratedRecord(
            java_long(header.base_offset + offset_delta),
            header.max_timestamp_ms
            if is_append_time
            else java_long(header.base_timestamp_ms + timestamp_delta),
            increment_sequence(base, offset_delta) if base >= 0 else -1,
            -1 if key is None else len(key),
            key,
            -1 if value is None else len(value),
            value,
            tuple(headers),
        )
        return record, position

    def _byte_string(self, data: memoryview, position: int) -> tuple[bytes | None, int]:
        length, position = read_varint(data, position, VARINT_LIMIT_BYTES)
        if length < 0:
            return None, position
        if length > len(data) - position:
            self._fail(f"Found a length of {length} bytes where {len(data) - position} are left")
        return bytes(data[position : position + length]), position + length

    def _fail(self, found: str) -> NoReturn:
        _fail(found, self._header, self._path)


def _iterate_messages(
    batch: memoryview, header: BatchHeader, path: str, has_fields: bool
) -> Iterator[IteratedRecord]:
    if not header.codec:
        yield (
            _message(batch, header.base_offset, header, path, append_time_ms=None)
            if has_fields
            else _without_fields(header.base_offset)
        )
        return
    if header.codec >= len(CODEC_NAMES) - 1:
        _fail(f"Found a wrapper of format v{header.magic} with codec {header.codec}", header, path)
    messages = _inner_messages(batch, header, path)
    if not messages:
        _fail("Found a wrapper without messages", header, path)
    shift = 0
    if header.magic == 1 and header.base_offset != 0:
        last_offset = unpack_message(messages[-1], 0)[0]
        if header.base_offset < last_offset:
            _fail(f"Found a wrapper's offset below {last_offset}, that of its last message", header, path)
        shift = header.base_offset - last_offset
    is_append_time = header.attributes & LOG_APPEND_TIME_FLAG
    for message in messages:
        offset, _, _, _, attributes, _ = unpack_message(message, 0)
        if attributes & CODEC_MASK:
            _fail("Found a wrapper within a wrapper", header, path)
        offset = java_long(offset + shift)
        append_time_ms = header.max_timestamp_ms if is_append_time else None
        yield (
            _message(message, offset, header, path, append_time_ms=append_time_ms)
            if has_fields
            else _without_fields(offset)
        )


def _inner_messages(batch: memoryview, header: BatchHeader, path: str) -> list[memoryview]:
    _, start = _length_at(batch, _value_length_position(batch, header, path), header, path)
    data = _decompressed(batch, header, start, path)
    messages: list[memoryview] = []
    position = 0
    while position + LOG_OVERHEAD_BYTES <= len(data):
        length = int.from_bytes(
            data[position + LENGTH_POSITION : position + LOG_OVERHEAD_BYTES], "big", signed=True
        )
        if not MIN_LENGTH <= length <= MAX_BATCH_BYTES:
            _fail(f"Found a message of {length} bytes in a wrapper", header, path)
        end = position + LOG_OVERHEAD_BYTES + length
        if len(messages) > _MOST_MESSAGES:
            _fail_too_large(f"{_MOST_MESSAGES} messages", header, path)
        # A partial message at the end of a set is ignored.
        if end > len(data):
            break
        messages.append(data[position:end])
        position = end
    return messages


def _decompressed(batch: memoryview, header: BatchHeader, start: int, path: str) -> memoryview:
    """Decompress the records of a batch, which begin at ``start``, as leniently as Kafka does."""
    copied = bytearray(batch)
    if header.magic > MAGIC_V2:
        header = dataclasses.replace(header, magic=MAGIC_V2)
        copied[MAGIC_POSITION] = MAGIC_V2
    try:
        as_lenient_as_kafka(header.codec, memoryview(copied)[start:])
        section = batch_section(memoryview(copied), header, path=path, limit_bytes=MAX_BATCH_BYTES)
    except (SegmentLogError, UndecodableError) as error:
        codec = CODEC_NAMES[header.codec]
        raise tool_fails(
            f"Found records that {codec} cannot decompress", path, header.position_bytes
        ) from error
    return section.buffer.data[: len(section.buffer) - PADDING_BYTES]


def _value_length_position(message: memoryview, header: BatchHeader, path: str) -> int:
    key_size, start = _length_at(message, KEY_LENGTH_POSITIONS[header.magic], header, path)
    return start + max(key_size, 0)


def _without_fields(offset: int) -> IteratedRecord:
    return IteratedRecord(offset, NO_TIMESTAMP_MS, -1, -1, None, -1, None)


def _message(
    message: memoryview, offset: int, header: BatchHeader, path: str, *, append_time_ms: int | None
) -> IteratedRecord:
    _, _, crc, magic, _, timestamp_ms = unpack_message(message, 0)
    key_position = KEY_LENGTH_POSITIONS[0 if magic == 0 else 1]
    key_size, key_start = _length_at(message, key_position, header, path)
    value_size, value_start = _length_at(message, key_start + max(key_size, 0), header, path)
    if magic == 0:
        timestamp_ms = NO_TIMESTAMP_MS
    elif magic == 1 and append_time_ms is not None:
        timestamp_ms = append_time_ms
    return IteratedRecord(
        offset,
        timestamp_ms,
        -1,
        key_size,
        None if key_size < 0 else bytes(message[key_start : key_start + key_size]),
        value_size,
        None
        if value_size < 0 or value_start + value_size > len(message)
        else bytes(message[value_start : value_start + value_size]),
        (),
        crc,
        zlib.crc32(message[_CRC.position + _CRC_BYTES :]) == crc,
    )


def _length_at(message: memoryview, position: int, header: BatchHeader, path: str) -> tuple[int, int]:
    start = position + LENGTH_BYTES
    if start > len(message):
        _fail("Found a message whose key does not fit it", header, path)
    return int.from_bytes(message[position:start], "big", signed=True), start


def _fail(found: str, header: BatchHeader, path: str) -> NoReturn:
    raise CorruptRecordError(
        f"{found}: kafka-dump-log.sh ends here, too. `segmentlog verify` checks what follows.",
        **header.error_location(path),
    )


def _fail_too_large(most: str, header: BatchHeader, path: str) -> NoReturn:
    raise BatchTooLargeError(
        f"Expected a batch of at most {most}, found more: they do not fit the memory that a dump may take.",
        **header.error_location(path),
    )
