from __future__ import annotations

import pytest

from storage_core.errors import OptionError
from storage_core.partitioning import Subscription, TopicPartition
from storage_core.partitioning.assignors import java_order, members_in_order


def test_a_topic_partition_is_a_pair():
    assert TopicPartition("orders", 7) == ("orders", 7)


def test_static_members_stand_first_in_the_order_of_their_instance_ids():
    subscriptions = {
        "b": Subscription(["t"]),
        "z": Subscription(["t"], group_instance_id="1"),
        "a": Subscription(["t"]),
        "y": Subscription(["t"], group_instance_id="2"),
    }
    assert members_in_order(subscriptions) == ["z", "y", "a", "b"]


def test_texts_are_ordered_as_in_java():
    # Java compares halves of a surrogate pair, which are lower than the last characters of one unit.
    assert sorted(["\uff5e", "\U0001f600", "b", "a", "ab", "", "B"], key=java_order) == [
        "", "B", "a", "ab", "b", "\U0001f600", "\uff5e",
    ]  # fmt: skip
    assert java_order("\ud83d") < java_order("\ud83e")


def test_topics_have_no_order():
    assert Subscription(["t", "u", "t"]) == Subscription({"u", "t"})


def test_one_text_is_no_collection_of_topics():
    with pytest.raises(OptionError, match=r"found the text 'orders'\. Put it into a list"):
        Subscription("orders")
