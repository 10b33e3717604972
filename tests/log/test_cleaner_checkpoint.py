"""Up to where logs were cleaned, in the file that a broker has for it."""

from __future__ import annotations

import pytest

from storage_core.checkpoint.root_files import CleanerCheckpoint
from storage_core.filesystem import FileSystem
from tests.log.logs import append, open_directory, small, table, value

ORDERS, CLICKS = ("orders", 0), ("clicks", 3)


@pytest.fixture
def file(tmp_path):
    return tmp_path / "cleaner-offset-checkpoint"


@pytest.fixture
def checkpoint(tmp_path):
    return CleanerCheckpoint(FileSystem(), str(tmp_path), {ORDERS, CLICKS})


def again(tmp_path, *logs):
    return CleanerCheckpoint(FileSystem(), str(tmp_path), set(logs))


def test_without_a_file_no_log_was_cleaned(checkpoint, file):
    assert checkpoint.offset(ORDERS) is None
    assert not file.exists()


def test_an_empty_file_as_brokers_make_it_tells_nothing(checkpoint, file):
    file.write_bytes(b"")
    assert checkpoint.offset(ORDERS) is None


def test_offsets_are_written_as_kafka_writes_them(checkpoint, file, tmp_path):
    checkpoint.update(ORDERS, 42)
    checkpoint.update(CLICKS, 7)
    assert file.read_text() == "0\n2\nclicks 3 7\norders 0 42\n"
    assert again(tmp_path, ORDERS, CLICKS).offset(ORDERS) == 42


def test_a_file_that_a_broker_has_written_is_taken_over(checkpoint, file):
    file.write_text("0\n2\norders 0 42\nclicks 3 7\n")
    assert (checkpoint.offset(ORDERS), checkpoint.offset(CLICKS)) == (42, 7)
    checkpoint.update(ORDERS, 50)
    assert file.read_text() == "0\n2\nclicks 3 7\norders 0 50\n"


def test_an_offset_may_go_back(checkpoint, file):
    checkpoint.update(ORDERS, 42)
    checkpoint.update(ORDERS, 0)
    assert file.read_text() == "0\n1\norders 0 0\n"


@pytest.mark.parametrize(("offset", "expected"), [(41, 41), (42, 42), (43, 42), (0, 0)])
def test_a_truncation_lowers_it(checkpoint, offset, expected):
    checkpoint.update(ORDERS, 42)
    checkpoint.lower(ORDERS, offset)
    assert checkpoint.offset(ORDERS) == expected


def test_a_truncation_of_a_log_that_was_never_cleaned_writes_nothing(checkpoint, file):
    checkpoint.lower(ORDERS, 5)
    assert checkpoint.offset(ORDERS) is None
    assert not file.exists()


def test_what_is_said_of_logs_that_are_gone_is_dropped(file, tmp_path):
    file.write_text("0\n2\norders 0 42\nclicks 3 7\n")
    again(tmp_path, CLICKS).update(CLICKS, 8)
    assert file.read_text() == "0\n1\nclicks 3 8\n"


def test_a_log_can_be_forgotten(checkpoint, file):
    checkpoint.update(ORDERS, 42)
    checkpoint.update(CLICKS, 7)
    checkpoint.forget(ORDERS)
    checkpoint.forget(("never", 0))
    assert file.read_text() == "0\n1\nclicks 3 7\n"


def test_with_a_damaged_file_everything_counts_as_dirty(checkpoint, file, caplog):
    file.write_text("0\nseven\norders 0 42\n")
    assert checkpoint.offset(ORDERS) is None
    assert "cleaner-offset-checkpoint" in caplog.text
    checkpoint.update(ORDERS, 1)
    assert file.read_text() == "0\n1\norders 0 1\n"


def compacted(**config):
    return small(cleanup_policy="compact", **config)


@pytest.fixture
def compacted_log(tmp_path):
    """Three segments, clean up to 25."""
    with open_directory(tmp_path, config=compacted()) as logs:
        append_keyed(logs.create("orders"), 30)
    (tmp_path / "cleaner-offset-checkpoint").write_text("0\n1\norders 0 25\n")
    with open_directory(tmp_path, config=compacted()) as logs:
        yield logs.get("orders")


def append_keyed(log, count):
    for _ in range(count):
        offset = log.log_end_offset
        log.append(table(value(offset)[: 32 - 8], keys=[b"%08d" % offset]))


@pytest.mark.parametrize(
    ("target", "expected"), [(28, 20), (25, 20), (22, 20), (20, 20), (19, 10), (5, 0), (40, 25)]
)
def test_after_a_truncation_the_active_segment_is_dirty(compacted_log, file, target, expected):
    compacted_log.truncate_to(target)
    assert file.read_text() == f"0\n1\norders 0 {expected}\n"


@pytest.mark.parametrize(("target", "expected"), [(10, 10), (100, 25)])
def test_after_a_full_truncation_nothing_after_the_new_start_is_clean(compacted_log, file, target, expected):
    compacted_log.truncate_fully_and_start_at(target)
    assert file.read_text() == f"0\n1\norders 0 {expected}\n"


def test_so_it_is_after_the_truncation_of_a_log_that_is_not_compacted_now(tmp_path, file):
    with open_directory(tmp_path) as logs:
        append(logs.create("orders"), 30)
    file.write_text("0\n1\norders 0 25\n")
    with open_directory(tmp_path) as logs:
        logs.get("orders").truncate_to(5)
    assert file.read_text() == "0\n1\norders 0 0\n"


def test_a_log_that_is_made_anew_has_not_been_cleaned(tmp_path, file):
    file.write_text("0\n2\norders 0 25\nclicks 0 3\n")
    with open_directory(tmp_path, config=compacted()) as logs:
        logs.create("clicks")
        logs.create("orders")
        assert file.read_text() == "0\n0\n"
