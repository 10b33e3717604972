from __future__ import annotations

import struct
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.directory import PartitionLog, find_partitions
from storage_core.filesystem import FileSystem
from storage_core.options import parse_read_options
from storage_core.scan.isolation import (
    AbortedTransactions,
    OpenTransaction,
    aborted_transactions,
    last_stable_offset,
    open_transactions,
)
from storage_core.scan.plan import plan_scan
from storage_core.segment import AbortedTransaction
from tests.examples import examples
from tests.faults.observed_filesystem import ObservedFileSystem

# Producer 1 writes offsets 0 and 1, producer 2 offset 2, both in transactions; 3 is a plain record; 4 aborts
# producer 2, 5 commits producer 1.
GOLDEN_LOG = bytes.fromhex(
    "0000000000000000000000430000000302ac05cfd8001000000001000000000000000100000000000000020000000000"
    "0000010000000000000000000210000000026102310010000202026202320000000000000000020000003a0000000302"
    "6d9705ac0010000000000000000000000003000000000000000300000000000000020000000000000000000110000000"
    "026302330000000000000000030000003f0000000302207c5be200000000000000000000000000040000000000000004"
    "ffffffffffffffffffffffffffff000000011a000000026e0c6e6f6e74786e0000000000000000040000004200000003"
    "02c82feab20030000000000000000000000005000000000000000500000000000000020000ffffffff00000001200000"
    "0008000000000c0000000000070000000000000000050000004200000004022b6577d200300000000000000000000000"
    "06000000000000000600000000000000010000ffffffff000000012000000008000000010c00000000000700"
)
GOLDEN_TRANSACTION_INDEX = bytes.fromhex(
    "00000000000000000002000000000000000200000000000000040000000000000000"
)
GOLDEN_SNAPSHOT = bytes.fromhex(
    "000105aeec6b0000000200000000000000010000000000010000000000000001000000010000000000000006"
    "00000007ffffffffffffffff0000000000000002000000000000000000000000000200000000000000000000"
    "000500000007ffffffffffffffff"
)
GOLDEN_ABORTED = AbortedTransaction(2, 2, 4, 0)


def open_log(path, *, use_indexes=True):
    filesystem = FileSystem()
    (directory,) = find_partitions(filesystem, [str(path)])
    return PartitionLog.load(filesystem, directory, use_indexes=use_indexes)


def write_golden(path, *, snapshot=GOLDEN_SNAPSHOT, transaction_index=GOLDEN_TRANSACTION_INDEX, index=b""):
    path.mkdir()
    (path / "00000000000000000000.log").write_bytes(GOLDEN_LOG)
    for name, content in (
        ("00000000000000000000.index", index),
        ("00000000000000000000.txnindex", transaction_index),
        ("00000000000000000006.snapshot", snapshot),
    ):
        if content is not None:
            (path / name).write_bytes(content)
    return path


@pytest.mark.parametrize("use_indexes", [True, False])
@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("missing", [{}, {"snapshot": None}, {"index": None, "transaction_index": None}])
def test_golden_log(log_root, use_indexes, is_clean, missing):
    if is_clean:
        log_root.mark_clean()
    log = open_log(write_golden(log_root.path / "topic-0", **missing), use_indexes=use_indexes)
    assert open_transactions(log) == ()
    assert last_stable_offset(log) == 6
    assert last_stable_offset(log, 5) == 0
    assert open_transactions(log, 5) == (OpenTransaction(1, 0),)
    assert open_transactions(log, 3) == (OpenTransaction(1, 0), OpenTransaction(2, 2))
    assert aborted_transactions(log, 0, 6) == (GOLDEN_ABORTED,)
    assert aborted_transactions(log, 4, 5) == (GOLDEN_ABORTED,)
    assert aborted_transactions(log, 0, 3) == (GOLDEN_ABORTED,)
    assert aborted_transactions(log, 0, 2) == ()
    assert aborted_transactions(log, 5, 6) == ()
    assert aborted_transactions(log, 3, 3) == ()


def test_a_clean_index_is_believed_without_a_look_at_the_log(log_root):
    log_root.mark_clean()
    path = write_golden(log_root.path / "topic-0")
    (path / "00000000000000000000.txnindex").write_bytes(
        GOLDEN_TRANSACTION_INDEX[:2] + (9).to_bytes(8, "big") + GOLDEN_TRANSACTION_INDEX[10:]
    )
    (found,) = aborted_transactions(open_log(path), 0, 6)
    assert found.producer_id == 9


def test_an_index_after_the_recovery_point_is_not_believed(log_root):
    log = log_root.partition("orders").transactional(7).roll().abort(7).roll().data().write()
    # It names another producer than the log, so its answer is known from the log's.
    (log.path / f"{1:020d}.txnindex").write_bytes(struct.pack(">hqqqq", 0, 8, 0, 1, 2))
    expected = (AbortedTransaction(7, 0, 1, 2),)
    assert aborted_transactions(open_log(log.path), 0, 3) == expected
    log_root.checkpoint("recovery-point-offset-checkpoint", {("orders", 0): 1})
    assert aborted_transactions(open_log(log.path), 0, 3) == expected
    log_root.checkpoint("recovery-point-offset-checkpoint", {("orders", 0): 2})
    assert aborted_transactions(open_log(log.path), 0, 3) == (AbortedTransaction(8, 0, 1, 2),)


def test_empty_indexes_alone_do_not_say_that_nothing_was_aborted(log_root):
    log = log_root.partition("orders").transactional(7).roll().abort(7).roll().data().write()
    log_root.mark_clean()
    for base_offset in (0, 1, 2):
        (log.path / f"{base_offset:020d}.txnindex").write_bytes(b"")
    assert aborted_transactions(open_log(log.path), 0, 3) == (AbortedTransaction(7, 0, 1, 2),)


@pytest.mark.parametrize(
    "index",
    [
        b"\0\1" + GOLDEN_TRANSACTION_INDEX[2:],
        # Of another segment: its marker is after this one.
        GOLDEN_TRANSACTION_INDEX[:18] + (99).to_bytes(8, "big") + GOLDEN_TRANSACTION_INDEX[26:],
    ],
)
def test_a_wrong_index_gives_way_to_the_log(log_root, index):
    log_root.mark_clean()
    path = write_golden(log_root.path / "topic-0", transaction_index=index)
    assert aborted_transactions(open_log(path), 0, 6) == (GOLDEN_ABORTED,)


def test_missing_transaction_indexes_are_no_proof_where_there_were_transactions(log_root):
    log_root.mark_clean()
    path = write_golden(log_root.path / "topic-0", transaction_index=None)
    assert aborted_transactions(open_log(path), 0, 6) == (GOLDEN_ABORTED,)
    # The same without any snapshot.
    (path / "00000000000000000006.snapshot").unlink()
    assert aborted_transactions(open_log(path), 0, 6) == (GOLDEN_ABORTED,)


def test_transaction_indexes_of_deleted_segments_prove_nothing(log_root):
    log_root.mark_clean()
    path = write_golden(log_root.path / "topic-0", transaction_index=None)
    (path / "00000000000000000000.txnindex.deleted").write_bytes(b"")
    assert aborted_transactions(open_log(path), 0, 6) == (GOLDEN_ABORTED,)


def test_an_index_that_a_live_broker_has_just_renamed_is_not_an_empty_one(log_root):
    log = log_root.partition("orders").transactional(7).abort(7).roll().data().write()
    log_root.checkpoint("recovery-point-offset-checkpoint", {("orders", 0): 3})
    found = open_log(log.path)
    # Retention takes all files of a segment away between the listing and the look into the index.
    for name in ("log", "index", "txnindex"):
        path = log.path / f"{0:020d}.{name}"
        path.rename(f"{path}.deleted")
    assert aborted_transactions(found, 0, 3) == (AbortedTransaction(7, 0, 1, 2),)


def test_where_no_producer_was_transactional_nothing_is_read(log_root):
    log_root.mark_clean()
    log = log_root.partition("orders").data(5).roll().data(5, producer_id=3).write()
    log.write_snapshot(10, [(3, -1, -1)])
    found = open_log(log.path)
    assert found.log_end_offset == 10
    statistics = found.segments[0].filesystem.statistics
    before = statistics.bytes_read
    assert aborted_transactions(found, 0, 10) == ()
    assert last_stable_offset(found) == 10
    # No more than the snapshot, once for each question.
    assert statistics.bytes_read - before <= 2 * 56


def test_a_snapshot_tells_nothing_of_what_was_written_after_it(log_root):
    log_root.mark_clean()
    log = log_root.partition("orders").data(2).roll().transactional(7).abort(7)
    log.write(transaction_indexes=False, snapshots=False)
    log.write_snapshot(2, [(3, -1, -1)])
    assert aborted_transactions(open_log(log.path), 0, 4) == (AbortedTransaction(7, 2, 3, 4),)


def test_markers_are_found_segments_later(log_root):
    log_root.mark_clean()
    log = (
        log_root.partition("orders")
        .transactional(7)
        .roll()
        .data()
        .roll()
        .data()
        .abort(7)
        .roll()
        .data()
        .write()
    )
    for use_indexes in (True, False):
        found = open_log(log.path, use_indexes=use_indexes)
        assert aborted_transactions(found, 0, 1) == (AbortedTransaction(7, 0, 3, 4),)
        assert aborted_transactions(found, 1, 2) == (AbortedTransaction(7, 0, 3, 4),)
        assert aborted_transactions(found, 4, 5) == ()


def test_the_last_stable_offset_is_not_below_the_log_start(log_root):
    log = log_root.partition("orders").transactional(7, 5).data(5).write()
    log_root.checkpoint("log-start-offset-checkpoint", {("orders", 0): 3})
    assert last_stable_offset(open_log(log.path)) == 3


def test_snapshots_from_before_the_log_start_do_not_count(log_root):
    # Producer 7's marker was deleted with the segments in front.
    log = log_root.partition("orders", base_offset=100).data(5).write()
    log.write_snapshot(50, [(7, 0, 40)])
    assert last_stable_offset(open_log(log.path)) == 105


def test_an_empty_log(log_root):
    log = log_root.partition("orders").write()
    assert last_stable_offset(open_log(log.path)) == 0
    assert aborted_transactions(open_log(log.path), 0, 0) == ()


# -- While somebody else is at work --------


def loaded(path, text, happen):
    """Load a log whose end is known; something happens before the first call whose path contains a text."""
    filesystem = ObservedFileSystem()
    (directory,) = find_partitions(filesystem, [str(path)])
    log = PartitionLog.load(filesystem, directory)
    assert log.log_end_offset >= 0

    def tell(call):
        if text in call:
            filesystem.tell = None
            happen()

    filesystem.tell = tell
    return log


def three_aborts(log_root):
    """Write three segments, each with an aborted transaction of producer 7, and a fourth, active one."""
    log = log_root.partition("orders")
    for _ in range(3):
        log.transactional(7).abort(7).roll()
    return log.data().write()


THREE_ABORTED = tuple(AbortedTransaction(7, offset, offset + 1, offset + 2) for offset in (0, 2, 4))


def transaction_index_path(log, base_offset):
    return log.path / f"{base_offset:020d}.txnindex"


@pytest.mark.parametrize("tail", [bytes(8), bytes(10 << 10), struct.pack(">ii", 1, 90) + bytes(800)])
def test_an_index_is_not_believed_while_a_broker_builds_it_anew(log_root, tail):
    """The offset index has its full size as long as a segment is recovered, also below the recovery point."""
    log = three_aborts(log_root)
    log_root.checkpoint("recovery-point-offset-checkpoint", {("orders", 0): 7})
    (log.path / f"{2:020d}.index").write_bytes(tail)
    transaction_index_path(log, 2).unlink()
    assert aborted_transactions(open_log(log.path), 0, 7) == THREE_ABORTED
    # Nor is one that was begun.
    transaction_index_path(log, 2).write_bytes(b"")
    assert aborted_transactions(open_log(log.path), 0, 7) == THREE_ABORTED


@pytest.mark.parametrize("moment", ["before it", "after it"])
def test_an_index_is_not_believed_that_a_broker_begins_to_build_meanwhile(log_root, moment):
    log = three_aborts(log_root)
    log_root.checkpoint("recovery-point-offset-checkpoint", {("orders", 0): 7})
    index = log.path / f"{2:020d}.index"

    def begin():
        index.write_bytes(bytes(4096))
        transaction_index_path(log, 2).write_bytes(b"")

    def end():
        begin()
        index.write_bytes(struct.pack(">ii", 1, 68))

    found = loaded(log.path, f"{2:020d}.txnindex", begin if moment == "in front of it" else end)
    assert aborted_transactions(found, 0, 7) == THREE_ABORTED


def test_what_an_index_held_while_a_broker_built_it_anew_is_forgotten(log_root):
    """It is looked at early, for whether a log has such indexes at all; by then a part of it was written."""
    log = log_root.partition("orders").transactional(7).commit(7).roll()
    log.transactional(7).abort(7).transactional(7).abort(7).roll().data().write()
    log_root.checkpoint("recovery-point-offset-checkpoint", {("orders", 0): 6})
    index, transaction_index = log.path / f"{2:020d}.index", transaction_index_path(log, 2)
    complete = index.read_bytes(), transaction_index.read_bytes()
    index.write_bytes(bytes(4096))
    transaction_index.write_bytes(complete[1][:34])

    def end():
        index.write_bytes(complete[0])
        transaction_index.write_bytes(complete[1])

    # A segment without a transaction index comes first.
    found = loaded(log.path, f"{0:020d}.index", end)
    assert aborted_transactions(found, 0, 6) == (
        AbortedTransaction(7, 2, 3, 4),
        AbortedTransaction(7, 4, 5, 6),
    )


def test_the_last_segment_is_not_believed_below_the_recovery_point(log_root):
    """After a crash it is recovered wherever the recovery point is: then its index is empty for a while."""
    log = log_root.partition("orders").transactional(7).abort(7).roll().transactional(7).abort(7).write()
    log_root.checkpoint("recovery-point-offset-checkpoint", {("orders", 0): 4})
    transaction_index_path(log, 2).write_bytes(b"")
    expected = (AbortedTransaction(7, 0, 1, 2), AbortedTransaction(7, 2, 3, 4))
    assert aborted_transactions(open_log(log.path), 0, 4) == expected


def test_an_index_that_appears_after_the_listing_is_found(log_root):
    log = three_aborts(log_root)
    log_root.checkpoint("recovery-point-offset-checkpoint", {("orders", 0): 7})
    content = transaction_index_path(log, 2).read_bytes()
    transaction_index_path(log, 2).unlink()
    found = open_log(log.path)
    assert found.log_end_offset == 7
    transaction_index_path(log, 2).write_bytes(content)
    assert aborted_transactions(found, 0, 7) == THREE_ABORTED


@pytest.mark.parametrize("moment", ["kafka_cleanshutdown", f"{4:020d}.txnindex"])
@pytest.mark.parametrize("is_clean_again", [True, False])
def test_a_log_that_was_opened_since_it_was_listed(log_root, moment, is_clean_again):
    """The marker is gone, or another one: the process that opened the log may have changed any index."""
    log = three_aborts(log_root)
    log_root.mark_clean()
    marker = log.path.parent / ".kafka_cleanshutdown"

    def open_again():
        marker.rename(marker.with_name("gone"))
        transaction_index_path(log, 4).write_bytes(b"")
        if is_clean_again:
            marker.write_bytes(b"")

    found = loaded(log.path, moment, open_again)
    assert found.is_clean
    assert aborted_transactions(found, 0, 7) == THREE_ABORTED


def test_a_log_that_was_truncated_since_the_recovery_point_was_read(log_root):
    """It has been written and recovered anew, so that an index may be of any age."""
    log = three_aborts(log_root)
    log_root.checkpoint("recovery-point-offset-checkpoint", {("orders", 0): 7})

    def truncate():
        log_root.checkpoint("recovery-point-offset-checkpoint", {("orders", 0): 3})
        transaction_index_path(log, 4).write_bytes(b"")

    assert aborted_transactions(loaded(log.path, f"{4:020d}.txnindex", truncate), 0, 7) == THREE_ABORTED


def test_a_log_that_was_recovered_since_the_recovery_point_was_read(log_root):
    """Of an unflushed segment a power cut may have left a closed offset index, and no entry beside it."""
    log = three_aborts(log_root)
    log_root.checkpoint("recovery-point-offset-checkpoint", {("orders", 0): 2})
    content = transaction_index_path(log, 2).read_bytes()
    transaction_index_path(log, 2).write_bytes(b"")

    def recover():
        transaction_index_path(log, 2).write_bytes(content)
        log_root.checkpoint("recovery-point-offset-checkpoint", {("orders", 0): 7})

    assert aborted_transactions(loaded(log.path, f"{4:020d}.", recover), 0, 7) == THREE_ABORTED


@pytest.mark.parametrize("is_clean", [True, False])
def test_an_index_that_was_listed_and_is_gone_is_not_taken_for_an_empty_one(log_root, is_clean):
    log = three_aborts(log_root)
    log_root.checkpoint("recovery-point-offset-checkpoint", {("orders", 0): 7})
    if is_clean:
        log_root.mark_clean()
    found = loaded(log.path, f"{4:020d}.txnindex", transaction_index_path(log, 4).unlink)
    assert aborted_transactions(found, 0, 7) == THREE_ABORTED


def test_a_recovery_point_that_moves_on_changes_nothing(log_root):
    log = three_aborts(log_root)
    log_root.checkpoint("recovery-point-offset-checkpoint", {("orders", 0): 6})

    def move_on():
        log_root.checkpoint("recovery-point-offset-checkpoint", {("orders", 0): 7})

    found = loaded(log.path, f"{4:020d}.txnindex", move_on)
    statistics = found.segments[0].filesystem.statistics
    before = statistics.bytes_read
    assert aborted_transactions(found, 0, 6) == THREE_ABORTED
    # The three indexes, and the checkpoint twice: none of the log.
    assert statistics.bytes_read - before <= 3 * 34 + 2 * 30


def test_a_segment_that_was_cleaned_since_it_was_looked_at(log_root):
    """The old file awaits its removal, and is read all the same; the new index lists less."""
    log = three_aborts(log_root)
    log_root.checkpoint("recovery-point-offset-checkpoint", {("orders", 0): 7})
    log_path = log.path / f"{2:020d}.log"

    def clean():
        content = log_path.read_bytes()
        log_path.rename(f"{log_path}.deleted")
        log_path.write_bytes(content)
        transaction_index_path(log, 2).rename(log.path / f"{2:020d}.txnindex.deleted")
        transaction_index_path(log, 2).write_bytes(b"")

    found = loaded(log.path, f"{2:020d}.txnindex", clean)
    # A look-up by time needs its size.
    assert found.segments[1].size_bytes > 0
    assert aborted_transactions(found, 0, 7) == THREE_ABORTED


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["data", "plain", "abort", "commit", "roll", "empty", "skip"]), st.integers(1, 4)
    ),
    max_size=40,
)


def build(partition, operations):
    for operation, number in operations:
        if operation == "data":
            partition.transactional(number, number)
        elif operation == "plain":
            partition.data(number)
        elif operation == "abort":
            partition.abort(number)
        elif operation == "commit":
            partition.commit(number)
        elif operation == "empty":
            partition.empty_control(number)
        elif operation == "skip":
            partition.skip(number)
        else:
            partition.roll()
    return partition.data()


@examples(60)
@given(
    operations=OPERATIONS,
    is_clean=st.booleans(),
    indexes=st.booleans(),
    transaction_indexes=st.booleans(),
    snapshots=st.booleans(),
    use_indexes=st.booleans(),
    data=st.data(),
)
def test_every_way_gives_the_answer_of_the_broker(
    new_log_root, operations, is_clean, indexes, transaction_indexes, snapshots, use_indexes, data
):
    log_root = new_log_root()
    builder = build(log_root.partition("orders"), operations)
    if is_clean:
        log_root.mark_clean()
        builder.take_snapshot()
    # Where some transaction index is missing, all index files are, or all of its kind.
    builder.write(indexes=indexes, transaction_indexes=transaction_indexes and indexes, snapshots=snapshots)
    log = open_log(builder.path, use_indexes=use_indexes)
    end_offset = builder.next_offset
    oldest_first = sorted(builder.open.items(), key=lambda item: item[1])
    assert open_transactions(log) == tuple(OpenTransaction(*item) for item in oldest_first)
    assert last_stable_offset(log) == min(builder.open.values(), default=end_offset)

    start = data.draw(st.integers(0, end_offset))
    end = data.draw(st.integers(start, end_offset))
    expected = [
        AbortedTransaction(*entry)
        for entry in builder.aborted
        if entry[2] >= start and entry[1] < end and start < end
    ]
    assert list(aborted_transactions(log, start, end)) == expected


@examples(200)
@given(
    ranges=st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30)), max_size=20),
    start=st.integers(0, 100),
    size=st.integers(0, 40),
)
def test_those_that_touch_some_offsets(ranges, start, size):
    transactions = [
        AbortedTransaction(number, first, first + length, first + length + 1)
        for number, (first, length) in enumerate(ranges)
    ]
    found = AbortedTransactions(transactions).touching(start, start + size)
    expected = [
        each for each in transactions if each.last_offset >= start and each.first_offset < start + size
    ]
    assert found == tuple(sorted(expected, key=lambda each: each.last_offset))


def steps(function):
    """Return how many functions and lines of the package are run: the same on every machine."""
    count = 0

    def trace(frame, event, argument):
        nonlocal count
        if "storage_core" not in frame.f_code.co_filename:
            return None
        count += 1
        return trace

    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(None)
    return count


@pytest.mark.parametrize("options", [{"use_indexes": False}, {}])
@pytest.mark.parametrize("is_transactional", [True, False])
def test_the_work_grows_with_the_number_of_segments_and_no_faster(new_log_root, options, is_transactional):
    def planning(count):
        root = new_log_root()
        log = root.partition("orders")
        for number in range(count):
            (log.transactional(7) if is_transactional else log.data()).roll()
            if is_transactional and number % 2:
                log.abort(7)
        log.data().write(snapshots=False)
        # As of a log with many segments whose snapshots are all there.
        for segment in log.segments[1:]:
            log.write_snapshot(segment.base_offset, [])
        parsed = parse_read_options({"path": str(root.path), "isolation_level": "read_committed", **options})
        return steps(lambda: plan_scan(FileSystem(), parsed))

    planning(1)
    few, many = planning(50), planning(200)
    assert many < 5 * few
