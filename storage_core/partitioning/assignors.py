"""Which member of a group reads which partitions (Kafka's ``RangeAssignor`` and ``RoundRobinAssignor``).

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
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from types import MappingProxyType
from typing import Final

from storage_core.errors import OptionError
from storage_core.partitioning.members import Subscription, TopicPartition, java_order, members_in_order
from storage_core.partitioning.topic_shares import TopicShares

__all__ = ["RangeAssignor", "RoundRobinAssignor"]

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
