"""``<offset>.snapshot``: the producers known before an offset (Kafka's ``ProducerStateManager``).

All integers are big-endian.

    position  bytes  field
    0         2      version, 1
    2         4      CRC-32C of everything behind this field
    6         4      number of entries
    10        46     each entry: producer id (8), producer epoch (2), last sequence (4), last offset (8),
                     offset delta of the last batch (4), timestamp in ms (8), coordinator epoch (4),
                     first offset of the open transaction (8); -1 stands for none
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from crc32c import crc32c

from storage_core.checkpoint._small_file import replace_file
from storage_core.errors import CorruptSnapshotError, LogDirectoryError, UnreadableError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from storage_core.filesystem import FileSystem

__all__ = [
    "ProducerStateEntry",
    "parse_producer_snapshot",
    "producer_snapshot_bytes",
    "read_producer_snapshot",
    "write_producer_snapshot",
]

_VERSION = 1
_HEADER = struct.Struct(">hIi")
_ENTRY = struct.Struct(">qhiqiqiq")
_CRC_END = 6
_NO_OFFSET = -1
# 364,000 producers. Of a log with more, the batches tell what is asked.
_LIMIT_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ProducerStateEntry:
    """The last batch of one producer, and its open transaction if it has one."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp_ms: int
    coordinator_epoch: int
    current_transaction_first_offset: int | None


def read_producer_snapshot(filesystem: FileSystem, path: str) -> tuple[ProducerStateEntry, ...] | None:
    """Read a producer snapshot; None if the file does not exist.

    Raises:
        CorruptSnapshotError: The file cannot be used; Kafka then takes the next older one.
        UnreadableError: This user may not read it.
    """
    try:
        data = filesystem.read_file(path, _LIMIT_BYTES)
    except UnreadableError:
        raise
    except LogDirectoryError as error:
        raise CorruptSnapshotError(error.args[0], path=path) from error
    return None if data is None else parse_producer_snapshot(data, path)


def parse_producer_snapshot(data: bytes, path: str) -> tuple[ProducerStateEntry, ...]:
    """Parse the content of a producer snapshot.

    Raises:
        CorruptSnapshotError: Version, CRC or length is wrong.
    """
    if len(data) < _HEADER.size:
        raise _corrupt(path, f"at least {_HEADER.size} bytes", f"{len(data)}")
    version, expected_crc, entry_count = _HEADER.unpack_from(data)
    if version != _VERSION:
        raise _corrupt(path, f"producer snapshot version {_VERSION}", f"{version}")
    crc = crc32c(memoryview(data)[_CRC_END:])
    if crc != expected_crc:
        raise _corrupt(path, f"CRC-32C {expected_crc:#010x}", f"{crc:#010x}")
    size_bytes = _HEADER.size + entry_count * _ENTRY.size
    if entry_count < 0 or size_bytes != len(data):
        raise _corrupt(path, f"{size_bytes} bytes for {entry_count} producers", f"{len(data)}")
    return tuple(_entry(fields) for fields in _ENTRY.iter_unpack(memoryview(data)[_HEADER.size :]))


def write_producer_snapshot(
    filesystem: FileSystem, path: str, entries: Iterable[ProducerStateEntry], *, flush: bool = True
) -> None:
    """Replace a producer snapshot by one with these producers.

    Args:
        filesystem: Where to write.
        path: The snapshot file.
        entries: The producers, in any order.
        flush: False leaves the flush of the file and of its directory to the caller.

    Raises:
        StorageError: The file system refused.
    """
    replace_file(filesystem, path, producer_snapshot_bytes(entries), flush=flush)


def producer_snapshot_bytes(entries: Iterable[ProducerStateEntry]) -> bytes:
    """The content of a producer snapshot."""
    packed = [_ENTRY.pack(*_fields(entry)) for entry in entries]
    data = bytearray(_HEADER.pack(_VERSION, 0, len(packed)))
    data += b"".join(packed)
    _HEADER.pack_into(data, 0, _VERSION, crc32c(memoryview(data)[_CRC_END:]), len(packed))
    return bytes(data)


def _fields(entry: ProducerStateEntry) -> tuple[int, ...]:
    transaction_first_offset = entry.current_transaction_first_offset
    return (
        entry.producer_id,
        entry.producer_epoch,
        entry.last_sequence,
        entry.last_offset,
        entry.offset_delta,
        entry.timestamp_ms,
        entry.coordinator_epoch,
        _NO_OFFSET if transaction_first_offset is None else transaction_first_offset,
    )


def _entry(fields: tuple[int, ...]) -> ProducerStateEntry:
    producer_id, epoch, sequence, offset, delta, timestamp_ms, coordinator_epoch, transaction_first_offset = (
        fields
    )
    return ProducerStateEntry(
        producer_id=producer_id,
        producer_epoch=epoch,
        last_sequence=sequence,
        last_offset=offset,
        offset_delta=delta,
        timestamp_ms=timestamp_ms,
        coordinator_epoch=coordinator_epoch,
        current_transaction_first_offset=None if transaction_first_offset < 0 else transaction_first_offset,
    )


def _corrupt(path: str, expected: str, found: str) -> CorruptSnapshotError:
    message = f"Expected {expected}, found {found}. An older snapshot, or the log itself, can take its place."
    return CorruptSnapshotError(message, path=path)
