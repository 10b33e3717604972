"""Logs of group and share coordinators, written record by record."""

from __future__ import annotations

import pyarrow as pa

from storage_core import LogConfig, LogDirectory, ProducerSequence
from storage_core.internal_records.internal_records import GROUP_COORDINATOR, SHARE_COORDINATOR
from tests.internal_records.message_bytes import coordinator_key, record_bytes
from tests.log.logs import Clock

GROUP_TYPES = {
    "classic": (
        "GroupMetadata",
        {"protocolType": "consumer", "generation": 1, "protocol": None, "leader": None},
    ),
    "consumer": ("ConsumerGroupMetadata", {"epoch": 1}),
    "share": ("ShareGroupMetadata", {"epoch": 1, "metadataHash": 0}),
    "streams": ("StreamsGroupMetadata", {"epoch": 1, "metadataHash": 0}),
}


class Coordinator:
    """Writes to one partition of an internal topic. The clock stands still unless it is told to move."""

    def __init__(
        self, logs: LogDirectory, clock: Clock, topic: str = "__consumer_offsets", partition: int = 0
    ):
        self.clock = clock
        self.log = logs.create(
            topic, partition, LogConfig(cleanup_policy="compact", min_cleanable_dirty_ratio=0.0)
        )

    def commit(self, group, topic, partition, offset, *, producer_id=None, version=4, legacy=False, **fields):
        """Commit an offset; a tombstone if it is None."""
        name = "LegacyOffsetCommit" if legacy else "OffsetCommit"
        key = {"group": group, "topic": topic, "partition": partition}
        message = GROUP_COORDINATOR[f"{name}Value"]
        value = {
            "leaderEpoch": -1,
            "metadata": "",
            "commitTimestamp": self.clock.time_ms,
            "expireTimestamp": -1,
        }
        value |= {"offset": offset, **fields}
        present = {field.name: value[field.name] for field in message.fields if field.name in value}
        data = None if offset is None else record_bytes(message, version, present)
        self.write(coordinator_key(GROUP_COORDINATOR[f"{name}Key"], key), data, producer_id=producer_id)

    def group(self, group, kind, *, is_tombstone=False):
        """Note that a group is of a type, or no longer."""
        name, value = GROUP_TYPES[kind]
        key = GROUP_COORDINATOR[f"{name}Key"]
        (field,) = key.fields
        data = record_bytes(GROUP_COORDINATOR[f"{name}Value"], 0, {**value, "members": []})
        self.write(coordinator_key(key, {field.name: group}), None if is_tombstone else data)

    def share(
        self, kind, group, topic_id, partition, *, start_offset=-1, leader_epoch=-1, is_tombstone=False
    ):
        """Note the state of a share-partition: a ``ShareSnapshot`` or a ``ShareUpdate``."""
        key = {"groupId": group, "topicId": topic_id, "partition": partition}
        value = dict.fromkeys(("snapshotEpoch", "stateEpoch", "createTimestamp", "writeTimestamp"), 0)
        value |= {"leaderEpoch": leader_epoch, "startOffset": start_offset, "stateBatches": []}
        data = record_bytes(SHARE_COORDINATOR[f"{kind}Value"], 0, value)
        self.write(coordinator_key(SHARE_COORDINATOR[f"{kind}Key"], key), None if is_tombstone else data)

    def share_partitions(self, group, topic, topic_id):
        """Note that a share group has begun with a topic."""
        topics = [{"topicId": topic_id, "topicName": topic, "partitions": [0]}]
        value = {"initializingTopics": [], "initializedTopics": topics, "deletingTopics": []}
        data = record_bytes(GROUP_COORDINATOR["ShareGroupStatePartitionMetadataValue"], 0, value)
        key = GROUP_COORDINATOR["ShareGroupStatePartitionMetadataKey"]
        self.write(coordinator_key(key, {"groupId": group}), data)

    def write(self, key, value, *, producer_id=None):
        """Append a record, as part of a producer's transaction if it is named."""
        records = pa.table(
            {
                "key": pa.array([key], pa.binary()),
                "value": pa.array([value], pa.binary()),
                "timestamp": pa.array([self.clock.time_ms], pa.int64()),
            }
        )
        if producer_id is None:
            self.log.append(records)
        else:
            producer = ProducerSequence(producer_id, 0, -1)
            self.log.append(records, producer=producer, is_transactional=True, origin="coordinator")

    def end(self, producer_id, *, is_abort=False):
        """End a producer's transaction."""
        self.log.end_transaction(producer_id, 0, is_abort=is_abort)
