"""Producers and transactions of a whole log: the lines of the behaviour checklist about its files and its life."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from storage_core import LogConfig
from storage_core.checkpoint import read_producer_snapshot
from storage_core.filesystem import FileSystem
from storage_core.segment import AbortedTransaction, TransactionIndex
from tests.faults.observed_filesystem import before_each_call
from tests.log import golden_transactions
from tests.log.logs import NOW_MS, Clock, append, crash, names, offsets, open_directory, small, table
from tests.log.producing import ABORT, COMMIT, data, emptied, marker, transactional
from tests.record.encoding import CONTROL, TRANSACTIONAL


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def root(tmp_path):
    return tmp_path / "data"


@pytest.fixture
def directory(root):
    return root / "orders-0"


@pytest.fixture
def logs(root, clock):
    with open_directory(root, clock=clock) as opened:
        yield opened


@pytest.fixture
def log(logs):
    return logs.create("orders")


def replicate(log, *batches, at_once=5):
    """Append batches of a leader, some of them at once, which every replica then has."""
    for start in range(0, len(batches), at_once):
        log.append_batches(b"".join(batches[start : start + at_once]))
    log.update_high_watermark(log.log_end_offset)


def committed(log, *arguments):
    return offsets(log, *arguments, isolation_level="read_committed")


def snapshots(directory):
    return [int(name[:20]) for name in names(directory) if name.endswith(".snapshot")]


def producers(directory, offset):
    entries = read_producer_snapshot(FileSystem(), str(directory / f"{offset:020d}.snapshot"))
    return {entry.producer_id: entry.last_offset for entry in entries}


def aborted(directory, base_offset):
    path = directory / f"{base_offset:020d}.txnindex"
    return TransactionIndex.read(FileSystem(), str(path), base_offset).entries


def rewritten(directory):
    """Return the files with producer state."""
    suffixes = (".snapshot", ".txnindex")
    return {name: (directory / name).read_bytes() for name in names(directory) if name.endswith(suffixes)}


# -- The scenario that Kafka's own classes wrote --------


def test_golden_scenario(logs, directory):
    log = logs.create("orders", 0, LogConfig())
    log.append_batches(golden_transactions.LOG)
    log.update_high_watermark(5)
    assert log.last_stable_offset == 0
    log.update_high_watermark(6)
    assert log.last_stable_offset == 6
    assert committed(log) == [0, 1, 3]
    assert offsets(log) == [0, 1, 2, 3]
    logs.close()
    files = {name: (directory / name).read_bytes() for name in names(directory)}
    del files["partition.metadata"]
    assert files == {
        "00000000000000000000.log": golden_transactions.LOG,
        "00000000000000000000.index": b"",
        "00000000000000000000.timeindex": golden_transactions.TIME_INDEX,
        "00000000000000000000.txnindex": golden_transactions.TRANSACTION_INDEX,
        golden_transactions.SNAPSHOT_NAME: golden_transactions.SNAPSHOT,
        "leader-epoch-checkpoint": golden_transactions.LEADER_EPOCHS,
    }


# -- The transaction index --------


LONG_HISTORY = [
    transactional(0, producer=1),
    transactional(1, producer=2),
    *(data(offset) for offset in range(2, 30)),
    marker(30, producer=1, kind=ABORT),
    transactional(31, producer=3),
    *(data(offset) for offset in range(32, 60)),
    marker(60, producer=2, kind=ABORT),
    marker(61, producer=3, kind=COMMIT),
    transactional(62, producer=1),
    *(data(offset) for offset in range(63, 80)),
    marker(80, producer=1, kind=ABORT),
]
PLAIN_OFFSETS = [offset for offset in range(80) if offset not in (0, 1, 30, 31, 60, 61, 62)]
VISIBLE_OFFSETS = sorted([*PLAIN_OFFSETS, 31])


def test_an_aborted_transaction_is_in_the_index_of_its_markers_segment(log, directory):
    replicate(log, *LONG_HISTORY)
    bases = log.segment_base_offsets
    assert len(bases) > 4
    found = {base: aborted(directory, base) for base in bases if aborted(directory, base)}

    def base_of(offset):
        return max(base for base in bases if base <= offset)

    assert found == {
        base_of(30): (AbortedTransaction(1, 0, 30, 1),),
        base_of(60): (AbortedTransaction(2, 1, 60, 31),),
        base_of(80): (AbortedTransaction(1, 62, 80, 81),),
    }


def test_one_that_is_read_while_its_segment_is_replaced(root, clock):
    """The old file awaits its removal, and is read all the same; the new index lists less."""
    old = root / "orders-0" / f"{0:020d}.log"

    is_armed = False

    def replace(call, path):
        nonlocal is_armed
        if is_armed and call == "open" and path == str(old.with_suffix(".txnindex")):
            is_armed = False
            content = old.read_bytes()
            old.rename(f"{old}.deleted")
            old.write_bytes(content)
            Path(path).write_bytes(b"")

    filesystem = before_each_call(replace)
    with open_directory(root, clock=clock, filesystem=filesystem) as logs:
        log = logs.create("orders")
        for _ in range(2):
            log.transaction(1).append(table(b"aborted"))
            log.abort_transaction(1)
            append(log)
            log.roll()
        log.flush()
        is_armed = True
        assert committed(log) == [2, 5]
        assert not is_armed


def test_transactions_over_many_segments_are_left_out_wherever_a_read_begins(log):
    replicate(log, *LONG_HISTORY)
    for start in range(82):
        assert committed(log, start) == [offset for offset in VISIBLE_OFFSETS if offset >= start]


def test_one_by_one_or_at_once_the_files_are_the_same(logs, root):
    for count in (1, 2, 5, 11):
        replicate(logs.create("orders", count), *LONG_HISTORY, at_once=count)
    logs.close()
    one_by_one = rewritten(root / "orders-1")
    assert len(one_by_one) > 5
    for count in (2, 5, 11):
        assert rewritten(root / f"orders-{count}") == one_by_one


@pytest.mark.parametrize("recovery", ["tail", "kafka"])
def test_recovery_rebuilds_every_transaction_index(logs, log, root, directory, recovery):
    replicate(log, *LONG_HISTORY)
    crash(logs)
    before = {name: content for name, content in rewritten(directory).items() if name.endswith(".txnindex")}
    assert len(before) == 3
    for name in names(directory):
        if name.endswith((".txnindex", ".snapshot")):
            (directory / name).unlink()
    (root / "recovery-point-offset-checkpoint").unlink(missing_ok=True)
    with open_directory(root, recovery=recovery) as opened:
        assert committed(opened.get("orders")) == VISIBLE_OFFSETS
    after = {name: content for name, content in rewritten(directory).items() if name.endswith(".txnindex")}
    assert after == before


def test_a_truncation_takes_the_aborted_transactions_after_it_along(log, directory):
    replicate(log, *LONG_HISTORY)
    log.truncate_to(60)
    log.update_high_watermark(60)
    assert [entry for base in log.segment_base_offsets for entry in aborted(directory, base)] == [
        AbortedTransaction(1, 0, 30, 1)
    ]
    # Producer 2 is open again, from offset 1 on; producer 1 is not.
    assert log.last_stable_offset == 1
    replicate(log, marker(60, producer=2), marker(61, producer=3, kind=ABORT))
    assert committed(log) == [offset for offset in [1, *PLAIN_OFFSETS] if offset < 60]


# -- The last stable offset --------


def test_empty_transactions_do_not_hold_it_back(log):
    replicate(log, data(0), marker(1, producer=1, kind=ABORT, epoch=3), marker(2, producer=2, epoch=1))
    assert log.last_stable_offset == 3
    replicate(log, emptied(3, producer=4, attributes=TRANSACTIONAL | CONTROL))
    assert log.last_stable_offset == 4


def test_a_transaction_that_began_below_the_log_start(logs, log, root):
    replicate(log, transactional(0, producer=1), *(data(offset) for offset in range(1, 40)))
    log.delete_records(20)
    assert log.last_stable_offset == 20
    logs.close()
    with open_directory(root) as opened:
        log = opened.get("orders")
        # The snapshot of the log end knows of it: its marker is still to come.
        assert (log.log_start_offset, log.last_stable_offset) == (20, 20)
        replicate(log, marker(40, producer=1, kind=ABORT))
        assert log.last_stable_offset == 41
        assert committed(log) == list(range(20, 40))


@pytest.mark.parametrize("recovery", ["tail", "kafka"])
def test_a_crash_brings_back_one_that_lies_below_the_log_start(logs, log, root, recovery):
    """As in a broker: recovery reads a whole segment, a truncation reads from the log start on."""
    replicate(log, transactional(0, producer=1), data(1))
    log.delete_records(1)
    log.truncate_to(1)
    assert log.open_transactions() == ()
    replicate(log, data(1), transactional(2, producer=2), marker(3, producer=2, kind=ABORT))
    assert committed(log) == [1]
    crash(logs)
    with open_directory(root, recovery=recovery) as opened:
        log = opened.get("orders")
        log.update_high_watermark(log.log_end_offset)
        assert [(each.producer_id, each.first_offset) for each in log.open_transactions()] == [(1, 0)]
        # What was committed waits for its marker, and is not lost.
        assert (log.last_stable_offset, offsets(log), committed(log)) == (1, [1, 2], [])
        log.abort_transaction(1)
        log.update_high_watermark(log.log_end_offset)
        assert committed(log) == [1]


# -- Snapshots --------


def produced(count, start=0, producer=7):
    return [data(offset, producer=producer, sequence=offset) for offset in range(start, start + count)]


def test_a_roll_leaves_a_snapshot_at_the_new_base(log, directory):
    replicate(log, *produced(5))
    log.roll()
    assert snapshots(directory) == [5]
    assert producers(directory, 5) == {7: 4}
    replicate(log, *produced(5, 5, producer=8))
    log.roll()
    assert snapshots(directory) == [5, 10]
    assert producers(directory, 10) == {7: 4, 8: 9}


def test_snapshots_go_with_their_segments(root, clock):
    with open_directory(root, clock=clock, config=small(file_delete_delay_ms=1000)) as opened:
        log = opened.create("orders")
        replicate(log, *produced(60))
        directory = root / "orders-0"
        bases = log.segment_base_offsets
        assert snapshots(directory) == list(bases[1:])
        log.delete_records(bases[3])
        assert snapshots(directory) == list(bases[3:])
        renamed = [name for name in names(directory) if name.endswith(".snapshot.deleted")]
        assert [int(name[:20]) for name in renamed] == list(bases[1:3])
        clock.time_ms += 1000
        log.flush()
        assert not any(name.endswith(".deleted") for name in names(directory))


def test_read_only_even_a_damaged_one_stays(logs, log, root, directory):
    replicate(log, *produced(25), transactional(25, producer=9))
    logs.close()
    (directory / "00000000000000000026.snapshot").write_bytes(b"damaged")
    before = rewritten(directory)
    with open_directory(root, read_only=True) as opened:
        assert opened.get("orders").last_stable_offset == 25
        assert committed(opened.get("orders")) == list(range(25))
    assert rewritten(directory) == before


# -- Any history --------


def history(random, count):
    """Batches of a few producers with transactions that open, overlap, end and bump the epoch."""
    batches, offset, in_transaction = [], 0, set()
    for number in range(count):
        # No producer has expired.
        fields = {"leader_epoch": number // 20, "timestamp_ms": NOW_MS + number}
        producer, kind = random.randrange(4), random.random()
        if kind < 0.2:
            ending, epoch, size = random.choice([ABORT, COMMIT]), random.choice([0, 0, 1]), 1
            batch = marker(offset, producer=producer, kind=ending, epoch=epoch, **fields)
            in_transaction.discard(producer)
        elif kind < 0.6:
            size = random.randint(1, 3)
            in_transaction.add(producer)
            batch = transactional(offset, size, producer=producer, sequence=number, **fields)
        else:
            size = random.randint(1, 3)
            producer = -1 if producer in in_transaction else random.choice([-1, producer])
            batch = data(offset, size, producer=producer, sequence=number, **fields)
        batches.append(batch)
        offset += size + random.choice([0, 0, 0, 5])
    return batches


def state_of(log):
    """Return all that is known besides the records: producers, open transactions, aborted ones, epochs."""
    manager = log._state.producers
    return (
        sorted(
            (state.snapshot_entry() for state in manager.producers.values()),
            key=lambda each: each.producer_id,
        ),
        dict(manager.open_transactions),
        [entry for base in log.segment_base_offsets for entry in aborted(Path(log.path), base)],
        log.leader_epochs,
        log.last_stable_offset,
    )


def written(logs, topic, batches):
    log = logs.create(topic)
    replicate(log, *batches, at_once=3)
    return log


@pytest.mark.parametrize("recovery", ["tail", "kafka"])
@pytest.mark.parametrize("seed", range(4))
def test_a_crash_changes_nothing_of_what_is_known(root, seed, recovery):
    logs = open_directory(root)
    log = written(logs, "orders", history(Random(seed), 80))
    before = state_of(log)
    assert before[2]
    crash(logs)
    with open_directory(root, recovery=recovery) as opened:
        log = opened.get("orders")
        log.update_high_watermark(log.log_end_offset)
        assert state_of(log) == before


@pytest.mark.parametrize("seed", range(4))
def test_a_truncation_leaves_what_was_known_then(logs, seed):
    random = Random(seed)
    batches = history(random, 80)
    for number, kept in enumerate(sorted(random.sample(range(1, 80), 6), reverse=True)):
        long_log = written(logs, f"long-{number}", batches)
        short_log = written(logs, f"short-{number}", batches[:kept])
        long_log.truncate_to(short_log.log_end_offset)
        long_log.update_high_watermark(long_log.log_end_offset)
        assert state_of(long_log) == state_of(short_log)
