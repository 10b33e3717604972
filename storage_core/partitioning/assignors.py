"""Which member of a group reads which partitions (Kafka's ``RangeAssignor`` and ``RoundRobinAssignor``).

Every member that knows the same partitions and subscriptions computes the same answer, so a group can share a log
directory without a coordinator. Members are in Kafka's order: static ones first, by instance id, then the others by
member id. Strings compare as in Java, by UTF-16 units.

    range        topic by topic: of P partitions, each of M members gets P // M in a row, the first P % M one more
    round robin  all partitions, by topic and number, are dealt to the members in turn; members that are not subscribed
                 to a topic are skipped

The range assignor supports racks: partitions with a replica in a member's rack are assigned to it first, up to its quota,
and topics with the same members and the same number of partitions are co-partitioned.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from types import MappingProxyType
from typing import Final, NamedTuple

from storage_core.errors import OptionError


class TopicPartition(NamedTuple):
    """One partition of a topic."""

    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class Subscription:
    """The subscription of one member of a group.

    Args:
        topics: The topics, in any order.
        group_instance_id: Of a static member: the id that it keeps across restarts (``group.instance.id``).
        rack: The member's rack (``client.rack``); empty means None.

    Raises:
        OptionError: The topics are a string.
    """

    topics: Collection[str]
    group_instance_id: str | None = None
    rack: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.topics, str):
            raise OptionError(
                f"Expected a collection of topics; found the text {self.topics!r}. Put it into a list."
            )
        object.__setattr__(self, "topics", frozenset(self.topics))


def java_order(text: str) -> bytes:
    """Return a sort key in the order of ``String.compareTo``: by UTF-16 units, not by code points."""
    return text.encode("utf-16-be", "surrogatepass")


def members_in_order(subscriptions: Mapping[str, Subscription]) -> list[str]:
    """Return the ids of all members: static ones first, by instance id, then the others by member id."""

    def sort_key(member: str) -> tuple[bool, bytes, bytes]:
        instance = subscriptions[member].group_instance_id
        if instance is None:
            return True, b"", java_order(member)
        # In Kafka, an instance id belongs to one member only.
        return False, java_order(instance), java_order(member)

    return sorted(subscriptions, key=sort_key)


class TopicShares:
    """The partitions of a topic while they are assigned (Kafka's ``RangeAssignor.TopicAssignmentState``).

    Each member gets the quotient of partitions and members; as many members as the remainder get one more.

    Args:
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
        """Whether racks matter: a member shares a rack with a replica, and not every partition is in every rack."""
        all_racks = frozenset[str]().union(*self._racks)
        members_racks = {rack for rack in self.member_racks.values() if rack is not None}
        return bool(members_racks & all_racks) and any(racks != all_racks for racks in self._racks)

    def assignable_count(self, member: str) -> int:
        """Return how many more partitions a member may get."""
        share = self._share + (self._larger_shares > 0)
        return max(share - self._assigned_counts[member], 0)

    def is_in_rack(self, member: str, partition: int) -> bool:
        """Return True if a partition has a replica in the member's rack; true for a member without a rack."""
        rack = self.member_racks[member]
        return rack is None or rack in self._racks[partition]

    def assign(self, member: str, partitions: Sequence[int]) -> None:
        """Assign partitions to a member, at most `assignable_count`."""
        self._assigned_counts[member] += len(partitions)
        if self._assigned_counts[member] > self._share:
            self._larger_shares -= 1
        for partition in partitions:
            del self.unassigned[partition]

    def assign_next(self, member: str, may_have: Callable[[str, int], bool] | None = None) -> list[int]:
        """Assign the lowest unassigned partitions that a member may have, up to its quota; return them."""
        limit = self.assignable_count(member)
        taken: list[int] = []
        for partition in self.unassigned:
            if len(taken) == limit:
                break
            if may_have is None or may_have(member, partition):
                taken.append(partition)
        if taken:
            self.assign(member, taken)
        return taken


_NO_RACKS: Final[Mapping[TopicPartition, Collection[str]]] = MappingProxyType({})
_Assignment = dict[str, list[TopicPartition]]


@dataclass(frozen=True, slots=True)
class RangeAssignor:
    """Assigns consecutive partitions to each member, topic by topic: the same numbers of all topics to the same member."""

    def assign(
        self,
        partitions_per_topic: Mapping[str, int],
        subscriptions: Mapping[str, Subscription],
        replica_racks: Mapping[TopicPartition, Collection[str]] = _NO_RACKS,
    ) -> _Assignment:
        """Assign each partition of a topic to one of the members that subscribe to it.

        Args:
            partitions_per_topic: The number of partitions of each topic; subscribed topics that are missing are skipped.
            subscriptions: By member id.
            replica_racks: The racks of the replicas of each partition; if empty, racks do not matter.

        Returns:
            By member id, its partitions by topic and number; an empty list for a member without partitions.

        Raises:
            OptionError: A number of partitions is negative.
        """
        _check(partitions_per_topic)
        members = members_in_order(subscriptions)
        assignment: _Assignment = {member: [] for member in members}
        shares = [
            TopicShares(topic, count, _racks_of_members(topic, members, subscriptions), replica_racks)
            for topic, count in _topics_in_order(partitions_per_topic)
        ]
        if any(share.needs_racks for share in shares):
            _assign_rack_aware(shares, assignment)
        for share in shares:
            for member in share.member_racks:
                _add(assignment[member], share.topic, share.assign_next(member))
        return {member: sorted(partitions, key=_place) for member, partitions in assignment.items()}


@dataclass(frozen=True, slots=True)
class RoundRobinAssignor:
    """Deals all partitions in turn: counts differ by one at most if all members read the same topics."""

    def assign(
        self, partitions_per_topic: Mapping[str, int], subscriptions: Mapping[str, Subscription]
    ) -> _Assignment:
        """Assign each partition of a topic to one of the members that subscribe to it.

        Arguments, result and errors are those of `RangeAssignor.assign`; racks do not matter.
        """
        _check(partitions_per_topic)
        members = members_in_order(subscriptions)
        assignment: _Assignment = {member: [] for member in members}
        subscribed = frozenset[str]().union(*(each.topics for each in subscriptions.values()))
        turn = cycle(members)
        for topic, count in _topics_in_order(partitions_per_topic):
            if topic not in subscribed:
                continue
            for partition in range(count):
                member = next(each for each in turn if topic in subscriptions[each].topics)
                assignment[member].append(TopicPartition(topic, partition))
        return assignment


def _check(partitions_per_topic: Mapping[str, int]) -> None:
    for topic, count in partitions_per_topic.items():
        if count < 0:
            raise OptionError(f"Topic {topic} has {count} partitions. Expected 0 or more.")


def _topics_in_order(partitions_per_topic: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(partitions_per_topic.items(), key=lambda item: java_order(item[0]))


def _place(partition: TopicPartition) -> tuple[bytes, int]:
    return java_order(partition.topic), partition.partition


def _racks_of_members(
    topic: str, members: Sequence[str], subscriptions: Mapping[str, Subscription]
) -> dict[str, str | None]:
    """Return the members that subscribe to a topic, in order, each with its rack."""
    return {
        member: subscriptions[member].rack or None
        for member in members
        if topic in subscriptions[member].topics
    }


def _add(partitions: list[TopicPartition], topic: str, numbers: Sequence[int]) -> None:
    partitions.extend(TopicPartition(topic, number) for number in numbers)


def _assign_rack_aware(shares: Sequence[TopicShares], assignment: _Assignment) -> None:
    """Assign partitions to members in the racks of their replicas."""
    together: dict[tuple[tuple[str, ...], int], list[TopicShares]] = defaultdict(list)
    for share in shares:
        together[tuple(share.member_racks), share.partition_count].append(share)
    for (members, partition_count), group in together.items():
        if len(group) > 1:
            _assign_copartitioned(members, partition_count, group, assignment)
        elif group[0].needs_racks:
            for member in members:
                _add(assignment[member], group[0].topic, group[0].assign_next(member, group[0].is_in_rack))


def _assign_copartitioned(
    members: Sequence[str], partition_count: int, group: Sequence[TopicShares], assignment: _Assignment
) -> None:
    """Assign a partition of all topics to the first member that shares a rack with each of them."""
    remaining = list(members)
    for partition in range(partition_count):
        for member in remaining:
            if all(share.is_in_rack(member, partition) and share.assignable_count(member) for share in group):
                break
        else:
            continue
        for share in group:
            share.assign(member, [partition])
            _add(assignment[member], share.topic, [partition])
        if not any(share.assignable_count(member) for share in group):
            remaining.remove(member)
            if not remaining:
                break
