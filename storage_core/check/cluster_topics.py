"""Which partitions a cluster has, by the log of its metadata: a broker that starts sets all others aside.

Source: ``LogManager.isStrayKraftReplica`` of Apache Kafka 4.1.0.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from storage_core.checkpoint import PARTITION_METADATA, read_partition_metadata
from storage_core.directory.log_directory_files import CLUSTER_METADATA_TOPIC, parse_partition_directory_name
from storage_core.errors import BatchTooLargeError, CorruptCheckpointError, LogDirectoryError, SegmentLogError
from storage_core.filesystem import ReadableFileSystem
from storage_core.internal_records.internal_records import read_metadata_record
from storage_core.record import WantedFields
from storage_core.record.decode import decode_records
from storage_core.record.section import batch_section
from storage_core.segment.batch_walk import BatchWalk, read_batch
from storage_core.segment.file_names import base_offset_of, log_file_name
from storage_core.views.files import METADATA_SNAPSHOT, name_in_partition

# A controller writes a snapshot after 20 MiB of records, by default.
_MOST_BYTES: Final = 64 << 20
# More than this is inflated of no file: zstd makes 64 MiB of 6 KB.
_MOST_INFLATED_BYTES: Final = 4 * _MOST_BYTES
# The second byte of these records is their type: of topics and partitions. Most others are of no use here.
_TYPES: Final = (b"\x02", b"\x03", b"\x05", b"\x09")


@dataclass(frozen=True, slots=True)
class ClusterTopics:
    """The topics of a cluster, and which brokers have their partitions.

    Attributes:
        names: By topic id.
        replicas: By topic id and partition.
        directory_ids: By topic id and partition, the log directory of each replica, as far as it is known.
    """

    names: dict[str, str] = field(default_factory=dict)
    replicas: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    directory_ids: dict[tuple[str, int], list[str]] = field(default_factory=dict)

    def directories_of(self, node_id: int | None) -> dict[tuple[str, int], str]:
        """Return in which log directory of a broker each of its logs is, by topic and partition."""
        return {key: directory_id for key, replica, directory_id in self._places() if replica == node_id}

    def owners_of(self, directory_id: str) -> set[int]:
        """Return the brokers that have logs in a log directory: one, or none if it has no logs."""
        return {replica for _, replica, known_id in self._places() if known_id == directory_id}

    def _places(self) -> Iterator[tuple[tuple[str, int], int, str]]:
        for (topic_id, partition), replicas in self.replicas.items():
            if topic_id in self.names:
                directory_ids = self.directory_ids.get((topic_id, partition), [])
                for replica, directory_id in zip(replicas, directory_ids, strict=False):
                    yield (self.names[topic_id], partition), replica, directory_id

    def why_stray(self, topic: str, partition: int, topic_id: str, node_id: int | None) -> str | None:
        """Determine why a broker sets a partition's directory aside.

        Returns:
            What it objects to; None if it serves the directory.
        """
        if topic_id not in self.names:
            ids = sorted(each for each, name in self.names.items() if name == topic)
            return f"topic id {topic_id}, and the cluster has " + (
                f"{topic} with topic id {ids[0]}" if ids else f"no topic {topic}"
            )
        replicas = self.replicas.get((topic_id, partition))
        if replicas is None:
            return f"partition {partition}, which the cluster's topic {topic} does not have"
        if node_id is not None and node_id not in replicas:
            return f"a partition that the cluster has on {replicas}, and this directory is that of broker {node_id}"
        return None


def read_cluster_topics(
    filesystem: ReadableFileSystem, directory: str, *, is_partly_enough: bool = False
) -> ClusterTopics | None:
    """Read the directory of ``__cluster_metadata-0``, or only what comes before damage if that is enough.

    Returns:
        The topics; None if it does not tell them: records are missing or damaged.
    """
    topics = ClusterTopics()
    try:
        next_offset, files = _files(filesystem, directory)
        for path in files:
            for value in _values(filesystem, path, next_offset if path.endswith(".log") else 0):
                _apply(topics, value)
    except (SegmentLogError, FileNotFoundError):
        return topics if is_partly_enough else None
    return topics if files else None


def _files(filesystem: ReadableFileSystem, directory: str) -> tuple[int, list[str]]:
    """Find the newest snapshot and the log files after it, and the offset after the snapshot."""
    names = [each.name for each in filesystem.list_directory(directory) if each.is_regular_file]
    bases = sorted(base for name in names if (base := base_offset_of(name)) is not None)
    bases = [base for base in bases if log_file_name(base) in names]
    snapshots = [(name_in_partition(name).base_offset or 0, name) for name in names if _is_snapshot(name)]
    next_offset, *latest = max(snapshots, default=(0,))
    chosen = [str(name) for name in latest] + [log_file_name(base) for base in dict.fromkeys(bases)]
    paths = [os.path.join(directory, name) for name in chosen]
    sizes_bytes = [0 if status is None else status.size_bytes for status in map(filesystem.status, paths)]
    if not bases or bases[0] > next_offset or sum(sizes_bytes) > _MOST_BYTES:
        return 0, []
    return next_offset, paths


def _is_snapshot(name: str) -> bool:
    found = name_in_partition(name)
    return found.kind == METADATA_SNAPSHOT and found.leftover is None and name.count("-") == 1


def _values(filesystem: ReadableFileSystem, path: str, lowest_offset: int) -> Iterator[bytes]:
    inflated_bytes = 0
    with filesystem.open(path) as opened:
        for header in BatchWalk(opened, 0, opened.status.size_bytes).batches():
            if header.is_control or header.last_offset < lowest_offset or not header.record_count:
                continue
            batch = read_batch(opened, header, _MOST_BYTES)
            section = batch_section(batch, header, path=path, limit_bytes=_MOST_BYTES)
            inflated_bytes += len(section.buffer)
            if inflated_bytes > _MOST_INFLATED_BYTES:
                message = f"Expected at most {_MOST_INFLATED_BYTES} bytes of records, found more."
                raise BatchTooLargeError(message, path=path)
            values = decode_records(section, WantedFields(timestamp=False, key=False)).values
            if values is not None:
                data = section.buffer.tobytes()
                for start, length in zip(values.starts.tolist(), values.lengths.tolist(), strict=True):
                    yield data[start : start + max(length, 0)]


def _apply(topics: ClusterTopics, value: bytes) -> None:
    if value[1:2] not in _TYPES:
        return
    kind, data = read_metadata_record(value)
    topic_id = data["topicId"]
    if kind == "TopicRecord":
        topics.names[topic_id] = data["name"]
    elif kind == "RemoveTopicRecord":
        topics.names.pop(topic_id, None)
    else:
        key = topic_id, data["partitionId"]
        for known, name in ((topics.replicas, "replicas"), (topics.directory_ids, "directories")):
            # A change names only what it changes.
            if data.get(name) is not None:
                known[key] = data[name]


class TopicIds:
    """Topic ids that are known in a log directory.

    A broker sets a partition with a missing or another topic id aside. So a lost id is looked for where the same log
    directory has it once more: in ``__cluster_metadata``, and in the topic's other partitions.
    """

    def __init__(self, filesystem: ReadableFileSystem, root: str) -> None:
        self._of_cluster: dict[str, str] = {}
        self._of_partitions: dict[str, set[str]] = {}
        for entry in filesystem.list_directory(root):
            name = parse_partition_directory_name(entry.name)
            if name is None or name.suffix is not None or not entry.is_directory:
                continue
            path = os.path.join(root, entry.name)
            if name.topic == CLUSTER_METADATA_TOPIC:
                found = read_cluster_topics(filesystem, path, is_partly_enough=True)
                self._of_cluster = (
                    {} if found is None else {topic: each for each, topic in found.names.items()}
                )
                continue
            topic_id = _id_in(filesystem, path)
            if topic_id is not None:
                self._of_partitions.setdefault(name.topic, set()).add(topic_id)

    def lost_id_of(self, topic: str) -> str | None:
        """Find the id of a topic for a partition that has none.

        Returns:
            The id; None if it is not known, or if there are several.
        """
        known = self._of_partitions.get(topic, set())
        return self._of_cluster.get(topic) or (next(iter(known)) if len(known) == 1 else None)

    def contradiction(self, topic: str, topic_id: str) -> str | None:
        """Compare the id of a partition with what else is known of its topic.

        Returns:
            What contradicts it; None if nothing does.
        """
        of_cluster = self._of_cluster.get(topic)
        if of_cluster is not None and of_cluster != topic_id:
            return f"Expected topic id {of_cluster}, as in __cluster_metadata, found {topic_id}"
        others = sorted(self._of_partitions.get(topic, set()) - {topic_id})
        if others and of_cluster is None:
            return f"Expected one topic id for all partitions of {topic}, found {topic_id} here and {', '.join(others)} elsewhere"
        return None


def _id_in(filesystem: ReadableFileSystem, path: str) -> str | None:
    with contextlib.suppress(CorruptCheckpointError, LogDirectoryError):
        return read_partition_metadata(filesystem, os.path.join(path, PARTITION_METADATA))
    return None
