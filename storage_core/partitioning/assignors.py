"""Members of a group, what they subscribe to, and their order.

How many partitions of one topic each member may still be given (``RangeAssignor.TopicAssignmentState``).

Which member of a group reads which partitions (Kafka's ``RangeAssignor`` and ``RoundRobinAssignor``).

Every member that knows the same partitions and subscriptions computes the same answer, so a group can share a log
directory with nobody in between. Members stand in Kafka's order: those with an instance id first, by instance id, then
the others by member id. Texts are compared as Java does it, by UTF-16 units.

    range        topic by topic: of P partitions, each of M members gets P // M in a row, the first P % M one more
    round robin  all partitions in a row, by topic and number, are dealt to the members in turn; who is not subscribed
                 to a topic is passed over

Range knows racks: partitions with a replica in a member's rack are given to it first, as long as its share lasts, and
topics with the same members and as many partitions are kept together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from types import MappingProxyType
from typing import Final, NamedTuple

from storage_core.errors import OptionError

__all__ = [
    "RangeAssignor",
    "RoundRobinAssignor",
    "Subscription",
    "TopicPartition",
    "TopicShares",
    "java_order",
    "members_in_order",
]


class TopicPartition(NamedTuple):
    """One partition of a topic."""

    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class Subscription:
    """What one member of a group reads.

    Args:
        topics: The topics, in any order.
        group_instance_id: For a static member, a name that it keeps when it is started anew (``group.instance.id``).
        rack: Where the member runs (``client.rack``); empty means None.

    Raises:
        OptionError: The topics are one text.
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
    """A key that sorts as ``String.compareTo`` does: by UTF-16 units, not by characters."""
    return text.encode("utf-16-be", "surrogatepass")


def members_in_order(subscriptions: Mapping[str, Subscription]) -> list[str]:
    """The ids of all members: static ones first, by instance id, then the others by member id."""

    def place(member: str) -> tuple[bool, bytes, bytes]:
        instance = subscriptions[member].group_instance_id
        if instance is None:
            return True, b"", java_order(member)
        # Kafka's coordinator lets no two members have the same instance id.
        return False, java_order(instance), java_order(member)

    return sorted(subscriptions, key=place)


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


_NO_RACKS: Final[Mapping[TopicPartition, Collection[str]]] = MappingProxyType({})
_Assignment = dict[str, list[TopicPartition]]


@dataclass(frozen=True, slots=True)
class RangeAssignor:
    """Neighbouring partitions to each member, topic by topic: the same numbers of all topics to the same member."""

    def assign(
        self,
        partitions_per_topic: Mapping[str, int],
        subscriptions: Mapping[str, Subscription],
        replica_racks: Mapping[TopicPartition, Collection[str]] = _NO_RACKS,
    ) -> _Assignment:
        """Give each partition of a topic to one of the members that subscribe to it.

        Args:
            partitions_per_topic: How many partitions each topic has; subscribed topics that are missing are passed over.
            subscriptions: By member id.
            replica_racks: The racks that hold each partition; none: racks do not matter.

        Returns:
            By member id, its partitions by topic and number; a member without any has an empty list.

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
            _assign_near(shares, assignment)
        for share in shares:
            for member in share.member_racks:
                _add(assignment[member], share.topic, share.take_for(member))
        return {member: sorted(partitions, key=_place) for member, partitions in assignment.items()}


@dataclass(frozen=True, slots=True)
class RoundRobinAssignor:
    """All partitions are dealt in turn: numbers differ by one at most, if all members read the same topics."""

    def assign(
        self, partitions_per_topic: Mapping[str, int], subscriptions: Mapping[str, Subscription]
    ) -> _Assignment:
        """Give each partition of a topic to one of the members that subscribe to it.

        Args:
            partitions_per_topic: How many partitions each topic has; subscribed topics that are missing are passed over.
            subscriptions: By member id.

        Returns:
            By member id, its partitions by topic and number; a member without any has an empty list.

        Raises:
            OptionError: A number of partitions is negative.
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
    """The members that subscribe to a topic, in order, each with its rack."""
    return {
        member: subscriptions[member].rack or None
        for member in members
        if topic in subscriptions[member].topics
    }


def _add(partitions: list[TopicPartition], topic: str, numbers: Sequence[int]) -> None:
    partitions.extend(TopicPartition(topic, number) for number in numbers)


def _assign_near(shares: Sequence[TopicShares], assignment: _Assignment) -> None:
    """Give away what has a replica in a member's rack."""
    together: dict[tuple[tuple[str, ...], int], list[TopicShares]] = defaultdict(list)
    for share in shares:
        together[tuple(share.member_racks), share.partition_count].append(share)
    for (members, partition_count), group in together.items():
        if len(group) > 1:
            _assign_near_together(members, partition_count, group, assignment)
        elif group[0].needs_racks:
            for member in members:
                _add(assignment[member], group[0].topic, group[0].take_for(member, group[0].is_near))


def _assign_near_together(
    members: Sequence[str], partition_count: int, group: Sequence[TopicShares], assignment: _Assignment
) -> None:
    """The same partition of all topics to the first member that is near to all of them."""
    remaining = list(members)
    for partition in range(partition_count):
        for member in remaining:
            if all(share.is_near(member, partition) and share.assignable_count(member) for share in group):
                break
        else:
            continue
        for share in group:
            share.give(member, [partition])
            _add(assignment[member], share.topic, [partition])
        if not any(share.assignable_count(member) for share in group):
            remaining.remove(member)
            if not remaining:
                break
