"""The topic ids of partitions that a broker is to serve.

A KRaft broker that starts with a partition whose ``partition.metadata`` is missing, or has another id than the cluster's
metadata, renames its directory to ``…-stray`` and begins an empty log. So a lost id is looked for where the same log
directory has it once more: in ``__cluster_metadata``, and in the topic's other partitions.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from storage_core.check.cluster_topics import read_cluster_topics
from storage_core.checkpoint import PARTITION_METADATA, read_partition_metadata
from storage_core.directory.log_directory_files import CLUSTER_METADATA_TOPIC, parse_partition_directory_name
from storage_core.errors import CorruptCheckpointError, LogDirectoryError

if TYPE_CHECKING:
    from storage_core.filesystem import FileSystem


class TopicIds:
    """The topic ids that are known in a log directory."""

    def __init__(self, filesystem: FileSystem, root: str) -> None:
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


def _id_in(filesystem: FileSystem, path: str) -> str | None:
    with contextlib.suppress(CorruptCheckpointError, LogDirectoryError):
        return read_partition_metadata(filesystem, os.path.join(path, PARTITION_METADATA))
    return None
