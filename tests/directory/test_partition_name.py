from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.directory.log_directory_files import (
    INTERNAL_TOPICS,
    PartitionDirectoryName,
    is_legal_topic_name,
    parse_partition_directory_name,
)

UUID = "73b5281126dc4425b7779e2cfec013b3"


@pytest.mark.parametrize(
    ("name", "topic", "partition", "suffix"),
    [
        ("test_topic-143", "test_topic", 143, None),
        ("a-0", "a", 0, None),
        ("orders-2147483647", "orders", 2147483647, None),
        ("a-b-3-7", "a-b-3", 7, None),
        ("a.b.c-7", "a.b.c", 7, None),
        ("a--1", "a-", 1, None),
        ("--1", "-", 1, None),
        ("orders-007", "orders", 7, None),
        ("orders-+7", "orders", 7, None),
        ("x-delete-0", "x-delete", 0, None),
        ("__consumer_offsets-49", "__consumer_offsets", 49, None),
        (f"test_topic-143.{UUID}-delete", "test_topic", 143, "delete"),
        (f"test_topic-143.{UUID}-future", "test_topic", 143, "future"),
        (f"test_topic-143.{UUID}-stray", "test_topic", 143, "stray"),
        # The last dot ends the topic-partition; earlier dots belong to the topic.
        (f"test.topic-143.{UUID}-delete", "test.topic", 143, "delete"),
        ("foo.bar-testtopic-0.whatever-delete", "foo.bar-testtopic", 0, "delete"),
        ("x" * 249 + "-0", "x" * 249, 0, None),
        ("x" * 211 + f"-12345.{UUID}-delete", "x" * 211, 12345, "delete"),
    ],
)
def test_partition_directories(name, topic, partition, suffix):
    assert parse_partition_directory_name(name) == PartitionDirectoryName(topic, partition, suffix)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "test_topic",
        "test_topic143",
        "-143",
        "test_topic-",
        "test_topic-1433a",
        "test_topic-a",
        "test_topic-2147483648",
        "test_topic-" + "9" * 5000,
        "test_topic-٣",
        "lost+found",
        "remote-log-index-cache",
        "segmentlog.commit-in-progress",
        # The whole name must have the form of a suffixed one.
        "non.kafka.dir-delete",
        "non-kafka-dir-delete",
        "non-kafka-dir-future",
        "non-kafka-dir-stray",
        "test_topic-0-delete",
        f"test_topic-0.{UUID}-deleted",
        f"test_topic.{UUID}-delete",
        f"test_topic-x.{UUID}-delete",
        f"-0.{UUID}-delete",
        f"test topic-0.{UUID}-delete",
        # Legal as a directory, but not as a topic.
        ".-0",
        "..-0",
        "a b-0",
        "a/b-0",
        "añb-0",
        "a+b-0",
        "orders-0\n",
        "x" * 250 + "-0",
    ],
)
def test_other_names(name):
    assert parse_partition_directory_name(name) is None


@pytest.mark.parametrize("topic", ["a", "a.b", "...", ".a", "_", "-", "A-Z_0.9", "x" * 249])
def test_legal_topic_names(topic):
    assert is_legal_topic_name(topic)


@pytest.mark.parametrize("topic", ["", ".", "..", "a b", "a\n", "a/b", "a\0", "é", "x" * 250])
def test_illegal_topic_names(topic):
    assert not is_legal_topic_name(topic)


def test_internal_topics():
    assert {"__consumer_offsets", "__transaction_state", "__cluster_metadata"} < INTERNAL_TOPICS
    assert "orders" not in INTERNAL_TOPICS


legal_topics = st.text("abcXYZ019._-", min_size=1, max_size=249).filter(is_legal_topic_name)


@given(legal_topics, st.integers(0, 2**31 - 1))
def test_round_trip(topic, partition):
    assert parse_partition_directory_name(f"{topic}-{partition}") == PartitionDirectoryName(
        topic, partition, None
    )


@given(legal_topics, st.integers(0, 2**31 - 1), st.uuids(), st.sampled_from(["delete", "future", "stray"]))
def test_round_trip_with_a_suffix(topic, partition, uuid, suffix):
    name = f"{topic}-{partition}.{uuid.hex}-{suffix}"
    assert parse_partition_directory_name(name) == PartitionDirectoryName(topic, partition, suffix)


@given(st.text("ab.-/0123\n delt", max_size=30))
def test_any_text_is_a_legal_partition_or_none(name):
    parsed = parse_partition_directory_name(name)
    if parsed is not None:
        assert is_legal_topic_name(parsed.topic)
        assert 0 <= parsed.partition < 2**31
