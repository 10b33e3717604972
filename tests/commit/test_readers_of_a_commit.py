"""Readers beside a real commit: before each of its calls, and all the time."""

from __future__ import annotations

import threading

import pytest

from storage_core import LogDirectory, explain, read_table
from storage_core.errors import LogDirectoryError, OptionError, SegmentLogError, TimestampNotFoundError
from storage_core.filesystem import FileSystem
from storage_core.scan import parse_read_options, plan_scan
from tests.commit.commit_crashes import crashes_of_job
from tests.commit.jobs import (
    CONFIG,
    JOBS,
    ROOT,
    TIME_MS,
    TOPIC_ID,
    commit,
    contents,
    fill,
    rows_of,
    staged_job,
)
from tests.commit.whole_jobs import Job
from tests.faults.simulated_filesystem import SimulatedFileSystem


def rows(filesystem, root, **options):
    columns = ["topic", "partition", "offset", "value"]
    table = read_table(root, filesystem=filesystem, columns=columns, **options)
    return sorted(map(tuple, (row.values() for row in table.to_pylist())))


def old_root():
    """Return a log directory with three logs, one of them empty."""
    filesystem = SimulatedFileSystem()
    fill(filesystem, ROOT, ("old", 0, 20), ("old", 1, 2), ("empty", 0, 0))
    return filesystem


def second_job(filesystem, mode):
    """Return a job that adds to all of its logs and makes another one, or overwrites them."""
    is_append = mode == "append"
    added = rows_of(
        ("old", 0, 60), ("old", 1, 5), ("empty", 0, 40), *[("new", 1, 3)] * is_append, name="second"
    )
    new = {"new_partitions": {"new": 2}, "topic_ids": {"new": TOPIC_ID}} if is_append else {}
    return staged_job(filesystem, ROOT, JOBS[1], added, mode=mode, **new), sum(map(len, added.values()))


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_a_reader_before_every_call_sees_all_or_nothing(mode):
    filesystem = old_root()
    commit(filesystem, ROOT, JOBS[0], rows_of(("old", 0, 3), name="first"))
    job, added_count = second_job(filesystem, mode)
    before = rows(filesystem, ROOT)
    seen = []

    def observe(call):
        filesystem.observe = None
        found = rows(filesystem, ROOT)
        assert contents(filesystem, ROOT) == by_partition(found, contents(filesystem, ROOT)), call
        # One that was opened before the job shows the same.
        log = kept_open.get("old", 0)
        offsets = [offset for batch in log.read() for offset in batch["offset"].to_pylist()]
        assert offsets == [row[2] for row in found if row[:2] == ("old", 0)]
        assert offsets == list(range(log.log_start_offset, log.log_end_offset))
        assert (("new", 1) in kept_open) == any(row[0] == "new" for row in found)
        seen.append(found)
        filesystem.observe = observe

    with LogDirectory.open(ROOT, read_only=True, filesystem=filesystem, config=CONFIG) as kept_open:
        filesystem.observe = observe
        job.commit()
        filesystem.observe = None
    after = rows(filesystem, ROOT)
    assert len(after) == (len(before) if mode == "append" else 0) + added_count
    is_after = [found == after for found in seen]
    assert all(found in (before, after) for found in seen)
    # Once the rows are there, they stay; the last calls only clear up.
    assert is_after == sorted(is_after)
    assert set(is_after) == {False, True}


@pytest.fixture(scope="module", params=["append", "overwrite"])
def states_of_a_job(request):
    """Return what SIGKILL leaves before each call of a commit, and after the last."""
    filesystem = old_root()
    job, _ = second_job(filesystem, request.param)
    return states_during(filesystem, job.commit)


def states_during(filesystem, run):
    states = [filesystem.kill()]
    filesystem.observe = lambda _: states.append(filesystem.kill())
    run()
    filesystem.observe = None
    return [*states, filesystem.kill()]


def explained_offsets(filesystem, root):
    return [
        (each.topic, each.partition, offset)
        for each in explain(root, filesystem=filesystem).partitions
        for offset in range(each.log_start_offset, each.log_end_offset)
    ]


# Where to look, with which options, and which rows that means.
WAYS = [
    (ROOT, {"use_indexes": False}, lambda row: True),
    (ROOT, {"mode": "PERMISSIVE"}, lambda row: True),
    (ROOT, {"isolation_level": "read_committed"}, lambda row: True),
    (ROOT, {"max_records_per_partition": 7}, lambda row: True),
    (ROOT, {"min_partitions": 9}, lambda row: True),
    (ROOT, {"where": "offset >= 3 AND offset < 65"}, lambda row: 3 <= row[2] < 65),
    (ROOT, {"ending_timestamp": TIME_MS}, lambda row: row[3].startswith(b"old")),
    (
        ROOT,
        {"starting_timestamp": TIME_MS, "assign": {"old": [0]}},
        lambda row: row[:2] == ("old", 0) and row[2] >= 20,
    ),
    (
        ROOT,
        {"assign": {"old": [0]}, "starting_offsets": {"old": {"0": 21}}},
        lambda row: row[:2] == ("old", 0) and row[2] > 20,
    ),
    ("/", {}, lambda row: True),
    (f"{ROOT}/old-0", {}, lambda row: row[:2] == ("old", 0)),
    (f"{ROOT}/empty-0", {}, lambda row: row[0] == "empty"),
]


@pytest.mark.parametrize(("path", "options", "is_wanted"), WAYS)
def test_however_it_is_read_all_rows_are_there_or_none(states_of_a_job, path, options, is_wanted):
    before, after = (list(filter(is_wanted, rows(states_of_a_job[end], ROOT))) for end in (0, -1))
    found = []
    for state in states_of_a_job[::3]:
        try:
            found.append(rows(state, path, **options))
        except (TimestampNotFoundError, OptionError):
            # Nothing is as young, or has so high an offset.
            found.append([])
    assert all(each in (before, after) for each in found)
    assert [each == after for each in found] == sorted(each == after for each in found)
    assert found[0] == before


def test_explain_says_what_is_read(states_of_a_job):
    for state in states_of_a_job[::3]:
        assert explained_offsets(state, ROOT) == [row[:3] for row in rows(state, ROOT)]


def by_partition(found, partitions):
    """Return the rows of a table as `contents` gives them, for the same partitions."""
    return {
        key: [(offset, value) for topic, partition, offset, value in found if (topic, partition) == key]
        for key in partitions
    }


class Signalling(FileSystem):
    """Tells of the moment at which a job's journal is written."""

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
    assert filesystem.renamed.wait(300)
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


# -- Beside the first job of all --------


FIRST = Job((rows_of(("new", 0, 60), ("new", 2, 5)),), {"new_partitions": {"new": 3}})


def new_filesystem(root):
    """Return the state before the first job: no directory, an empty one, or one that was opened and closed."""
    filesystem = SimulatedFileSystem()
    if root != "missing":
        filesystem.make_directory(ROOT)
        filesystem.flush_directory("/")
    if root == "opened":
        LogDirectory.open(ROOT, filesystem=filesystem).close()
    return filesystem


def look(filesystem, rows_after):
    """Return what a reader finds; checks that it is an error only as long as nothing was begun here."""
    if filesystem.status(ROOT) is None:
        with pytest.raises(LogDirectoryError, match="found nothing"):
            rows(filesystem, ROOT)
        return []
    if not filesystem.list_directory(ROOT):
        # As it may have been for long: a disk that is not mounted looks like this.
        with pytest.raises(LogDirectoryError, match="found an empty directory"):
            rows(filesystem, ROOT)
        return []
    found = rows(filesystem, ROOT)
    assert found in ([], rows_after)
    # As Spark plans it, and as a log directory that is only read shows it.
    planned = plan_scan(filesystem, parse_read_options({"path": ROOT}))
    assert sum(each.end_offset - each.start_offset for each in planned.partitions) == len(found)
    assert rows(filesystem, "/") == found
    assert sum(map(len, contents(filesystem, ROOT).values())) == len(found)
    # A topic that is named must be there, as in Spark's Kafka source; a pattern may match nothing.
    assert read_table(ROOT, filesystem=filesystem, subscribe_pattern="n.*").num_rows == len(found)
    for option in ({"subscribe": "new"}, {"assign": {"new": [0, 2]}}):
        if found:
            assert read_table(ROOT, filesystem=filesystem, **option).num_rows == len(found)
        else:
            with pytest.raises(OptionError, match=r"UnknownTopicOrPartition.*'new'"):
                read_table(ROOT, filesystem=filesystem, **option)
    return found


@pytest.fixture(scope="module")
def rows_of_the_first_job():
    filesystem = new_filesystem("missing")
    FIRST.run(filesystem, JOBS[0])
    found = rows(filesystem, ROOT)
    assert len(found) == 65
    return found


@pytest.mark.cases(1, 3)
@pytest.mark.parametrize("flush", [True, False])
@pytest.mark.parametrize("root", ["missing", "empty", "opened"])
def test_the_first_job_shows_no_rows_then_all(root, flush, rows_of_the_first_job):
    filesystem, seen = new_filesystem(root), []

    def observe(_):
        filesystem.observe = None
        seen.append(look(filesystem, rows_of_the_first_job))
        filesystem.observe = observe

    filesystem.observe = observe
    Job(FIRST.tasks, {**FIRST.settings, "flush": flush}).run(filesystem, JOBS[0])
    filesystem.observe = None
    assert look(filesystem, rows_of_the_first_job) == rows_of_the_first_job
    lengths = [len(found) for found in seen]
    assert lengths == sorted(lengths)
    assert lengths[0] == 0 < lengths[-1]


def test_the_first_job_killed_or_without_power_at_each_call(rows_of_the_first_job):
    filesystem = new_filesystem("missing")
    count = 0
    for crashed in crashes_of_job(
        filesystem, lambda filesystem: FIRST.run(filesystem, JOBS[0]), seed=11, variants=2
    ):
        look(crashed.filesystem, rows_of_the_first_job)
        count += 1
    assert count > 200


def test_the_first_job_failing_at_each_call(rows_of_the_first_job):
    whole = new_filesystem("missing")
    FIRST.run(whole, JOBS[0])
    failed = 0
    for number in range(1, whole.calls + 1):
        filesystem = new_filesystem("missing")
        filesystem.fail = lambda call, at=number: OSError("broken") if call.number == at else None
        try:
            FIRST.run(filesystem, JOBS[0])
        except SegmentLogError:
            failed += 1
        look(filesystem, rows_of_the_first_job)
    # What fails once the rows are there is only logged.
    assert 60 < failed < whole.calls


class Advancing(FileSystem):
    """Shows a job's states one after the other: between two calls of a reader, the job makes ``pace`` calls."""

    def __init__(self, states, pace):
        super().__init__()
        self._states = states
        self._pace = pace
        self._calls = 0

    @property
    def state(self):
        self._calls += 1
        return self._states[min(self._calls * self._pace, len(self._states) - 1)]

    def list_directory(self, path):
        return self.state.list_directory(path)

    def walk_directory(self, path):
        return self.state.walk_directory(path)

    def status(self, path, *, follow_symlinks=False):
        return self.state.status(path, follow_symlinks=follow_symlinks)

    def open(self, path, version=None):
        return self.state.open(path)

    def read_file(self, path, limit_bytes):
        return self.state.read_file(path, limit_bytes)


@pytest.mark.parametrize("pace", [1, 2, 3, 5, 8, 21])
def test_the_first_job_goes_on_while_a_reader_looks(pace, rows_of_the_first_job):
    filesystem = new_filesystem("opened")
    states = states_during(filesystem, lambda: FIRST.run(filesystem, JOBS[0]))
    found = [rows(Advancing(states[start:], pace), ROOT) for start in range(len(states))]
    assert all(each in ([], rows_of_the_first_job) for each in found)
    assert found[-1] == rows_of_the_first_job


@pytest.mark.parametrize("pace", [1, 2, 3, 5, 8, 21])
def test_a_job_goes_on_while_a_reader_looks(pace, states_of_a_job):
    expected = [rows(states_of_a_job[end], ROOT) for end in (0, -1)]
    for start in range(0, len(states_of_a_job), 5):
        assert rows(Advancing(states_of_a_job[start:], pace), ROOT) in expected


@pytest.mark.parametrize("pace", [1, 2, 3, 5, 8])
def test_a_job_goes_on_while_one_log_is_read_again_and_again(pace, states_of_a_job):
    expected = [
        [row[2] for row in rows(states_of_a_job[end], ROOT) if row[:2] == ("old", 0)] for end in (0, -1)
    ]
    filesystem = Advancing(states_of_a_job, pace)
    with LogDirectory.open(ROOT, read_only=True, filesystem=filesystem, config=CONFIG) as logs:
        found = [
            [offset for batch in logs.get("old", 0).read() for offset in batch["offset"].to_pylist()]
            for _ in range(60)
        ]
    assert found == sorted(found, key=expected.index)
