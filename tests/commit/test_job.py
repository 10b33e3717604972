"""What a job does to a log directory, seen by readers and by those who write next."""

from __future__ import annotations

import errno
import multiprocessing
import threading

import pytest

from storage_core import FileSystem, LogDirectory
from storage_core.checkpoint import (
    read_leader_epoch_checkpoint,
    read_offset_checkpoint,
    read_partition_metadata,
    read_producer_snapshot,
)
from storage_core.commit.job_spec import JobSpec
from storage_core.commit_files.commits_file import read_commits_file
from storage_core.errors import (
    CorruptCheckpointError,
    CorruptRecordError,
    LogDirectoryError,
    LogDirectoryLockedError,
    OptionError,
    RecoveryWouldDiscardError,
    StorageError,
)
from storage_core.record.record_batches import RecordBatches
from tests.commit.jobs import (
    CONFIG,
    JOBS,
    ROOT,
    TOPIC_ID,
    commit,
    contents,
    fill,
    rows_of,
    stage,
    staged_job,
    states,
    values,
)
from tests.faults.forked import in_child
from tests.faults.simulated_filesystem import SimulatedFileSystem
from tests.log.logs import Clock
from tests.log.producing import transactional


@pytest.fixture
def filesystem():
    return SimulatedFileSystem()


def files(filesystem, prefix=""):
    return sorted(
        path.removeprefix(f"{ROOT}/") for path in filesystem.files() if path.startswith(f"{ROOT}/{prefix}")
    )


def staged_files(filesystem):
    return files(filesystem, ".segmentlog-stage-")


def found_values(filesystem, key):
    return [value for _, value in contents(filesystem, ROOT)[key]]


# -- Append --------


def test_a_job_makes_a_root_and_a_topic(filesystem):
    rows = rows_of(("orders", 0, 3), ("orders", 2, 2))
    outcome = commit(filesystem, ROOT, JOBS[0], rows, new_partitions={"orders": 3})
    assert (outcome.generation, outcome.was_committed_before) == (1, False)
    found = contents(filesystem, ROOT)
    assert [offset for offset, _ in found["orders", 0]] == [0, 1, 2]
    assert [value for _, value in found["orders", 0]] == values(rows["orders", 0])
    assert [value for _, value in found["orders", 2]] == values(rows["orders", 2])
    assert found["orders", 1] == []
    ids = {
        read_partition_metadata(filesystem, f"{ROOT}/orders-{number}/partition.metadata")
        for number in range(3)
    }
    assert len(ids) == 1
    assert None not in ids


def test_only_what_belongs_to_a_log_directory_is_left(filesystem):
    commit(filesystem, ROOT, JOBS[0], rows_of(("orders", 0, 3)), new_partitions={"orders": 1})
    assert files(filesystem) == [
        ".kafka_cleanshutdown",
        ".lock",
        ".segmentlog-commits",
        "log-start-offset-checkpoint",
        "orders-0/00000000000000000000.index",
        "orders-0/00000000000000000000.log",
        "orders-0/00000000000000000000.timeindex",
        "orders-0/00000000000000000003.snapshot",
        "orders-0/leader-epoch-checkpoint",
        "orders-0/partition.metadata",
        "recovery-point-offset-checkpoint",
        "replication-offset-checkpoint",
    ]
    assert not [
        entry for entry in filesystem.list_directory(ROOT) if entry.is_directory and "commit" in entry.name
    ]


def test_rows_are_in_the_order_of_the_tasks(filesystem):
    fill(filesystem, ROOT, ("orders", 0, 4))
    tasks = [rows_of(("orders", 0, 2), name=f"task{number}") for number in range(3)]
    commit(filesystem, ROOT, JOBS[0], *tasks)
    found = contents(filesystem, ROOT)["orders", 0]
    assert [offset for offset, _ in found] == list(range(10))
    assert [value[:5] for _, value in found[4:]] == [
        b"task0",
        b"task0",
        b"task1",
        b"task1",
        b"task2",
        b"task2",
    ]


def test_small_pieces_go_to_the_last_segment_and_large_ones_are_linked(filesystem):
    fill(filesystem, ROOT, ("orders", 0, 5))
    job = staged_job(
        filesystem,
        ROOT,
        JOBS[0],
        rows_of(("orders", 0, 2)),
        rows_of(("orders", 0, 60)),
        rows_of(("orders", 0, 3)),
    )
    (large,) = [path for path in filesystem.files() if ".segmentlog-stage-" in path and path.endswith(".log")]
    inode = filesystem.status(large).version
    job.commit()
    logs = [name for name in files(filesystem, "orders-0/") if name.endswith(".log")]
    assert logs == ["orders-0/00000000000000000000.log", "orders-0/00000000000000000007.log"]
    assert filesystem.status(f"{ROOT}/{logs[1]}").version == inode
    assert found_values(filesystem, ("orders", 0))[5:] == [
        *values(rows_of(("orders", 0, 2))["orders", 0]),
        *values(rows_of(("orders", 0, 60))["orders", 0]),
        *values(rows_of(("orders", 0, 3))["orders", 0]),
    ]


def test_pieces_roll_as_a_broker_rolls(filesystem):
    tasks = [rows_of(("orders", 0, 20), name=f"task{number}") for number in range(8)]
    commit(filesystem, ROOT, JOBS[0], *tasks, new_partitions={"orders": 1})
    sizes = [
        len(content)
        for path, content in filesystem.files().items()
        if "/orders-0/" in path and path.endswith(".log")
    ]
    assert len(sizes) > 1
    assert all(size <= 4000 for size in sizes)


def test_jobs_follow_one_another(filesystem):
    for number in range(6):
        commit(
            filesystem,
            ROOT,
            JOBS[number],
            rows_of(("orders", 0, 1 + number * 7), name=f"job{number}"),
            new_partitions={"orders": 1} if number == 0 else {},
        )
    found = contents(filesystem, ROOT)["orders", 0]
    assert [offset for offset, _ in found] == list(range(sum(1 + number * 7 for number in range(6))))
    assert [entry.generation for entry in read_commits_file(filesystem, ROOT).entries] == [1, 2, 3, 4, 5, 6]


def test_the_last_leader_epoch_on_disk_is_used(filesystem):
    fill(filesystem, ROOT, ("orders", 0, 3))
    filesystem.put(f"{ROOT}/orders-0/leader-epoch-checkpoint", b"0\n2\n0 0\n7 2\n")
    commit(filesystem, ROOT, JOBS[0], rows_of(("orders", 0, 3)))
    log = filesystem.files()[f"{ROOT}/orders-0/00000000000000000000.log"]
    assert RecordBatches.parse(log).headers["leader_epoch"].tolist()[-1] == 7
    entries = read_leader_epoch_checkpoint(filesystem, f"{ROOT}/orders-0/leader-epoch-checkpoint")
    assert [(entry.epoch, entry.start_offset) for entry in entries] == [(0, 0), (7, 2)]


def test_the_checkpoints_and_the_snapshot_say_what_was_published(filesystem):
    fill(filesystem, ROOT, ("orders", 0, 3), ("other", 0, 2))
    commit(filesystem, ROOT, JOBS[0], rows_of(("orders", 0, 4)))
    for name in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
        assert read_offset_checkpoint(filesystem, f"{ROOT}/{name}") == {("orders", 0): 7, ("other", 0): 2}
    assert read_producer_snapshot(filesystem, f"{ROOT}/orders-0/00000000000000000007.snapshot") == ()


def test_look_ups_by_time_are_right(filesystem):
    fill(filesystem, ROOT, ("orders", 0, 3))
    commit(filesystem, ROOT, JOBS[0], rows_of(("orders", 0, 70)), rows_of(("orders", 0, 20)))
    with LogDirectory.open(ROOT, read_only=True, filesystem=filesystem, config=CONFIG) as logs:
        log = logs.get("orders", 0)
        for number in range(70):
            assert log.offset_for_timestamp(1_700_000_000_000 + 10 * number).offset == 3 + number


def test_the_next_to_open_the_directory_recovers_nothing_and_goes_on(filesystem):
    fill(filesystem, ROOT, ("orders", 0, 3))
    commit(filesystem, ROOT, JOBS[0], rows_of(("orders", 0, 70)))
    before = {
        path: content for path, content in filesystem.files().items() if path.endswith((".log", "index"))
    }
    assert states(filesystem, ROOT) == {("orders", 0): (0, 73)}
    after = filesystem.files()
    assert {path: after[path] for path in before} == before
    fill(filesystem, ROOT, ("orders", 0, 1))
    assert len(contents(filesystem, ROOT)["orders", 0]) == 74


def test_a_job_without_rows_counts(filesystem):
    assert commit(filesystem, ROOT, JOBS[0], txn_app_id="app", txn_version=1).generation == 1
    assert not staged_job(filesystem, ROOT, JOBS[1], txn_app_id="app", txn_version=1).job.begin()


def test_several_threads_publish(filesystem):
    partitions = [("orders", number, 3 + number) for number in range(20)]
    rows = rows_of(*partitions)
    commit(filesystem, ROOT, JOBS[0], rows, new_partitions={"orders": 20}, threads=6)
    found = contents(filesystem, ROOT)
    assert {key: [value for _, value in records] for key, records in found.items()} == {
        key: values(each) for key, each in rows.items()
    }


def test_on_a_real_file_system(tmp_path):
    rows = rows_of(*[("orders", number, 60) for number in range(70)])
    commit(FileSystem(), tmp_path, JOBS[0], rows, new_partitions={"orders": 70}, threads=4)
    commit(FileSystem(), tmp_path, JOBS[1], rows, flush=False)
    found = contents(FileSystem(), tmp_path)
    assert all([value for _, value in found[key]] == values(rows[key]) * 2 for key in rows)


# -- Overwrite --------


def test_overwrite_moves_the_log_start_and_reuses_no_offset(filesystem):
    fill(filesystem, ROOT, ("orders", 0, 5), ("orders", 1, 4), ("other", 0, 3))
    rows = rows_of(("orders", 0, 2))
    commit(filesystem, ROOT, JOBS[0], rows, mode="overwrite")
    assert states(filesystem, ROOT) == {("orders", 0): (5, 7), ("orders", 1): (4, 4), ("other", 0): (0, 3)}
    found = contents(filesystem, ROOT)
    assert found["orders", 0] == list(enumerate(values(rows["orders", 0]), start=5))
    assert found["orders", 1] == []
    assert len(found["other", 0]) == 3


def test_overwrite_of_a_topic_that_gets_no_rows(filesystem):
    fill(filesystem, ROOT, ("orders", 0, 5))
    commit(filesystem, ROOT, JOBS[0], mode="overwrite", targeted_topics=("orders",))
    assert states(filesystem, ROOT) == {("orders", 0): (5, 5)}
    fill(filesystem, ROOT, ("orders", 0, 1))
    assert states(filesystem, ROOT) == {("orders", 0): (5, 6)}


def test_new_rows_begin_a_segment_after_overwritten_ones(filesystem):
    fill(filesystem, ROOT, ("orders", 0, 5))
    commit(filesystem, ROOT, JOBS[0], rows_of(("orders", 0, 2)), mode="overwrite")
    assert f"{ROOT}/orders-0/00000000000000000005.log" in filesystem.files()


# -- Once --------


def test_a_job_is_committed_once(filesystem):
    job = staged_job(filesystem, ROOT, JOBS[0], rows_of(("orders", 0, 2)), new_partitions={"orders": 1})
    job.commit()
    again = job.commit()
    assert (again.generation, again.was_committed_before) == (1, True)
    assert len(contents(filesystem, ROOT)["orders", 0]) == 2


@pytest.mark.parametrize(("version", "is_new"), [(3, False), (4, False), (5, True)])
def test_a_version_that_was_committed_is_not_written_again(filesystem, version, is_new):
    new = {"new_partitions": {"orders": 1}}
    commit(filesystem, ROOT, JOBS[0], rows_of(("orders", 0, 2)), txn_app_id="app", txn_version=4, **new)
    job = staged_job(
        filesystem, ROOT, JOBS[1], rows_of(("orders", 0, 2)), txn_app_id="app", txn_version=version, **new
    )
    assert job.job.begin() is is_new
    assert job.commit().was_committed_before is not is_new
    assert len(contents(filesystem, ROOT)["orders", 0]) == (4 if is_new else 2)
    assert staged_files(filesystem) == []


def test_versions_of_applications_do_not_mix(filesystem):
    new = {"new_partitions": {"orders": 1}}
    commit(filesystem, ROOT, JOBS[0], rows_of(("orders", 0, 2)), txn_app_id="app", txn_version=4, **new)
    commit(filesystem, ROOT, JOBS[1], rows_of(("orders", 0, 2)), txn_app_id="other", txn_version=4, **new)
    assert len(contents(filesystem, ROOT)["orders", 0]) == 4


def test_an_attempt_that_is_not_named_leaves_nothing(filesystem):
    """A speculative task, or one that failed: its manifest is not handed to the commit."""
    job = staged_job(filesystem, ROOT, JOBS[0], rows_of(("orders", 0, 2)), new_partitions={"orders": 1})
    stage(filesystem, ROOT, JOBS[0], rows_of(("orders", 0, 50), name="speculative"), task=0, attempt=1)
    job.commit()
    assert len(contents(filesystem, ROOT)["orders", 0]) == 2
    assert staged_files(filesystem) == []
    stage(filesystem, ROOT, JOBS[0], rows_of(("orders", 0, 1), name="late"), task=0, attempt=2)
    assert len(contents(filesystem, ROOT)["orders", 0]) == 2
    staged_job(filesystem, ROOT, JOBS[1]).job.begin()
    assert staged_files(filesystem) == []


def test_abort_removes_what_was_staged(filesystem):
    job = staged_job(filesystem, ROOT, JOBS[0], rows_of(("orders", 0, 60)), new_partitions={"orders": 1})
    stage(filesystem, ROOT, JOBS[1], rows_of(("orders", 0, 1)))
    assert job.job.abort()
    assert all(JOBS[1] in name for name in staged_files(filesystem))
    assert staged_files(filesystem)
    assert job.job.abort()


def test_abort_of_a_root_that_is_not_there(filesystem):
    assert staged_job(filesystem, ROOT, JOBS[0], is_begun=False).job.abort()


def test_a_new_root_in_which_nothing_was_written_is_emptied(filesystem):
    job = staged_job(filesystem, ROOT, JOBS[0], rows_of(("orders", 0, 2)))
    job.job.abort()
    job.job.empty_new_root()
    assert files(filesystem) == []


@pytest.mark.parametrize("deleted", range(5))
def test_a_root_that_was_emptied_in_part_is_written_to_as_any_other(filesystem, monkeypatch, deleted):
    job = staged_job(filesystem, ROOT, JOBS[0]).job
    before, remaining, delete = files(filesystem), iter(range(deleted)), filesystem.delete

    def delete_a_few(path):
        if next(remaining, None) is None:
            raise StorageError("Expected a disk that works, found one that does not.", path=path)
        return delete(path)

    with monkeypatch.context() as patch:
        patch.setattr(filesystem, "delete", delete_a_few)
        job.empty_new_root()
    assert len(files(filesystem)) == len(before) - deleted
    commit(filesystem, ROOT, JOBS[1], rows_of(("orders", 0, 2)), new_partitions={"orders": 1})
    assert len(contents(filesystem, ROOT)["orders", 0]) == 2


def test_a_root_that_others_use_is_not_emptied(filesystem):
    job = staged_job(filesystem, ROOT, JOBS[0]).job
    with filesystem.lock(f"{ROOT}/.lock"):
        job.empty_new_root()
    assert ".kafka_cleanshutdown" in files(filesystem)
    stage(filesystem, ROOT, JOBS[1], rows_of(("orders", 0, 1)))
    before = files(filesystem)
    job.empty_new_root()
    assert files(filesystem) == before


def test_two_manifests_of_one_task_are_refused(filesystem):
    job = staged_job(filesystem, ROOT, JOBS[0], rows_of(("orders", 0, 2)), new_partitions={"orders": 1})
    job.manifests.append(stage(filesystem, ROOT, JOBS[0], rows_of(("orders", 0, 2)), task=0, attempt=1))
    with pytest.raises(OptionError, match=r"one manifest .* for each task"):
        job.commit()


def test_a_manifest_of_another_job_is_refused(filesystem):
    job = staged_job(filesystem, ROOT, JOBS[0], rows_of(("orders", 0, 2)), new_partitions={"orders": 1})
    job.manifests[0] = stage(filesystem, ROOT, JOBS[1], rows_of(("orders", 0, 2)))
    with pytest.raises(OptionError, match="Commit each task once"):
        job.commit()


# -- Preserved offsets --------


def offset_rows(*offsets):
    return [(offset, b"value %d" % offset) for offset in offsets]


def test_offsets_are_kept(filesystem):
    rows = {("orders", 0): offset_rows(3, 4, 9, 20, 21, 40)}
    commit(filesystem, ROOT, JOBS[0], rows, preserve_offsets=True, new_partitions={"orders": 1})
    assert contents(filesystem, ROOT)["orders", 0] == rows["orders", 0]


@pytest.mark.parametrize("first_offset", [0, 7])
def test_offsets_that_the_job_does_not_preserve_are_refused(filesystem, first_offset):
    job = staged_job(filesystem, ROOT, JOBS[0], {("orders", 0): offset_rows(first_offset, 9)})
    with pytest.raises(OptionError, match=rf"with offsets from {first_offset} on.*preserveOffsets") as caught:
        job.commit()
    assert caught.value.offset == first_offset


def test_offsets_of_large_pieces_are_kept(filesystem):
    rows = {("orders", 0): offset_rows(*range(1000, 1300, 3))}
    commit(filesystem, ROOT, JOBS[0], rows, preserve_offsets=True, new_partitions={"orders": 1})
    assert contents(filesystem, ROOT)["orders", 0] == rows["orders", 0]
    assert states(filesystem, ROOT) == {("orders", 0): (0, 1298)}


def test_tasks_are_put_into_the_order_of_their_offsets(filesystem):
    first, second = offset_rows(*range(50, 60)), offset_rows(*range(40))
    commit(
        filesystem,
        ROOT,
        JOBS[0],
        {("orders", 0): first},
        {("orders", 0): second},
        preserve_offsets=True,
        new_partitions={"orders": 1},
    )
    assert contents(filesystem, ROOT)["orders", 0] == [*second, *first]


def test_offsets_of_two_tasks_that_overlap_are_refused(filesystem):
    job = staged_job(
        filesystem,
        ROOT,
        JOBS[0],
        {("orders", 0): offset_rows(1, 5)},
        {("orders", 0): offset_rows(3, 4)},
        preserve_offsets=True,
        new_partitions={"orders": 1},
    )
    with pytest.raises(OptionError, match=r"found offset 3 below 6.*sort by offset"):
        job.commit()


def test_offsets_that_are_there_are_refused(filesystem):
    fill(filesystem, ROOT, ("orders", 0, 5))
    job = staged_job(filesystem, ROOT, JOBS[0], {("orders", 0): offset_rows(4, 5)}, preserve_offsets=True)
    with pytest.raises(OptionError, match=r"log end 5.*found offset 4"):
        job.commit()


@pytest.mark.parametrize("is_there", [False, True])
@pytest.mark.parametrize("count", [0, 3, 60])
def test_log_start_and_log_end_are_restored(filesystem, is_there, count):
    """Also with only markers between them, or nothing at all; for small pieces and large ones."""
    if is_there:
        fill(filesystem, ROOT, ("orders", 0, 0), ("orders", 1, 0))
    rows = {("orders", 0): offset_rows(*range(520, 520 + count))} if count else {}
    commit(
        filesystem,
        ROOT,
        JOBS[0],
        rows,
        preserve_offsets=True,
        restored_offsets={("orders", 0): (500, 700), ("orders", 1): (800, 800)},
    )
    assert states(filesystem, ROOT) == {("orders", 0): (500, 700), ("orders", 1): (800, 800)}
    assert contents(filesystem, ROOT)["orders", 0] == rows.get(("orders", 0), [])
    fill(filesystem, ROOT, ("orders", 0, 1), ("orders", 1, 1))
    found = contents(filesystem, ROOT)
    assert found["orders", 0][-1] == (700, b"old:orders:0:0")
    assert found["orders", 1] == [(800, b"old:orders:1:0")]


def test_a_source_that_has_grown_meanwhile(filesystem):
    commit(
        filesystem,
        ROOT,
        JOBS[0],
        {("orders", 0): offset_rows(10, 11, 12)},
        preserve_offsets=True,
        restored_offsets={("orders", 0): (10, 11)},
    )
    assert states(filesystem, ROOT) == {("orders", 0): (10, 13)}


def test_rows_before_the_restored_log_start_are_refused(filesystem):
    job = staged_job(
        filesystem,
        ROOT,
        JOBS[0],
        {("orders", 0): offset_rows(10, 11, 12)},
        preserve_offsets=True,
        restored_offsets={("orders", 0): (11, 13)},
    )
    with pytest.raises(OptionError, match=r"log start 11.*found offset 10"):
        job.commit()


# -- Who may write where --------


def test_a_running_broker_is_refused(filesystem):
    fill(filesystem, ROOT, ("orders", 0, 1))
    job = staged_job(filesystem, ROOT, JOBS[0], rows_of(("orders", 0, 2)))
    before = filesystem.files()
    with filesystem.lock(f"{ROOT}/.lock"):
        with pytest.raises(LogDirectoryLockedError):
            job.job.begin()
        with pytest.raises(LogDirectoryLockedError):
            job.commit()
    assert filesystem.files() == before
    job.commit()


def _hold_lock(path, is_locked, may_go):
    with FileSystem().lock(path):
        is_locked.set()
        may_go.wait()


def test_another_process_that_has_the_directory_open_is_refused(tmp_path):
    commit(FileSystem(), tmp_path, JOBS[0], rows_of(("orders", 0, 1)), new_partitions={"orders": 1})
    context = multiprocessing.get_context("fork")
    is_locked, may_go = context.Event(), context.Event()
    other = context.Process(target=_hold_lock, args=(str(tmp_path / ".lock"), is_locked, may_go))
    other.start()
    try:
        assert is_locked.wait(300)
        with pytest.raises(LogDirectoryLockedError, match="locked by another process"):
            staged_job(FileSystem(), tmp_path, JOBS[1], is_begun=False).job.begin()
        # A running broker does not release it, so the job does not wait.
        (tmp_path / "meta.properties").write_text("version=1\n")
        with pytest.raises(LogDirectoryLockedError, match="locked by another process"):
            staged_job(
                FileSystem(),
                tmp_path,
                JOBS[1],
                is_begun=False,
                broker_directory=True,
                lock_wait_seconds=3600.0,
            ).job.begin()
    finally:
        may_go.set()
        other.join()


def test_a_job_that_its_forked_child_commits_too_is_committed_once(tmp_path):
    """A job holds nothing between two calls: the second to come finds it done."""
    filesystem = FileSystem()
    fill(filesystem, tmp_path, ("orders", 0, 3))
    tried = staged_job(filesystem, tmp_path, JOBS[1], rows_of(("orders", 0, 5)), lock_wait_seconds=30.0)
    assert not in_child(tried.commit).was_committed_before
    assert tried.commit().was_committed_before
    assert len(contents(filesystem, tmp_path)["orders", 0]) == 8


def test_two_jobs_at_once_follow_one_another(tmp_path):
    fill(FileSystem(), tmp_path, ("orders", 0, 1))
    jobs = [
        staged_job(
            FileSystem(),
            tmp_path,
            JOBS[number],
            rows_of(("orders", 0, 40), name=f"{number}"),
            lock_wait_seconds=60.0,
        )
        for number in range(5)
    ]
    failures = []

    def run(job):
        try:
            job.commit()
        except Exception as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=run, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    found = [value for _, value in contents(FileSystem(), tmp_path)["orders", 0]][1:]
    runs = [found[start : start + 40] for start in range(0, 200, 40)]
    assert sorted(runs) == [
        values(rows_of(("orders", 0, 40), name=f"{number}")["orders", 0]) for number in range(5)
    ]


def test_a_brokers_directory_is_refused_without_broker_directory(filesystem):
    fill(filesystem, ROOT, ("orders", 0, 1))
    filesystem.put(f"{ROOT}/meta.properties", b"version=1\nnode.id=1\ncluster.id=AbCdEfGhIjKlMnOpQrStUg\n")
    with pytest.raises(LogDirectoryError, match=r"that is not a broker's.*broker_directory=True") as raised:
        staged_job(filesystem, ROOT, JOBS[0])
    assert "brokerDirectory=true" in str(raised.value)
    commit(filesystem, ROOT, JOBS[0], rows_of(("orders", 0, 2)), broker_directory=True)
    assert len(found_values(filesystem, ("orders", 0))) == 3


def test_a_new_topic_in_a_brokers_directory_needs_the_clusters_id(filesystem):
    fill(filesystem, ROOT, ("orders", 0, 1))
    filesystem.put(f"{ROOT}/meta.properties", b"version=1\nnode.id=1\ncluster.id=AbCdEfGhIjKlMnOpQrStUg\n")
    options = {"broker_directory": True, "new_partitions": {"new": 1}}
    job = staged_job(filesystem, ROOT, JOBS[0], rows_of(("new", 0, 2)), **options)
    with pytest.raises(OptionError, match=r"the cluster gave to topic new.*Create the topic first.*topicIds"):
        job.commit()
    commit(filesystem, ROOT, JOBS[1], rows_of(("new", 0, 2)), topic_ids={"new": TOPIC_ID}, **options)
    assert read_partition_metadata(filesystem, f"{ROOT}/new-0/partition.metadata") == TOPIC_ID


def test_another_topic_id_than_the_one_that_is_there_is_refused(filesystem):
    fill(filesystem, ROOT, ("orders", 0, 1))
    job = staged_job(filesystem, ROOT, JOBS[0], rows_of(("orders", 0, 2)), topic_ids={"orders": TOPIC_ID})
    with pytest.raises(LogDirectoryError, match="as the id of topic orders"):
        job.commit()


def test_a_foreign_directory_in_the_root_is_refused(filesystem):
    fill(filesystem, ROOT, ("orders", 0, 1))
    filesystem.put(f"{ROOT}/photos/cat.jpg", b"meow")
    with pytest.raises(LogDirectoryError, match="found 'photos'"):
        staged_job(filesystem, ROOT, JOBS[0])


def test_an_unrequested_partition_is_refused(filesystem):
    fill(filesystem, ROOT, ("orders", 0, 1))
    job = staged_job(filesystem, ROOT, JOBS[0], rows_of(("orders", 7, 2)))
    before = filesystem.files()
    with pytest.raises(OptionError, match=r"found some for orders-7.*'partitions'"):
        job.commit()
    assert filesystem.files() == before


def test_a_topic_that_another_job_has_made_with_other_partitions(filesystem):
    job = staged_job(filesystem, ROOT, JOBS[0], rows_of(("orders", 0, 2)), new_partitions={"orders": 3})
    commit(filesystem, ROOT, JOBS[1], rows_of(("orders", 0, 2)), new_partitions={"orders": 2})
    with pytest.raises(OptionError, match="3 partitions of topic orders, which has 2: another job"):
        job.commit()


def test_an_open_transaction_is_refused(filesystem):
    fill(filesystem, ROOT, ("orders", 0, 2))
    with LogDirectory.open(ROOT, filesystem=filesystem, config=CONFIG, clock=Clock()) as logs:
        logs.get("orders", 0).append_batches(transactional(2, producer=7))
    job = staged_job(filesystem, ROOT, JOBS[0], rows_of(("orders", 0, 2)))
    with pytest.raises(LogDirectoryError, match="open transaction in orders-0, found one from offset 2 on"):
        job.commit()
    filesystem.delete(f"{ROOT}/orders-0/00000000000000000003.snapshot")
    with pytest.raises(LogDirectoryError, match="open transaction in orders-0, found one from offset 2 on"):
        job.commit()


def test_a_root_that_was_not_closed_is_recovered_first(filesystem):
    fill(filesystem, ROOT, ("orders", 0, 5))
    filesystem.delete(f"{ROOT}/.kafka_cleanshutdown")
    with filesystem.open_for_writing(f"{ROOT}/orders-0/00000000000000000000.log") as log:
        log.write_at([b"torn"], log.size_bytes())
    commit(filesystem, ROOT, JOBS[0], rows_of(("orders", 0, 2)))
    assert len(contents(filesystem, ROOT)["orders", 0]) == 7


def test_a_root_whose_recovery_would_lose_something_is_refused(filesystem):
    fill(filesystem, ROOT, ("orders", 0, 30))
    filesystem.delete(f"{ROOT}/.kafka_cleanshutdown")
    with filesystem.open_for_writing(f"{ROOT}/orders-0/00000000000000000000.log") as log:
        log.write_at([b"\xff"], 70)
    filesystem.delete(f"{ROOT}/recovery-point-offset-checkpoint")
    with pytest.raises(
        RecoveryWouldDiscardError,
        match=r"complete batches that a recovery by Kafka's rules discards.*"
        r"Copy the directory first; then open it with LogDirectory\.open.*recovery='kafka'",
    ):
        staged_job(filesystem, ROOT, JOBS[0])


def test_a_torn_end_under_a_clean_marker_is_refused(filesystem):
    fill(filesystem, ROOT, ("orders", 0, 5))
    job = staged_job(filesystem, ROOT, JOBS[0], rows_of(("orders", 0, 2)))
    with filesystem.open_for_writing(f"{ROOT}/orders-0/00000000000000000000.log") as log:
        log.truncate(log.size_bytes() - 3)
    before = filesystem.files()
    with pytest.raises(Exception, match="complete batches up to the end"):
        job.commit()
    assert filesystem.files() == before


def test_a_full_disk_is_noticed_before_anything_is_done(filesystem):
    fill(filesystem, ROOT, ("orders", 0, 5))
    job = staged_job(filesystem, ROOT, JOBS[0], rows_of(("orders", 0, 2)))
    filesystem.space_bytes = 1000
    before = filesystem.files()
    with pytest.raises(StorageError, match="bytes of free space for the commit, found 1000"):
        job.commit()
    assert filesystem.files() == before


def test_a_new_partition_knows_nothing_of_one_that_was_removed(filesystem):
    fill(filesystem, ROOT, ("orders", 0, 50))
    with LogDirectory.open(ROOT, filesystem=filesystem, config=CONFIG, clock=Clock()) as logs:
        logs.get("orders", 0).delete_records(40)
    cleaned = f"{ROOT}/cleaner-offset-checkpoint"
    filesystem.put(cleaned, b"0\n2\norders 0 5\nothers 0 7\n")
    for path in filesystem.files():
        if path.startswith(f"{ROOT}/orders-0/"):
            filesystem.delete(path)
    filesystem.delete_directory(f"{ROOT}/orders-0")
    commit(filesystem, ROOT, JOBS[0], rows_of(("orders", 0, 10)), new_partitions={"orders": 1})
    assert read_offset_checkpoint(filesystem, cleaned) == {("others", 0): 7}
    assert len(contents(filesystem, ROOT)["orders", 0]) == 10
    assert states(filesystem, ROOT)["orders", 0] == (0, 10)


@pytest.mark.parametrize(("last_offset", "count"), [(2**63 - 2, 1), (2**63 - 3, 2)])
def test_a_log_that_is_full_takes_no_more(filesystem, last_offset, count):
    """Where it would end then, no file can say."""
    row = {("orders", 0): [(last_offset, b"last")]}
    commit(filesystem, ROOT, JOBS[0], row, new_partitions={"orders": 1}, preserve_offsets=True)
    job = staged_job(filesystem, ROOT, JOBS[1], rows_of(("orders", 0, count)))
    with pytest.raises(
        OptionError, match=r"^Expected offsets below 9223372036854775807 in orders-0, found rows up to"
    ):
        job.commit()
    assert contents(filesystem, ROOT) == {("orders", 0): [(last_offset, b"last")]}


def test_a_failure_after_the_rows_are_visible_is_left_to_the_next_writer(filesystem, caplog):
    """A job that said "in doubt" would be run again, and its rows would be there twice."""
    fill(filesystem, ROOT, ("orders", 0, 5))
    job = staged_job(filesystem, ROOT, JOBS[0], rows_of(("orders", 0, 2)))
    filesystem.fail = lambda call: OSError(errno.EIO, "broken") if _restores_the_marker(call) else None
    assert not job.commit().was_committed_before
    filesystem.fail = None
    assert "is committed, but its journal and staged files could not all be removed" in caplog.text
    assert len(contents(filesystem, ROOT)["orders", 0]) == 7
    commit(filesystem, ROOT, JOBS[1], rows_of(("orders", 0, 1)))
    assert len(contents(filesystem, ROOT)["orders", 0]) == 8


def _restores_the_marker(call):
    return call.name == "write" and call.path.endswith(".kafka_cleanshutdown")


# -- Damage --------


def damage(filesystem, suffix, position):
    path = next(path for path in filesystem.files() if ".segmentlog-stage-" in path and path.endswith(suffix))
    with filesystem.open_for_writing(path) as file:
        (byte,) = file.read_at(1, position)
        file.write_at([bytes([byte ^ 1])], position)


@pytest.mark.parametrize("suffix", [".pack", ".log", ".manifest"])
@pytest.mark.parametrize("position", [8, 17, 30, 60])
def test_damage_in_staged_files_is_found_before_the_journal(filesystem, suffix, position):
    fill(filesystem, ROOT, ("orders", 0, 5))
    job = staged_job(filesystem, ROOT, JOBS[0], rows_of(("orders", 0, 100)), rows_of(("orders", 0, 4)))
    damage(filesystem, suffix, position)
    before = contents(filesystem, ROOT)
    with pytest.raises((CorruptRecordError, CorruptCheckpointError)):
        job.commit()
    assert contents(filesystem, ROOT) == before
    assert job.job.abort()
    assert staged_files(filesystem) == []
    commit(filesystem, ROOT, JOBS[1], rows_of(("orders", 0, 2)))


@pytest.mark.parametrize("suffix", [".pack", ".log"])
def test_damage_in_staged_records_is_left_to_readers(filesystem, suffix):
    """The header that holds their CRC was checked: readers find the damage."""
    fill(filesystem, ROOT, ("orders", 0, 5))
    job = staged_job(filesystem, ROOT, JOBS[0], rows_of(("orders", 0, 100)), rows_of(("orders", 0, 4)))
    damage(filesystem, suffix, 100)
    job.commit()
    logs = [content for path, content in filesystem.files().items() if path.endswith(".log")]
    with pytest.raises(CorruptRecordError, match="CRC"):
        list(map(RecordBatches.parse, logs))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"job_id": "x"}, "32 lower-case"),
        ({"mode": "ignore"}, "'append' or 'overwrite'"),
        ({"txn_app_id": "app"}, "both txnAppId and txnVersion"),
        ({"txn_version": 1}, "both txnAppId and txnVersion"),
        ({"txn_app_id": "", "txn_version": 1}, "a txnAppId of 1 to 1000 characters, found one of 0"),
        ({"txn_app_id": "a" * 1001, "txn_version": 1}, "found one of 1001"),
        ({"txn_app_id": "\ud800", "txn_version": 1}, "found an unpaired surrogate"),
        ({"restored_offsets": {("t", 0): (0, 1)}}, "preserveOffsets only"),
        ({"restored_offsets": {("t", 0): (5, 4)}, "preserve_offsets": True}, "found 5 and 4"),
        ({"threads": 0}, "at least 1 thread"),
        ({"mode": "overwrite", "preserve_offsets": True}, "does not go with mode overwrite"),
    ],
)
def test_invalid_jobs_are_refused(settings, message):
    with pytest.raises(OptionError, match=message):
        JobSpec(**{"job_id": JOBS[0], **settings})


def test_a_job_without_an_id_draws_its_own():
    assert JobSpec().job_id != JobSpec().job_id


def test_rows_never_get_the_offsets_of_records_that_are_lost(filesystem):
    fill(filesystem, ROOT, ("orders", 0, 5))
    job = staged_job(filesystem, ROOT, JOBS[0], rows_of(("orders", 0, 2)))
    with filesystem.open_for_writing(f"{ROOT}/orders-0/00000000000000000000.log") as log:
        log.truncate(0)
    before = filesystem.files()
    with pytest.raises(Exception, match="offset 5, as its recovery point says, found its end at 0"):
        job.commit()
    assert filesystem.files() == before
