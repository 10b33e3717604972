"""The topic ids of partitions that a broker is to serve.

A KRaft broker that starts with a partition whose ``partition.metadata`` is missing, or has another id than the cluster's
metadata, renames its directory to ``…-stray`` and begins an empty log. So a lost id is looked for where the same log
directory has it once more: in ``__cluster_metadata``, and in the topic's other partitions.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Final

import numpy as np

from storage_core.checkpoint import PARTITION_METADATA, read_partition_metadata
from storage_core.directory.log_directory_files import CLUSTER_METADATA_TOPIC, parse_partition_directory_name
from storage_core.errors import (
    CorruptCheckpointError,
    CorruptError,
    LogDirectoryError,
    UnsupportedFormatError,
)
from storage_core.inspect.internal_records import read_metadata_record
from storage_core.record.arrow_columns import binary_array
from storage_core.record.batch_header import CONTROL_FLAG
from storage_core.record.decode import decode_records
from storage_core.record.section import SectionMaker, WantedFields
from storage_core.segment.batch_windows import read_windows
from storage_core.segment.file_names import LOG_SUFFIX, base_offset_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from storage_core.filesystem import FileSystem


_SNAPSHOT_SUFFIX: Final = ".checkpoint"
_ID_ONLY: Final = WantedFields(timestamp=False, key=False)


class TopicIds:
    """The topic ids that are known in a log directory."""

    def __init__(self, filesystem: FileSystem, root: str, max_batch_bytes: int) -> None:
        self._of_cluster: dict[str, str] = {}
        self._of_partitions: dict[str, set[str]] = {}
        for entry in filesystem.list_directory(root):
            name = parse_partition_directory_name(entry.name)
            if name is None or name.suffix is not None or not entry.is_directory:
                continue
            path = os.path.join(root, entry.name)
            if name.topic == CLUSTER_METADATA_TOPIC:
                self._of_cluster = _ids_of_cluster(filesystem, path, max_batch_bytes)
                continue
            topic_id = _id_in(filesystem, path)
            if topic_id is not None:
                self._of_partitions.setdefault(name.topic, set()).add(topic_id)

    def lost_id_of(self, topic: str) -> str | None:
        """Return the id of a topic for a partition that has none; None if it is not known, or if there are several."""
        known = self._of_partitions.get(topic, set())
        return self._of_cluster.get(topic) or (next(iter(known)) if len(known) == 1 else None)

    def contradiction(self, topic: str, topic_id: str) -> str | None:
        """Return what contradicts the id of a partition; None if nothing does."""
        of_cluster = self._of_cluster.get(topic)
        if of_cluster is not None and of_cluster != topic_id:
            return f"Expected topic id {of_cluster}, as in __cluster_metadata, found {topic_id}"
        others = sorted(self._of_partitions.get(topic, set()) - {topic_id})
        if others and of_cluster is None:
            return f"Expected one topic id for all partitions of {topic}, found {topic_id} here and {', '.join(others)} elsewhere"
        return None


def _id_in(filesystem: FileSystem, path: str) -> str | None:
    with contextlib.suppress(CorruptCheckpointError, LogDirectoryError):
        return read_partition_metadata(filesystem, os.path.join(path, PARTITION_METADATA))
    return None


def _ids_of_cluster(filesystem: FileSystem, path: str, max_batch_bytes: int) -> dict[str, str]:
    """The id of each topic: by the newest snapshot of the cluster's metadata, and the log after it, as far as they are valid."""
    names = [entry.name for entry in filesystem.list_directory(path) if entry.is_regular_file]
    snapshots = sorted(name for name in names if name.endswith(_SNAPSHOT_SUFFIX))
    logs = sorted(name for name in names if name.endswith(LOG_SUFFIX) and base_offset_of(name) is not None)
    ids: dict[str, str] = {}
    for name in (*snapshots[-1:], *logs):
        with contextlib.suppress(CorruptError, UnsupportedFormatError):
            for value in _values(filesystem, os.path.join(path, name), max_batch_bytes):
                try:
                    record, fields = read_metadata_record(value)
                except CorruptError:
                    # Of a newer Kafka.
                    continue
                if record == "TopicRecord":
                    ids[str(fields["name"])] = str(fields["topicId"])
                elif record == "RemoveTopicRecord":
                    ids = {topic: each for topic, each in ids.items() if each != fields["topicId"]}
    return ids


def _values(filesystem: FileSystem, path: str, max_batch_bytes: int) -> Iterator[bytes]:
    sections = SectionMaker(max_batch_bytes, _ID_ONLY)
    with filesystem.open(path) as log_file:
        end_bytes = log_file.status.size_bytes
        for window in read_windows(log_file, 0, end_bytes, 0, max_batch_bytes=max_batch_bytes):
            numbers = np.flatnonzero((window.headers["attributes"] & CONTROL_FLAG) == 0)
            numbers = np.setdiff1d(numbers, window.crc_mismatches(numbers))
            for section in sections.sections(window, numbers):
                values = decode_records(section, _ID_ONLY).values
                if values is not None:
                    yield from filter(None, binary_array(section.buffer, values).to_pylist())
