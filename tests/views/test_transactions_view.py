"""The view ``transactions``: what the log says of each transaction, and what the snapshot adds."""

from __future__ import annotations

import datetime as dt
import pickle

import pyarrow as pa
import pytest
from conformance.archives import unpack_case

from storage_core.checkpoint import ProducerStateEntry, write_producer_snapshot
from storage_core.filesystem import FileSystem
from storage_core.options import options_of
from storage_core.views.transactions import TRANSACTIONS_VIEW, plan_transactions
from tests.record.encoding import CONTROL, TRANSACTIONAL, Batch, Record

NOW_MS = 1_700_000_900_000
BEGAN_MS = 1_700_000_000_000
ABORT, COMMIT, LEADER_CHANGE = range(3)


def transactions_of(path, *, only_open=False, filesystem=None, **options):
    filesystem = filesystem or FileSystem()
    planned = plan_transactions(
        filesystem, options_of([str(path)], options), only_open=only_open, now_ms=NOW_MS
    )
    made = [
        batch
        for task in pickle.loads(pickle.dumps(planned))
        for batch in TRANSACTIONS_VIEW.read(filesystem, task, frozenset())
    ]
    return pa.Table.from_batches(made, schema=TRANSACTIONS_VIEW.schema).to_pylist()


class Log:
    """A partition that producers write to, in segments."""

    def __init__(self, base_offset=0):
        self.segments = {base_offset: []}
        self.next_offset = base_offset

    def data(self, producer_id, count=1, *, epoch=0, at_ms=BEGAN_MS, attributes=TRANSACTIONAL, value=b"v"):
        records = tuple(Record(number, at_ms + number, None, value) for number in range(count))
        return self._append(
            Batch(
                records,
                self.next_offset,
                attributes=attributes,
                producer_id=producer_id,
                producer_epoch=epoch,
            )
        )

    def marker(self, producer_id, kind, *, epoch=0, coordinator_epoch=4, at_ms=BEGAN_MS + 5_000):
        key = b"\0\0" + kind.to_bytes(2, "big")
        record = Record(0, at_ms, key, b"\0\0" + coordinator_epoch.to_bytes(4, "big"))
        attributes = TRANSACTIONAL | CONTROL
        return self._append(
            Batch(
                (record,),
                self.next_offset,
                attributes=attributes,
                producer_id=producer_id,
                producer_epoch=epoch,
            )
        )

    def roll(self):
        self.segments[self.next_offset] = []
        return self

    def _append(self, batch):
        self.segments[max(self.segments)].append(batch)
        self.next_offset = batch.last_offset + 1
        return self

    def write(self, root, topic="events"):
        path = root / f"{topic}-0"
        path.mkdir(parents=True)
        for base_offset, batches in self.segments.items():
            data = b"".join(batch.encode() for batch in batches)
            (path / f"{base_offset:020d}.log").write_bytes(data)
        return path


def states(rows):
    return [(row["producerId"], row["state"], row["firstOffset"], row["markerOffset"]) for row in rows]


def test_a_row_says_how_a_transaction_went(tmp_path):
    log = Log().data(1, 2).data(-1, attributes=0).data(2).data(1, 3, epoch=1, at_ms=BEGAN_MS + 1_000)
    log.marker(1, COMMIT, epoch=1).marker(2, ABORT)
    log.write(tmp_path)
    committed, aborted = transactions_of(tmp_path)
    size = sum(len(log.segments[0][index].encode()) for index in (0, 3))
    assert committed == {
        "topic": "events",
        "partition": 0,
        "producerId": 1,
        "producerEpoch": 0,
        "state": "committed",
        "firstOffset": 0,
        "lastOffset": 6,
        "markerOffset": 7,
        "startTimestamp": dt.datetime(2023, 11, 14, 22, 13, 20, tzinfo=dt.UTC),
        "lastTimestamp": dt.datetime(2023, 11, 14, 22, 13, 21, 2_000, tzinfo=dt.UTC),
        "endTimestamp": dt.datetime(2023, 11, 14, 22, 13, 25, tzinfo=dt.UTC),
        "durationMs": 5_000,
        "ageMs": None,
        "coordinatorEpoch": 4,
        "recordCount": 5,
        "sizeBytes": size,
        "abortCommand": None,
    }
    assert states([aborted]) == [(2, "aborted", 3, 8)]


def test_internal_topics_are_included_by_default(tmp_path):
    Log().data(1).write(tmp_path, "__consumer_offsets")
    Log().data(2).write(tmp_path)
    assert [row["topic"] for row in transactions_of(tmp_path)] == ["__consumer_offsets", "events"]
    assert [row["topic"] for row in transactions_of(tmp_path, subscribe="events")] == ["events"]
    bounds = {"startingOffsets": {"events": {"0": 0}}}
    assert [row["topic"] for row in transactions_of(tmp_path, **bounds)] == ["events"]


def test_an_open_transaction_has_an_age_and_the_command_that_aborts_it(tmp_path):
    Log().data(1).data(2).marker(1, COMMIT).data(1).write(tmp_path, "my.topic")
    rows = transactions_of(tmp_path)
    assert states(rows) == [(1, "committed", 0, 2), (2, "open", 1, None), (1, "open", 3, None)]
    assert rows[1]["ageMs"] == 900_000
    assert (rows[1]["durationMs"], rows[1]["endTimestamp"], rows[1]["coordinatorEpoch"]) == (None,) * 3
    assert rows[1]["abortCommand"] == (
        "kafka-transactions.sh --bootstrap-server localhost:9092 abort --topic my.topic --partition 0 --start-offset 1"
    )


def test_a_marker_without_data_is_a_row_and_other_control_batches_are_not(tmp_path):
    Log().data(-1, attributes=0).marker(3, ABORT, epoch=9).marker(-1, LEADER_CHANGE).marker(
        4, LEADER_CHANGE
    ).write(tmp_path)
    (row,) = transactions_of(tmp_path)
    assert states([row]) == [(3, "aborted", None, 1)]
    assert (row["producerEpoch"], row["recordCount"], row["lastOffset"], row["durationMs"]) == (
        9,
        0,
        None,
        None,
    )


def test_a_damaged_marker_ends_nothing(tmp_path, caplog):
    log = Log().data(1).marker(1, COMMIT).data(2)
    path = log.write(tmp_path) / f"{0:020d}.log"
    data = bytearray(path.read_bytes())
    data[len(log.segments[0][0].encode()) + 75] ^= 1
    path.write_bytes(data)
    assert states(transactions_of(tmp_path)) == [(1, "open", 0, None), (2, "open", 2, None)]
    assert "the control batch at offset 1 is damaged" in caplog.text


def test_damage_that_may_have_held_markers_is_a_warning(tmp_path, caplog):
    log = Log().data(1).data(2).marker(2, COMMIT).marker(1, COMMIT).data(-1, attributes=0)
    path = log.write(tmp_path) / f"{0:020d}.log"
    sizes = [len(batch.encode()) for batch in log.segments[0]]
    data = path.read_bytes()
    start, end = sum(sizes[:2]), sum(sizes[:3])
    path.write_bytes(data[:start] + b"\xff" * (end - start) + data[end:])
    assert states(transactions_of(tmp_path)) == [(1, "committed", 0, 3), (2, "open", 1, None)]
    assert "2 transactions of events-0 were open at damage that may have held their markers" in caplog.text


def test_bounds_choose_the_transactions_that_overlap_them(tmp_path):
    log = Log().data(1).data(2).marker(1, COMMIT).data(-1, attributes=0).data(3).marker(2, ABORT)
    log.marker(3, COMMIT).data(4).marker(4, COMMIT).write(tmp_path)

    def chosen(start, end):
        bounds = {"starting_offsets": {"events": {"0": start}}, "ending_offsets": {"events": {"0": end}}}
        return states(transactions_of(tmp_path, **bounds))

    one, two, three, four = (
        (1, "committed", 0, 2),
        (2, "aborted", 1, 5),
        (3, "committed", 4, 6),
        (4, "committed", 7, 8),
    )
    assert chosen(0, 9) == [one, two, three, four]
    # All of a transaction is shown if a part of it is within the bounds.
    assert chosen(2, 4) == [one, two]
    assert chosen(3, 4) == [two]
    assert chosen(5, 7) == [two, three]
    assert chosen(6, 8) == [three, four]
    assert chosen(8, 9) == [four]


def snapshot(path, offset, *entries):
    file = path / f"{offset:020d}.snapshot"
    write_producer_snapshot(FileSystem(), str(file), [ProducerStateEntry(*entry) for entry in entries])


def test_a_transaction_that_began_before_the_log_is_known_from_the_snapshot(tmp_path):
    log = Log(100).data(1, 2, at_ms=BEGAN_MS).marker(1, COMMIT).data(2).roll().data(2)
    path = log.write(tmp_path)
    # Both began in segments that retention has deleted.
    snapshot(
        path,
        100,
        (1, 0, 5, 90, 0, BEGAN_MS - 1_000, -1, 80),
        (2, 3, 5, 95, 0, BEGAN_MS - 9_000, -1, 95),
        (3, 0, 1, 10, 0, BEGAN_MS, -1, None),
    )
    ended, left = transactions_of(tmp_path)
    assert states([ended, left]) == [(1, "committed", 80, 102), (2, "open", 95, None)]
    assert (ended["lastOffset"], ended["startTimestamp"], ended["recordCount"], ended["durationMs"]) == (
        101,
        None,
        None,
        None,
    )
    # From the last batch that is known, as the first one is gone.
    assert (left["lastOffset"], left["producerEpoch"], left["ageMs"]) == (104, 3, 900_000)
    assert left["abortCommand"].endswith("--start-offset 95")


def test_open_transactions_are_found_from_the_newest_snapshot_on(tmp_path):
    log = Log()
    for _ in range(50):
        log.data(1, value=b"x" * 9_000).marker(1, COMMIT)
    log.roll().data(2, value=b"x" * 9_000).data(1).marker(1, COMMIT)
    first_offset = log.next_offset - 3
    for _ in range(5):
        log.data(3, value=b"x" * 9_000).marker(3, COMMIT)
    log.roll().data(2).data(4)
    path = log.write(tmp_path)
    snapshot(path, max(log.segments), (2, 0, 0, first_offset, 0, BEGAN_MS, -1, first_offset))
    whole, part = FileSystem(), FileSystem()
    every = transactions_of(tmp_path, filesystem=whole)
    rows = transactions_of(tmp_path, only_open=True, filesystem=part)
    still_open = [row for row in rows if row["state"] == "open"]
    assert still_open == [row for row in every if row["state"] == "open"]
    assert states(still_open) == [(2, "open", first_offset, None), (4, "open", log.next_offset - 1, None)]
    assert still_open[0]["recordCount"] == 2
    assert len(every) == 58
    assert part.statistics.reads < whole.statistics.reads / 2


def test_a_stale_snapshot_does_not_end_open_transactions(tmp_path):
    """It was taken before the marker, which the log has."""
    path = Log().data(1).marker(1, ABORT).roll().data(-1, attributes=0).write(tmp_path)
    snapshot(path, 1, (1, 0, 0, 0, 0, BEGAN_MS, -1, 0))
    assert states(transactions_of(tmp_path)) == [(1, "aborted", 0, 1)]
    assert [row for row in transactions_of(tmp_path, only_open=True) if row["state"] == "open"] == []


@pytest.mark.parametrize("name", ["txn", "txn-ongoing", "unclean"])
def test_a_broker_and_its_consumers_agree(tmp_path, name):
    """The first open transaction is where the last stable offset was; what was aborted no consumer has read."""
    logs, expected = unpack_case(name, tmp_path / name)
    rows = transactions_of(logs)
    assert rows
    for partition, facts in expected["partitions"].items():
        own = [row for row in rows if f"{row['topic']}-{row['partition']}" == partition]
        open_offsets = [row["firstOffset"] for row in own if row["state"] == "open"]
        assert min(open_offsets, default=facts["high_watermark"]) == facts["last_stable_offset"]
        known = [producer[5] for producer in facts.get("producers") or [] if producer[5] >= 0]
        assert sorted(open_offsets) == sorted(known)
        committed = set(facts["committed_offsets"])
        for row in own:
            if row["state"] == "aborted" and row["firstOffset"] is not None:
                assert row["firstOffset"] not in committed
            if row["state"] == "committed" and row["markerOffset"] < facts["last_stable_offset"]:
                assert row["firstOffset"] in committed
