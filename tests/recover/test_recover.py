"""A recovered directory holds what the policy promises, loads without recovery, and leaves the source as it was."""

from __future__ import annotations

import errno
import itertools
import json
import os
import random
import shutil

import pyarrow as pa
import pytest

from storage_core import LogDirectory
from storage_core.check.verify import plan_verification, verify
from storage_core.errors import (
    LogDirectoryError,
    LogDirectoryLockedError,
    OptionError,
    RecoveryWouldDiscardError,
)
from storage_core.filesystem import FileSystem
from storage_core.options import options_of
from tests.conformance.archives import case_names, fingerprint, unpack_case
from tests.interop.damaged_logs import DAMAGED_LOGS
from tests.recover.recovering import (
    EXAMPLES,
    PARTITION,
    PARTITION_DIRECTORY,
    TOPIC,
    checkpoints_of,
    damaged_root,
    ends_of,
    flip,
    logs_of,
    recovered_by_open,
    rows,
    run,
    run_in_place,
)

POLICIES = ("kafka", "tail", "salvage")
# What needs a file that this partition does not have.
WAYS = [way for way in DAMAGED_LOGS if "transaction-index" not in way]
QUICK = ("damaged-torn", "damaged-flipped-in-the-middle", "damaged-complete-swap", "damaged-lost-indexes")
SECOND = "00000000000000001787.log"


def ways(each_way):
    return [pytest.param(way, id=way, marks=() if way in QUICK else pytest.mark.thorough) for way in each_way]


@pytest.fixture
def source(tmp_path):
    """Return a broker's directory, stopped cleanly."""
    shutil.copytree(EXAMPLES, tmp_path / "source", ignore=shutil.ignore_patterns("README.md", ".git*"))
    (tmp_path / "source" / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":5}')
    return tmp_path / "source"


@pytest.fixture
def target(tmp_path):
    return tmp_path / "recovered"


def partition_of(report):
    (found,) = (each for each in report.partitions if (each.topic, each.partition) == (TOPIC, PARTITION))
    return found


def assert_loads_cleanly(root, caplog, *, has_damage=False):
    """Check that a load finds nothing to recover, indexes agree, and appends continue where the log ends."""
    caplog.clear()
    with LogDirectory.open(root, broker_directory=True, recovery="kafka") as logs:
        assert [record.message for record in caplog.records if record.levelname == "WARNING"] == []
        for log in logs.logs():
            assert log.log_end_offset >= log.log_start_offset
    if not has_damage:
        filesystem = FileSystem()
        plan = plan_verification(filesystem, options_of([str(root)], {}))
        assert list(verify(filesystem, plan, indexes_only=True).findings) == []


@pytest.mark.cases(3, 12)
@pytest.mark.parametrize("way", ways(WAYS))
def test_policy_kafka_keeps_what_a_broker_would(way, tmp_path, target, caplog):
    source = damaged_root(tmp_path / "source", way)
    before = fingerprint(source)
    report = run(source, target)
    assert fingerprint(source) == before
    expected = recovered_by_open(source, tmp_path / "expected")
    assert logs_of(target) == logs_of(expected)
    assert ends_of(target) == ends_of(expected)
    found = partition_of(report)
    assert found.size_bytes == sum(map(len, logs_of(target).values()))
    assert (found.log_start_offset, found.log_end_offset) == ends_of(target)[TOPIC, PARTITION]
    assert_loads_cleanly(target, caplog, has_damage=bool(found.damaged))


@pytest.mark.cases(3, 12)
@pytest.mark.parametrize("way", ways(WAYS))
def test_policy_salvage_keeps_every_valid_batch(way, tmp_path, target, caplog):
    source = damaged_root(tmp_path / "source", way)
    before = fingerprint(source)
    report = run(source, target, "salvage")
    assert fingerprint(source) == before
    # What can be read of the source, wherever it is damaged. An impossible log start counts for nothing.
    readable = tmp_path / "readable"
    shutil.copytree(source, readable)
    if way == "damaged-log-start-beyond-the-end":
        (readable / "log-start-offset-checkpoint").unlink()
    saved = rows(target)
    assert saved.equals(rows(readable, mode="DROPMALFORMED"))
    found = partition_of(report)
    assert found.damaged == ()
    assert found.size_bytes == sum(map(len, logs_of(target).values()))
    assert_loads_cleanly(target, caplog)


@pytest.mark.cases(3, 12)
@pytest.mark.parametrize("way", ways(WAYS))
def test_policy_tail_refuses_to_lose_a_batch(way, tmp_path, target):
    source = damaged_root(tmp_path / "source", way)
    before = fingerprint(source)
    try:
        report = run(source, target, "tail")
    except RecoveryWouldDiscardError as error:
        refusal = error
    else:
        refusal = None
    if refusal is not None:
        assert refusal.discarded
        assert os.listdir(tmp_path) == ["source"]
    else:
        assert all(each.batch_count == 0 for each in partition_of(report).left_out)
        assert logs_of(target) == logs_of(recovered_by_open(source, tmp_path / "expected"))
    assert fingerprint(source) == before


def test_policy_tail_names_the_batches_that_would_be_lost(tmp_path, target):
    source = damaged_root(tmp_path / "source", "damaged-flipped-in-the-middle")
    with pytest.raises(RecoveryWouldDiscardError, match=r"complete batches that would be lost: .*bytes"):
        run(source, target, "tail")


@pytest.mark.parametrize("policy", POLICIES)
def test_nothing_is_lost_of_a_sound_directory(source, target, policy, caplog):
    before = fingerprint(source)
    report = run(source, target, policy)
    assert report.is_complete
    assert fingerprint(source) == before
    assert rows(target).equals(rows(source))
    assert ends_of(target) == ends_of(source)
    assert logs_of(target) == logs_of(source)
    assert (target / "meta.properties").read_bytes() == (source / "meta.properties").read_bytes()
    assert (target / ".kafka_cleanshutdown").read_bytes() == b'{"version":0,"brokerEpoch":5}'
    assert_loads_cleanly(target, caplog)


def test_checkpoints_are_those_of_the_recovered_logs(source, target):
    run(source, target)
    found = checkpoints_of(target)
    ends = {key: end for key, (_, end) in ends_of(target).items()}
    assert found["recovery-point-offset-checkpoint"] == ends
    assert set(found["replication-offset-checkpoint"]) == set(ends)
    assert found["log-start-offset-checkpoint"] == checkpoints_of(source)["log-start-offset-checkpoint"]


def test_salvage_keeps_offsets_and_says_which_are_lost(source, target):
    log = source / PARTITION_DIRECTORY / SECOND
    flip(log, 5000)
    report = run(source, target, "salvage")
    (lost,) = partition_of(report).left_out
    assert lost.file == SECOND
    assert lost.start_byte <= 5000 < lost.end_byte
    assert lost.reason.startswith("Expected a record batch with CRC")
    expected = [
        offset
        for offset in rows(EXAMPLES, subscribe=TOPIC)
        .filter(rows(EXAMPLES, subscribe=TOPIC)["partition"].to_numpy() == PARTITION)["offset"]
        .to_pylist()
        if not lost.start_offset <= offset < lost.end_offset
    ]
    assert rows(target / PARTITION_DIRECTORY)["offset"].to_pylist() == expected
    assert (target / PARTITION_DIRECTORY / SECOND).read_bytes() == (
        log.read_bytes()[: lost.start_byte] + log.read_bytes()[lost.end_byte :]
    )


def test_a_broker_keeps_damage_below_the_recovery_point_and_the_report_says_so(source, target):
    flip(source / PARTITION_DIRECTORY / SECOND, 5000)
    report = run(source, target)
    found = partition_of(report)
    assert not report.is_complete
    assert found.left_out == ()
    assert [each.file for each in found.damaged] == [SECOND]
    assert logs_of(target) == logs_of(source)


def test_the_manifest_is_the_report(source, target):
    flip(source / PARTITION_DIRECTORY / SECOND, 5000)
    report = run(source, target, "salvage")
    manifest = json.loads((target / ".segmentlog-recovery.json").read_text())
    assert (manifest["policy"], manifest["isComplete"]) == ("salvage", False)
    (found,) = (each for each in manifest["partitions"] if each["leftOut"])
    assert found["leftOut"][0]["startOffset"] == partition_of(report).left_out[0].start_offset


def test_the_manifest_can_go_elsewhere(source, target, tmp_path):
    run(source, target, manifest=str(tmp_path / "lost.json"))
    assert json.loads((tmp_path / "lost.json").read_text())["isComplete"]
    assert not (target / ".segmentlog-recovery.json").exists()


def test_closed_segments_below_the_high_watermark_are_linked_and_nothing_else(source, target):
    run(source, target)
    linked = {
        str(path.relative_to(target))
        for path in target.rglob("*")
        if path.stat().st_nlink > 1 and path.is_file()
    }
    high_watermarks = checkpoints_of(source)["replication-offset-checkpoint"]
    expected = set()
    for partition in source.glob("*-?"):
        topic, _, number = partition.name.rpartition("-")
        bases = sorted(int(path.stem) for path in partition.glob("*.log"))
        expected |= {
            f"{partition.name}/{base:020d}.log"
            for base, end in itertools.pairwise(bases)
            if end <= high_watermarks.get((topic, int(number)), -1)
        }
    assert linked == expected
    assert linked


@pytest.mark.parametrize("number", [errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK])
def test_what_cannot_be_linked_is_copied(source, target, monkeypatch, number):
    def refuse(*_, **__):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", refuse)
    run(source, target)
    assert logs_of(target)
    assert all(path.stat().st_nlink == 1 for path in target.rglob("*") if path.is_file())


def test_without_links_no_file_is_shared(source, target):
    run(source, target, link=False)
    assert all(path.stat().st_nlink == 1 for path in target.rglob("*") if path.is_file())
    assert logs_of(target) == logs_of(source)


def test_modification_times_of_logs_are_kept(source, target):
    for number, path in enumerate(sorted(source.rglob("*.log"))):
        os.utime(path, (1_600_000_000 + number, 1_600_000_000 + number))
    flip(source / PARTITION_DIRECTORY / SECOND, 5000)
    run(source, target, "salvage", link=False)
    times = {path.relative_to(source): path.stat().st_mtime for path in source.rglob("*.log")}
    assert {path.relative_to(target): path.stat().st_mtime for path in target.rglob("*.log")} == times


def test_appends_to_the_recovered_directory_leave_the_source_alone(source, target):
    run(source, target)
    before = fingerprint(source)
    with LogDirectory.open(target, broker_directory=True) as logs:
        for log in logs.logs():
            end_offset = log.log_end_offset
            assert log.append(pa.table({"value": [b"more"]})).first_offset == end_offset
            log.roll()
    assert fingerprint(source) == before


def test_topics_can_be_chosen(source, target):
    report = run(source, target, options={"subscribe": "payments"})
    assert {each.topic for each in report.partitions} == {"payments"}
    assert {path.name for path in target.iterdir() if path.is_dir()} == {"payments-0", "payments-1"}


def test_one_partition_without_its_root(source, target):
    run(source / PARTITION_DIRECTORY, target)
    assert [path.name for path in target.iterdir() if path.is_dir()] == [PARTITION_DIRECTORY]
    assert rows(target).num_rows == rows(source / PARTITION_DIRECTORY).num_rows


def test_what_is_no_live_partition_is_left_out_and_named(source, target):
    names = (
        "gone-0.0123456789abcdef0123456789abcdef-delete",
        "lost-0.0123456789abcdef0123456789abcdef-stray",
        "orders-0.0123456789abcdef0123456789abcdef-future",
        "notes",
    )
    for name in names:
        shutil.copytree(source / "orders-1", source / name)
    (source / "readme.txt").write_text("mine")
    (source / PARTITION_DIRECTORY / "backup.bin").write_bytes(b"")
    report = run(source, target)
    assert {os.path.basename(each.path) for each in report.left_out_files} == {
        *names,
        "readme.txt",
        "backup.bin",
    }
    assert not any((target / name).exists() for name in (*names, "readme.txt"))


def test_the_log_of_a_controller_is_copied_as_it_is(source, target):
    shutil.copytree(source / "orders-1", source / "__cluster_metadata-0")
    (source / "__cluster_metadata-0" / "00000000000000000100-0000000001.checkpoint").write_bytes(b"snapshot")
    run(source, target)
    copied, original = target / "__cluster_metadata-0", source / "__cluster_metadata-0"
    assert {path.name: path.read_bytes() for path in copied.iterdir()} == {
        path.name: path.read_bytes() for path in original.iterdir()
    }


def test_damaged_small_files_are_made_again(source, target, caplog):
    partition = source / PARTITION_DIRECTORY
    epochs = (partition / "leader-epoch-checkpoint").read_text()
    (partition / "leader-epoch-checkpoint").write_text("not a checkpoint")
    for path in partition.glob("*.snapshot"):
        path.write_bytes(b"garbage")
    (source / "orders-1" / "partition.metadata").write_text("garbage")
    for name in (
        "replication-offset-checkpoint",
        "cleaner-offset-checkpoint",
        "recovery-point-offset-checkpoint",
    ):
        (source / name).write_text("garbage")
    run(source, target)
    assert (target / PARTITION_DIRECTORY / "leader-epoch-checkpoint").read_text() == epochs
    same_id = (target / "orders-0" / "partition.metadata").read_text()
    assert (target / "orders-1" / "partition.metadata").read_text() == same_id
    assert_loads_cleanly(target, caplog)


def test_lost_producer_snapshots_of_a_clean_log_are_made_from_the_log(source, target):
    """A broker takes the absence of snapshots after a clean shutdown for the absence of producers."""
    partition = source / "payments-0"
    (newest,) = sorted(partition.glob("*.snapshot"))[-1:]
    expected = newest.read_bytes()
    for path in partition.glob("*.snapshot"):
        path.unlink()
    run(source, target)
    assert (target / "payments-0" / newest.name).read_bytes() == expected


def test_a_dry_run_writes_nothing_and_says_the_same(source, target, tmp_path):
    flip(source / PARTITION_DIRECTORY / SECOND, 5000)
    before = fingerprint(tmp_path)
    planned = run(source, target, "salvage", is_dry_run=True)
    assert fingerprint(tmp_path) == before
    done = run(source, target, "salvage")
    assert planned.partitions == done.partitions


def test_a_target_with_something_in_it_is_refused(source, target):
    target.mkdir()
    (target / "file").write_text("mine")
    with pytest.raises(LogDirectoryError, match="is not empty"):
        run(source, target)
    assert os.listdir(target) == ["file"]


def test_an_empty_target_is_filled(source, target):
    target.mkdir()
    run(source, target)
    assert rows(target).equals(rows(source))


@pytest.mark.parametrize("where", ["inside", "orders-0/inside", "../source/inside"])
def test_a_target_inside_the_source_is_refused(source, where):
    with pytest.raises(OptionError, match="is inside of"):
        run(source, source / where)


def test_a_target_inside_the_source_is_refused_through_a_link(source, tmp_path):
    (tmp_path / "link").symlink_to(source)
    with pytest.raises(OptionError, match="is inside of"):
        run(source, tmp_path / "link" / "inside")


def test_several_log_directories_are_recovered_one_by_one(source, tmp_path, target):
    shutil.copytree(source, tmp_path / "disks" / "second")
    shutil.move(source, tmp_path / "disks" / "first")
    shutil.rmtree(tmp_path / "disks" / "second" / "orders-0")
    shutil.rmtree(tmp_path / "disks" / "first" / "orders-1")
    with pytest.raises(OptionError, match="2 log directories are below"):
        run(tmp_path / "disks", target)


def test_an_interrupted_commit_is_left_to_its_writer(source, target):
    (source / "segmentlog.commit-in-progress").mkdir()
    with pytest.raises(LogDirectoryError, match="A commit was interrupted"):
        run(source, target)


def test_what_an_interrupted_recovery_left_is_removed(source, target, tmp_path):
    left = tmp_path / ".recovered.segmentlog-recovery"
    shutil.copytree(source, left)
    run(source, target)
    assert not left.exists()
    assert rows(target).equals(rows(source))


def test_two_recoveries_into_one_target_do_not_mix(source, target, tmp_path):
    work = tmp_path / ".recovered.segmentlog-recovery"
    work.mkdir()
    with FileSystem().lock(str(work / ".lock")), pytest.raises(LogDirectoryLockedError):
        run(source, target)


@pytest.mark.cases(4, 20)
@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(60))
def test_random_damage(seed, tmp_path, target, caplog):
    """Bytes changed anywhere in the files of a partition: each policy keeps its promise."""
    rng = random.Random(f"recover {seed}")
    source = damaged_root(tmp_path / "source", "damaged-nothing")
    if rng.random() < 0.5:
        (source / ".kafka_cleanshutdown").write_text("{}")
    # An open refuses a damaged leader epoch checkpoint, so there would be nothing to compare with.
    files = sorted(path for path in (source / PARTITION_DIRECTORY).glob("0*") if path.stat().st_size)
    for path in rng.choices(files, k=rng.choice((1, 1, 2, 3))):
        data = bytearray(path.read_bytes())
        start = rng.randrange(len(data))
        for position in range(start, min(start + rng.choice((1, 4, 200)), len(data))):
            data[position] = rng.randrange(256)
        path.write_bytes(data if rng.random() < 0.8 else data[:start])
    before = fingerprint(source)
    run(source, target, "salvage")
    saved = rows(target)
    assert saved.equals(rows(source, mode="DROPMALFORMED"))
    assert_loads_cleanly(target, caplog)
    broker = tmp_path / "broker"
    report = run(source, broker)
    expected = recovered_by_open(source, tmp_path / "expected")
    assert logs_of(broker) == logs_of(expected)
    assert_loads_cleanly(broker, caplog, has_damage=bool(partition_of(report).damaged))
    assert fingerprint(source) == before


@pytest.mark.cases(4, 24)
@pytest.mark.thorough
@pytest.mark.parametrize("policy", ["kafka", "salvage"])
@pytest.mark.parametrize("name", case_names())
def test_directories_of_brokers_of_every_age(name, policy, tmp_path, target, caplog):
    """Messages of formats v0 and v1 are kept as they are."""
    source, _ = unpack_case(name, tmp_path / "case")
    before = fingerprint(source)
    report = run(source, target, policy)
    assert fingerprint(source) == before
    topics = ",".join(sorted({each.topic for each in report.partitions}))
    options = {"subscribe": topics, "mode": "DROPMALFORMED"}
    assert rows(target, **options).equals(rows(source, **options))
    if report.is_complete:
        # All but preallocated space.
        assert _without_zeros(logs_of(target)) == _without_zeros(logs_of(source))
    assert_loads_cleanly(target, caplog, has_damage=any(each.damaged for each in report.partitions))


def _without_zeros(logs):
    return {path: content.rstrip(b"\0") for path, content in logs.items() if "-delete/" not in path}


# In place.


@pytest.mark.cases(4, 20)
@pytest.mark.parametrize("policy", ["kafka", "salvage"])
@pytest.mark.parametrize("way", ways(WAYS))
def test_in_place_gives_the_same_logs(way, policy, tmp_path, target, caplog):
    source = damaged_root(tmp_path / "source", way)
    expected_report = run(source, target, policy, link=False)
    report = run_in_place(source, tmp_path / "aside", policy)
    assert logs_of(source) == logs_of(target)
    assert ends_of(source) == ends_of(target)
    assert partition_of(report).left_out == partition_of(expected_report).left_out
    assert_loads_cleanly(source, caplog, has_damage=bool(partition_of(report).damaged))


def test_what_is_cut_is_put_aside(tmp_path):
    source = damaged_root(tmp_path / "source", "damaged-flipped-in-the-middle")
    original = logs_of(source)
    report = run_in_place(source, tmp_path / "aside")
    for each in partition_of(report).left_out:
        copied = (
            tmp_path / "aside" / PARTITION_DIRECTORY / f"{each.file}.{each.start_byte}-{each.end_byte}.cut"
        )
        content = original[f"{PARTITION_DIRECTORY}/{each.file}"]
        assert copied.read_bytes() == content[each.start_byte : each.end_byte]
    assert json.loads((tmp_path / "aside" / ".segmentlog-recovery.json").read_text())["policy"] == "kafka"


def test_what_a_compaction_was_about_to_replace_is_put_aside(tmp_path):
    source = damaged_root(tmp_path / "source", "damaged-complete-swap")
    original = logs_of(source)
    run_in_place(source, tmp_path / "aside", "salvage")
    assert {
        path: content for path, content in logs_of(tmp_path / "aside").items() if path in original
    } == original


def test_a_damaged_cleaner_checkpoint_is_replaced_in_place(source, tmp_path):
    (source / "cleaner-offset-checkpoint").write_text("garbage")
    run_in_place(source, tmp_path / "aside")
    assert (source / "cleaner-offset-checkpoint").read_text() == "0\n0\n"
    assert (tmp_path / "aside" / "cleaner-offset-checkpoint").read_text() == "garbage"


def test_a_directory_in_use_is_not_changed(source, tmp_path):
    with LogDirectory.open(source, broker_directory=True):
        before = fingerprint(source)
        with pytest.raises(LogDirectoryLockedError):
            run_in_place(source, tmp_path / "aside")
        assert fingerprint(source) == before


def test_in_place_tail_refuses_before_it_changes_anything(tmp_path):
    source = damaged_root(tmp_path / "source", "damaged-flipped-in-the-middle")
    (source / ".lock").touch()
    before = fingerprint(source)
    with pytest.raises(RecoveryWouldDiscardError):
        run_in_place(source, tmp_path / "aside", "tail")
    assert fingerprint(source) == before
    assert not (tmp_path / "aside").exists()
