"""What groups have committed: the latest and earlier offsets, in transactions, of groups of all types."""

from __future__ import annotations

import datetime as dt
import shutil
import tracemalloc
from pathlib import Path

import pyarrow as pa
import pytest
from conformance.archives import unpack_case
from hypothesis import given
from hypothesis import strategies as st

from storage_core import LogDirectory, read_table
from storage_core.errors import CorruptRecordError, LogDirectoryError, UnsupportedFormatError
from storage_core.filesystem import FileSystem
from storage_core.options import options_of
from storage_core.views import group_offsets
from storage_core.views.group_offsets import (
    GROUP_OFFSETS_VIEW,
    offsets_partition,
    plan_group_offsets,
    read_group_offsets,
)
from tests.examples import examples
from tests.log.logs import NOW_MS, Clock, append, table
from tests.views.coordinators import Coordinator

_TOPIC_ID = "AwMDAwMDAwMDAwMDAwMDAw"


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def logs(tmp_path, clock):
    with LogDirectory.open(tmp_path / "data", clock=clock) as logs:
        yield logs


@pytest.fixture
def coordinator(logs, clock):
    return Coordinator(logs, clock)


def rows(logs, **options):
    return read_table(logs.path, view="group_offsets", **options).to_pylist()


def offsets(logs, **options):
    return {(row["group"], row["topic"], row["partition"]): row["offset"] for row in rows(logs, **options)}


def test_the_last_commit_counts_and_a_tombstone_removes_it(logs, coordinator):
    coordinator.commit("g", "t", 0, 1)
    coordinator.commit("g", "t", 1, 2)
    coordinator.commit("g", "t", 0, 3)
    coordinator.commit("h", "t", 1, 4)
    coordinator.commit("g", "t", 1, None)
    assert offsets(logs) == {("g", "t", 0): 3, ("h", "t", 1): 4}


def test_a_row_has_all_that_was_committed(logs, coordinator):
    coordinator.commit("g", "t", 0, 5, leaderEpoch=2, metadata="mine", topicId=_TOPIC_ID)
    time = dt.datetime.fromtimestamp(NOW_MS / 1000, dt.UTC)
    assert rows(logs) == [
        {
            "group": "g",
            "groupType": "classic",
            "topic": "t",
            "topicId": _TOPIC_ID,
            "partition": 0,
            "offset": 5,
            "leaderEpoch": 2,
            "metadata": "mine",
            "commitTime": time,
            "expireTime": None,
            "isExpired": False,
            "logStartOffset": None,
            "logEndOffset": None,
            "lag": None,
            "note": "log not found",
        }
    ]
    assert read_table(logs.path, view="group_offsets").schema == GROUP_OFFSETS_VIEW.schema


def test_as_of_a_time_later_records_and_tombstones_do_not_count(logs, coordinator, clock):
    coordinator.commit("g", "t", 0, 1)
    clock.time_ms += 1
    coordinator.commit("g", "t", 0, 2)
    clock.time_ms += 1
    coordinator.commit("g", "t", 0, None)
    assert offsets(logs, as_of=NOW_MS - 1) == {}
    assert offsets(logs, as_of=NOW_MS) == {("g", "t", 0): 1}
    assert offsets(logs, as_of="2023-11-14T22:13:20.001Z") == {("g", "t", 0): 2}
    assert offsets(logs) == offsets(logs, as_of=NOW_MS + 2) == {}


def test_offsets_in_a_transaction_count_from_its_commit_on(logs, coordinator, clock):
    coordinator.commit("g", "t", 0, 1)
    coordinator.commit("g", "t", 0, 2, producer_id=7)
    coordinator.commit("g", "t", 1, 3, producer_id=8)
    assert offsets(logs) == {("g", "t", 0): 1}
    clock.time_ms += 10
    coordinator.end(7)
    coordinator.end(8, is_abort=True)
    assert offsets(logs) == {("g", "t", 0): 2}
    assert offsets(logs, as_of=NOW_MS + 9) == {("g", "t", 0): 1}
    assert offsets(logs, as_of=NOW_MS + 10) == {("g", "t", 0): 2}


def test_a_commit_within_an_open_transaction_outlives_its_end(logs, coordinator):
    coordinator.commit("g", "t", 0, 5, producer_id=7)
    coordinator.commit("g", "t", 0, 6)
    coordinator.end(7)
    assert offsets(logs) == {("g", "t", 0): 6}


def test_a_tombstone_removes_what_open_transactions_would_commit(logs, coordinator):
    coordinator.commit("g", "t", 0, 5, producer_id=7)
    coordinator.commit("g", "t", 0, None)
    coordinator.end(7)
    assert offsets(logs) == {}


def test_a_producer_has_one_transaction_after_the_other(logs, coordinator):
    coordinator.commit("g", "t", 0, 1, producer_id=7)
    coordinator.end(7, is_abort=True)
    coordinator.commit("g", "t", 1, 2, producer_id=7)
    coordinator.end(7)
    assert offsets(logs) == {("g", "t", 1): 2}


@pytest.mark.parametrize("kind", ["classic", "consumer", "share", "streams"])
def test_groups_have_types(logs, coordinator, kind):
    coordinator.group("g", kind)
    coordinator.commit("g", "t", 0, 1)
    assert [row["groupType"] for row in rows(logs)] == [kind]


def test_a_group_that_was_upgraded_has_its_new_type(logs, coordinator, clock):
    coordinator.group("g", "classic")
    coordinator.commit("g", "t", 0, 1)
    clock.time_ms += 1
    coordinator.group("g", "consumer")
    coordinator.group("g", "classic", is_tombstone=True)
    assert [row["groupType"] for row in rows(logs)] == ["consumer"]
    assert [row["groupType"] for row in rows(logs, as_of=NOW_MS)] == ["classic"]


def test_an_old_client_says_when_its_offset_expires(logs, coordinator):
    coordinator.commit("g", "t", 0, 1, version=1, expireTimestamp=NOW_MS + 100)
    coordinator.commit("g", "t", 1, 1, version=1, expireTimestamp=-1)
    expired = [(row["expireTime"], row["isExpired"]) for row in rows(logs, as_of=NOW_MS + 99)]
    assert expired == [(dt.datetime.fromtimestamp(NOW_MS / 1000 + 0.1, dt.UTC), False), (None, False)]
    assert [row["isExpired"] for row in rows(logs, as_of=NOW_MS + 100)] == [True, False]
    # Without a time, the clock of the reader tells.
    assert [row["isExpired"] for row in rows(logs)] == [True, False]


def test_records_of_the_first_brokers_are_the_same_keys(logs, coordinator):
    coordinator.commit("g", "t", 0, 1, version=0, legacy=True)
    coordinator.commit("g", "t", 1, 2, version=0, legacy=True)
    coordinator.commit("g", "t", 1, 3)
    assert offsets(logs) == {("g", "t", 0): 1, ("g", "t", 1): 3}


def test_lags_are_those_of_logs_in_the_same_directories(logs, coordinator, clock, tmp_path):
    append(logs.create("t", 0), 4)
    coordinator.commit("g", "t", 0, 1)
    coordinator.commit("g", "t", 1, 2)
    with LogDirectory.open(tmp_path / "other", clock=clock) as other:
        append(other.create("t", 1), 2)
        both = read_table(logs.path, other.path, view="group_offsets").to_pylist()
    found = [(row["logStartOffset"], row["logEndOffset"], row["lag"]) for row in both]
    assert found == [(0, 4, 3), (0, 2, 0)]
    alone = [(row["logEndOffset"], row["lag"]) for row in rows(logs)]
    assert alone == [(4, 3), (None, None)]


def test_as_of_a_time_the_log_ends_where_it_ended(logs, coordinator):
    logs.create("t", 0).append(table(b"a", b"b", b"c", timestamps=[NOW_MS - 5, NOW_MS, NOW_MS + 5]))
    coordinator.commit("g", "t", 0, 1)
    assert [(row["logEndOffset"], row["lag"]) for row in rows(logs, as_of=NOW_MS)] == [(2, 1)]
    assert [(row["logEndOffset"], row["lag"]) for row in rows(logs)] == [(3, 2)]


def test_updates_of_a_share_group_take_no_memory(monkeypatch, logs, clock):
    coordinator = Coordinator(logs, clock, "__share_group_state")
    coordinator.share("ShareSnapshot", "s", _TOPIC_ID, 0, start_offset=3, leader_epoch=1)
    coordinator.share("ShareUpdate", "s", _TOPIC_ID, 0, leader_epoch=2)
    (task,) = plan_group_offsets(FileSystem(), options_of([str(logs.path)], {}))
    snapshot, update = group_offsets._records(
        FileSystem(), task, frozenset({b"\0\0", b"\0\1"}), group_offsets._Refused(task)
    )
    last = update._replace(timestamp_ms=7)

    def many(*_):
        yield snapshot
        for number in range(3_000):
            # No two updates share their bytes.
            yield update._replace(value=update.value + number.to_bytes(2, "big") * 500)
        yield last

    monkeypatch.setattr(group_offsets, "_records", many)
    tracemalloc.start()
    try:
        (found,) = read_group_offsets(FileSystem(), task)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (found.offset, found.leader_epoch, found.commit_timestamp_ms) == (3, 2, 7)
    assert peak_bytes < 500_000


def test_share_groups_have_a_start_offset(logs, clock):
    logs.create("shared", 0, topic_id=_TOPIC_ID)
    coordinator = Coordinator(logs, clock, "__share_group_state")
    coordinator.share("ShareSnapshot", "s", _TOPIC_ID, 0, start_offset=3, leader_epoch=1)
    coordinator.share("ShareUpdate", "s", _TOPIC_ID, 0, leader_epoch=2)
    coordinator.share("ShareSnapshot", "s", _TOPIC_ID, 1)
    coordinator.share("ShareSnapshot", "gone", _TOPIC_ID, 0, start_offset=9)
    coordinator.share("ShareSnapshot", "gone", _TOPIC_ID, 0, is_tombstone=True)
    clock.time_ms += 5
    coordinator.share("ShareUpdate", "s", _TOPIC_ID, 0, start_offset=8)
    found = [
        (row["group"], row["groupType"], row["topic"], row["partition"], row["offset"], row["leaderEpoch"])
        for row in rows(logs)
    ]
    assert found == [("s", "share", "shared", 0, 8, 2), ("s", "share", "shared", 1, None, None)]
    assert [row["offset"] for row in rows(logs, as_of=NOW_MS)] == [3, None]
    assert [row["metadata"] for row in rows(logs)] == [None, None]


def test_a_snapshot_replaces_what_was_updated_before(logs, clock):
    coordinator = Coordinator(logs, clock, "__share_group_state")
    coordinator.share("ShareUpdate", "s", _TOPIC_ID, 0, start_offset=5)
    coordinator.share("ShareSnapshot", "s", _TOPIC_ID, 0, start_offset=2)
    assert [(row["topic"], row["topicId"], row["offset"]) for row in rows(logs)] == [(None, _TOPIC_ID, 2)]


def test_a_topic_without_a_directory_has_the_name_that_the_group_coordinator_noted(logs, coordinator, clock):
    coordinator.share_partitions("s", "elsewhere", _TOPIC_ID)
    share = Coordinator(logs, clock, "__share_group_state")
    share.share("ShareSnapshot", "s", _TOPIC_ID, 0, start_offset=3)
    assert offsets(logs) == {("s", "elsewhere", 0): 3}
    (Path(logs.path) / "__share_group_state-0" / "partition.metadata").write_text("damaged")
    assert offsets(logs) == {("s", "elsewhere", 0): 3}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"subscribe": "a"}, {("a", 0), ("a", 1)}),
        ({"subscribe_pattern": "b|c"}, {("b", 0)}),
        ({"assign": '{"a":[1],"b":[7]}'}, {("a", 1)}),
        ({"where": "topic = 'b' OR partition = 1"}, {("a", 1), ("b", 0)}),
        ({"where": "offset > 1"}, {("a", 1), ("b", 0)}),
        ({"where": "timestamp > '2023-11-14T22:13:20Z'"}, {("b", 0)}),
        ({"starting_offsets": '{"a":{"0":2,"1":-2},"b":{"0":-2}}'}, {("a", 1), ("b", 0)}),
        ({"starting_timestamp": NOW_MS + 1}, {("b", 0)}),
        ({"ending_timestamp": NOW_MS + 1}, {("a", 0), ("a", 1)}),
    ],
)
def test_topics_bounds_and_conditions_are_about_what_is_committed(
    logs, coordinator, clock, options, expected
):
    coordinator.commit("g", "a", 0, 1)
    coordinator.commit("g", "a", 1, 2)
    clock.time_ms += 1
    coordinator.commit("g", "b", 0, 3)
    assert {(row["topic"], row["partition"]) for row in rows(logs, **options)} == expected


def test_directories_without_a_coordinator_are_refused(logs):
    append(logs.create("t"))
    with pytest.raises(LogDirectoryError, match="partitions of __consumer_offsets or __share_group_state"):
        rows(logs)


def test_each_partition_is_a_task_and_its_own_records_are_enough(logs, coordinator, clock):
    coordinator.commit("g", "t", 0, 1)
    Coordinator(logs, clock, partition=1).commit("h", "t", 0, 2)
    filesystem = FileSystem()
    tasks = plan_group_offsets(filesystem, options_of([logs.path], {"view": "group_offsets"}))
    found = [[each.group for each in read_group_offsets(filesystem, task)] for task in tasks]
    assert found == [["g"], ["h"]]


@pytest.mark.parametrize(
    ("key", "value", "error", "reason"),
    [
        (b"\0\1\0\x09g", b"\0\0", CorruptRecordError, "only 1 byte"),
        (b"\0\1\0\1h\0\1t\0\0\0\0", b"\0\x09", UnsupportedFormatError, "unknown record version 9"),
        (b"\0\1\0\1h\0\1t\0\0\0\0", b"\0\4\0", CorruptRecordError, "due to: null"),
        (b"\0", b"\0\0", CorruptRecordError, "no key with a type"),
    ],
)
def test_a_record_that_counts_and_cannot_be_read_fails_the_read_or_is_left_out(
    logs, coordinator, key, value, error, reason
):
    coordinator.commit("g", "t", 0, 1)
    coordinator.write(key, value)
    with pytest.raises(error, match=reason) as raised:
        rows(logs)
    assert raised.value.offset == 1
    assert offsets(logs, mode="DROPMALFORMED") == {("g", "t", 0): 1}


def test_records_that_cannot_be_read_are_counted_in_one_warning(logs, coordinator, caplog):
    coordinator.commit("g", "t", 0, 1)
    coordinator.log.alter_config({"cleanup.policy": "delete"})
    for _ in range(3):
        coordinator.write(None, b"value")
    coordinator.write(b"\0\1\0\1h\0\1t\0\0\0\0", b"\0\x09")
    assert offsets(logs, mode="DROPMALFORMED") == {("g", "t", 0): 1}
    (warning,) = caplog.messages
    assert warning.startswith(
        "4 records of __consumer_offsets-0 cannot be read and are left out. The first is at offset 1:"
    )


def test_an_offset_outside_of_its_log_and_a_lag_of_markers_are_noted(logs, coordinator, clock):
    log = logs.create("t")
    append(log, 5)
    with log.transaction(producer_id=9) as transaction:
        transaction.append(table(b"v"))
    assert log.log_end_offset == 7
    log.delete_records(2)
    for group, offset in {"end": 7, "beyond": 8, "below": 1, "markers": 6, "records": 5}.items():
        coordinator.commit(group, "t", 0, offset)
    coordinator.commit("absent", "u", 0, 1)
    notes = {row["group"]: (row["lag"], row["note"]) for row in rows(logs)}
    assert notes == {
        "end": (0, None),
        "beyond": (-1, "beyond log end"),
        "below": (6, "below log start"),
        "markers": (1, "only markers"),
        "records": (2, None),
        "absent": (None, "log not found"),
    }


def test_records_of_later_types_are_skipped(logs, coordinator):
    coordinator.commit("g", "t", 0, 1)
    coordinator.write(b"\0\x63later", b"anything")
    assert offsets(logs) == {("g", "t", 0): 1}


def test_hostile_names_are_rows_like_others(logs, coordinator):
    names = ['a,"b"', "line\nend\x1b[31m", "", "é😀\u202e", "\0"]
    for number, name in enumerate(names):
        coordinator.commit(name, "t", 0, number, metadata=name)
    assert {(row["group"], row["metadata"], row["offset"]) for row in rows(logs)} == {
        (name, name, number) for number, name in enumerate(names)
    }


@pytest.mark.parametrize(
    ("group", "partition"),
    [
        ("", 0),
        ("a", 47),
        ("ab", 5),
        ("polygenelubricants", 0),
        ("console-consumer-12345", 6),
        ("zzzzzzz", 18),
        ("é", 33),
        ("😀", 49),
    ],
)
def test_a_group_belongs_to_the_partition_of_its_java_hash(group, partition):
    assert offsets_partition(group) == partition


_steps = st.lists(
    st.one_of(
        st.tuples(
            st.just("commit"), st.integers(0, 2), st.integers(0, 9), st.sampled_from([None, None, 1, 2])
        ),
        st.tuples(st.just("delete"), st.integers(0, 2)),
        st.tuples(st.just("end"), st.sampled_from([1, 2]), st.booleans()),
        st.tuples(st.just("clean")),
    ),
    max_size=30,
)


@given(_steps)
@examples(60)
def test_compaction_changes_no_latest_offset(tmp_path_factory, steps):
    clock = Clock()
    with LogDirectory.open(tmp_path_factory.mktemp("cleaned") / "data", clock=clock) as logs:
        coordinator = Coordinator(logs, clock)
        committed, pending = {}, {}
        for number, (kind, *arguments) in enumerate(steps):
            clock.time_ms += 1
            if kind == "commit":
                partition, offset, producer_id = arguments
                coordinator.commit("g", "t", partition, offset, producer_id=producer_id)
                target = committed if producer_id is None else pending.setdefault(producer_id, {})
                target[partition] = (number, offset)
            elif kind == "delete":
                coordinator.commit("g", "t", arguments[0], None)
                for target in (committed, *pending.values()):
                    target.pop(arguments[0], None)
            elif kind == "end":
                coordinator.end(arguments[0], is_abort=arguments[1])
                for partition, found in pending.pop(arguments[0], {}).items():
                    if not arguments[1] and found > committed.get(partition, (-1, 0)):
                        committed[partition] = found
            else:
                coordinator.log.roll()
                coordinator.log.clean()
        expected = {("g", "t", partition): offset for partition, (_, offset) in committed.items()}
        assert offsets(logs) == expected


def test_groups_of_a_real_broker(tmp_path):
    root, _ = unpack_case("internal", tmp_path / "case")
    found = read_table(root, view="group_offsets").select(
        ["group", "groupType", "partition", "offset", "lag"]
    )
    assert sorted(map(tuple, (row.values() for row in found.to_pylist()))) == [
        ("group-0", "classic", 0, 8, 22),
        ("group-0", "classic", 1, 2, 21),
        ("group-1", "classic", 0, 0, 30),
        ("group-1", "classic", 1, 2, 21),
        ("group-2", "classic", 0, 0, 30),
        ("group-2", "classic", 1, 1, 22),
        ("group-3", "classic", 0, 7, 23),
        ("group-3", "classic", 1, 6, 17),
        ("group-4", "classic", 0, 8, 22),
        ("group-4", "classic", 1, 7, 16),
        ("new-3", "consumer", 0, 2, 28),
        ("new-3", "consumer", 1, 1, 22),
        ("new-9", "consumer", 0, 8, 22),
        ("new-9", "consumer", 1, 1, 22),
        ("txn-group", "classic", 0, 3, 27),
    ]


def test_only_wanted_columns_are_looked_up(logs, coordinator):
    append(logs.create("t", 0), 2)
    coordinator.commit("g", "t", 0, 1)
    found = read_table(logs.path, view="group_offsets", columns=["offset", "group"])
    assert found.equals(
        pa.table({"offset": pa.array([1], pa.int64()), "group": pa.array(["g"], pa.string())})
    )


def test_a_log_that_is_deleted_meanwhile_has_no_end(logs, coordinator, tmp_path):
    """A topic is deleted after the directories were listed, and before its log is looked at."""
    append(logs.create("t"), 4)
    coordinator.commit("g", "t", 0, 1)
    copy = shutil.copytree(logs.path, tmp_path / "copy")

    class Deleting(FileSystem):
        def walk_directory(self, path):
            entries = list(super().walk_directory(path))
            if is_planned and path.endswith("/t-0"):
                shutil.rmtree(path)
            return iter(entries)

    is_planned = False
    filesystem = Deleting()
    (task,) = plan_group_offsets(filesystem, options_of([str(copy)], {}))
    is_planned = True
    rows = [
        row
        for batch in GROUP_OFFSETS_VIEW.read(filesystem, task, frozenset({"lag"}))
        for row in batch.to_pylist()
    ]
    assert [(row["offset"], row["lag"]) for row in rows] == [(1, None)]
    assert not (copy / "t-0").exists()
