"""The logs of a log directory: made, found, listed, and told by topic and partition."""

from __future__ import annotations

import errno
import re
import shutil

import pytest

from storage_core import LogConfig
from storage_core.errors import LogDirectoryError, OptionError, SegmentLogError
from tests.faults.faulty_filesystem import Fault, FaultyCalls
from tests.log.logs import MARKER, append, contents, crash, names, offsets, open_directory, small, write


def test_logs_are_made_found_and_listed(tmp_path):
    with open_directory(tmp_path) as logs:
        second = logs.create("orders", 1)
        first = logs.create("orders", 0)
        other = logs.create("clicks")
        assert logs.get("orders") is first
        assert logs.get("orders", 1) is second
        assert logs.logs() == (other, first, second)
        assert ("orders", 1) in logs
        assert ("orders", 2) not in logs
        assert logs.get_or_create("clicks") is other
        assert logs.get_or_create("views").log_end_offset == 0
        assert (first.topic, first.partition, first.path) == ("orders", 0, str(tmp_path / "orders-0"))
    with open_directory(tmp_path) as logs:
        assert [(log.topic, log.partition) for log in logs.logs()] == [
            ("clicks", 0),
            ("orders", 0),
            ("orders", 1),
            ("views", 0),
        ]


def test_a_log_that_is_there_is_not_made_again(tmp_path):
    with open_directory(tmp_path) as logs:
        append(logs.create("orders"))
        with pytest.raises(LogDirectoryError, match=r"A log of orders-0 exists already.*get\(\)"):
            logs.create("orders")
        assert logs.get("orders").log_end_offset == 1


def test_a_log_that_is_not_there_is_not_found(tmp_path):
    with open_directory(tmp_path) as logs:
        with pytest.raises(LogDirectoryError, match=r"a log of orders-0, found no log at all.*create\(\)"):
            logs.get("orders")
        logs.create("orders")
        with pytest.raises(LogDirectoryError, match="orders-7, found orders-0"):
            logs.get("orders", 7)


def test_configurations_by_topic(tmp_path):
    write(tmp_path, 1)
    write(tmp_path, 1, topic="clicks")
    config = {"orders": LogConfig(segment_bytes=2 << 20)}
    with open_directory(tmp_path, config=config) as logs:
        assert logs.get("orders").config.segment_bytes == 2 << 20
        assert logs.get("clicks").config.segment_bytes == 1 << 30
        assert logs.create("views", config=small(500)).config.internal_segment_bytes == 500


def test_what_is_checkpointed_of_a_removed_log_does_not_count_for_a_new_one(tmp_path):
    with open_directory(tmp_path) as logs:
        log = logs.create("orders")
        append(log, 25)
        log.delete_records(23)
    shutil.rmtree(tmp_path / "orders-0")
    logs = open_directory(tmp_path)
    append(logs.create("orders"), 12, acks="all")
    crash(logs)
    with open_directory(tmp_path) as logs:
        log = logs.get("orders")
        assert (log.log_start_offset, offsets(log)) == (0, list(range(12)))


# A log that cannot be made.


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"topic_id": "abc"}, r"22 characters.*as the id of topic t, found 'abc'"),
        ({"topic_id": "A" * 22}, "as the id of topic t"),
        # The last character has two bits alone.
        ({"topic_id": "wFqg4oNsJ1B1z71xLHGZAx"}, "as the id of topic t"),
        ({"topic_id": 7}, "as the id of topic t, found 7"),
        ({"config": {"segment.bytes": 7}}, "a LogConfig, found dict"),
        ({"partition": True}, "found True"),
        ({"partition": -1}, "found -1"),
    ],
    ids=str,
)
def test_what_cannot_be_right_is_refused_before_anything_is_made(tmp_path, arguments, message):
    with open_directory(tmp_path) as logs:
        before = names(tmp_path)
        with pytest.raises(OptionError, match=message):
            logs.create("t", **{"partition": 0, **arguments})
        assert names(tmp_path) == before
        append(logs.create("t", 0))
    assert (tmp_path / MARKER).exists()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES, errno.EIO])
def test_of_a_log_whose_making_fails_from_some_call_on(tmp_path, number):
    """A full disk still gives files back. Where nothing can be deleted either, the next to open it completes the log."""
    for at in range(1, 100):
        root = tmp_path / str(at)
        with open_directory(root) as logs:
            before = contents(root)
            with FaultyCalls(Fault(number, at, is_lasting=True)) as calls:
                try:
                    logs.create("t")
                except SegmentLogError:
                    pass
                else:
                    assert calls.happened is None
                    break
            is_left = (root / "t-0").exists()
            assert not is_left or number != errno.ENOSPC
            if not is_left:
                assert contents(root) == before
                append(logs.create("t"))
        assert (root / MARKER).exists() != is_left
        with open_directory(root) as logs:
            assert append(logs.get_or_create("t")).first_offset == (0 if is_left else 1)
    assert 4 < at < 50


def test_existing_contents_stay(tmp_path):
    with open_directory(tmp_path) as logs:
        (tmp_path / "t-0").mkdir()
        (tmp_path / "t-0/precious").write_bytes(b"precious")
        with pytest.raises(LogDirectoryError, match="exists already"):
            logs.create("t")
        assert names(tmp_path / "t-0") == ["precious"]


# -- Topic ids --------


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
