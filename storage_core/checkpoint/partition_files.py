"""The small files of a partition directory: leader epochs, topic id, and producer snapshots."""

from __future__ import annotations

import base64
import os
import re
import struct
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from crc32c import crc32c

from storage_core.checkpoint.checkpoint_file import (
    MAX_CHECKPOINT_BYTES,
    checkpoint_text,
    decode_text,
    entry_fields,
    malformed_line,
    parse_integer,
    read_small_file,
    replace_file,
    split_lines,
)
from storage_core.config import INT_MAX, LONG_MAX
from storage_core.errors import CorruptCheckpointError, CorruptSnapshotError, LogDirectoryError, OptionError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from storage_core.filesystem import FileSystem, ReadableFileSystem


# Kafka's ``LeaderEpochCheckpointFile``: text, version 0, one line ``<epoch> <start offset>`` per epoch, both ascending.
# Epochs are assigned at election, so the last one may start at the log end and have no batch yet.
LEADER_EPOCH_CHECKPOINT = "leader-epoch-checkpoint"


@dataclass(frozen=True, slots=True)
class EpochEntry:
    """A leader epoch and the first offset written in it."""

    epoch: int
    start_offset: int


def read_leader_epoch_checkpoint(filesystem: ReadableFileSystem, path: str) -> tuple[EpochEntry, ...]:
    """Read ``leader-epoch-checkpoint``; a missing file has no entries."""
    data = read_small_file(filesystem, path, MAX_CHECKPOINT_BYTES)
    return () if data is None else parse_leader_epoch_checkpoint(data, path)


def parse_leader_epoch_checkpoint(data: bytes, path: str) -> tuple[EpochEntry, ...]:
    """Parse the content of a leader epoch checkpoint, each entry as `assign_epoch` has it."""
    entries: list[EpochEntry] = []
    for line_number, (epoch_text, start_text) in entry_fields(data, path, 2):
        epoch = parse_integer(epoch_text, INT_MAX)
        start_offset = parse_integer(start_text, LONG_MAX)
        if epoch is None or start_offset is None or epoch < 0 or start_offset < 0:
            raise malformed_line(path, line_number, f"{epoch_text} {start_text}", "'<epoch> <start offset>'")
        assign_epoch(entries, EpochEntry(epoch, start_offset))
    return tuple(entries)


def write_leader_epoch_checkpoint(
    filesystem: FileSystem, path: str, entries: Iterable[EpochEntry], *, flush: bool = True
) -> None:
    """Replace a leader epoch checkpoint by one with these entries, ascending in epoch and start offset.

    With ``flush=False`` the caller flushes the file and its directory.
    """
    replace_file(filesystem, path, leader_epoch_checkpoint_text(entries).encode(), flush=flush)


def leader_epoch_checkpoint_text(entries: Iterable[EpochEntry]) -> str:
    """Return the content of a leader epoch checkpoint."""
    return checkpoint_text(f"{entry.epoch} {entry.start_offset}" for entry in entries)


def assign_epoch(entries: list[EpochEntry], entry: EpochEntry) -> None:
    """Append an entry. As in Kafka, it replaces those before it whose epoch or start offset is not below its own."""
    if entries and entry.epoch == entries[-1].epoch and entry.start_offset >= entries[-1].start_offset:
        return
    while entries and (entries[-1].epoch >= entry.epoch or entries[-1].start_offset >= entry.start_offset):
        entries.pop()
    entries.append(entry)


# The topic id of a partition directory (Kafka's ``PartitionMetadataFile``): two lines, the second without a line end,
# ``version: 0`` and ``topic_id: <16 bytes as URL-safe base64 without padding>``.
PARTITION_METADATA = "partition.metadata"
_METADATA_VERSION = 0
_METADATA_LIMIT_BYTES = 4096
# Java's \s.
_SEPARATOR = re.compile(r":[ \t\n\x0b\f\r]+")
_TOPIC_ID = re.compile(r"([A-Za-z0-9_-]{22})(==)?")
_ID_CHARACTERS = 22
_ZERO_ID = "A" * _ID_CHARACTERS


def is_topic_id(text: object) -> bool:
    """Return True if a text is a topic id as Kafka's ``Uuid`` writes it, without padding, and not the zero id."""
    return (
        isinstance(text, str)
        and _TOPIC_ID.fullmatch(text) is not None
        and _canonical(text) == text != _ZERO_ID
    )


def read_partition_metadata(filesystem: ReadableFileSystem, path: str) -> str | None:
    """Read the topic id (22 characters).

    Returns:
        None if the file does not exist.
    """
    data = read_small_file(filesystem, path, _METADATA_LIMIT_BYTES)
    return None if data is None else parse_partition_metadata(data, path)


def parse_partition_metadata(data: bytes, path: str) -> str:
    """Parse the content of ``partition.metadata``; the names before the colons are ignored."""
    lines = split_lines(decode_text(data, path))
    version_text = _value(lines[0]) if lines else None
    version = None if version_text is None else parse_integer(version_text, INT_MAX)
    # Kafka accepts higher versions too, so that a downgraded broker still starts.
    if version is None or version < 0:
        raise _malformed(path, "'version: 0' in line 1", lines[:1])
    topic_id_text = _value(lines[1]) if len(lines) > 1 else None
    match = None if topic_id_text is None else _TOPIC_ID.fullmatch(topic_id_text)
    if match is None:
        raise _malformed(path, "'topic_id: <22 characters of base64>' in line 2", lines[1:2])
    topic_id = _canonical(match[1])
    if topic_id == _ZERO_ID:
        raise _malformed(path, "a topic id other than zero", lines[1:2])
    return topic_id


def write_partition_metadata(filesystem: FileSystem, path: str, topic_id: str) -> None:
    """Replace ``partition.metadata`` by one with this topic id (22 characters).

    Raises:
        CorruptCheckpointError: It is not a topic id, or the zero id; nothing was written.
    """
    replace_file(filesystem, path, partition_metadata_bytes(topic_id, path))


def partition_metadata_bytes(topic_id: str, path: str) -> bytes:
    """Return the content of ``partition.metadata``; raises as `write_partition_metadata` does."""
    data = f"version: {_METADATA_VERSION}\ntopic_id: {topic_id}".encode()
    if parse_partition_metadata(data, path) != topic_id:
        raise _malformed(path, "a topic id as Kafka writes it", [topic_id])
    return data


def choose_topic_id(
    filesystem: ReadableFileSystem, topic: str, partition_paths: Iterable[str], wanted_id: str | None
) -> str:
    """Choose the id of a topic: that of its other partitions, else the wanted one, else a new one.

    The first two must not differ.
    """
    if wanted_id is not None and not is_topic_id(wanted_id):
        raise OptionError(
            f"Expected the 22 characters that kafka-topics.sh --describe shows as the id of topic {topic}, found "
            f"{wanted_id!r}. Omit it for a random one."
        )
    known = (
        read_partition_metadata(filesystem, os.path.join(path, PARTITION_METADATA))
        for path in partition_paths
    )
    known_id = next((each for each in known if each is not None), None)
    if wanted_id is not None and known_id is not None and wanted_id != known_id:
        raise LogDirectoryError(
            f"Expected {known_id} as the id of topic {topic}, as in its other partitions, found {wanted_id}. "
            "Omit it, or choose another topic."
        )
    return known_id or wanted_id or _random_id()


def _random_id() -> str:
    """Make a random UUID in Kafka's format, without a leading dash, which a shell command takes for an option."""
    while True:
        topic_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode("ascii")[:_ID_CHARACTERS]
        if not topic_id.startswith("-"):
            return topic_id


def _canonical(topic_id: str) -> str:
    """Return the id encoded again, so that ids compare as text: only two bits of the last character are part of it."""
    return base64.urlsafe_b64encode(base64.urlsafe_b64decode(topic_id[:22] + "==")).decode("ascii")[:22]


def _value(line: str) -> str | None:
    # Exactly one separator: a second one makes the line malformed, as in Kafka.
    _, *values = _SEPARATOR.split(line)
    return values[0] if len(values) == 1 else None


def _malformed(path: str, expected: str, lines: list[str]) -> CorruptCheckpointError:
    found = repr(lines[0][:80]) if lines else "the end of the file"
    message = f"Expected {expected}, found {found}. The file is damaged: restore it, or remove it."
    return CorruptCheckpointError(message, path=path)


_SNAPSHOT_VERSION = 1
# ``<offset>.snapshot``: the producers before an offset (Kafka's ``ProducerStateManager``). All integers are big-endian.
#
#     position  bytes  field
#     0         2      version, 1
#     2         4      CRC-32C of all bytes after this field
#     6         4      number of entries
#     10        46     each entry: producer id (8), producer epoch (2), last sequence (4), last offset (8),
#                      offset delta of the last batch (4), timestamp in ms (8), coordinator epoch (4),
#                      first offset of the open transaction (8); -1 for none
_HEADER = struct.Struct(">hIi")
_ENTRY = struct.Struct(">qhiqiqiq")
_CRC_END = 6
_NO_OFFSET = -1
# 364,000 producers. The producers of a log with more are read from its batches.
_SNAPSHOT_LIMIT_BYTES = 16 * 1024 * 1024


class ProducerStateEntry(NamedTuple):
    """The last batch of one producer, and its open transaction if it has one."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp_ms: int
    coordinator_epoch: int
    current_transaction_first_offset: int | None


def read_producer_snapshot(
    filesystem: ReadableFileSystem, path: str
) -> tuple[ProducerStateEntry, ...] | None:
    """Read a producer snapshot.

    Returns:
        None if the file does not exist. Kafka replaces an unusable one by an older one.
    """
    data = read_small_file(filesystem, path, _SNAPSHOT_LIMIT_BYTES, CorruptSnapshotError)
    return None if data is None else parse_producer_snapshot(data, path)


def parse_producer_snapshot(data: bytes, path: str) -> tuple[ProducerStateEntry, ...]:
    """Parse the content of a producer snapshot."""
    if len(data) < _HEADER.size:
        raise _corrupt(path, f"at least {_HEADER.size} bytes", f"{len(data)}")
    version, expected_crc, entry_count = _HEADER.unpack_from(data)
    if version != _SNAPSHOT_VERSION:
        raise _corrupt(path, f"producer snapshot version {_SNAPSHOT_VERSION}", f"{version}")
    crc = crc32c(memoryview(data)[_CRC_END:])
    if crc != expected_crc:
        raise _corrupt(path, f"CRC-32C {expected_crc:#010x}", f"{crc:#010x}")
    size_bytes = _HEADER.size + entry_count * _ENTRY.size
    if entry_count < 0 or size_bytes != len(data):
        raise _corrupt(path, f"{size_bytes} bytes for {entry_count} producers", f"{len(data)}")
    return tuple(
        ProducerStateEntry._make((*fields, None if first_offset < 0 else first_offset))
        for *fields, first_offset in _ENTRY.iter_unpack(memoryview(data)[_HEADER.size :])
    )


def write_producer_snapshot(
    filesystem: FileSystem, path: str, entries: Iterable[ProducerStateEntry], *, flush: bool = True
) -> None:
    """Replace a producer snapshot by one with these producers, in any order.

    With ``flush=False`` the caller flushes the file and its directory.
    """
    replace_file(filesystem, path, producer_snapshot_bytes(entries), flush=flush)


def producer_snapshot_bytes(entries: Iterable[ProducerStateEntry]) -> bytes:
    """Return the content of a producer snapshot."""
    packed = [
        _ENTRY.pack(*fields, _NO_OFFSET if first_offset is None else first_offset)
        for *fields, first_offset in entries
    ]
    data = bytearray(_HEADER.pack(_SNAPSHOT_VERSION, 0, len(packed)))
    data += b"".join(packed)
    _HEADER.pack_into(data, 0, _SNAPSHOT_VERSION, crc32c(memoryview(data)[_CRC_END:]), len(packed))
    return bytes(data)


def _corrupt(path: str, expected: str, found: str) -> CorruptSnapshotError:
    message = f"Expected {expected}, found {found}. An older snapshot, or the log itself, can replace it."
    return CorruptSnapshotError(message, path=path)
