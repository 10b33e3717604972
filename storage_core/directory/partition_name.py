"""The names of partition directories (Kafka's ``Topic`` and ``LocalLog.parseTopicPartitionName``).

    orders-7                                            partition 7 of topic orders
    orders-7.<32 hex digits>-delete                     scheduled for deletion
    orders-7.<32 hex digits>-stray                      not known to the cluster
    orders-7.<32 hex digits>-future                     being moved here from another disk

The topic may hold dashes and dots: the partition stands behind the last dash.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

__all__ = [
    "CLUSTER_METADATA_TOPIC",
    "INTERNAL_TOPICS",
    "MAX_PARTITION",
    "PartitionDirectoryName",
    "is_legal_topic_name",
    "parse_partition_directory_name",
]

CLUSTER_METADATA_TOPIC: Final = "__cluster_metadata"

INTERNAL_TOPICS: Final = frozenset(
    {
        "__consumer_offsets",
        "__transaction_state",
        "__share_group_state",
        CLUSTER_METADATA_TOPIC,
    }
)
"""Topics that brokers keep for themselves, and the log of the KRaft controllers."""

_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")
MAX_PARTITION: Final = 2**31 - 1
# What Java's Integer.parseInt takes, in ASCII.
_PARTITION = re.compile(r"\+?[0-9]{1,20}")
_SUFFIXED_NAME = re.compile(r"(\S+-\S+)\.(?:\S+)-(delete|future|stray)", re.ASCII)
_SUFFIX_ENDINGS = ("-delete", "-future", "-stray")


@dataclass(frozen=True, slots=True)
class PartitionDirectoryName:
    """What the name of a partition directory says.

    Args:
        topic: The topic; cut short under suffix ``delete`` or ``stray`` if the name would get too long.
        partition: The partition's number.
        suffix: ``delete``, ``future`` or ``stray``; None for a partition's normal directory.
    """

    topic: str
    partition: int
    suffix: str | None


def is_legal_topic_name(topic: str) -> bool:
    """Whether Kafka allows ``topic`` as a name: 1 to 249 of ``a-zA-Z0-9._-``, but not ``.`` or ``..``."""
    return _TOPIC_NAME.fullmatch(topic) is not None and topic not in (".", "..")


def parse_partition_directory_name(name: str) -> PartitionDirectoryName | None:
    """Parse a directory's name as Kafka does; None if it cannot be a partition's."""
    suffix = None
    if name.endswith(_SUFFIX_ENDINGS):
        match = _SUFFIXED_NAME.fullmatch(name)
        if match is None:
            return None
        suffix = match[2]
        name = name[: name.rindex(".")]
    topic, dash, partition_text = name.rpartition("-")
    if not dash or not is_legal_topic_name(topic) or not _PARTITION.fullmatch(partition_text):
        return None
    partition = int(partition_text)
    if partition > MAX_PARTITION:
        return None
    return PartitionDirectoryName(topic, partition, suffix)
