"""The views ``producers`` and ``epochs``: what brokers keep beside the log, and what the log says."""

from __future__ import annotations

import datetime as dt

import pytest
from conformance.archives import case_names, unpack_case

from storage_core.checkpoint import ProducerStateEntry, write_producer_snapshot
from storage_core.filesystem import FileSystem
from storage_core.views import read_table
from tests.record.encoding import TRANSACTIONAL, Batch, Record

QUICK_CASES = ("compact-txn", "idempotent", "internal", "retention", "txn-ongoing", "unclean")
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def view(path, name, **options):
    return read_table(str(path), view=name, **options).to_pylist()


def milliseconds(time):
    return -1 if time is None else (time - _EPOCH) // dt.timedelta(milliseconds=1)


def write_log(root, *batches, topic="events", base_offset=0):
    path = root / f"{topic}-0"
    path.mkdir(parents=True, exist_ok=True)
    (path / f"{base_offset:020d}.log").write_bytes(b"".join(batch.encode() for batch in batches))
    return path


@pytest.mark.parametrize(
    "name",
    [
        name if name in QUICK_CASES else pytest.param(name, marks=pytest.mark.thorough)
        for name in case_names()
    ],
)
def test_producers_are_those_that_a_broker_describes(tmp_path, name):
    logs, expected = unpack_case(name, tmp_path / name)
    described = {
        partition: sorted(facts["producers"])
        for partition, facts in expected["partitions"].items()
        if facts.get("producers") is not None
    }
    found = {partition: [] for partition in described}
    topics = ",".join(sorted({facts["topic"] for facts in expected["partitions"].values()}))
    for row in view(logs, "producers", subscribe=topics):
        offset = row["currentTransactionFirstOffset"]
        if f"{row['topic']}-{row['partition']}" in found:
            found[f"{row['topic']}-{row['partition']}"].append(
                [
                    row["producerId"],
                    row["producerEpoch"],
                    row["lastSequence"],
                    milliseconds(row["lastTimestamp"]),
                    row["coordinatorEpoch"],
                    -1 if offset is None else offset,
                ]
            )
    assert {partition: sorted(rows) for partition, rows in found.items()} == described


def produced(base_offset, producer_id, sequence, **fields):
    return Batch(
        (Record(0, 1_700_000_000_000),),
        base_offset,
        producer_id=producer_id,
        producer_epoch=2,
        base_sequence=sequence,
        **fields,
    )


def test_batches_after_the_snapshot_bring_it_up_to_date(tmp_path):
    path = write_log(tmp_path, produced(0, 1, 0), produced(1, 2, 0), produced(2, 1, 1))
    write_log(tmp_path, produced(3, 3, 7, attributes=TRANSACTIONAL), produced(4, 2, 1), base_offset=3)
    entries = [
        ProducerStateEntry(1, 2, 1, 2, 0, 1_700_000_000_000, -1, None),
        ProducerStateEntry(2, 2, 0, 1, 0, 1_700_000_000_000, -1, None),
    ]
    write_producer_snapshot(FileSystem(), str(path / f"{3:020d}.snapshot"), entries)
    rows = view(tmp_path, "producers")
    keys = (
        "producerId",
        "lastSequence",
        "lastOffset",
        "currentTransactionFirstOffset",
        "source",
        "snapshotOffset",
    )
    assert [tuple(row[key] for key in keys) for row in rows] == [
        (1, 1, 2, None, "snapshot", 3),
        (2, 1, 4, None, "log", 3),
        (3, 7, 3, 3, "log", 3),
    ]
    # As of an earlier offset, before the snapshot.
    rows = view(tmp_path, "producers", ending_offsets={"events": {"0": 2}})
    assert [tuple(row[key] for key in keys) for row in rows] == [
        (1, 0, 0, None, "log", None),
        (2, 0, 1, None, "log", None),
    ]


def test_a_damaged_snapshot_is_replaced_by_the_log(tmp_path, caplog):
    path = write_log(tmp_path, produced(0, 1, 0))
    write_log(tmp_path, produced(1, 1, 1), base_offset=1)
    (path / f"{1:020d}.snapshot").write_bytes(b"\0\1 not a snapshot")
    (row,) = view(tmp_path, "producers")
    assert (row["lastSequence"], row["source"], row["snapshotOffset"]) == (1, "log", None)
    assert "Ignored a producer snapshot" in caplog.text


def epochs(path, **options):
    keys = (
        "leaderEpoch",
        "startOffset",
        "endOffset",
        "firstBatchOffset",
        "lastBatchOffset",
        "source",
        "agrees",
    )
    return [tuple(row[key] for key in keys) for row in view(path, "epochs", **options)]


def write_checkpoint(path, *entries):
    lines = [f"{epoch} {offset}\n" for epoch, offset in entries]
    (path / "leader-epoch-checkpoint").write_text(f"0\n{len(lines)}\n{''.join(lines)}")


@pytest.fixture
def led(tmp_path):
    """Return a partition to which three leaders have appended."""
    batches = [
        Batch((Record(),), offset, leader_epoch=epoch) for offset, epoch in ((0, 0), (1, 0), (5, 2), (6, 7))
    ]
    return write_log(tmp_path, *batches)


def test_epochs_begin_where_the_checkpoint_says(led):
    write_checkpoint(led, (0, 0), (2, 2), (7, 6), (9, 7))
    assert epochs(led.parent) == [
        (0, 0, 2, 0, 1, "both", True),
        # Cleaning has removed its first batches.
        (2, 2, 6, 5, 5, "both", True),
        (7, 6, 7, 6, 6, "both", True),
        # Its leader has appended nothing yet.
        (9, 7, 7, None, None, "checkpoint", True),
    ]


def test_epochs_on_which_checkpoint_and_log_disagree(led):
    write_checkpoint(led, (0, 0), (2, 6), (9, 20))
    assert epochs(led.parent) == [
        (0, 0, 6, 0, 1, "both", True),
        # Its batch is before its start.
        (2, 6, 6, 5, 5, "both", False),
        (7, 6, 20, 6, 6, "log", False),
        # It begins beyond the log's end.
        (9, 20, 20, None, None, "checkpoint", False),
    ]


@pytest.mark.parametrize("content", [None, "not a checkpoint"])
def test_epochs_without_a_checkpoint_are_those_of_the_log(led, content):
    if content is not None:
        (led / "leader-epoch-checkpoint").write_text(content)
    assert epochs(led.parent) == [
        (0, 0, 5, 0, 1, "log", None),
        (2, 5, 6, 5, 5, "log", None),
        (7, 6, 7, 6, 6, "log", None),
    ]


def test_a_log_without_epochs_has_no_rows(tmp_path):
    old, _ = unpack_case("magic0", tmp_path / "old")
    write_log(tmp_path / "empty")
    assert view(old, "epochs") == view(tmp_path / "empty", "epochs") == []


def test_bounds_choose_the_epochs_of_their_offsets(led):
    write_checkpoint(led, (0, 0), (2, 2), (7, 6))
    bounds = {"starting_offsets": {"events": {"0": 3}}, "ending_offsets": {"events": {"0": 6}}}
    assert epochs(led.parent, **bounds) == [(2, 2, 6, 5, 5, "both", True)]
    assert epochs(led.parent, where="offset >= 6") == [(7, 6, 7, 6, 6, "both", True)]


def test_epochs_of_a_broker_that_was_restarted_often(tmp_path):
    logs, _ = unpack_case("leader-epochs", tmp_path / "case")
    rows = view(logs, "epochs")
    assert {row["agrees"] for row in rows} == {True}
    assert [row["startOffset"] for row in rows if (row["topic"], row["partition"]) == ("epochs", 1)] == [
        0,
        52,
        93,
        128,
        168,
    ]
    assert [row["source"] for row in rows if row["topic"] == "epochs-few"] == ["both", "both", "checkpoint"]
