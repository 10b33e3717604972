"""Members of a group, what they subscribe to, and their order."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from storage_core.errors import OptionError

__all__ = ["Subscription", "TopicPartition", "java_order", "members_in_order"]


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
