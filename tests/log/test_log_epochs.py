"""Leader epochs of a whole log, through appends, truncation, deletion, reopening and recovery."""

from __future__ import annotations

import pytest

from storage_core.errors import CorruptCheckpointError, InvalidRecordError, LogReadOnlyError, OptionError
from tests.log.logs import append, crash, offsets, open_directory, table
from tests.log.producing import data
from tests.record.legacy_encoding import Message

CHECKPOINT = "leader-epoch-checkpoint"


@pytest.fixture
def root(tmp_path):
    return tmp_path / "data"


@pytest.fixture
def logs(root):
    with open_directory(root) as opened:
        yield opened


@pytest.fixture
def log(logs):
    """Epoch 2 from offset 0 on, 3 from 4 on, 5 from 9 on; the log ends at 12."""
    log = logs.create("orders")
    append(log, 4, leader_epoch=2)
    append(log, 5, leader_epoch=3)
    append(log, 3, leader_epoch=5)
    return log


def epochs(log):
    return [(entry.epoch, entry.start_offset) for entry in log.leader_epochs]


def checkpoint(root, topic="orders"):
    return (root / f"{topic}-0" / CHECKPOINT).read_bytes()


def test_a_new_log_begins_with_epoch_0(logs, root):
    log = logs.create("payments")
    assert epochs(log) == []
    append(log, 2)
    assert epochs(log) == [(0, 0)]
    assert checkpoint(root, "payments") == b"0\n1\n0 0\n"


def test_each_append_is_stamped(log, root):
    assert epochs(log) == [(2, 0), (3, 4), (5, 9)]
    assert checkpoint(root) == b"0\n3\n2 0\n3 4\n5 9\n"
    fetched = b"".join(log.fetch(offset, 1).data for offset in range(12))
    # Bytes 12 to 15 of each batch of 100 bytes.
    stamped = [int.from_bytes(fetched[start + 12 : start + 16], "big") for start in range(0, 1200, 100)]
    assert stamped == [2] * 4 + [3] * 5 + [5] * 3


def test_without_an_epoch_of_its_own_an_append_takes_the_latest(log):
    append(log)
    assert epochs(log) == [(2, 0), (3, 4), (5, 9)]


def test_an_older_epoch_is_refused(log):
    with pytest.raises(InvalidRecordError, match="at least 5"):
        log.append(table(b"a"), leader_epoch=4)
    assert log.log_end_offset == 12


def test_a_replica_learns_up_to_where_it_agrees(logs, log):
    # It was cut off from offset 6 on, and has records of epoch 4 that no other replica got.
    replica = logs.create("replica")
    append(replica, 4, leader_epoch=2)
    append(replica, 2, leader_epoch=3)
    append(replica, 5, leader_epoch=4)
    asked = replica.leader_epochs[-1].epoch
    answer = log.end_offset_for_epoch(asked)
    assert (answer.leader_epoch, answer.end_offset) == (3, 9)
    own_end = replica.end_offset_for_epoch(answer.leader_epoch).end_offset
    replica.truncate_to(min(own_end, answer.end_offset))
    assert epochs(replica) == [(2, 0), (3, 4)]
    assert replica.log_end_offset == 6
    replica.append_batches(b"".join(log.fetch(offset, 1).data for offset in range(6, 12)))
    assert epochs(replica) == epochs(log)
    assert offsets(replica) == offsets(log)


@pytest.mark.parametrize("at_once", [True, False])
def test_a_follower_takes_the_epochs_of_the_batches(logs, root, at_once):
    log = logs.create("payments")
    batches = [data(offset, leader_epoch=epoch) for offset, epoch in enumerate((1, 1, 4, 4, 6))]
    for part in [b"".join(batches)] if at_once else batches:
        log.append_batches(part)
    assert epochs(log) == [(1, 0), (4, 2), (6, 4)]
    assert checkpoint(root, "payments") == b"0\n3\n1 0\n4 2\n6 4\n"


def test_older_formats_know_no_epochs(log, root):
    log.append_batches(Message(offset=12).encode())
    assert epochs(log) == []
    assert checkpoint(root) == b"0\n0\n"
    log.append_batches(data(13, leader_epoch=7))
    assert epochs(log) == [(7, 13)]


@pytest.mark.parametrize(
    ("offset", "expected"),
    [
        (3, [(2, 3), (3, 4), (5, 9)]),
        (4, [(3, 4), (5, 9)]),
        (6, [(3, 6), (5, 9)]),
        (9, [(5, 9)]),
        (12, [(5, 12)]),
    ],
)
def test_the_first_epoch_begins_where_the_log_does(logs, log, root, offset, expected):
    log.delete_records(offset)
    assert epochs(log) == expected
    logs.close()
    with open_directory(root) as opened:
        assert epochs(opened.get("orders")) == expected


def test_they_survive_a_reopen(logs, log, root):
    logs.close()
    before = (root / "orders-0" / CHECKPOINT).stat().st_mtime_ns
    with open_directory(root) as opened:
        assert epochs(opened.get("orders")) == [(2, 0), (3, 4), (5, 9)]
    assert (root / "orders-0" / CHECKPOINT).stat().st_mtime_ns == before
    with open_directory(root, read_only=True) as opened:
        assert epochs(opened.get("orders")) == [(2, 0), (3, 4), (5, 9)]
        assert opened.get("orders").end_offset_for_epoch(3) == (3, 9)


# -- An epoch that begins before its first batch --------


def test_an_epoch_begins_at_the_log_end(log, root):
    assert log.assign_epoch_start_offset(8) == 12
    assert epochs(log) == [(2, 0), (3, 4), (5, 9), (8, 12)]
    assert checkpoint(root) == b"0\n4\n2 0\n3 4\n5 9\n8 12\n"
    # It ends where the log does; those before it end where it begins.
    assert [log.end_offset_for_epoch(epoch) for epoch in (5, 6, 7, 8, 9)] == [
        (5, 12), (5, 12), (5, 12), (8, 12), (-1, -1)
    ]  # fmt: skip
    assert (log.leader_epoch_at(11), log.leader_epoch_at(12)) == (5, 8)
    with open_directory(root, read_only=True) as reader:
        other = reader.get("orders")
        assert (epochs(other), other.end_offset_for_epoch(8)) == (epochs(log), (8, 12))
    append(log, 2)
    assert epochs(log) == [(2, 0), (3, 4), (5, 9), (8, 12)]
    assert log.end_offset_for_epoch(8) == (8, 14)
    fetched = log.fetch(12, 1).data
    assert fetched[12:16] == (8).to_bytes(4, "big")


def test_the_latest_epoch_has_begun_already(log):
    assert log.assign_epoch_start_offset(5) == 9
    assert log.assign_epoch_start_offset(8) == 12
    append(log)
    assert log.assign_epoch_start_offset(8) == 12
    assert epochs(log) == [(2, 0), (3, 4), (5, 9), (8, 12)]


def test_of_two_that_begin_at_the_same_offset_the_older_had_no_record(log):
    log.assign_epoch_start_offset(8)
    assert log.assign_epoch_start_offset(9) == 12
    assert epochs(log) == [(2, 0), (3, 4), (5, 9), (9, 12)]


def test_older_leaders_are_fenced(log):
    log.assign_epoch_start_offset(8)
    with pytest.raises(InvalidRecordError, match="at least 8"):
        append(log, leader_epoch=7)
    with pytest.raises(InvalidRecordError, match="at least 8"):
        log.assign_epoch_start_offset(7)
    assert append(log, leader_epoch=8).first_offset == 12


@pytest.mark.parametrize("wrong", [-1, 2**31, 1.5, "3", None])
def test_what_is_no_epoch_is_refused_and_the_log_goes_on(log, wrong):
    if wrong is not None:
        with pytest.raises(OptionError, match="a leader epoch from 0 to 2147483647, found"):
            append(log, leader_epoch=wrong)
        with pytest.raises(OptionError, match="a leader epoch from 0 to 2147483647, found"):
            log.assign_epoch_start_offset(wrong)
    assert append(log).first_offset == 12


def test_a_read_only_log_begins_none(log, root):
    with open_directory(root, read_only=True) as reader, pytest.raises(LogReadOnlyError):
        reader.get("orders").assign_epoch_start_offset(8)


@pytest.mark.parametrize("target", [12, 500])
def test_a_truncation_to_the_log_end_takes_it_back(log, root, target):
    log.assign_epoch_start_offset(8)
    assert not log.truncate_to(target)
    assert epochs(log) == [(2, 0), (3, 4), (5, 9)]
    assert checkpoint(root) == b"0\n3\n2 0\n3 4\n5 9\n"
    append(log, leader_epoch=6)


def test_the_records_of_a_follower_take_its_place(log):
    """As a former leader without followers."""
    log.assign_epoch_start_offset(8)
    log.append_batches(data(12, leader_epoch=6))
    assert epochs(log) == [(2, 0), (3, 4), (5, 9), (6, 12)]


def test_deleting_all_records_leaves_it(log):
    log.assign_epoch_start_offset(8)
    log.delete_records(12)
    assert epochs(log) == [(8, 12)]


@pytest.mark.parametrize("recovery", ["tail", "kafka"])
@pytest.mark.parametrize("is_clean", [False, True])
def test_it_survives_a_reopen(logs, log, root, is_clean, recovery):
    log.assign_epoch_start_offset(8)
    if is_clean:
        logs.close()
    else:
        crash(logs)
    with open_directory(root, recovery=recovery) as opened:
        log = opened.get("orders")
        assert epochs(log) == [(2, 0), (3, 4), (5, 9), (8, 12)]
        append(log)
        assert log.end_offset_for_epoch(8) == (8, 13)


def test_a_crash_that_takes_records_below_it_takes_it_back(logs, log, root):
    log.assign_epoch_start_offset(8)
    base = log.segment_base_offsets[-1]
    crash(logs)
    path = root / "orders-0" / f"{base:020d}.log"
    path.write_bytes(path.read_bytes()[:-1])
    with open_directory(root) as opened:
        log = opened.get("orders")
        assert log.log_end_offset == 11
        assert epochs(log) == [(2, 0), (3, 4), (5, 9)]


@pytest.mark.parametrize("recovery", ["tail", "kafka"])
@pytest.mark.parametrize(
    "found",
    [
        None,
        b"",
        b"0\n1\n2 0\n",
        # What a truncation had cut came back, and epochs after it.
        b"0\n4\n2 0\n3 4\n5 9\n9 50\n",
    ],
)
def test_recovery_finds_them_in_the_batches(logs, log, root, recovery, found):
    crash(logs)
    path = root / "orders-0" / CHECKPOINT
    path.unlink()
    if found is not None:
        path.write_bytes(found)
    (root / "recovery-point-offset-checkpoint").unlink(missing_ok=True)
    with open_directory(root, recovery=recovery) as opened:
        assert epochs(opened.get("orders")) == [(2, 0), (3, 4), (5, 9)]
    assert checkpoint(root) == b"0\n3\n2 0\n3 4\n5 9\n"


def test_the_epoch_of_a_torn_end_has_begun_all_the_same(logs, log, root):
    append(log, leader_epoch=7)
    base = log.segment_base_offsets[-1]
    crash(logs)
    path = root / "orders-0" / f"{base:020d}.log"
    path.write_bytes(path.read_bytes()[:-1])
    with open_directory(root) as opened:
        log = opened.get("orders")
        assert log.log_end_offset == 12
        assert epochs(log) == [(2, 0), (3, 4), (5, 9), (7, 12)]
        with pytest.raises(InvalidRecordError, match="at least 7"):
            append(log, leader_epoch=6)


def test_a_damaged_checkpoint_keeps_the_directory_from_being_opened(logs, log, root):
    logs.close()
    (root / "orders-0" / CHECKPOINT).write_bytes(b"0\n1\nx y\n")
    with pytest.raises(CorruptCheckpointError, match=CHECKPOINT):
        open_directory(root)
    # Nothing was touched: put right, it opens.
    (root / "orders-0" / CHECKPOINT).write_bytes(b"0\n3\n2 0\n3 4\n5 9\n")
    with open_directory(root) as opened:
        assert offsets(opened.get("orders")) == list(range(12))
