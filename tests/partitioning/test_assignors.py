from __future__ import annotations

import warnings
from itertools import chain
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.errors import OptionError
from storage_core.partitioning import RangeAssignor, RoundRobinAssignor, Subscription, TopicPartition
from storage_core.partitioning.assignors import TopicShares, java_order, members_in_order
from tests.partitioning.assigned_by_kafka import ASSIGNED_BY_KAFKA

with warnings.catch_warnings():
    # It reads its resources in a way that Python 3.11 warns of.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.coordinator.assignors.range import RangePartitionAssignor
    from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor

ASSIGNORS = [RangeAssignor(), RoundRobinAssignor()]

topics = st.sampled_from(["t", "t-1", "u", "orders"])
counts = st.dictionaries(topics, st.integers(0, 12))
members = st.sampled_from([f"m{number}" for number in range(9)])
groups = st.dictionaries(members, st.sets(topics).map(Subscription))


def by_name(cases):
    return pytest.mark.parametrize("case", cases, ids=lambda case: case.name)


def subscriptions_of(case):
    return {
        member: Subscription(each.topics.split(), each.instance, each.rack)
        for member, each in case.members.items()
    }


def in_words(assignment):
    return {
        member: " ".join(f"{topic}:{partition}" for topic, partition in partitions)
        for member, partitions in assignment.items()
    }


@by_name(ASSIGNED_BY_KAFKA)
def test_range_assigns_as_kafka_does(case):
    racks = {(topic, n): set(word) for topic, words in case.racks.items() for n, word in enumerate(words)}
    found = RangeAssignor().assign(case.partitions_per_topic, subscriptions_of(case), racks)
    assert in_words(found) == case.by_range


@by_name(ASSIGNED_BY_KAFKA)
def test_round_robin_assigns_as_kafka_does(case):
    found = RoundRobinAssignor().assign(case.partitions_per_topic, subscriptions_of(case))
    assert in_words(found) == case.by_round_robin


@pytest.mark.parametrize("assignor", ASSIGNORS)
def test_what_comes_out_are_topic_partitions_by_member(assignor):
    assignment = assignor.assign({"t": 1}, {"a": Subscription(["t"]), "b": Subscription(["t"])})
    assert assignment == {"a": [TopicPartition("t", 0)], "b": []}
    assert assignment["a"][0].topic == "t"


@pytest.mark.parametrize("assignor", ASSIGNORS)
def test_nobody_to_assign_to(assignor):
    assert assignor.assign({"t": 3}, {}) == {}


@pytest.mark.parametrize("assignor", ASSIGNORS)
def test_a_negative_number_of_partitions_is_refused(assignor):
    with pytest.raises(OptionError, match="Topic t has -1 partitions"):
        assignor.assign({"t": -1}, {"a": Subscription(["t"])})


@pytest.mark.parametrize("assignor", ASSIGNORS)
@given(counts=counts, group=groups)
def test_every_partition_that_somebody_reads_has_one_reader(assignor, counts, group):
    assignment = assignor.assign(counts, group)
    subscribed = set(chain.from_iterable(each.topics for each in group.values()))
    expected = [(topic, n) for topic in subscribed & set(counts) for n in range(counts[topic])]
    assert sorted(chain.from_iterable(assignment.values())) == sorted(expected)
    assert set(assignment) == set(group)
    for member, partitions in assignment.items():
        assert {partition.topic for partition in partitions} <= group[member].topics
        assert partitions == sorted(partitions)


@pytest.mark.parametrize("assignor", ASSIGNORS)
@given(counts=counts, group=groups, random=st.randoms(use_true_random=False))
def test_the_order_of_what_is_given_does_not_matter(assignor, counts, group, random):
    shuffled = list(group.items())
    random.shuffle(shuffled)
    assignment = assignor.assign(dict(reversed(counts.items())), dict(shuffled))
    assert assignment == assignor.assign(counts, group)


@given(counts, groups, st.data())
def test_racks_change_who_reads_not_how_much(counts, group, data):
    words = st.sets(st.sampled_from("xyz"))
    racks = {(topic, n): data.draw(words) for topic in counts for n in range(counts[topic])}
    group = {
        member: Subscription(each.topics, rack=data.draw(st.sampled_from("xyz") | st.none()))
        for member, each in group.items()
    }
    near = RangeAssignor().assign(counts, group, racks)
    assert sorted(chain.from_iterable(near.values())) == sorted(
        chain.from_iterable(RangeAssignor().assign(counts, group).values())
    )
    for topic in counts:
        shares = [
            sum(partition.topic == topic for partition in near[member])
            for member in near
            if topic in group[member].topics
        ]
        assert not shares or max(shares) - min(shares) <= 1


class Cluster:
    """As much of kafka-python's ClusterMetadata as its assignors ask for."""

    def __init__(self, counts):
        self._counts = counts

    def partitions_for_topic(self, topic):
        count = self._counts.get(topic)
        return None if count is None else set(range(count))


def by_kafka_python(assignor, counts, group):
    """Return what kafka-python assigns; static members in front, as it needs them."""
    asked = [
        SimpleNamespace(
            member_id=member,
            group_instance_id=each.group_instance_id,
            metadata=SimpleNamespace(topics=each.topics),
        )
        for member, each in sorted(group.items(), key=lambda item: item[1].group_instance_id is None)
    ]
    assigned = assignor.assign(Cluster(counts), asked)
    return {
        member: [(topic, n) for topic, numbers in each.assigned_partitions for n in numbers]
        for member, each in assigned.items()
    }


@st.composite
def with_instances(draw, subscriptions):
    group = draw(subscriptions)
    return {
        member: Subscription(each.topics, f"i-{number}" if draw(st.booleans()) else None)
        for number, (member, each) in enumerate(group.items())
    }


@given(counts, with_instances(groups))
def test_kafka_python_assigns_ranges_alike(counts, group):
    assert RangeAssignor().assign(counts, group) == by_kafka_python(RangePartitionAssignor, counts, group)


# With different subscriptions, kafka-python's round robin fails where Kafka's passes a member over.
@given(counts, with_instances(st.dictionaries(members, st.just(Subscription(["t", "t-1", "u", "orders"])))))
def test_kafka_python_deals_alike(counts, group):
    found = RoundRobinAssignor().assign(counts, group)
    assert found == by_kafka_python(RoundRobinPartitionAssignor, counts, group)


# -- Members --------


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


# -- Shares of a topic --------


NOBODY_HAS_A_RACK = {"a": None, "b": None, "c": None}


def shares(count, member_racks, racks=""):
    """Shares of topic t; ``racks`` has one word a partition, each letter a rack."""
    return TopicShares(
        "t", count, member_racks, {("t", n): set(word) for n, word in enumerate(racks.split())}
    )


def test_the_first_to_be_given_more_take_the_larger_shares():
    topic = shares(5, NOBODY_HAS_A_RACK)
    assert [topic.assignable_count(member) for member in "abc"] == [2, 2, 2]
    topic.assign("c", [0, 1])
    topic.assign("a", [4])
    assert [topic.assignable_count(member) for member in "abc"] == [1, 2, 0]
    topic.assign("a", [3])
    assert [topic.assignable_count(member) for member in "abc"] == [0, 1, 0]
    assert list(topic.unassigned) == [2]


def test_a_member_takes_the_lowest_that_are_left():
    topic = shares(5, NOBODY_HAS_A_RACK)
    assert topic.assign_next("b", lambda member, partition: (member, partition) != ("b", 0)) == [1, 2]
    assert topic.assign_next("b") == []
    assert topic.assign_next("a") == [0, 3]
    assert topic.assign_next("c") == [4]
    assert topic.assign_next("a") == []


def test_a_topic_without_members_or_partitions():
    assert not shares(3, {}, "x y z").needs_racks
    assert shares(0, NOBODY_HAS_A_RACK).assign_next("a") == []


def test_when_racks_make_a_difference():
    assert shares(2, {"a": "x"}, "x y").needs_racks
    # Every partition is everywhere.
    assert not shares(2, {"a": "x"}, "xy xy").needs_racks
    # No member shares a rack with a replica.
    assert not shares(2, {"a": "z"}, "x y").needs_racks
    assert not shares(2, {"a": None}, "x y").needs_racks
    assert not shares(2, {"a": "x"}).needs_racks
    # Of one partition the racks are not known.
    assert shares(2, {"a": "x"}, "x").needs_racks


def test_who_has_no_rack_is_near_to_everything():
    topic = shares(2, {"a": None, "b": "x"}, "x y")
    assert [topic.is_in_rack("a", 0), topic.is_in_rack("a", 1)] == [True, True]
    assert [topic.is_in_rack("b", 0), topic.is_in_rack("b", 1)] == [True, False]
