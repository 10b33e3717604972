"""How many partitions of one topic each member may still be given (``RangeAssignor.TopicAssignmentState``)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from storage_core.partitioning.members import TopicPartition

__all__ = ["TopicShares"]


class TopicShares:
    """The partitions of a topic while they are given to its members.

    Each member gets the whole part of partitions by members; as many as there is remainder get one more.

    Args:
        topic: The topic.
        partition_count: How many partitions it has.
        member_racks: Its members in order, each with its rack.
        replica_racks: Per partition of any topic, the racks of its replicas.
    """

    def __init__(
        self,
        topic: str,
        partition_count: int,
        member_racks: Mapping[str, str | None],
        replica_racks: Mapping[TopicPartition, Collection[str]],
    ) -> None:
        self.topic = topic
        self.partition_count = partition_count
        self.member_racks = dict(member_racks)
        self.unassigned = dict.fromkeys(range(partition_count))
        self._assigned_counts = dict.fromkeys(member_racks, 0)
        self._share, self._larger_shares = (
            divmod(partition_count, len(member_racks)) if member_racks else (0, 0)
        )
        self._racks = [
            frozenset(replica_racks.get(TopicPartition(topic, partition), ()))
            for partition in range(partition_count)
        ]

    @property
    def needs_racks(self) -> bool:
        """Whether racks make a difference: some member is near some replica, and not every partition is everywhere."""
        all_racks = frozenset[str]().union(*self._racks)
        members_racks = {rack for rack in self.member_racks.values() if rack is not None}
        return bool(members_racks & all_racks) and any(racks != all_racks for racks in self._racks)

    def assignable_count(self, member: str) -> int:
        """How many more partitions a member may be given."""
        share = self._share + (self._larger_shares > 0)
        return max(share - self._assigned_counts[member], 0)

    def is_near(self, member: str, partition: int) -> bool:
        """Whether a partition has a replica in the member's rack; a member without a rack is near to all."""
        rack = self.member_racks[member]
        return rack is None or rack in self._racks[partition]

    def give(self, member: str, partitions: Sequence[int]) -> None:
        """Note that a member gets some partitions, not more than it may be given."""
        self._assigned_counts[member] += len(partitions)
        if self._assigned_counts[member] > self._share:
            self._larger_shares -= 1
        for partition in partitions:
            del self.unassigned[partition]

    def take_for(self, member: str, may_have: Callable[[str, int], bool] | None = None) -> list[int]:
        """Give a member the lowest partitions that are left and that it may have, as far as its share goes."""
        limit = self.assignable_count(member)
        taken: list[int] = []
        for partition in self.unassigned:
            if len(taken) == limit:
                break
            if may_have is None or may_have(member, partition):
                taken.append(partition)
        if taken:
            self.give(member, taken)
        return taken
