"""Offsets that are not there are named, with what says that they were: nothing is complete that has a hole."""

from __future__ import annotations

import os
import random
import shutil

import pyarrow as pa
import pytest

from storage_core import LogDirectory
from storage_core.errors import CorruptError, RecoveryWouldDiscardError
from tests.conformance.archives import unpack_case
from tests.recover.recovering import EXAMPLES, PARTITION_DIRECTORY, rows, run, write_checkpoint

BASES = (0, 1787, 3614, 5403, 7209)
END = 8234
ROOT_CHECKPOINTS = (
    "recovery-point-offset-checkpoint",
    "replication-offset-checkpoint",
    "log-start-offset-checkpoint",
    "cleaner-offset-checkpoint",
)


@pytest.fixture
def source(tmp_path):
    """Return one partition of five segments, closed cleanly, beside the checkpoints of its broker."""
    root = tmp_path / "source"
    shutil.copytree(EXAMPLES / PARTITION_DIRECTORY, root / PARTITION_DIRECTORY)
    shutil.copy(EXAMPLES / "meta.properties", root)
    for name in ROOT_CHECKPOINTS:
        write_checkpoint(root / name, END)
    for name in ROOT_CHECKPOINTS[2:]:
        (root / name).write_text("0\n0\n")
    (root / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":5}')
    return root


@pytest.fixture
def partition(source):
    return source / PARTITION_DIRECTORY


def files_of(partition, base):
    return list(partition.glob(f"{base:020d}.*"))


def log_of(partition, base):
    return partition / f"{base:020d}.log"


def without_checkpoints(source):
    for name in ROOT_CHECKPOINTS:
        (source / name).unlink(missing_ok=True)


def missing_in(source, policy="kafka", **arguments):
    """Return the offsets that a dry run misses, and why; none if and only if it calls the log complete."""
    report = run(source, None, policy, is_dry_run=True, **arguments)
    (found,) = report.partitions
    assert report.is_complete == (not found.left_out and not found.damaged)
    return [((each.start_offset, each.end_offset), each.reason) for each in found.left_out]


@pytest.mark.parametrize("policy", ["kafka", "tail", "salvage"])
@pytest.mark.parametrize("way", ["log is empty", "log is gone", "all is gone"])
def test_a_lost_middle_segment(source, partition, policy, way):
    if way == "log is empty":
        log_of(partition, 3614).write_bytes(b"")
    for path in files_of(partition, 3614):
        if way == "all is gone" or (way == "log is gone" and path.suffix == ".log"):
            path.unlink()
    ((offsets, reason),) = missing_in(source, policy)
    assert offsets == (3614, 5403)
    assert {"log is empty": "indexes", "log is gone": "is missing", "all is gone": "next segment"}[
        way
    ] in reason


def test_several_lost_segments(source, partition):
    for base in (1787, 5403):
        log_of(partition, base).unlink()
    assert [offsets for offsets, _ in missing_in(source)] == [(1787, 3614), (5403, 7209)]


def test_a_segment_under_a_higher_offset(source, partition):
    """What is below it is missing beside what is damaged."""
    log_of(partition, 3614).rename(log_of(partition, 4000))
    for policy in ("kafka", "salvage"):
        assert (3614, 4000) in [offsets for offsets, _ in missing_in(source, policy)]


def test_what_is_cut_off_a_closed_segment_at_a_batch(source, partition):
    """As by a copy that ran out of space."""
    with LogDirectory.open(source, read_only=True) as logs:
        assert logs.get("orders", 0).log_end_offset == END
    data = log_of(partition, 1787).read_bytes()
    size = int.from_bytes(data[8:12], "big") + 12
    log_of(partition, 1787).write_bytes(data[:size])
    ((offsets, _),) = missing_in(source)
    assert offsets[1] == 3614
    assert 1787 < offsets[0] < 1900


@pytest.mark.parametrize(
    ("evidence", "says"),
    [
        ("recovery-point-offset-checkpoint", "checkpoints say"),
        ("replication-offset-checkpoint", "high watermark says"),
        ("snapshot", "Files of its segments say"),
        ("epochs", "leader epochs say"),
        ("index", "Files of its segments say"),
    ],
)
def test_a_lost_last_segment_of_which_one_file_knows(source, partition, evidence, says):
    content = {name: (source / name).read_bytes() for name in ROOT_CHECKPOINTS}
    without_checkpoints(source)
    for path in [*files_of(partition, 7209), *files_of(partition, END)]:
        if evidence == "index" and path.suffix == ".index":
            continue
        if evidence == "snapshot" and path.name.startswith(f"{END:020d}"):
            continue
        path.unlink()
    if evidence in content:
        (source / evidence).write_bytes(content[evidence])
    if evidence == "epochs":
        (partition / "leader-epoch-checkpoint").write_text("0\n2\n0 0\n3 8000\n")
    ((offsets, reason),) = missing_in(source)
    assert offsets[0] == 7209
    # An index does not know the last batches.
    assert offsets[1] == {"epochs": 8000}.get(evidence, END) or (
        evidence == "index" and 8000 < offsets[1] < END
    )
    assert says in reason


def test_a_last_log_file_that_is_empty_beside_whole_indexes(source, partition):
    without_checkpoints(source)
    (partition / f"{END:020d}.snapshot").unlink()
    log_of(partition, 7209).write_bytes(b"")
    ((offsets, reason),) = missing_in(source)
    assert offsets[0] == 7209
    assert offsets[1] > 8000
    assert "indexes say" in reason


def test_a_torn_end_that_a_checkpoint_vouches_for_reached_it(source, partition):
    path = log_of(partition, 7209)
    os.truncate(path, path.stat().st_size // 3)
    (source / ".kafka_cleanshutdown").unlink()
    ((offsets, reason),) = missing_in(source)
    assert offsets[1] == END
    assert "torn" not in reason
    assert f"reached offset {END}" in reason


@pytest.mark.parametrize("evidence", ["log start", "epochs", "indexes"])
def test_a_lost_first_segment_of_which_one_file_knows(source, partition, evidence):
    for path in files_of(partition, 0):
        if evidence != "indexes" or path.suffix == ".log":
            path.unlink()
    epochs = "0\n1\n0 0\n" if evidence == "epochs" else "0\n1\n0 1787\n"
    (partition / "leader-epoch-checkpoint").write_text(epochs)
    if evidence == "log start":
        write_checkpoint(source / "log-start-offset-checkpoint", 500)
    ((offsets, reason),) = missing_in(source)
    assert offsets == (500 if evidence == "log start" else 0, 1787)
    assert "first segments are missing" in reason


def test_what_retention_has_deleted_is_not_missing(source, partition):
    for path in files_of(partition, 0):
        path.unlink()
    (partition / "leader-epoch-checkpoint").write_text("0\n1\n0 1787\n")
    assert missing_in(source) == []


def test_what_is_below_the_log_start_is_not_missing(source, partition):
    for path in files_of(partition, 1787):
        path.unlink()
    write_checkpoint(source / "log-start-offset-checkpoint", 3000)
    ((offsets, _),) = missing_in(source)
    assert offsets == (3000, 3614)
    write_checkpoint(source / "log-start-offset-checkpoint", 3614)
    assert missing_in(source) == []


def test_a_log_whose_files_are_all_gone(source, partition):
    for path in partition.glob("0*"):
        path.unlink()
    ((offsets, _),) = missing_in(source)
    assert offsets == (0, END)


def test_a_log_that_ends_below_its_checkpointed_start(source):
    write_checkpoint(source / "log-start-offset-checkpoint", 9000)
    for policy in ("kafka", "salvage"):
        assert missing_in(source, policy)[-1][0][1] == 9000


@pytest.mark.parametrize("cleaner_offset", [None, 3614, 5403])
def test_a_compaction_accounts_for_a_gap_below_the_cleaner_checkpoint(source, partition, cleaner_offset):
    for path in files_of(partition, 3614):
        path.unlink()
    if cleaner_offset is not None:
        write_checkpoint(source / "cleaner-offset-checkpoint", cleaner_offset)
    report = run(source, None, is_dry_run=True)
    (found,) = report.partitions
    assert report.is_complete == (cleaner_offset == 5403)
    gaps = found.compacted if report.is_complete else found.left_out
    assert [(each.start_offset, each.end_offset) for each in gaps] == [(3614, 5403)]


@pytest.mark.parametrize("suffix", ["index", "timeindex", "snapshot"])
def test_no_compaction_accounts_for_a_log_file_whose_other_files_are_there(source, partition, suffix):
    for path in files_of(partition, 3614):
        if path.suffix != f".{suffix}":
            path.unlink()
    write_checkpoint(source / "cleaner-offset-checkpoint", 7209)
    ((offsets, reason),) = missing_in(source)
    assert offsets == (3614, 5403)
    # A snapshot is also made where a broker was stopped.
    assert ("snapshot says" if suffix == "snapshot" else "log file") in reason


def test_a_compacted_log_without_its_cleaner_checkpoint(tmp_path):
    """Within a log file, everything is there; between two files, nothing says so."""
    logs, _ = unpack_case("compact", tmp_path / "case")
    options = {"subscribe": "compact-keep"}
    assert run(logs, None, is_dry_run=True, options=options).is_complete
    (logs / "cleaner-offset-checkpoint").unlink()
    report = run(logs, None, is_dry_run=True, options=options)
    assert not report.is_complete
    for each in report.partitions:
        assert each.left_out
        assert all("A compaction may have removed them" in gap.reason for gap in each.left_out)
        assert all(gap.start_byte == (logs / f"{each.topic}-{each.partition}" / gap.file).stat().st_size
                   for gap in each.left_out)  # fmt: skip


def test_gaps_that_salvage_left_are_no_compaction(source, partition, tmp_path):
    data = bytearray(log_of(partition, 1787).read_bytes())
    data[5000] ^= 1
    log_of(partition, 1787).write_bytes(data)
    (lost,) = missing_in(source, "salvage")
    run(source, tmp_path / "saved", "salvage")
    ((offsets, reason),) = missing_in(tmp_path / "saved")
    assert offsets == lost[0]
    assert "salvage" in reason


def test_segments_of_another_log_are_named(tmp_path):
    """A topic was deleted and made again, and a copy has segments of both."""
    for name, epoch, count in (("old", 7, 6), ("new", 2, 3)):
        with LogDirectory.open(tmp_path / name) as logs:
            log = logs.create("orders")
            for number in range(count):
                log.append(pa.table({"value": [b"%d" % number] * 10}), leader_epoch=epoch)
                log.roll()
    partition = tmp_path / "old" / "orders-0"
    for base in (30, 40, 50):
        for path in files_of(partition, base):
            path.unlink()
    new = tmp_path / "new" / "orders-0"
    for path in files_of(new, 20):
        shutil.copy(path, partition / path.name.replace(f"{20:020d}", f"{40:020d}"))
    log = log_of(partition, 40)
    data = bytearray(log.read_bytes())
    data[:8] = (40).to_bytes(8, "big")
    log.write_bytes(data)
    report = run(tmp_path / "old", None, is_dry_run=True)
    (found,) = report.partitions
    assert [(each.start_offset, each.end_offset) for each in found.left_out] == [(30, 40), (50, 60)]
    (suspect,) = found.damaged
    assert (suspect.file, suspect.start_offset) == (log.name, 40)
    assert "leader epochs that never fall" in suspect.reason


def spoil(rng, source, partition):
    """Remove, empty, or cut off some file."""
    files = sorted(path for path in partition.iterdir() if path.name != "partition.metadata")
    logs = [path for path in files if path.suffix == ".log" and path.stat().st_size]
    way = rng.choice(("file", "segment", "empty", "cut", "cut at a batch", "root"))
    path = rng.choice(files)
    if way == "root":
        rng.choice(
            sorted(each for each in source.iterdir() if each.is_file() and each.name != "meta.properties")
        ).unlink()
    elif way == "file":
        path.unlink()
    elif way == "empty":
        path.write_bytes(b"")
    elif logs:
        path = rng.choice(logs)
        if way == "segment":
            for each in partition.glob(f"{path.stem}.*"):
                each.unlink()
        elif way == "cut":
            os.truncate(path, rng.randrange(path.stat().st_size))
        else:
            data = path.read_bytes()
            ends = [0]
            while ends[-1] < len(data):
                ends.append(ends[-1] + int.from_bytes(data[ends[-1] + 8 : ends[-1] + 12], "big") + 12)
            path.write_bytes(data[: rng.choice(ends[:-1])])


@pytest.mark.cases(6, 40)
@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(120))
def test_no_recovery_is_complete_that_lacks_a_record(source, partition, tmp_path, seed):
    rng = random.Random(f"missing {seed}")
    expected = set(rows(source)["offset"].to_pylist())
    for _ in range(rng.choice((1, 1, 2, 3))):
        spoil(rng, source, partition)
    policy = rng.choice(("kafka", "tail", "salvage"))
    try:
        report = run(source, tmp_path / "target", policy)
    except RecoveryWouldDiscardError:
        return
    except CorruptError:
        # A clean-shutdown marker vouches for a damaged end: a broker does not load it, either.
        assert policy != "salvage"
        return
    lost = expected - set(rows(tmp_path / "target", mode="DROPMALFORMED")["offset"].to_pylist())
    assert not (report.is_complete and lost)
    (found,) = report.partitions
    named = [(each.start_offset, each.end_offset) for each in (*found.left_out, *found.damaged)]
    assert all(any(start <= offset < end for start, end in named) for offset in lost)
