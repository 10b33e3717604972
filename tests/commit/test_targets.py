"""What cannot be written to is refused before anything is visible, and the job can be aborted."""

from __future__ import annotations

import dataclasses
import errno
import os
import re
import shutil

import pytest

from storage_core import FileSystem
from storage_core.checkpoint import read_partition_metadata
from storage_core.commit.job import CommitJob, probe_filesystem
from storage_core.commit.job_spec import JobSpec
from storage_core.errors import LogDirectoryError, OptionError, SegmentLogError, StorageError, UnreadableError
from tests.commit.jobs import CONFIG, JOBS, ROOT, TOPIC_ID, commit, contents, fill, rows_of, staged_job
from tests.faults.simulated_filesystem import SimulatedFileSystem
from tests.log.logs import Clock

TAIL = "00000000000000000000"


class Mounted(SimulatedFileSystem):
    """`orders-1` is on another device."""

    def status(self, path, *, follow_symlinks=False):
        status = super().status(path, follow_symlinks=follow_symlinks)
        is_mounted = status is not None and "/orders-1" in path
        return dataclasses.replace(status, device=2) if is_mounted else status


def refused(filesystem, *rows, **settings):
    """Commit what is refused; all is as it was. Return the error."""
    before = filesystem.files()
    job = staged_job(filesystem, ROOT, JOBS[0], rows_of(*rows), **settings)
    with pytest.raises(LogDirectoryError) as caught:
        job.commit()
    assert f"{ROOT}/.segmentlog-journal" not in filesystem.files()
    assert job.job.abort()
    assert {**filesystem.files(), f"{ROOT}/.lock": b""} == {**before, f"{ROOT}/.lock": b""}
    return caught.value


@pytest.mark.parametrize("name", ["", f"/{TAIL}.log", f"/{TAIL}.index", f"/{TAIL}.timeindex"])
@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_a_partition_that_this_user_may_not_write_to(name, mode):
    filesystem = SimulatedFileSystem()
    fill(filesystem, ROOT, ("orders", 0, 5), ("orders", 1, 5))
    filesystem.unwritable.add(f"{ROOT}/orders-1{name}")
    if mode == "overwrite" and name:
        # Only whole segments are made then.
        commit(filesystem, ROOT, JOBS[0], rows_of(("orders", 0, 3), ("orders", 1, 3)), mode=mode)
        assert len(contents(filesystem, ROOT)["orders", 1]) == 3
        return
    error = refused(filesystem, ("orders", 0, 3), ("orders", 1, 3), mode=mode)
    assert isinstance(error, UnreadableError)
    assert error.path == f"{ROOT}/orders-1{name}"
    commit(filesystem, ROOT, JOBS[1], rows_of(("orders", 0, 3)))
    assert len(contents(filesystem, ROOT)["orders", 0]) == 8


def job_of_all_kinds(filesystem, **settings):
    """Appends, makes a segment, a topic, an epoch's first batch; beside what others have left under names that it needs."""
    fill(filesystem, ROOT, ("orders", 0, 5), ("orders", 1, 5), ("empty", 0, 0))
    commit(filesystem, ROOT, JOBS[1], rows_of(("orders", 0, 3)))
    for name in ("recovery-point-offset", "replication-offset", "log-start-offset", "cleaner-offset"):
        filesystem.put(f"{ROOT}/{name}-checkpoint.tmp", b"left")
    for name in ("journal.tmp", "commits.tmp", "unflushed", "probe"):
        filesystem.put(f"{ROOT}/.segmentlog-{name}", b"left")
    for number, end in ((0, 11), (1, 65)):
        filesystem.put(f"{ROOT}/orders-{number}/leader-epoch-checkpoint.tmp", b"left")
        filesystem.put(f"{ROOT}/orders-{number}/{end:020d}.snapshot", b"left")
        filesystem.put(f"{ROOT}/orders-{number}/{end:020d}.txnindex", b"left")
    filesystem.put(f"{ROOT}/empty-0/leader-epoch-checkpoint.tmp", b"left")
    rows = rows_of(("orders", 0, 3), ("orders", 1, 60), ("empty", 0, 3), ("new", 0, 3))
    return staged_job(filesystem, ROOT, JOBS[0], rows, new_partitions={"new": 1}, **settings)


def places_of_such_a_job():
    """Return all that is there when it is committed, but for what its tasks have staged."""
    filesystem = SimulatedFileSystem()
    job_of_all_kinds(filesystem)
    return [
        ROOT,
        f"{ROOT}/empty-0",
        *(path for path in filesystem.files() if ".segmentlog-stage-" not in path),
    ]


@pytest.mark.cases(6, 24)
@pytest.mark.parametrize("settings", [{}, {"flush": False}, {"mode": "overwrite"}], ids=str)
@pytest.mark.parametrize("path", places_of_such_a_job())
def test_a_path_that_may_not_be_written_to_is_found_before_the_journal(path, settings):
    """Or does not matter: of most files another one takes the place."""
    filesystem = SimulatedFileSystem()
    job = job_of_all_kinds(filesystem, **settings)
    filesystem.unwritable.add(path)
    before, rows = filesystem.files(), contents(filesystem, ROOT)
    refused = None
    try:
        job.commit()
    except SegmentLogError as error:
        refused = error
    if refused is None:
        assert len(contents(filesystem, ROOT)["new", 0]) == 3
        return
    assert isinstance(refused, UnreadableError), refused
    assert refused.path.startswith(path)
    assert filesystem.files() == before
    filesystem.unwritable.clear()
    assert contents(filesystem, ROOT) == rows
    assert job.job.abort()
    commit(filesystem, ROOT, JOBS[2], rows_of(("orders", 0, 3)))


def test_the_list_of_commits_is_checked_before_a_task_starts():
    name = ".segmentlog-commits"
    filesystem = SimulatedFileSystem()
    commit(filesystem, ROOT, JOBS[0], rows_of(("orders", 0, 3)), new_partitions={"orders": 1})
    filesystem.unwritable.add(f"{ROOT}/{name}")
    with pytest.raises(UnreadableError, match=re.escape(name)):
        CommitJob(filesystem, ROOT, JobSpec(job_id=JOBS[1], config=CONFIG), Clock()).begin()


def test_a_directory_in_the_place_of_a_file():
    name = f"{8:020d}.snapshot"
    filesystem = SimulatedFileSystem()
    fill(filesystem, ROOT, ("orders", 0, 5))
    filesystem.make_directory(f"{ROOT}/orders-0/{name}")
    error = refused(filesystem, ("orders", 0, 3))
    assert error.path == f"{ROOT}/orders-0/{name}"
    assert "a regular file or nothing" in str(error)


def test_a_disk_that_takes_no_more_files_is_noticed_before_anything_is_done():
    """Whatever is let begin has enough of them to the end."""
    whole = SimulatedFileSystem()
    fill(whole, ROOT, ("orders", 0, 5), ("empty", 0, 0))
    rows = rows_of(("orders", 0, 60), ("empty", 0, 3), ("new", 0, 3))

    def outcome(count):
        """Return the error with room for this many files, or the number of files created; anything else fails."""
        filesystem = whole.kill()
        job = staged_job(filesystem, ROOT, JOBS[0], rows, new_partitions={"new": 2})
        filesystem.space_files = count
        before = filesystem.files()
        try:
            job.commit()
        except StorageError as error:
            assert filesystem.files() == before
            return error
        assert len(contents(filesystem, ROOT)["new", 0]) == 3
        return count - filesystem.space_files

    outcomes = [outcome(count) for count in range(60)]
    errors = [each for each in outcomes if isinstance(each, StorageError)]
    assert outcomes[: len(errors)] == errors
    assert re.search(
        f"room for {len(errors)} more files .* found room for {len(errors) - 1}\\.", str(errors[-1])
    )
    # It is refused no sooner than need be, but for the names of what is linked.
    (made,) = set(outcomes[len(errors) :])
    assert made <= len(errors) <= made + 10


def test_a_partition_on_another_device():
    filesystem = Mounted()
    fill(filesystem, ROOT, ("orders", 0, 5), ("orders", 1, 5))
    error = refused(filesystem, ("orders", 0, 3), ("orders", 1, 3))
    assert "on the file system of its log directory" in str(error)
    assert error.path == f"{ROOT}/orders-1"
    commit(filesystem, ROOT, JOBS[1], rows_of(("orders", 0, 3)))
    assert len(contents(filesystem, ROOT)["orders", 0]) == 8


def test_checks_on_a_disk_change_nothing(tmp_path):
    filesystem = FileSystem()
    fill(filesystem, tmp_path, ("orders", 0, 5))
    commit(filesystem, tmp_path, JOBS[0], rows_of(("orders", 0, 3)))
    assert len(contents(filesystem, tmp_path)["orders", 0]) == 8


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
@pytest.mark.parametrize("name", ["", f"{TAIL}.log"])
def test_a_read_only_file_on_a_disk_is_noticed(tmp_path, name):
    filesystem = FileSystem()
    fill(filesystem, tmp_path, ("orders", 0, 5))
    path = tmp_path / "orders-0" / name
    path.chmod(0o555)
    try:
        with pytest.raises(UnreadableError, match="may not write to this path"):
            commit(filesystem, tmp_path, JOBS[0], rows_of(("orders", 0, 3)))
    finally:
        path.chmod(0o755)
    assert not (tmp_path / ".segmentlog-journal").exists()


def test_a_segment_that_is_a_symbolic_link(tmp_path):
    """It is never followed; without it, the log would end in front of it."""
    filesystem = FileSystem()
    fill(filesystem, tmp_path, ("orders", 0, 5))
    log = tmp_path / "orders-0" / f"{TAIL}.log"
    elsewhere = tmp_path.parent / f"{tmp_path.name}-elsewhere.log"
    log.rename(elsewhere)
    log.symlink_to(elsewhere)
    time_index = log.with_suffix(".timeindex").read_bytes()
    job = staged_job(filesystem, tmp_path, JOBS[0], rows_of(("orders", 0, 3)))
    with pytest.raises(LogDirectoryError, match="as log segment, found a symbolic link") as caught:
        job.commit()
    assert caught.value.path == str(log)
    assert not (tmp_path / ".segmentlog-journal").exists()
    assert log.with_suffix(".timeindex").read_bytes() == time_index
    assert job.job.abort()


@pytest.mark.parametrize("settings", [{}, {"flush": False}, {"mode": "overwrite"}], ids=str)
def test_a_backup_by_hard_links_is_not_changed(tmp_path, settings):
    """Neither its segments and their indexes, nor its list of committed jobs."""
    filesystem, root = FileSystem(), str(tmp_path / "logs")
    job = rows_of(("orders", 0, 3), ("orders", 1, 60))
    commit(filesystem, root, JOBS[1], job, new_partitions={"orders": 2})
    shutil.copytree(root, tmp_path / "backup", copy_function=os.link)
    before, rows = backup_of(tmp_path), contents(filesystem, str(tmp_path / "backup"))
    for number in (2, 3):
        commit(filesystem, root, JOBS[number], job, **settings)
    assert backup_of(tmp_path) == before
    assert contents(filesystem, str(tmp_path / "backup")) == rows
    if not settings.get("mode"):
        assert [len(contents(filesystem, root)["orders", number]) for number in (0, 1)] == [9, 180]


def test_space_for_the_copy_of_a_linked_segment_is_needed_before_anything_is_done(tmp_path, monkeypatch):
    """Otherwise the job would be in doubt until there is space."""
    filesystem, root = FileSystem(), str(tmp_path / "logs")
    commit(filesystem, root, JOBS[1], rows_of(("orders", 0, 3), size=1000), new_partitions={"orders": 1})
    size_bytes = (tmp_path / "logs" / "orders-0" / f"{TAIL}.log").stat().st_size
    monkeypatch.setattr(filesystem, "free_bytes", lambda path: 24 * 1024 + size_bytes)
    commit(filesystem, root, JOBS[2], rows_of(("orders", 0, 1)))
    shutil.copytree(root, tmp_path / "backup", copy_function=os.link)
    job = staged_job(filesystem, root, JOBS[3], rows_of(("orders", 0, 1)))
    with pytest.raises(StorageError, match="free space"):
        job.commit()
    assert not (tmp_path / "logs" / ".segmentlog-journal").exists()
    assert job.job.abort()


def backup_of(tmp_path):
    paths = (tmp_path / "backup").rglob("*")
    return {path: path.read_bytes() for path in paths if path.is_file()}


# -- The probe --------


def test_the_probe_leaves_no_file(tmp_path):
    probe_filesystem(FileSystem(), str(tmp_path))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("call", "step"),
    [
        ("create", "write and flush a file"),
        ("truncate", "write and flush a file"),
        ("flush", "write and flush a file"),
        ("link", "link it"),
        ("rename", "rename it"),
        ("flush_directory", "flush the directory"),
    ],
)
def test_the_step_that_fails_is_named(call, step):
    filesystem = SimulatedFileSystem()
    filesystem.make_directory(ROOT)
    filesystem.fail = lambda each: OSError(errno.EPERM, "not here") if each.name == call else None
    with pytest.raises(StorageError, match=f"can {step}, found one that refused: .*not here"):
        probe_filesystem(filesystem, ROOT)


def test_a_job_probes_the_file_system_first():
    filesystem = SimulatedFileSystem()
    filesystem.fail = lambda each: OSError(errno.EPERM, "no links") if each.name == "link" else None
    with pytest.raises(StorageError, match="can link it"):
        staged_job(filesystem, ROOT, JOBS[0])
    filesystem.fail = None
    staged_job(filesystem, ROOT, JOBS[0])
    assert not [path for path in filesystem.files() if "probe" in path]


# -- Topic ids --------


METADATA = f"version: 0\ntopic_id: {TOPIC_ID}".encode()


def log_directory(*directories):
    """Return a clean root with one old log, and empty directories."""
    filesystem = SimulatedFileSystem()
    fill(filesystem, ROOT, ("orders", 0, 2))
    for name in directories:
        filesystem.make_directory(f"{ROOT}/{name}")
    return filesystem


def topic_id(filesystem, name):
    return read_partition_metadata(filesystem, f"{ROOT}/{name}/partition.metadata")


def test_an_empty_directory_gets_a_topic_id_with_the_commit():
    """Without it, a broker puts the directory aside."""
    filesystem = log_directory("t-0")
    commit(filesystem, ROOT, JOBS[0], rows_of(("t", 0, 3)))
    assert len(contents(filesystem, ROOT)["t", 0]) == 3
    assert topic_id(filesystem, "t-0") is not None


def test_a_partition_gets_the_id_of_its_topics_other_partitions():
    filesystem = log_directory("t-0", "t-1")
    filesystem.put(f"{ROOT}/t-1/partition.metadata", METADATA)
    commit(filesystem, ROOT, JOBS[0], rows_of(("t", 0, 3)))
    assert topic_id(filesystem, "t-0") == TOPIC_ID


def test_partitions_of_one_commit_get_the_same_topic_id():
    filesystem = log_directory("t-0", "t-1")
    commit(filesystem, ROOT, JOBS[0], rows_of(("t", 0, 3), ("t", 1, 3)))
    assert topic_id(filesystem, "t-0") == topic_id(filesystem, "t-1") is not None


def test_a_log_that_lost_its_topic_id_gets_one():
    filesystem = log_directory()
    filesystem.delete(f"{ROOT}/orders-0/partition.metadata")
    commit(filesystem, ROOT, JOBS[0], rows_of(("orders", 0, 3)), topic_ids={"orders": TOPIC_ID})
    assert topic_id(filesystem, "orders-0") == TOPIC_ID
    assert len(contents(filesystem, ROOT)["orders", 0]) == 5


def test_in_a_brokers_directory_no_partition_gets_a_topic_id():
    """What a broker made is left as it is."""
    filesystem = log_directory()
    filesystem.put(f"{ROOT}/meta.properties", b"version=1\ncluster.id=c\nnode.id=1\n")
    filesystem.delete(f"{ROOT}/orders-0/partition.metadata")
    commit(filesystem, ROOT, JOBS[0], rows_of(("orders", 0, 3)), broker_directory=True, config=CONFIG)
    assert topic_id(filesystem, "orders-0") is None


def test_partitions_with_a_topic_id_keep_it():
    filesystem = log_directory()
    before = topic_id(filesystem, "orders-0")
    written = []
    filesystem.observe = lambda call: written.append(call.path)
    commit(filesystem, ROOT, JOBS[0], rows_of(("orders", 0, 3)))
    assert topic_id(filesystem, "orders-0") == before
    assert [path for path in written if "partition.metadata" in path] == []


@pytest.mark.parametrize("wanted", ["abc", "A" * 22, TOPIC_ID + "A"])
def test_an_invalid_topic_id_is_refused_before_anything_is_done(wanted):
    filesystem = log_directory()
    job = staged_job(
        filesystem, ROOT, JOBS[0], rows_of(("t", 0, 3)), new_partitions={"t": 1}, topic_ids={"t": wanted}
    )
    before = filesystem.files()
    with pytest.raises(OptionError, match=f"as the id of topic t, found '{wanted}'"):
        job.commit()
    assert filesystem.files() == before
