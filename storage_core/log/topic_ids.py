"""Names and ids of topics (Kafka's ``Topic`` and ``Uuid``)."""

from __future__ import annotations

import base64
import os
import uuid
from typing import TYPE_CHECKING, Final

from storage_core.checkpoint import (
    PARTITION_METADATA,
    read_partition_metadata,
    write_partition_metadata,
)
from storage_core.checkpoint.commits_file import OWN_PREFIX
from storage_core.checkpoint.partition_metadata import is_topic_id
from storage_core.directory import CLUSTER_METADATA_TOPIC, is_legal_topic_name
from storage_core.directory.partition_name import MAX_PARTITION
from storage_core.errors import LogDirectoryError, OptionError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from storage_core.directory import LogDirectoryFiles, PartitionDirectory
    from storage_core.filesystem import FileSystem

__all__ = ["check_topic_partition", "choose_topic_id", "give_missing_ids"]

_ID_CHARACTERS: Final = 22


def check_topic_partition(topic: object, partition: object) -> None:
    """Refuse what Kafka does not take as a topic's name or a partition's number, and the names of our own files.

    Raises:
        OptionError: It is none.
    """
    if not isinstance(topic, str) or not is_legal_topic_name(topic) or topic == CLUSTER_METADATA_TOPIC:
        raise OptionError(
            "Expected 1 to 249 of the characters a-z, A-Z, 0-9, '.', '_' and '-' as the name of a topic, found "
            f"{topic!r}."
        )
    if topic.startswith(OWN_PREFIX):
        raise OptionError(
            f"Expected the name of a topic not to begin with {OWN_PREFIX!r}, as the names of this package's own files "
            f"in a log directory do, found {topic!r}. Choose another name; what a broker wrote to such a topic can be "
            "read."
        )
    if not isinstance(partition, int) or isinstance(partition, bool) or not 0 <= partition <= MAX_PARTITION:
        raise OptionError(f"Expected a partition number from 0 to {MAX_PARTITION}, found {partition!r}.")


def choose_topic_id(
    filesystem: FileSystem, topic: str, partition_paths: Iterable[str], wanted_id: str | None
) -> str:
    """The id that the topic's other partitions have, or the one that is wanted, or a new one.

    Raises:
        OptionError: What is wanted is no id.
        LogDirectoryError: The other partitions have another id than the one that is wanted.
    """
    if wanted_id is not None and not is_topic_id(wanted_id):
        raise OptionError(
            f"Expected the 22 characters that kafka-topics.sh --describe shows as the id of topic {topic}, found "
            f"{wanted_id!r}. Leave it out for a random one."
        )
    known = (
        read_partition_metadata(filesystem, os.path.join(path, PARTITION_METADATA))
        for path in partition_paths
    )
    known_id = next((each for each in known if each is not None), None)
    if wanted_id is not None and known_id is not None and wanted_id != known_id:
        raise LogDirectoryError(
            f"Expected {known_id} as the id of topic {topic}, which its other partitions have, found {wanted_id}. "
            "Leave it out, or choose another topic."
        )
    return known_id or wanted_id or _random_id()


def give_missing_ids(
    filesystem: FileSystem, root: LogDirectoryFiles, directories: Sequence[PartitionDirectory]
) -> None:
    """Give an id to the partitions that a crash kept from getting one. What a broker made is left as it is."""
    if root.meta_properties is not None:
        return
    for directory in directories:
        path = os.path.join(directory.path, PARTITION_METADATA)
        if filesystem.status(path) is None:
            siblings = [each.path for each in directories if each.topic == directory.topic]
            write_partition_metadata(
                filesystem, path, choose_topic_id(filesystem, directory.topic, siblings, None)
            )


def _random_id() -> str:
    """A random UUID as Kafka writes it: none that begins with a dash, which looks like an option in a shell."""
    while True:
        topic_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode("ascii")[:_ID_CHARACTERS]
        if not topic_id.startswith("-"):
            return topic_id
