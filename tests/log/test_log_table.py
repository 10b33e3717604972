"""The logs of a log directory: made, found, listed, and told by topic and partition."""

from __future__ import annotations

import shutil

import pytest

from storage_core import LogConfig
from storage_core.errors import LogDirectoryError
from tests.log.logs import append, crash, offsets, open_directory, small, write


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
        with pytest.raises(LogDirectoryError, match=r"no log of orders-0, found one.*get\(\)"):
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
    append(logs.create("orders"), 12, flush=True)
    crash(logs)
    with open_directory(tmp_path) as logs:
        log = logs.get("orders")
        assert (log.log_start_offset, offsets(log)) == (0, list(range(12)))
