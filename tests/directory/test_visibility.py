from __future__ import annotations

import pytest

from storage_core.commit_files.commits_file import CommitEntry, append_commit, read_commits_file
from storage_core.commit_files.journal import CommitJournal, JournalledPartition, write_commit_journal
from storage_core.directory.consistent import read_consistently
from storage_core.directory.visibility import (
    NO_COMMITS,
    CommitMonitor,
    read_visible_commits,
)
from storage_core.errors import CorruptRecordError, DataLossError
from storage_core.filesystem import FileSystem


def job(generation):
    return f"{generation:032x}"


def begin(root, generation, *names):
    """Write the journal of a job that appends to ``t-0`` and creates these topics."""
    partitions = tuple(
        JournalledPartition(
            topic=name,
            partition=0,
            is_new=name != "t",
            topic_id=None,
            leader_epoch=0,
            log_start_before=0,
            log_start_after=0,
            log_end_before=10,
            log_end_after=20,
            epochs_after=(),
            snapshot_from=None,
            operations=(),
        )
        for name in ("t", *names)
    )
    journal = CommitJournal(CommitEntry(generation, job(generation), 0), b"", (), partitions)
    write_commit_journal(FileSystem(), str(root), journal)


def show(root, generation):
    size_bytes = read_commits_file(FileSystem(), str(root)).size_bytes
    append_commit(FileSystem(), str(root), CommitEntry(generation, job(generation), 0), size_bytes)


def end(root):
    (root / ".segmentlog-journal").unlink()


def look(root):
    return read_visible_commits(FileSystem(), str(root))


def test_a_journal_counts_until_its_job_is_the_last_one_committed(tmp_path):
    assert look(tmp_path) == NO_COMMITS
    begin(tmp_path, 1, "new")
    first = look(tmp_path)
    assert first != NO_COMMITS
    assert first.last_commit is None
    assert set(first.partitions) == {("t", 0), ("new", 0)}
    assert [first.is_hidden(name, 0) for name in ("t", "new", "other")] == [False, True, False]
    show(tmp_path, 1)
    second = look(tmp_path)
    assert second.last_commit is not None
    assert second.last_commit.generation == 1
    assert not second.partitions
    assert not second.is_hidden("new", 0)
    # Which files are removed first does not matter.
    end(tmp_path)
    assert look(tmp_path) == second
    begin(tmp_path, 2)
    assert look(tmp_path) != second
    assert look(tmp_path) == look(tmp_path)


def test_a_journal_that_is_the_same_is_not_parsed_again(tmp_path):
    begin(tmp_path, 1)
    before = look(tmp_path)
    assert read_visible_commits(FileSystem(), str(tmp_path), before) is before
    begin(tmp_path, 2)
    assert read_visible_commits(FileSystem(), str(tmp_path), before) != before


class TestLooking:
    def looks(self, root, *steps, known=None):
        """Return what each look found visible; one step happens during each look, and may raise."""
        seen = []
        remaining = iter(steps)

        def look_once(monitor):
            seen.append(monitor.visibility_of(str(root)))
            next(remaining, lambda: None)()
            return len(seen)

        monitor = CommitMonitor(FileSystem(), known)
        return read_consistently(monitor, look_once), seen, monitor

    def test_once_if_nothing_happens(self, tmp_path):
        count, seen, monitor = self.looks(tmp_path)
        assert (count, seen) == (1, [NO_COMMITS])
        assert monitor.known == {str(tmp_path): NO_COMMITS}

    def test_again_if_a_commit_begins_and_again_if_it_becomes_visible(self, tmp_path):
        count, seen, monitor = self.looks(tmp_path, lambda: begin(tmp_path, 1), lambda: show(tmp_path, 1))
        assert count == 3
        assert [len(each.partitions) for each in seen] == [0, 1, 0]
        # The next look begins with the known state, and is the only one.
        assert self.looks(tmp_path, known=monitor.known)[0] == 1
        assert self.looks(tmp_path)[0] == 2

    def test_again_if_a_whole_commit_happens_in_between(self, tmp_path):
        def commit():
            begin(tmp_path, 1)
            show(tmp_path, 1)
            end(tmp_path)

        count, seen, _ = self.looks(tmp_path, commit)
        assert count == 2
        assert [each.last_commit and each.last_commit.generation for each in seen] == [None, 1]

    def test_once_if_only_files_are_cleared_away(self, tmp_path):
        begin(tmp_path, 1)
        show(tmp_path, 1)
        known = {str(tmp_path): look(tmp_path)}
        assert self.looks(tmp_path, lambda: end(tmp_path), known=known)[0] == 1

    def test_an_error_counts_only_if_nothing_happened(self, tmp_path):
        def fail():
            raise CorruptRecordError("half a batch")

        def fail_because():
            begin(tmp_path, 1)
            fail()

        assert self.looks(tmp_path, fail_because)[0] == 2
        end(tmp_path)
        with pytest.raises(CorruptRecordError, match="half a batch"):
            self.looks(tmp_path, fail)

    def test_at_most_ten_times(self, tmp_path):
        steps = [lambda number=number: begin(tmp_path, number) for number in range(1, 100)]
        with pytest.raises(DataLossError, match="each of 10 attempts"):
            self.looks(tmp_path, *steps)
