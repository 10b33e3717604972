"""Reading while a job's rows are committed: all of them are there, or none."""

from __future__ import annotations

import os
import threading
import time

import pytest

from storage_core import LogDirectory, explain, read_table
from storage_core.commit_files.commits_file import CommitEntry, append_commit, commit_line, read_commits_file
from storage_core.commit_files.journal import CommitJournal, JournalledPartition, commit_journal_bytes
from storage_core.directory import visibility
from storage_core.errors import (
    CorruptCheckpointError,
    DataLossError,
    LogDirectoryError,
    OptionError,
    TimestampNotFoundError,
)
from storage_core.filesystem import FileSystem
from tests.scan.committing import HOUR_MS, SmallCommit, batches


def rows_of(table):
    names = zip(table["topic"].to_pylist(), table["partition"].to_pylist(), strict=True)
    offsets = table["offset"].to_pylist()
    # Each value says at which offset it was written.
    assert [int(value) for value in table["value"].to_pylist()] == offsets
    found = {(f"{topic}-{number}", offset) for (topic, number), offset in zip(names, offsets, strict=True)}
    assert len(found) == len(offsets)
    return found


@pytest.fixture(params=["the first commit", "a later commit"])
def commit(request, tmp_path):
    return SmallCommit(tmp_path / "logs", is_first=request.param == "the first commit")


def read(path, **options):
    return rows_of(read_table(path, **options))


@pytest.mark.parametrize("options", [{}, {"use_indexes": False}, {"mode": "PERMISSIVE"}])
def test_between_every_two_steps(commit, options):
    assert read(commit.root) == commit.before
    for step in commit.steps():
        assert read(commit.root, **options) == commit.expected, step
    assert read(commit.root) == commit.after != commit.before


@pytest.mark.parametrize(
    "options",
    [
        {"isolation_level": "read_committed"},
        {"ending_at": "highWatermark"},
        {"where": "offset >= 3 AND offset < 425"},
        {"max_records_per_partition": 90},
        {"min_partitions": 9},
    ],
)
def test_between_every_two_steps_however_it_is_read(commit, options):
    if "ending_at" in options:
        # What a broker has checkpointed.
        next(iter(commit.steps()))
    for step in commit.steps():
        expected = commit.expected
        if "where" in options:
            expected = {row for row in expected if 3 <= row[1] < 425}
        if "ending_at" in options and "checkpoint" not in step and not commit.is_visible:
            expected = commit.before
        assert read(commit.root, **options) == expected, step


def test_a_partition_alone_between_every_two_steps(commit):
    for step in commit.steps():
        for name in ("grown-0", "rolled-0", "replaced-0", "untouched-0", "emptied-0"):
            expected = {row for row in commit.expected if row[0] == name}
            assert read(commit.root / name) == expected, (step, name)
        if commit.is_visible:
            assert len(read(commit.root / "fresh-0")) == 10
        else:
            with pytest.raises(LogDirectoryError):
                read_table(commit.root / "fresh-0")


def test_a_folder_of_log_directories_between_every_two_steps(commit):
    for step in commit.steps():
        assert read(commit.root.parent) == commit.expected, step


def test_logs_that_are_open_for_reading_between_every_two_steps(commit):
    before, after = (
        {"grown-0": (0, 400), "replaced-0": (0, 20), "emptied-0": (15, 15), "empty-0": (0, 0)},
        {
            "grown-0": (0, 430),
            "replaced-0": (20, 25),
            "emptied-0": (15, 20),
            "empty-0": (0, 10),
        },
    )
    with LogDirectory.open(commit.root, read_only=True) as logs:
        for step in commit.steps():
            for name, (start, end) in (after if commit.is_visible else before).items():
                log = logs.get(name.rsplit("-", 1)[0], 0)
                assert (log.log_start_offset, log.log_end_offset) == (start, end), step
                assert max(log.segment_base_offsets, default=0) <= end, step
                offsets = [offset for batch in log.read() for offset in batch["offset"].to_pylist()]
                assert offsets == list(range(start, end)), step
            assert (("fresh", 1) in logs) == commit.is_visible, step


def test_bounds_are_those_from_before(commit):
    for step in commit.steps():
        late = {"starting_timestamp": HOUR_MS, "subscribe": "grown"}
        beyond = {"assign": '{"grown":[0]}', "starting_offsets": '{"grown":{"0":401}}'}
        if commit.is_visible:
            assert read(commit.root, **late) == {("grown-0", offset) for offset in range(400, 430)}
            assert len(read(commit.root, **beyond)) == 29
        else:
            with pytest.raises(TimestampNotFoundError):
                read_table(commit.root, **late)
            with pytest.raises(OptionError, match="401 is greater than the resolved end offset 400"):
                read_table(commit.root, **beyond)
        early = {"ending_timestamp": HOUR_MS, "subscribe": "grown"}
        assert read(commit.root, **early) == {("grown-0", offset) for offset in range(400)}, step


def test_explain_says_what_is_read(commit):
    for step in commit.steps():
        explained = explain(commit.root)
        offsets = {
            (f"{each.topic}-{each.partition}", offset)
            for each in explained.partitions
            for offset in range(each.log_start_offset, each.log_end_offset)
        }
        assert offsets == commit.expected, step
        batches = sum(span.batches for each in explained.partitions for span in each.spans)
        # Of five records each, but for the last one of untouched-0.
        assert batches == len(commit.expected) // 5 + 1, step


# -- Steps during one look --------


class Meanwhile(FileSystem):
    """Advances the commit by a step every ``pace`` calls."""

    def __init__(self, steps, pace):
        super().__init__()
        self._steps = steps
        self._pace = pace
        self._calls = 0

    def _go_on(self):
        self._calls += 1
        if self._calls % self._pace == 0:
            next(self._steps, None)

    def walk_directory(self, path):
        self._go_on()
        return super().walk_directory(path)

    def status(self, path, *, follow_symlinks=False):
        self._go_on()
        return super().status(path, follow_symlinks=follow_symlinks)

    def open(self, path):
        self._go_on()
        return super().open(path)


@pytest.mark.cases(4, 16)
@pytest.mark.parametrize("pace", [1, 2, 3, 5, 8, 21])
@pytest.mark.parametrize("steps_before", [0, 2, 4, 12, 30, 40, 46, 49])
def test_while_it_goes_on(tmp_path, pace, steps_before):
    for is_first in (True, False):
        commit = SmallCommit(tmp_path / f"logs{is_first}", is_first=is_first)
        steps = commit.steps()
        for _ in range(steps_before):
            next(steps)
        found = read(commit.root, filesystem=Meanwhile(steps, pace))
        assert found in (commit.before, commit.after)


@pytest.mark.parametrize("pace", [1, 2, 3, 5, 8])
def test_one_log_while_it_goes_on(commit, pace):
    steps = commit.steps()
    filesystem = Meanwhile(steps, pace)
    with LogDirectory.open(commit.root, read_only=True, filesystem=filesystem) as logs:
        log = logs.get("grown", 0)
        found = []
        for _ in range(60):
            offsets = [offset for batch in log.read() for offset in batch["offset"].to_pylist()]
            assert offsets == list(range(len(offsets)))
            found.append(len(offsets))
    assert set(found) <= {400, 430}
    assert found == sorted(found)


def test_a_reader_that_polls_while_jobs_are_committed(tmp_path):
    """Each job adds one row to each of the logs."""
    commit = SmallCommit(tmp_path / "logs")
    names = ["grown-0", "rolled-0", "replaced-0", "untouched-0"]
    ends = {name: 1 + max(offset for each, offset in commit.before if each == name) for name in names}
    errors = []
    is_over = threading.Event()
    is_reader_gone = threading.Event()
    # The number of the next job, and what it was when the reader last ended a read.
    begun, known = [0], [0]

    def write():
        try:
            for number in range(25):
                # The reader keeps up, whichever thread the machine prefers: a read gives up if 15 jobs interfere with it.
                begun[0] = number
                while number - known[0] >= 12 and not is_reader_gone.is_set():
                    time.sleep(0.001)
                run_job(commit, names, ends, number)
        except BaseException as error:
            errors.append(error)
            raise
        finally:
            is_over.set()

    writer = threading.Thread(target=write)
    writer.start()
    seen = []
    try:
        while not is_over.is_set() or not seen:
            found = read(commit.root)
            known[0] = begun[0]
            added = {name: sum(row[0] == name for row in found) - ends_before(commit, name) for name in names}
            assert len(set(added.values())) == 1, added
            seen.append(added["grown-0"])
    finally:
        is_reader_gone.set()
        writer.join()
    assert not errors
    assert seen == sorted(seen)
    assert len(read(commit.root)) == len(commit.before) + 25 * len(names)


def ends_before(commit, name):
    return sum(row[0] == name for row in commit.before)


def run_job(commit, names, ends, number):
    root, filesystem = commit.root, FileSystem()
    partitions = tuple(
        JournalledPartition(
            topic=name.rsplit("-", 1)[0],
            partition=0,
            is_new=False,
            topic_id=None,
            leader_epoch=0,
            log_start_before=0,
            log_start_after=0,
            log_end_before=ends[name],
            log_end_after=ends[name] + 1,
            epochs_after=(),
            snapshot_from=None,
            operations=(),
        )
        for name in names
    )
    job = f"{number:032x}"
    journal = CommitJournal(CommitEntry(8 + number, job, 0), b"{}", (), partitions)
    (root / ".segmentlog-journal.tmp").write_bytes(commit_journal_bytes(journal))
    os.replace(root / ".segmentlog-journal.tmp", root / ".segmentlog-journal")
    (root / ".kafka_cleanshutdown").unlink()
    for name in names:
        path = max((root / name).glob("*.log"))
        with open(path, "ab", buffering=0) as file:
            data = batches(ends[name], ends[name] + 1)
            file.write(data[:40])
            file.write(data[40:])
        ends[name] += 1
    append_commit(
        filesystem,
        str(root),
        CommitEntry(8 + number, job, 0),
        read_commits_file(filesystem, str(root)).size_bytes,
    )
    (root / ".kafka_cleanshutdown").write_bytes(b"{}")
    (root / ".segmentlog-journal").unlink()


# -- Looking again has an end --------


def test_it_gives_up_when_commits_never_stop(commit):
    class Restless(FileSystem):
        looks = 0

        def open(self, path):
            if path.endswith(".segmentlog-commits"):
                self.looks += 1
                line = commit_line(CommitEntry(100 + self.looks, f"{self.looks:032x}", 0))
                (commit.root / ".segmentlog-commits").write_bytes(line)
            return super().open(path)

    filesystem = Restless()
    with pytest.raises(DataLossError, match="each of 10 attempts"):
        read_table(commit.root, filesystem=filesystem)
    assert filesystem.looks < 50


def test_a_damaged_journal_is_reported(commit):
    for step in commit.steps():
        if step == "journal":
            break
    journal = commit.root / ".segmentlog-journal"
    journal.write_bytes(journal.read_bytes()[:-1])
    with pytest.raises(CorruptCheckpointError, match="CRC-32C"):
        read_table(commit.root)
    with pytest.raises(CorruptCheckpointError, match="CRC-32C"):
        read_table(commit.root / "grown-0")


def test_a_journal_that_is_no_file_is_reported(commit):
    (commit.root / ".segmentlog-journal").mkdir()
    with pytest.raises(CorruptCheckpointError):
        read_table(commit.root)


# -- What it costs --------


class Counting(FileSystem):
    def __init__(self):
        super().__init__()
        self.asked = []

    def open(self, path):
        self.asked.append(("open", os.path.basename(path)))
        return super().open(path)

    def status(self, path, *, follow_symlinks=False):
        self.asked.append(("status", os.path.basename(path)))
        return super().status(path, follow_symlinks=follow_symlinks)

    def walk_directory(self, path):
        self.asked.append(("list", os.path.basename(path)))
        return super().walk_directory(path)


WATCHED = [".segmentlog-journal", ".segmentlog-commits"]


def opened_for_commits(filesystem):
    return [name for how, name in filesystem.asked if how == "open" and name.startswith(".segmentlog")]


@pytest.mark.parametrize("path", ["logs", ".", "logs/grown-0"])
def test_a_root_without_commits_costs_two_opens_that_fail(tmp_path, path):
    SmallCommit(tmp_path / "logs", is_first=True)
    filesystem = Counting()
    read_table(tmp_path / path, filesystem=filesystem)
    assert opened_for_commits(filesystem) == WATCHED
    assert filesystem.asked.count(("list", "logs")) == (path != "logs/grown-0")


def test_a_root_with_commits_costs_four_opens_and_a_listing(tmp_path):
    SmallCommit(tmp_path / "logs")
    filesystem = Counting()
    read_table(tmp_path / "logs", filesystem=filesystem)
    assert opened_for_commits(filesystem) == 2 * WATCHED
    assert filesystem.asked.count(("list", "logs")) == 2
    # The partitions are looked at once.
    assert filesystem.asked.count(("list", "grown-0")) == filesystem.asked.count(("list", "rolled-0"))


def test_a_log_that_is_polled_costs_two_opens_an_answer(tmp_path):
    commit = SmallCommit(tmp_path / "logs")
    filesystem = Counting()
    with LogDirectory.open(commit.root, read_only=True, filesystem=filesystem) as logs:
        log = logs.get("grown", 0)
        assert log.log_end_offset == 400
        filesystem.asked.clear()
        assert log.log_end_offset == 400
        assert opened_for_commits(filesystem) == WATCHED


def test_journals_are_not_parsed_twice(commit, monkeypatch):
    for step in commit.steps():
        if step == "no marker":
            break
    parsed = []
    parse = visibility.parse_own_journal
    monkeypatch.setattr(visibility, "parse_own_journal", lambda *args: parsed.append(1) or parse(*args))
    assert read(commit.root) == commit.before
    assert len(parsed) == 1
