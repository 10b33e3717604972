"""Jobs that are the micro-batches of a stream: each once, under one name only, and without traces that add up."""

from __future__ import annotations

import itertools
import random
import shutil
import uuid

import numpy as np
import pyarrow as pa
import pytest

from storage_core import LogConfig, LogDirectory
from storage_core.commit import job as commit_job
from storage_core.commit.repeated import RowsDigest, rows_digest
from storage_core.commit.routing import RoutedRows
from storage_core.commit_files import commits_file
from storage_core.commit_files.commits_file import CommitEntry, commit_line, read_commits_file
from storage_core.errors import OptionError
from storage_core.filesystem import FileSystem
from tests.commit.jobs import commit, contents, rows_of, staged_job

BATCH = rows_of(("t", 0, 3), ("t", 1, 2))


def write_batch(root, number, *, config=None, **settings):
    """Commit one batch; return whether it was this run that wrote it."""
    settings = {"txn_app_id": "stream", "query_id": "q-1", "new_partitions": {"t": 2}, **settings}
    if config is not None:
        settings["config"] = config
    job_id = uuid.uuid4().hex
    outcome = commit(FileSystem(), root, job_id, BATCH, txn_version=number, **settings)
    return not outcome.was_committed_before


def test_a_batch_that_is_repeated_is_known_by_its_number(tmp_path):
    assert [write_batch(tmp_path / "logs", number) for number in (0, 1, 1, 0, 2)] == [
        True,
        True,
        False,
        False,
        True,
    ]
    assert len(contents(FileSystem(), tmp_path / "logs")["t", 0]) == 9


def digest(values, *, keys=None, timestamps=None, topics=("t",), kind=None, topic_indexes=None):
    columns = {"value": pa.array(values, kind or pa.binary())}
    if keys is not None:
        columns["key"] = pa.array(keys, pa.binary())
    if timestamps is not None:
        columns["timestamp"] = pa.array(timestamps, pa.timestamp("us"))
    indexes = None if topic_indexes is None else np.array(topic_indexes)
    partitions = np.zeros(len(values), np.int32)
    return rows_digest(RoutedRows(pa.RecordBatch.from_pydict(columns), topics, indexes, partitions))


def test_the_digest_of_rows_is_the_same_in_any_order_and_in_any_tasks():
    rng = random.Random(7)
    rows = [
        (
            rng.choice([None, b"", rng.randbytes(9)]),
            rng.choice([None, b"", rng.randbytes(30)]),
            rng.choice([None, n]),
        )
        for n in range(60)
    ]

    def digested(rows):
        keys, values, timestamps = zip(*rows, strict=True)
        return digest(values, keys=keys, timestamps=timestamps)

    whole = digested(rows)
    assert whole.count == 60
    for cut in (1, 30, 59):
        rng.shuffle(rows)
        assert digested(rows[:cut]) + digested(rows[cut:]) == whole


@pytest.mark.parametrize("kind", [pa.large_binary(), pa.string(), pa.large_string(), pa.binary_view()])
def test_the_digest_of_rows_does_not_depend_on_how_they_are_laid_out(kind):
    assert digest(["a", None, "größe"], kind=kind) == digest([b"a", None, "größe".encode()])


def test_other_rows_have_another_digest():
    found = [
        digest([b"a", b"b"]),
        digest([b"a", b"c"]),
        digest([b"a", None]),
        digest([b"a", b""]),
        digest([b"a", b"b"], keys=[None, b"k"]),
        digest([b"a", b"b"], keys=[b"", b"k"]),
        digest([b"a", b"b"], keys=[b"k", b""]),
        digest([b"a", b"b"], timestamps=[1, 3]),
        digest([b"a", b"b"], timestamps=[2, 2]),
        digest([b"a", b"b"], topics=("u",)),
        digest([b"a", b"b"], topics=("t", "u"), topic_indexes=[0, 1]),
        digest([b"a", b"b"], topics=("t", "u"), topic_indexes=[1, 0]),
    ]
    assert all(one.differs(other) for one, other in itertools.combinations(found, 2))


def write_stream(root, number, rows=BATCH, checksum=5, **settings):
    settings = {"txn_app_id": "q-1", "is_stream": True, "new_partitions": {"t": 2}, **settings}
    job = staged_job(
        FileSystem(), root, uuid.uuid4().hex, rows, is_begun=not root.exists(), txn_version=number, **settings
    )
    count = sum(map(len, rows.values()))
    try:
        return not job.job.commit(job.manifests, RowsDigest(count, checksum)).was_committed_before
    finally:
        job.job.abort()


@pytest.mark.parametrize("named", [{}, {"txn_app_id": "stream", "query_id": "q-1"}])
def test_only_the_last_batch_may_be_repeated_and_only_with_its_rows(tmp_path, named):
    root = tmp_path / "logs"
    assert [write_stream(root, number, **named) for number in (0, 1, 1, 4, 4)] == [
        True,
        True,
        False,
        True,
        False,
    ]
    for number in (0, 1, 3):
        with pytest.raises(
            OptionError, match=rf"Expected batch 4 .* query q-1 or a later one, found batch {number}:"
        ):
            write_stream(root, number, **named)
    with pytest.raises(OptionError, match=r"the 5 rows that job .* has written, found 5 other rows"):
        write_stream(root, 4, checksum=6, **named)
    fewer = rows_of(("t", 0, 3))
    with pytest.raises(OptionError, match=r"the 5 rows that job .* has written, found 3 other rows"):
        write_stream(root, 4, fewer, **named)
    assert len(contents(FileSystem(), root)["t", 0]) == 9
    assert not [path.name for path in root.iterdir() if "stage" in path.name]
    assert not write_stream(root, 4, fewer, compares_rows=False, **named)
    assert write_stream(root, 5, fewer, **named)


def test_a_batch_of_an_older_release_is_known_by_its_number_alone(tmp_path):
    root = tmp_path / "logs"
    write_stream(root, 0)
    path = root / ".segmentlog-commits"
    (entry,) = read_commits_file(FileSystem(), str(root)).entries
    path.write_bytes(commit_line(CommitEntry(1, entry.job_id, entry.time_ms, "q-1", 0)))
    assert not write_stream(root, 0, rows_of(("t", 1, 9)))


def write_version(root, version, rows, **settings):
    settings = {"txn_app_id": "app", "txn_version": version, "new_partitions": {"t": 2}, **settings}
    return commit(FileSystem(), root, uuid.uuid4().hex, rows, **settings)


def warnings_of(caplog, call):
    caplog.clear()
    call()
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


def change_nothing(root):
    pass


def delete_records(root):
    with LogDirectory.open(root) as logs:
        logs.get("t", 0).delete_records(2)


def truncate(root):
    with LogDirectory.open(root) as logs:
        logs.get("t", 0).truncate_to(1)
        logs.get("t", 0).append(pa.table({"value": pa.array([b"other"] * 9, pa.binary())}))


def overwrite(root):
    commit(FileSystem(), root, uuid.uuid4().hex, rows_of(("t", 0, 1)), mode="overwrite")


def delete_topic(root):
    for number in (0, 1):
        shutil.rmtree(root / f"t-{number}")


@pytest.mark.parametrize(
    ("change", "left"),
    [
        (change_nothing, None),
        (delete_records, "of which 3 are left (2 to 2 of offsets 0 to 2 in t-0)"),
        (truncate, "of which 2 are left (none of offsets 0 to 2 in t-0)"),
        (overwrite, "of which 0 are left (none of offsets 0 to 2 in t-0, none of offsets 0 to 1 in t-1)"),
        (delete_topic, "of which 0 are left (none of offsets 0 to 2 in t-0, none of offsets 0 to 1 in t-1)"),
    ],
)
def test_a_repeated_version_says_what_is_left_of_the_rows_that_it_stands_for(tmp_path, caplog, change, left):
    root = tmp_path / "logs"
    write_version(root, 7, BATCH)
    (entry,) = read_commits_file(FileSystem(), str(root)).entries
    change(root)
    found = warnings_of(caplog, lambda: write_version(root, 7, BATCH, new_partitions={}))
    if left is None:
        assert found == []
    else:
        (text,) = found
        assert (
            f"txnVersion 7 of txnAppId app is committed in {root} already, so nothing was written: job "
            in text
        )
        assert f"job {entry.job_id} has written 5 rows at " in text
        assert left in text
        assert "this job has 5 rows. To write it all the same, give it a higher version" in text


def test_truncations_that_are_not_known_any_more_are_not_taken_for_a_loss(tmp_path, caplog):
    """Who believes that the rows are gone forgets the version, and writes them twice."""
    write_version(tmp_path, 1, BATCH)
    truncate(tmp_path)
    write_version(tmp_path, 2, BATCH)
    (tmp_path / ".segmentlog-truncations").unlink()
    (warning,) = warnings_of(caplog, lambda: write_version(tmp_path, 2, BATCH))
    assert ", and whether they are all left is not known; this job has 5 rows" in warning
    overwrite(tmp_path)
    (warning,) = warnings_of(caplog, lambda: write_version(tmp_path, 2, BATCH))
    assert "of which 0 are left" in warning
    assert "not known" not in warning


def test_a_repeated_version_with_another_number_of_rows_says_both(tmp_path, caplog):
    root = tmp_path / "logs"
    write_version(root, 7, BATCH)
    (text,) = warnings_of(caplog, lambda: write_version(root, 7, rows_of(("t", 0, 9))))
    assert "has written 5 rows at" in text
    assert "left" not in text
    assert "this job has 9 rows" in text
    write_version(root, 9, BATCH)
    (text,) = warnings_of(caplog, lambda: write_version(root, 8, BATCH))
    assert "a later version is committed" in text


def test_versions_are_forgotten_on_request_and_their_rows_stay(tmp_path):
    root = tmp_path / "logs"
    write_version(root, 7, BATCH)
    write_stream(root, 3)
    with LogDirectory.open(root) as logs:
        assert logs.forget_versions("app")
        assert not logs.forget_versions("app")
    assert not write_version(root, 6, BATCH).was_committed_before
    assert not write_stream(root, 3)
    with LogDirectory.open(root) as logs:
        assert logs.forget_versions("q-1")
    assert write_stream(root, 0)
    assert len(contents(FileSystem(), root)["t", 0]) == 12
    assert read_commits_file(FileSystem(), str(root)).generation == 4


def test_where_a_job_has_written_is_left_out_of_its_line_if_that_is_long(tmp_path, caplog):
    root = tmp_path / "logs"
    write_version(root, 1, rows_of(*(("t", number, 1) for number in range(200))), new_partitions={"t": 200})
    (entry,) = read_commits_file(FileSystem(), str(root)).entries
    assert (entry.row_count, entry.ranges) == (200, None)
    assert len(commit_line(entry)) < 300


def test_another_query_under_the_same_name_is_an_error_before_and_after_its_rows_are_staged(tmp_path):
    root = tmp_path / "logs"
    write_batch(root, 0)
    settings = {"txn_app_id": "stream", "txn_version": 1, "query_id": "q-2"}
    with pytest.raises(OptionError, match="the streaming query q-1 has written batch 0 with it"):
        staged_job(FileSystem(), root, uuid.uuid4().hex, BATCH, **settings)
    tried = staged_job(FileSystem(), root, uuid.uuid4().hex, BATCH, is_begun=False, **settings)
    with pytest.raises(OptionError, match="restore the checkpoint, or give the query another txnAppId"):
        tried.commit()
    tried.job.abort()
    assert not [path.name for path in root.iterdir() if "stage" in path.name]


def test_a_name_of_batch_jobs_may_be_continued_by_a_query_but_not_repeated(tmp_path):
    root = tmp_path / "logs"
    write_batch(root, 4, query_id=None)
    with pytest.raises(OptionError, match="a job that is no stream has written batch 4 with it"):
        write_batch(root, 4)
    assert write_batch(root, 5)


def test_the_id_of_a_query_needs_a_name(tmp_path):
    with pytest.raises(OptionError, match="Expected a txnAppId besides the id of a streaming query"):
        staged_job(FileSystem(), tmp_path / "logs", uuid.uuid4().hex, BATCH, query_id="q-1")


def check_bounds(root, batches, most_commits):
    """Check what is left of many batches: their records, and files whose number does not depend on the batches."""
    commits = read_commits_file(FileSystem(), str(root))
    assert commits.generation == batches
    assert len(commits.entries) <= most_commits
    assert (root / ".segmentlog-commits").stat().st_size <= most_commits * 300
    assert len(list(root.iterdir())) < 10
    for number in (0, 1):
        names = sorted(path.name for path in (root / f"t-{number}").iterdir())
        segments = [name for name in names if name.endswith(".log")]
        snapshots = [name for name in names if name.endswith(".snapshot")]
        assert len(snapshots) <= len(segments) + 1
        assert len(names) <= 4 * len(segments) + 4


def write_many(root, batches, *, segment_bytes, most_commits):
    # More than one segment, so that the files that a segment needs are seen to stay.
    config = LogConfig(internal_segment_bytes=segment_bytes)
    for number in range(batches):
        assert write_batch(root, number, config=config, flush=False)
    check_bounds(root, batches, most_commits)


def test_what_many_batches_leave_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(commit_job, "_MANY_COMMITS", 40)
    monkeypatch.setattr(commits_file, "_LINES_KEPT", 20)
    write_many(tmp_path / "logs", 60, segment_bytes=4_000, most_commits=40)


@pytest.mark.soak
def test_what_ten_thousand_batches_leave_is_bounded(tmp_path):
    write_many(tmp_path / "logs", 10_000, segment_bytes=1 << 20, most_commits=512)
