"""Partitioners and assignors of Kafka's Java client: the partition of a row, and the partitions of a group's member."""

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
