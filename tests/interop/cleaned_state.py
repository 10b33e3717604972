"""Log files batch by batch, read without the code under test, to compare the results of two cleaners.

Compressed records are compared decompressed: two implementations of a codec may encode the same bytes differently.
"""

from __future__ import annotations

import gzip
import struct
from typing import TYPE_CHECKING, NamedTuple

import cramjam

from tests.interop.log_bytes import entries_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# The fields after the CRC in a `RecordBatch` of format v2.
_FIELDS = struct.Struct(">hiqqqhii")
_FIELDS_AT = 21
_RECORDS_AT = 61
_CODEC_BITS = 7
DELETE_HORIZON = 0x40
_XERIAL_HEADER = b"\x82SNAPPY\x00"


class CleanedBatch(NamedTuple):
    """An entry of a log file. For formats v0 and v1 only the offset and the bytes are set."""

    base_offset: int
    magic: int
    leader_epoch: int = -1
    attributes: int = 0
    last_offset_delta: int = 0
    base_timestamp_ms: int = 0
    largest_timestamp_ms: int = 0
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    count: int = 0
    records: bytes = b""

    @property
    def is_empty(self) -> bool:
        return self.magic == 2 and self.count == 0

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value}" for name, value in self._asdict().items() if name != "records")
        return f"CleanedBatch({fields}, {len(self.records)} bytes)"


def batches_in(content: bytes, segment: int) -> Iterator[CleanedBatch]:
    """Yield the entries of a log file; checks every CRC."""
    for entry in entries_of(content, segment):
        if entry.magic < 2:
            yield CleanedBatch(entry.base_offset, entry.magic, records=entry.content)
            continue
        offset, _, leader_epoch, magic = struct.unpack_from(">qiib", entry.content)
        fields = _FIELDS.unpack_from(entry.content, _FIELDS_AT)
        records = _decompressed(entry.content[_RECORDS_AT:], fields[0] & _CODEC_BITS)
        yield CleanedBatch(offset, magic, leader_epoch, *fields, records)


def _decompressed(content: bytes, codec: int) -> bytes:
    if codec == 0:
        return content
    if codec == 1:
        return gzip.decompress(content)
    if codec == 2:
        return _without_snappy(content)
    if codec == 3:
        return bytes(cramjam.lz4.decompress(content))
    return bytes(cramjam.zstd.decompress(content))


def _without_snappy(content: bytes) -> bytes:
    if not content.startswith(_XERIAL_HEADER):
        return bytes(cramjam.snappy.decompress_raw(content))
    plain, position = b"", 16
    while position < len(content):
        (size,) = struct.unpack_from(">i", content, position)
        plain += bytes(cramjam.snappy.decompress_raw(content[position + 4 : position + 4 + size]))
        position += 4 + size
    return plain


def first_difference(ours: Mapping[str, bytes], theirs: Mapping[str, bytes]) -> str | None:
    """Return the first difference between the log files of two partitions, given by name; None if they are equal."""
    if sorted(ours) != sorted(theirs):
        return f"segments: ours {sorted(ours)}, theirs {sorted(theirs)}"
    for name, content in theirs.items():
        if ours[name] == content:
            continue
        segment = int(name.removesuffix(".log"))
        found = list(batches_in(ours[name], segment))
        expected = list(batches_in(content, segment))
        for our_batch, their_batch in zip(found, expected, strict=False):
            if our_batch != their_batch:
                return f"{name}: ours {our_batch}, theirs {their_batch}"
        if len(found) != len(expected):
            return (
                f"{name}: ours has {len(found)} batches, theirs {len(expected)}; ours ends with {found[-1:]}"
            )
        if all(batch.attributes & _CODEC_BITS == 0 for batch in expected):
            return f"{name}: other bytes in uncompressed batches"
    return None


def horizons_in(logs: Mapping[str, bytes]) -> set[int]:
    """Return the delete horizons in the log files of a partition."""
    return {
        batch.base_timestamp_ms
        for name, content in logs.items()
        for batch in batches_in(content, int(name.removesuffix(".log")))
        if batch.magic == 2 and batch.attributes & DELETE_HORIZON
    }
