"""Names and ids of topics."""

from __future__ import annotations

import re

import pytest

from storage_core.errors import LogDirectoryError, OptionError
from tests.log.logs import open_directory


@pytest.mark.parametrize("topic", ["", ".", "..", "a/b", "a b", "ü", "x" * 250, "__cluster_metadata"])
def test_illegal_topics_are_refused(tmp_path, topic):
    with open_directory(tmp_path) as logs, pytest.raises(OptionError, match="name of a topic"):
        logs.create(topic)


@pytest.mark.parametrize("partition", [-1, 2**31])
def test_illegal_partitions_are_refused(tmp_path, partition):
    with open_directory(tmp_path) as logs, pytest.raises(OptionError, match="partition number"):
        logs.create("orders", partition)


def test_the_partitions_of_a_topic_have_one_id(tmp_path):
    with open_directory(tmp_path) as logs:
        first = logs.create("orders", 0)
        assert re.fullmatch("[A-Za-z0-9_-]{22}", first.topic_id)
        assert logs.create("orders", 1).topic_id == first.topic_id
        assert logs.create("clicks").topic_id != first.topic_id
        wanted = "AAAAAAAAAAAAAAAAAAAAAQ"
        assert logs.create("views", topic_id=wanted).topic_id == wanted
        with pytest.raises(LogDirectoryError, match="as the id of topic orders"):
            logs.create("orders", 2, topic_id=wanted)
    assert (
        tmp_path / "views-0/partition.metadata"
    ).read_bytes() == b"version: 0\ntopic_id: " + wanted.encode()
