"""Failing and killed tasks and commits, and readers beside jobs: all of a job's rows once, or none."""

from __future__ import annotations

import json

import pytest

from storage_core import LogDirectory, SegmentLogError, read_table
from tests.faults.counting import cases
from tests.spark import writers
from tests.spark.failing_source import FailingSource
from tests.spark.writers import batch, sent, staged_files

pytestmark = pytest.mark.spark

COUNT = 6000


@pytest.fixture
def save(spark, root):
    """Save rows with a job's name from two tasks to three partitions, with the given failure."""
    spark.dataSource.register(FailingSource)

    def save_with(name, failing=None, mode="append", **options):
        frame = spark.range(0, COUNT, 1, 2).selectExpr(f"concat('{name}:', CAST(id AS STRING)) AS value")
        writer = frame.write.format("failing" if failing else "segmentlog").mode(mode)
        if failing:
            writer = writer.option("failing", json.dumps(failing))
        writer.options(**{"topic": "t", "partitions": 3, "batch.size": 2000, **options}).save(str(root))

    return save_with


def expected(*names):
    return sorted(b"%s:%d" % (name.encode(), number) for name in names for number in range(COUNT))


def values(root):
    """Return all values in the log directory; empty if it does not exist."""
    if not (root / ".segmentlog-commits").exists():
        assert not root.exists() or not any(path.name.startswith("t-") for path in root.iterdir())
        return []
    return sorted(read_table(root)["value"].to_pylist())


# -- Tasks --------


@pytest.mark.parametrize(
    "failing",
    [
        {"write": "raise"},
        {"write": "kill"},
        {"write": "limit"},
        {"write": "full", "at": 3},
        {"write": "broken", "at": 2},
    ],
    ids=lambda failing: failing["write"],
)
def test_a_task_that_fails_once_is_tried_again_and_counts_once(save, root, failing, record_property):
    save("before")
    save("failing", failing)
    assert values(root) == expected("before", "failing")
    assert staged_files(root) == []
    record_property(cases("Spark: a task killed or failing, tried again"), 1)


@pytest.mark.parametrize(
    ("failing", "words"),
    [
        ({"write": "kill"}, "worker exited unexpectedly"),
        ({"write": "raise"}, "the task ends here"),
        ({"write": "limit"}, "File too large"),
        ({"write": "full", "at": 3}, "No space left on device"),
        ({"write": "broken", "at": 2}, "Input/output error"),
    ],
    ids=lambda each: each["write"] if isinstance(each, dict) else "",
)
def test_a_task_that_fails_always_leaves_nothing(save, root, failing, words, record_property):
    save("before")
    with pytest.raises(Exception, match=words):
        save("failing", {**failing, "attempts": 9})
    assert values(root) == expected("before")
    if failing["write"] in {"kill", "raise"}:
        # The other task had finished by then.
        assert staged_files(root) == []
    save("after")
    assert values(root) == expected("before", "after")
    record_property(cases("Spark: a task killed or failing at every attempt"), 1)


# -- Tasks that come late --------


def writer_of(root, **options):
    return writers.writer_of(root, "value", topic="t", partitions="3", **options)


def stage(writer, *rows, attempt=0):
    return writers.stage(writer, [batch(value=list(rows))], attempt=attempt)


def test_a_message_of_an_attempt_whose_files_are_gone_fails_the_commit(root):
    """As if a user removed staged files during a job."""
    writer = writer_of(root)
    message = stage(writer, b"1")
    for name in staged_files(root):
        (root / name).unlink()
    with pytest.raises(SegmentLogError, match=r"\.manifest"):
        sent(writer).commit([message])
    assert values(root) == []


# -- The commit --------


# The journal exists from call 8 on; there are about 50 calls in all.
CALLS = {
    "kill": [2, 9, 30],
    "raise": [5, 12, 35],
    "full": [1, 6, 12],
    "broken": [3, 10, 28],
}


@pytest.mark.parametrize("kind", CALLS)
def test_a_commit_that_fails_at_some_call(save, root, kind, record_property):
    """The same txnVersion is repeated until it is committed, and once more."""
    names = ["before"]
    save("before")
    failed, in_doubt = 0, 0
    for version, at in enumerate(CALLS[kind]):
        name, app = f"job{version}", {"txnAppId": "app", "txnVersion": version}
        with pytest.raises(Exception, match=r"[Cc]ommit|worker") as raised:
            save(name, {"commit": kind, "at": at}, **app)
        has_journal = (root / ".segmentlog-journal").exists()
        found = values(root)
        assert found in (expected(*names), expected(*names, name)), at
        if has_journal:
            in_doubt += 1
            # Spark has called abort, which keeps what the commit needs.
            assert found == expected(*names, name) or staged_files(root), at
        elif found == expected(*names):
            assert staged_files(root) == [], at
        if kind in {"full", "broken"}:
            assert ("in doubt, and will be completed" in str(raised.value)) == has_journal, at
        names.append(name)
        save(name, **app)
        assert values(root) == expected(*names), at
        assert staged_files(root) == [], at
        assert not (root / ".segmentlog-journal").exists(), at
        failed += 1
    record_property(cases("Spark: `commit` killed or failing, the txnVersion repeated"), failed)
    assert 0 < in_doubt < failed


@pytest.mark.parametrize("how", ["another job", "an open log directory"])
def test_a_job_in_doubt_is_completed_by_the_next_writer(save, root, how):
    save("before")
    with pytest.raises(Exception, match="in doubt, and will be completed"):
        save("doubtful", {"commit": "full", "at": 14})
    assert values(root) == expected("before")
    if how == "another job":
        save("next")
        assert values(root) == expected("before", "doubtful", "next")
    else:
        LogDirectory.open(root).close()
        assert values(root) == expected("before", "doubtful")
    assert staged_files(root) == []


# -- Several at once --------
