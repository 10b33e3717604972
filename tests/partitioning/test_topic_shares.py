from __future__ import annotations

from storage_core.partitioning.assignors import TopicShares

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
