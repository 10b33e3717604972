"""Counting records: as many as a read gives, from headers where they tell."""

from __future__ import annotations

import struct

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from storage_core import count_records, read_table
from storage_core.errors import CorruptRecordError, OptionError
from storage_core.filesystem import FileSystem
from storage_core.options import VIEWS
from tests.examples import examples
from tests.filesystem.counted_store import CountedStore
from tests.record.encoding import CODECS as NAMES
from tests.record.encoding import Record
from tests.record.legacy_encoding import GZIP, Message, Wrapper
from tests.scan.conftest import batch, record
from tests.scan.copies import batches, write_copy
from tests.scan.equal_batches import RECORDS, write_partition

TOO_LATE_MS = 2**62
CODECS = list(NAMES)


def wrapper(*offsets):
    return Wrapper(tuple(Message(offset, 1000 + offset, None, b"old" * 9) for offset in offsets), GZIP)


def holed(log, *deltas):
    return log.append(
        *(Record(delta, log.next_offset + delta, b"%d" % delta, b"v") for delta in deltas),
        last_offset_delta=9,
    )


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Return a log with all formats, gaps, transactions and times that no column holds, in four segments."""
    from tests.scan.conftest import RowLog

    path = tmp_path_factory.mktemp("counted") / "logs"
    log = RowLog(path)
    log.old(Message(0, 5, b"k", b"v"), wrapper(1, 3, 4), wrapper(8, 9)).values(5).roll()
    holed(holed(log, 0, 3, 9), 4)
    log.append(last_offset_delta=4).values(3).roll()
    log.values(4, producer_id=1, transactional=True).values(4, producer_id=2, transactional=True)
    log.commit(1).values(2).abort(2).skip(20).values(6, codec=4).roll()
    log.append(Record(0, TOO_LATE_MS, None, b"late"), Record(1, 1, None, b"early"))
    log.values(3, producer_id=3, transactional=True).values(2).write()
    return path


def end_of(root):
    return read_table(root, columns=["offset"])["offset"][-1].as_py() + 1


@examples(150)
@given(
    data=st.data(),
    isolation_level=st.sampled_from(["read_uncommitted", "read_committed"]),
    mode=st.sampled_from(["FAILFAST", "DROPMALFORMED", "PERMISSIVE"]),
    columns=st.sampled_from([None, "offset", "value", "timestamp", "key,topic"]),
    others=st.fixed_dictionaries(
        {},
        optional={
            "use_indexes": st.booleans(),
            "max_records_per_partition": st.integers(1, 9),
            "where": st.sampled_from(
                [
                    "offset >= 12 AND offset < 40",
                    "offset IN (2, 3, 16, 30)",
                    "partition = 0 AND topic <> 'x'",
                    "key IS NOT NULL",
                    "key IS NULL AND offset > 20 OR value = 'v'",
                    "timestamp < '1970-01-01T00:00:01Z'",
                    "FALSE OR offset IS NULL",
                ]
            ),
        },
    ),
)
def test_a_count_is_that_of_the_rows(root, data, isolation_level, mode, columns, others):
    start, end = sorted(data.draw(st.tuples(st.integers(0, 70), st.integers(0, end_of(root)))))
    options = {
        "isolation_level": isolation_level,
        "mode": mode,
        "columns": columns,
        "fail_on_data_loss": False,
        **others,
    }
    options["starting_offsets"] = {"events": {"0": min(start, end)}}
    options["ending_offsets"] = {"events": {"0": end}}
    if mode == "FAILFAST" and columns in (None, "timestamp"):
        # Records are counted whose timestamp the column does not hold.
        options["columns"] = "offset"
    if mode == "FAILFAST" and "timestamp" in others.get("where", ""):
        options["where"] = "offset > 0"
    assert count_records(root, **options) == read_table(root, **options).num_rows


def test_bounds_and_conditions_on_offsets_cut_batches(tmp_path):
    write_partition(tmp_path, segments=2, batches=100)
    bounds = {"starting_offsets": {"events": {"0": 1}}, "ending_offsets": {"events": {"0": 798}}}
    assert count_records(tmp_path) == 2 * 100 * RECORDS
    assert count_records(tmp_path, columns=["value"], **bounds) == 797
    assert count_records(tmp_path, where="offset > 0 AND offset < 798") == 797


def test_a_batch_that_is_read_for_its_count_does_not_look_like_one_of_another_log(tmp_path, caplog):
    holed_batch = [record(delta, 0, None, b"v") for delta in (0, 3, 9)]
    first = batch(0, holed_batch, last_offset_delta=9, leader_epoch=1)
    write_copy(tmp_path, {0: {0: first, **batches(10, 30, epoch=2)}}, epochs=[(1, 0), (2, 10)], end=30)
    bounds = {"starting_offsets": {"orders": {"0": 3}}}
    with caplog.at_level("WARNING"):
        assert count_records(tmp_path, **bounds) == read_table(tmp_path, **bounds).num_rows == 22
    assert caplog.messages == []


def large_batches(log):
    return log.values(3, b"x" * 100_000).values(3, b"x" * 100_000).values(3, b"x" * 100_000).write()


def test_large_batches_are_hopped_over(log_root):
    log = large_batches(log_root.mark_clean().rows())
    filesystem = FileSystem()
    where = "offset >= 1 AND partition = 0"
    assert (
        count_records(log.path, filesystem=filesystem, where=where, ending_offsets={"events": {"0": 8}}) == 7
    )
    # The plan checks the last one.
    assert filesystem.statistics.bytes_read < 400_000 < log.log_path().stat().st_size / 2


def test_a_damaged_record_is_counted_and_not_read(log_root):
    log = large_batches(log_root.rows())
    data = bytearray(log.log_path().read_bytes())
    data[500] ^= 1
    log.log_path().write_bytes(data)

    assert count_records(log.path) == 9
    with pytest.raises(CorruptRecordError):
        read_table(log.path)
    with pytest.raises(CorruptRecordError):
        count_records(log.path, where="key IS NULL")
    assert count_records(log.path, mode="DROPMALFORMED") == 6
    assert count_records(log.path, mode="PERMISSIVE") == 7


def test_damage_that_headers_show_fails_the_count(log_root):
    log = large_batches(log_root.rows())
    data = bytearray(log.log_path().read_bytes())
    data[len(data) // 3 + 8] ^= 0x40
    log.log_path().write_bytes(data)
    with pytest.raises(CorruptRecordError):
        count_records(log.path)


@pytest.mark.parametrize("count", [0, -1, 4, 2**31 - 1])
def test_a_header_that_counts_more_records_than_offsets_is_not_believed(log_root, count):
    log = log_root.rows().values(3).write()
    data = bytearray(log.log_path().read_bytes())
    data[57:61] = struct.pack(">i", count)
    data[17:21] = struct.pack(">I", crc32c(bytes(data[21:])))
    log.log_path().write_bytes(data)
    if count:
        with pytest.raises(CorruptRecordError):
            count_records(log.path)
    else:
        assert count_records(log.path) == read_table(log.path).num_rows == 0


@pytest.mark.parametrize("codec", CODECS)
def test_a_header_that_counts_more_records_than_have_room_is_not_believed(log_root, codec):
    log = log_root.rows().values(3, codec=CODECS.index(codec)).write()
    data = bytearray(log.log_path().read_bytes())
    data[23:27] = struct.pack(">i", 2**31 - 2)
    data[57:61] = struct.pack(">i", 2**31 - 1)
    data[17:21] = struct.pack(">I", crc32c(bytes(data[21:])))
    log.log_path().write_bytes(data)
    for bounds in ({}, {"ending_offsets": {"events": {"0": 2}}}):
        with pytest.raises(CorruptRecordError):
            count_records(log.path, **bounds)


def test_copies_are_counted_as_one_log(tmp_path):
    write_copy(tmp_path / "a", {0: batches(0, 40)}, end=40)
    write_copy(tmp_path / "b", {0: batches(0, 40), 40: batches(40, 100)}, end=100)
    paths = [tmp_path / "a", tmp_path / "b"]
    assert count_records(*paths) == read_table(*paths).num_rows == 100


@pytest.mark.parametrize(
    "view", [view for view in VIEWS if view not in ("records", "group_offsets", "schemas")]
)
def test_rows_of_a_view_are_counted(root, view):
    assert count_records(root, view=view) == read_table(root, view=view).num_rows
    where = "partition = 1"
    if view in ("batches", "segments", "index"):
        where = "offset > 20"
    assert count_records(root, view=view, where=where) == read_table(root, view=view, where=where).num_rows


@pytest.mark.parametrize("value_bytes", [10, 100_000])
def test_a_count_of_a_store_makes_no_more_requests_than_a_read(log_root, value_bytes):
    log = log_root.rows()
    for _ in range(100):
        log.values(1, b"v" * value_bytes)
    log.write()
    counting, reading = CountedStore(log_root.path), CountedStore(log_root.path)
    assert count_records(log.path, filesystem=counting) == 100
    assert read_table(log.path, filesystem=reading, columns=["offset"], threads=1).num_rows == 100
    assert len(counting.requests) <= len(reading.requests)
    assert counting.rounds <= reading.rounds


def test_options_are_those_of_a_read(root):
    with pytest.raises(OptionError, match="Did you mean 'subscribe'"):
        count_records(root, subscirbe="events")
