"""Which partition a row goes to, and which member of a group reads which partitions: as Kafka's Java client decides it.

Nothing here touches a file.
"""

from storage_core.partitioning.assignors import (
    RangeAssignor,
    RoundRobinAssignor,
    Subscription,
    TopicPartition,
)
from storage_core.partitioning.murmur2 import murmur2, murmur2_column, to_positive
from storage_core.partitioning.partitioners import (
    DefaultPartitioner,
    KeyedRows,
    Partitioner,
    PartitionerState,
    RandomPartitioner,
    RoundRobinPartitioner,
    partition_for_key,
    partition_rows,
)

__all__ = [
    "DefaultPartitioner",
    "KeyedRows",
    "Partitioner",
    "PartitionerState",
    "RandomPartitioner",
    "RangeAssignor",
    "RoundRobinAssignor",
    "RoundRobinPartitioner",
    "Subscription",
    "TopicPartition",
    "murmur2",
    "murmur2_column",
    "partition_for_key",
    "partition_rows",
    "to_positive",
]
