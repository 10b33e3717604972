from __future__ import annotations

import logging

import pytest

from storage_core.directory import LogDirectoryFiles, PartitionDirectory
from storage_core.errors import OptionError
from storage_core.filesystem import FileSystem
from storage_core.options import parse_read_options
from storage_core.scan.resolve import select_partitions

ROOT = LogDirectoryFiles(FileSystem(), "/logs")
FOUND = [
    PartitionDirectory(f"/logs/{topic}-{partition}", topic, partition, ROOT)
    for topic, partition in [
        ("__consumer_offsets", 0),
        ("my-orders", 0),
        ("orders", 0),
        ("orders", 1),
        ("payments", 0),
    ]
]


def select(**options):
    selected = select_partitions(FOUND, parse_read_options({"path": "/logs", **options}))
    return [f"{directory.topic}-{directory.partition}" for directory in selected]


def test_without_a_selection_every_topic_but_the_internal_ones():
    assert select() == ["my-orders-0", "orders-0", "orders-1", "payments-0"]


def test_subscribe():
    assert select(subscribe=("payments", "orders")) == ["orders-0", "orders-1", "payments-0"]


def test_internal_topics_are_read_if_they_are_named():
    assert select(subscribe=("__consumer_offsets",)) == ["__consumer_offsets-0"]
    assert select(assign={"__consumer_offsets": (0,)}) == ["__consumer_offsets-0"]


def test_patterns_are_searched_anywhere_and_never_match_internal_topics(caplog):
    assert select(subscribe_pattern="orders") == ["my-orders-0", "orders-0", "orders-1"]
    assert select(subscribe_pattern="^orders$") == ["orders-0", "orders-1"]
    assert select(subscribe_pattern="offsets") == []
    assert [record.getMessage() for record in caplog.records] == [
        "subscribePattern 'offsets' matches no topic."
    ]


def test_assigned_partitions_that_do_not_exist_are_left_out(caplog):
    with caplog.at_level(logging.INFO):
        assert select(assign={"orders": (1, 7), "payments": (0,)}) == ["orders-1", "payments-0"]
    assert "assign names partitions that do not exist: [orders-7]" in caplog.text


@pytest.mark.parametrize("options", [{"subscribe": ("ordres",)}, {"assign": {"ordres": (0,)}}])
def test_a_topic_that_is_not_there(options):
    name = next(iter(options))
    expected = rf"^UnknownTopicOrPartition: {name} names the topic 'ordres', .*Did you mean 'orders'\?$"
    with pytest.raises(OptionError, match=expected):
        select(**options)


def test_a_topic_unlike_any_other():
    with pytest.raises(OptionError, match=r"Known are: my-orders, orders, payments\.$"):
        select(subscribe=("zzz",))
