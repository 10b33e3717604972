"""The small files of a log directory's root: clean shutdown marker, ``meta.properties``, and offset checkpoints."""

from __future__ import annotations

import logging
import os
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from storage_core.checkpoint.checkpoint_file import (
    MAX_CHECKPOINT_BYTES,
    checkpoint_text,
    entry_fields,
    malformed_line,
    parse_integer,
    read_small_file,
    replace_file,
)
from storage_core.config import INT_MAX, LONG_MAX, parse_java_properties
from storage_core.errors import CorruptCheckpointError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from storage_core.filesystem import FileStatus, FileSystem, ReadableFileSystem


_log = logging.getLogger(__name__)
# Every log under this root was flushed and closed (Kafka's ``CleanShutdownFileHandler``). A broker deletes the file before
# it opens the first log, and writes it after it has closed the last. Only a controller uses its content, JSON with the
# broker's epoch (empty before Kafka 3): a process that removes a broker's marker puts the same one back.
CLEAN_SHUTDOWN_FILE = ".kafka_cleanshutdown"
MARKER_WITHOUT_EPOCH = b'{"version":0,"brokerEpoch":-1}'
_CLEAN_SHUTDOWN_LIMIT_BYTES = 4096


def has_clean_shutdown_file(filesystem: ReadableFileSystem, root: str) -> bool:
    """Return True if the log directory ``root`` was shut down cleanly."""
    return clean_shutdown_status(filesystem, root) is not None


def clean_shutdown_status(filesystem: ReadableFileSystem, root: str) -> FileStatus | None:
    """Return the status of the marker, which differs for each one written.

    Returns:
        None if there is none.
    """
    return filesystem.status(os.path.join(root, CLEAN_SHUTDOWN_FILE))


def read_clean_shutdown_file(filesystem: ReadableFileSystem, root: str) -> bytes | None:
    """Return the content of the marker.

    Returns:
        None if there is none, or if it is too large to be one.
    """
    path = os.path.join(root, CLEAN_SHUTDOWN_FILE)
    try:
        return read_small_file(filesystem, path, _CLEAN_SHUTDOWN_LIMIT_BYTES)
    except CorruptCheckpointError:
        return None


def write_clean_shutdown_file(filesystem: FileSystem, root: str, content: bytes | None = None) -> None:
    """Mark that every log under ``root`` was flushed and closed; durable when this returns.

    As in Kafka, it is written in place: only the existence of the file matters. ``content`` is that of an earlier
    marker; without it, the marker has no epoch.
    """
    with filesystem.open_for_writing(os.path.join(root, CLEAN_SHUTDOWN_FILE), create=True) as file:
        file.truncate(0)
        file.write_at([MARKER_WITHOUT_EPOCH if content is None else content], 0)
        file.flush()
    filesystem.flush_directory(root)


def delete_clean_shutdown_file(filesystem: FileSystem, root: str) -> bool:
    """Remove the marker; durable when this returns. False if there was none."""
    existed = filesystem.delete(os.path.join(root, CLEAN_SHUTDOWN_FILE))
    # Also without the file: a process that deleted it may have crashed before its flush.
    filesystem.flush_directory(root)
    return existed


# The broker and cluster that own a log directory (Kafka's ``MetaProperties``): Java properties. Version 0, or none, has
# ``broker.id`` and ``cluster.id``, both optional; version 1 has ``node.id`` and ``cluster.id``; both may have
# ``directory.id``.
META_PROPERTIES = "meta.properties"
_META_PROPERTIES_LIMIT_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class MetaProperties:
    """The owner of a log directory. Properties that the file does not have are None."""

    version: int
    node_id: int | None
    cluster_id: str | None
    directory_id: str | None


def read_meta_properties(filesystem: ReadableFileSystem, path: str) -> MetaProperties | None:
    """Read ``meta.properties``.

    Returns:
        None if it does not exist.
    """
    data = read_small_file(filesystem, path, _META_PROPERTIES_LIMIT_BYTES)
    return None if data is None else parse_meta_properties(data, path)


def parse_meta_properties(data: bytes, path: str) -> MetaProperties:
    """Parse the content of ``meta.properties``."""
    # Java reads property files as ISO 8859-1, which maps every byte to a character.
    try:
        properties = dict(parse_java_properties(data.decode("latin-1")))
    except ValueError as error:
        raise CorruptCheckpointError(f"{error} Restore the file.", path=path) from error
    version = _integer(properties, "version", path) or 0
    if version not in (0, 1):
        message = f"Expected version 0 or 1 in {META_PROPERTIES}, found {version}. A newer Kafka wrote it."
        raise CorruptCheckpointError(message, path=path)
    node_id = _integer(properties, "broker.id" if version == 0 else "node.id", path)
    cluster_id = properties.get("cluster.id")
    if version == 1 and (node_id is None or cluster_id is None):
        missing = "node.id" if node_id is None else "cluster.id"
        message = f"Expected {missing} in {META_PROPERTIES} of version 1, found none. Restore the file."
        raise CorruptCheckpointError(message, path=path)
    return MetaProperties(version, node_id, cluster_id, properties.get("directory.id"))


def _integer(properties: dict[str, str], name: str, path: str) -> int | None:
    text = properties.get(name)
    if text is None:
        return None
    value = parse_integer(text, INT_MAX)
    if value is None:
        message = f"Expected a whole number as {name}, found {text[:80]!r}. Restore the file."
        raise CorruptCheckpointError(message, path=path)
    return value


# Offset checkpoints (Kafka's ``OffsetCheckpointFile``): text, version 0, one line ``<topic> <partition> <offset>`` per
# partition.
#
#     recovery point      first offset not known to be flushed; 0 if absent
#     log start offset    only if it is above the first segment's base offset
#     replication offset  high watermark
#     cleaner offset      first offset not yet compacted
RECOVERY_POINT_CHECKPOINT = "recovery-point-offset-checkpoint"
LOG_START_OFFSET_CHECKPOINT = "log-start-offset-checkpoint"
REPLICATION_OFFSET_CHECKPOINT = "replication-offset-checkpoint"
CLEANER_OFFSET_CHECKPOINT = "cleaner-offset-checkpoint"


def read_offset_checkpoint(filesystem: ReadableFileSystem, path: str) -> dict[tuple[str, int], int]:
    """Read an offset checkpoint: the offset of each (topic, partition); a missing file has no entries."""
    data = read_small_file(filesystem, path, MAX_CHECKPOINT_BYTES)
    return {} if data is None else parse_offset_checkpoint(data, path)


def parse_offset_checkpoint(data: bytes, path: str) -> dict[tuple[str, int], int]:
    """Parse the content of an offset checkpoint. Of two lines for one partition, the later one counts."""
    offsets: dict[tuple[str, int], int] = {}
    for line_number, (topic, partition_text, offset_text) in entry_fields(data, path, 3):
        partition = parse_integer(partition_text, INT_MAX)
        offset = parse_integer(offset_text, LONG_MAX)
        if partition is None or offset is None:
            line = f"{topic} {partition_text} {offset_text}"
            raise malformed_line(path, line_number, line, "'<topic> <partition> <offset>'")
        offsets[topic, partition] = offset
    return offsets


def write_offset_checkpoint(
    filesystem: FileSystem, path: str, offsets: Mapping[tuple[str, int], int]
) -> None:
    """Replace an offset checkpoint by one with the offset of each (topic, partition).

    Kafka writes them in the order of its hash map; they are sorted here.
    """
    lines = (f"{topic} {partition} {offset}" for (topic, partition), offset in sorted(offsets.items()))
    replace_file(filesystem, path, checkpoint_text(lines).encode())


class CleanerCheckpoint:
    """The first offset of each log that was not cleaned yet: ``cleaner-offset-checkpoint``. Thread-safe.

    The file is read on the first use; no other process writes it afterwards. Entries of logs that are not among
    ``logs``, which may grow, are dropped.
    """

    def __init__(self, filesystem: FileSystem, path: str, logs: Collection[tuple[str, int]]) -> None:
        self._filesystem = filesystem
        self._path = os.path.join(path, CLEANER_OFFSET_CHECKPOINT)
        self._logs = logs
        self._lock = threading.Lock()
        self._known: dict[tuple[str, int], int] | None = None

    def offset(self, topic_partition: tuple[str, int]) -> int | None:
        """Return the offset up to which a log was cleaned, or None if it never was."""
        with self._lock:
            return self._load().get(topic_partition)

    def update(self, topic_partition: tuple[str, int], offset: int) -> None:
        """Set the offset up to which a log was cleaned."""
        with self._lock:
            if self._load().get(topic_partition) != offset:
                self._write({**self._load(), topic_partition: offset})

    def lower(self, topic_partition: tuple[str, int], offset: int) -> None:
        """Lower the offset of a log before a truncation: records appended later are dirty."""
        with self._lock:
            if self._load().get(topic_partition, offset) > offset:
                self._write({**self._load(), topic_partition: offset})

    def forget(self, topic_partition: tuple[str, int]) -> None:
        """Remove the entry of a log."""
        with self._lock:
            if topic_partition in self._load():
                self._write({key: value for key, value in self._load().items() if key != topic_partition})

    def _load(self) -> dict[tuple[str, int], int]:
        if self._known is None:
            try:
                self._known = read_offset_checkpoint(self._filesystem, self._path)
            except CorruptCheckpointError as error:
                # Cleaning clean segments again does no harm.
                _log.warning("All logs count as dirty: %s", error)
                self._known = {}
        return self._known

    def _write(self, offsets: dict[tuple[str, int], int]) -> None:
        kept = {key: offset for key, offset in offsets.items() if key in self._logs}
        write_offset_checkpoint(self._filesystem, self._path, kept)
        self._known = kept
