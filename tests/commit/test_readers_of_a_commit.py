"""Readers beside a real commit: before each of its calls, and all the time."""

from __future__ import annotations

import threading

import pytest

from storage_core import read_table
from storage_core.filesystem import FileSystem
from tests.commit.jobs import JOBS, ROOT, TOPIC_ID, commit, contents, fill, rows_of, staged_job
from tests.faults.simulated_filesystem import SimulatedFileSystem


def rows(filesystem, root):
    table = read_table(root, filesystem=filesystem, columns=["topic", "partition", "offset", "value"])
    return sorted(map(tuple, (row.values() for row in table.to_pylist())))


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_a_reader_before_every_call_sees_all_or_nothing(mode):
    filesystem = SimulatedFileSystem()
    fill(filesystem, ROOT, ("old", 0, 20), ("old", 1, 2), ("empty", 0, 0))
    commit(filesystem, ROOT, JOBS[0], rows_of(("old", 0, 3), name="first"))
    is_append = mode == "append"
    added = rows_of(
        ("old", 0, 60), ("old", 1, 5), ("empty", 0, 40), *[("new", 1, 3)] * is_append, name="second"
    )
    job = staged_job(
        filesystem,
        ROOT,
        JOBS[1],
        added,
        mode=mode,
        new_partitions={"new": 2} if is_append else {},
        topic_ids={"new": TOPIC_ID} if is_append else {},
    )
    before = rows(filesystem, ROOT)
    seen = []

    def observe(call):
        filesystem.observe = None
        found = rows(filesystem, ROOT)
        assert contents(filesystem, ROOT) == by_partition(found, contents(filesystem, ROOT)), call
        seen.append(found)
        filesystem.observe = observe

    filesystem.observe = observe
    job.commit()
    filesystem.observe = None
    after = rows(filesystem, ROOT)
    added_count = sum(map(len, added.values()))
    assert len(after) == (len(before) if is_append else 0) + added_count
    is_after = [found == after for found in seen]
    assert all(found in (before, after) for found in seen)
    # Once the rows are there, they stay; the last calls only clear up.
    assert is_after == sorted(is_after)
    assert set(is_after) == {False, True}


def by_partition(found, partitions):
    """The rows of a table as `contents` gives them, for the same partitions."""
    return {
        key: [(offset, value) for topic, partition, offset, value in found if (topic, partition) == key]
        for key in partitions
    }


class Signalling(FileSystem):
    """Tells of the moment at which a job's journal stands."""

    def __init__(self):
        super().__init__()
        self.renamed = threading.Event()

    def rename(self, source, target):
        super().rename(source, target)
        if target.endswith(".segmentlog-journal"):
            self.renamed.set()


def test_a_reader_that_polls_sees_whole_jobs(tmp_path):
    """Each job adds 20 rows to each of five partitions, with segments that roll meanwhile."""
    root, filesystem = tmp_path / "logs", Signalling()
    root.mkdir()
    partitions = [("t", number, 20) for number in range(5)]
    fill(filesystem, str(root), *partitions)
    failures = []
    is_over = threading.Event()

    def write():
        try:
            for job_id in JOBS:
                commit(filesystem, root, job_id, rows_of(*partitions, name=job_id), threads=3)
        except BaseException as error:
            failures.append(error)
            raise
        finally:
            filesystem.renamed.set()
            is_over.set()

    writer = threading.Thread(target=write)
    writer.start()
    assert filesystem.renamed.wait(60)
    seen = []
    while True:
        was_over = is_over.is_set()
        counts = {number: 0 for _, number, _ in partitions}
        for _, number, _, _ in rows(FileSystem(), root):
            counts[number] += 1
        assert len(set(counts.values())) == 1, counts
        seen.append(counts[0])
        if was_over:
            break
    writer.join()
    assert failures == []
    assert seen == sorted(seen)
    assert all(count % 20 == 0 for count in seen)
    assert seen[-1] == 20 + 20 * len(JOBS)
