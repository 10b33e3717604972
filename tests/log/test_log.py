"""A log as a whole: its high watermark, its transactions, its end."""

from __future__ import annotations

import pytest

from storage_core.errors import LogClosedError, LogReadOnlyError
from tests.log.logs import append, contents, offsets, open_directory
from tests.log.producing import data, transactional


def test_the_high_watermark_follows_the_appends_of_a_leader_alone(log):
    append(log, 3)
    assert log.high_watermark == 3
    log.append_batches(data(3))
    assert log.high_watermark == 3
    assert log.update_high_watermark(4) == 4
    assert log.update_high_watermark(99) == 4
    assert log.update_high_watermark(-1) == 0


def test_a_truncation_below_an_open_transaction_forgets_it(log):
    log.append_batches(data(0) + transactional(1, producer=1))
    log.update_high_watermark(2)
    assert log.last_stable_offset == 1
    log.truncate_to(1)
    log.append_batches(data(1))
    log.update_high_watermark(2)
    assert log.last_stable_offset == 2


def test_a_closed_log_takes_nothing(tmp_path):
    logs = open_directory(tmp_path)
    log = logs.create("orders")
    append(log)
    logs.close()
    logs.close()
    for write in (
        lambda: append(log),
        log.roll,
        log.flush,
        log.transaction,
        lambda: log.append_as_leader(data(0)),
        lambda: log.append_batches(data(1)),
        lambda: log.end_transaction(7, 0, is_abort=False),
        lambda: log.truncate_to(0),
        lambda: log.truncate_fully_and_start_at(0),
        lambda: log.delete_records(0),
    ):
        with pytest.raises(LogClosedError, match="closed"):
            write()


def test_one_log_is_closed_without_its_directory(tmp_path):
    with open_directory(tmp_path) as logs:
        closed, other = logs.create("closed"), logs.create("other")
        append(closed, 3)
        closed.close()
        closed.close()
        with pytest.raises(LogClosedError):
            append(closed)
        for read in (closed.read, lambda: closed.fetch(0, 1), lambda: closed.offset_for_timestamp(-1)):
            with pytest.raises(LogClosedError):
                read()
        append(other)
    assert (tmp_path / ".kafka_cleanshutdown").exists()
    with open_directory(tmp_path) as logs:
        assert offsets(logs.get("closed")) == [0, 1, 2]


def test_a_read_only_log_takes_nothing(tmp_path):
    with open_directory(tmp_path) as logs:
        append(logs.create("orders"), 3)
    log = open_directory(tmp_path, read_only=True).get("orders")
    for write in (
        lambda: append(log),
        log.transaction,
        log.open_transactions,
        lambda: log.append_as_leader(data(0)),
        lambda: log.append_batches(data(3)),
        lambda: log.end_transaction(7, 0, is_abort=False),
        log.roll,
        log.flush,
        lambda: log.truncate_to(0),
        lambda: log.truncate_fully_and_start_at(0),
        lambda: log.delete_records(0),
        lambda: log.update_high_watermark(0),
    ):
        with pytest.raises(LogReadOnlyError, match="read-only"):
            write()
    assert offsets(log) == [0, 1, 2]


# -- Closing --------


def test_what_a_close_leaves(tmp_path):
    with open_directory(tmp_path) as logs:
        log = logs.create("orders")
        append(log, 25, leader_epoch=3)
        log.delete_records(13)
        append(logs.create("clicks", 2), 4)
        logs.create("empty")
    assert sorted((tmp_path / "recovery-point-offset-checkpoint").read_text().splitlines()) == [
        "0",
        "3",
        "clicks 2 4",
        "empty 0 0",
        "orders 0 25",
    ]
    assert sorted((tmp_path / "replication-offset-checkpoint").read_text().splitlines()) == [
        "0",
        "3",
        "clicks 2 4",
        "empty 0 0",
        "orders 0 25",
    ]
    # Only where it is above the first segment.
    assert (tmp_path / "log-start-offset-checkpoint").read_text() == "0\n1\norders 0 13\n"
    assert (tmp_path / "orders-0/leader-epoch-checkpoint").read_text() == "0\n1\n3 13\n"
    files = contents(tmp_path / "orders-0")
    assert {name for name in files if not name.endswith(".deleted")} == {
        *(
            f"{base:020d}.{suffix}"
            for base in (10, 20)
            for suffix in ("log", "index", "timeindex", "snapshot")
        ),
        "00000000000000000025.snapshot",
        "leader-epoch-checkpoint",
        "partition.metadata",
    }
    # Trimmed, and the time index is complete.
    assert len(files["00000000000000000020.index"]) == 8
    assert int.from_bytes(files["00000000000000000020.timeindex"][-4:], "big") == 0
    # Of an empty log the index files are there all the same: a broker would miss them.
    assert {name: len(content) for name, content in contents(tmp_path / "empty-0").items()} == {
        "00000000000000000000.index": 0,
        "00000000000000000000.log": 0,
        "00000000000000000000.timeindex": 0,
        "partition.metadata": 43,
    }
