from __future__ import annotations

import struct

import pytest
from crc32c import crc32c

from storage_core.checkpoint import EpochEntry, ProducerStateEntry
from storage_core.directory import ProducerSnapshot
from storage_core.directory import partition_log as segments
from storage_core.errors import CorruptCheckpointError, CorruptRecordError, DataLossError, UnreadableError
from storage_core.filesystem import FileSystem
from storage_core.segment.file_names import TimestampOffset
from tests.faults.observed_filesystem import refusing

EMPTY_SNAPSHOT = bytes.fromhex("000148674bc700000000")


def checkpoint(root, name, offset):
    (root / f"{name}-offset-checkpoint").write_text(f"0\n1\norders 0 {offset}\n")


@pytest.fixture
def two_segments(make_partition, make_batch):
    """Offsets 0 to 4 (timestamps 100 to 104) and 5 to 9 (timestamps 205 to 209), two batches each."""
    return make_partition(
        segments={
            0: make_batch(0, [100, 101]) + make_batch(2, [102, 103, 104]),
            5: make_batch(5, [205, 206]) + make_batch(7, [207, 208, 209]),
        }
    )


def test_the_offsets_that_bound_a_log(two_segments, load):
    log = load(two_segments)
    assert (log.topic, log.partition, log.path) == ("orders", 0, str(two_segments))
    assert log.log_start_offset == 0
    assert log.log_end_offset == 10
    assert log.high_watermark is None
    assert log.recovery_point == 0
    assert not log.is_clean
    assert log.topic_id is None
    assert log.leader_epochs == ()


def test_offsets_in_the_roots_files(two_segments, load, make_clean):
    root = two_segments.parent
    make_clean(root)
    checkpoint(root, "recovery-point", 7)
    checkpoint(root, "log-start", 3)
    checkpoint(root, "replication", 8)
    log = load(two_segments)
    assert log.is_clean
    assert (log.recovery_point, log.log_start_offset, log.high_watermark) == (7, 3, 8)


def test_a_log_that_is_opened_while_it_is_listed(two_segments, load, make_clean):
    """A segment gets its final name during the first listing, which misses it."""
    make_clean(two_segments.parent)
    marker = two_segments.parent / ".kafka_cleanshutdown"

    class Opened(FileSystem):
        def walk_directory(self, path):
            is_listed_before = not marker.exists()
            for entry in super().walk_directory(path):
                if path != str(two_segments) or is_listed_before or not entry.name.startswith(f"{5:020d}"):
                    yield entry
            if path == str(two_segments):
                marker.unlink(missing_ok=True)

    assert tuple(load(two_segments, filesystem=Opened()).segments.base_offsets) == (0, 5)


@pytest.mark.parametrize(("checkpointed", "expected"), [(0, 3), (3, 3), (8, 8), (10, 10), (99, 10)])
def test_the_high_watermark_lies_within_the_log(two_segments, load, checkpointed, expected):
    checkpoint(two_segments.parent, "log-start", 3)
    checkpoint(two_segments.parent, "replication", checkpointed)
    assert load(two_segments).high_watermark == expected


def test_a_corrupt_high_watermark_matters_only_if_it_is_needed(two_segments, load):
    (two_segments.parent / "replication-offset-checkpoint").write_text("garbage")
    log = load(two_segments)
    assert log.log_end_offset == 10
    with pytest.raises(CorruptCheckpointError):
        _ = log.high_watermark


@pytest.mark.parametrize(("checkpointed", "expected"), [(0, 5), (5, 5), (6, 6)])
def test_the_log_starts_at_its_first_segment_or_higher(
    make_partition, make_batch, load, checkpointed, expected
):
    directory = make_partition(segments={5: make_batch(5, [1, 2])})
    checkpoint(directory.parent, "log-start", checkpointed)
    assert load(directory).log_start_offset == expected


@pytest.mark.parametrize(
    ("base_offsets", "log_start", "expected"),
    [
        ([], None, (0, 0)),
        ([], 7, (7, 7)),
        ([0], None, (0, 0)),
        ([42], None, (42, 42)),
        ([42], 7, (42, 42)),
        ([10, 42], None, (10, 42)),
    ],
)
def test_empty_logs(make_partition, load, base_offsets, log_start, expected):
    directory = make_partition(
        segments=dict.fromkeys(base_offsets, b""), files={"leader-epoch-checkpoint": "0\n0\n"}
    )
    if log_start is not None:
        checkpoint(directory.parent, "log-start", log_start)
    log = load(directory)
    assert (log.log_start_offset, log.log_end_offset) == expected
    assert log.first_batch_at_or_after(expected[0]) is None
    assert log.offset_for_timestamp(0) is None


def test_an_empty_active_segment(make_partition, make_batch, load):
    log = load(make_partition(segments={0: make_batch(0, [1, 2, 3]), 3: b""}))
    assert log.log_end_offset == 3


def test_a_log_that_ends_below_its_start_is_empty(two_segments, load):
    checkpoint(two_segments.parent, "log-start", 20)
    checkpoint(two_segments.parent, "replication", 8)
    log = load(two_segments)
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (20, 20, 20)
    assert log.first_batch_at_or_after(20) is None
    assert log.offset_for_timestamp(0) is None


@pytest.mark.parametrize("cut_bytes", [1, 30, 60, 61, 75])
def test_a_torn_tail_is_not_part_of_the_log(make_partition, make_batch, load, cut_bytes):
    whole = make_batch(0, [100, 101]) + make_batch(2, [102])
    torn = make_batch(3, [999], value=b"0123456789")
    log = load(make_partition(segments={0: whole + torn[:-cut_bytes]}))
    assert log.log_end_offset == 3
    assert log.segments[-1].size_bytes == len(whole)
    assert log.first_batch_at_or_after(3) is None
    assert log.offset_for_timestamp(103) is None
    assert log.offset_for_timestamp(102) == TimestampOffset(102, 2)


def test_a_bad_last_batch_is_not_part_of_the_log(make_partition, make_batch, load):
    whole = make_batch(0, [100, 101])
    log = load(make_partition(segments={0: whole + make_batch(2, [999])[:-1] + b"x"}))
    assert log.log_end_offset == 2
    assert log.first_batch_at_or_after(2) is None
    assert log.offset_for_timestamp(500) is None


def test_a_preallocated_tail_is_not_part_of_the_log(make_partition, make_batch, load):
    whole = make_batch(0, [100, 101])
    log = load(make_partition(segments={0: whole + bytes(5000)}))
    assert log.log_end_offset == 2
    assert log.segments[-1].size_bytes == len(whole)


def test_damage_before_a_valid_batch_is_an_error(make_partition, make_batch, load):
    damaged = make_batch(0, [100, 101])
    damaged = damaged[:8] + b"\0\0\0\1" + damaged[12:]
    log = load(make_partition(segments={0: damaged + make_batch(2, [102])}))
    with pytest.raises(CorruptRecordError):
        _ = log.log_end_offset


def test_the_view_stays_while_a_broker_appends(two_segments, make_batch, load):
    log = load(two_segments)
    assert log.log_end_offset == 10
    with (two_segments / "00000000000000000005.log").open("ab") as file:
        file.write(make_batch(10, [310]))
    assert log.log_end_offset == 10
    assert log.first_batch_at_or_after(10) is None
    assert log.offset_for_timestamp(300) is None
    assert load(two_segments).log_end_offset == 11


@pytest.mark.parametrize(
    ("offset", "index"), [(-1, None), (0, 0), (4, 0), (5, 1), (9, 1), (10, 1), (2**63 - 1, 1)]
)
def test_segment_index_for(two_segments, load, offset, index):
    assert load(two_segments).segment_index_for(offset) == index


def test_segment_index_for_in_an_empty_directory(make_partition, load):
    assert load(make_partition()).segment_index_for(0) is None


@pytest.mark.parametrize(
    ("offset", "segment_base", "batch_base"),
    [(-1, 0, 0), (0, 0, 0), (1, 0, 0), (2, 0, 2), (4, 0, 2), (5, 5, 5), (7, 5, 7), (9, 5, 7)],
)
def test_first_batch_at_or_after(two_segments, load, offset, segment_base, batch_base):
    segment, header = load(two_segments).first_batch_at_or_after(offset)
    assert (segment.base_offset, header.base_offset) == (segment_base, batch_base)


def test_first_batch_at_or_after_the_log_end(two_segments, load):
    assert load(two_segments).first_batch_at_or_after(10) is None


def test_the_first_batch_after_a_gap_is_in_a_later_segment(make_partition, make_batch, load):
    log = load(make_partition(segments={0: make_batch(0, [1]), 5: b"", 9: make_batch(20, [2])}))
    for offset in (1, 5, 9, 20):
        segment, header = log.first_batch_at_or_after(offset)
        assert (segment.base_offset, header.base_offset) == (9, 20)


@pytest.mark.parametrize(
    ("timestamp_ms", "expected"),
    [
        (-1, (100, 0)),
        (0, (100, 0)),
        (100, (100, 0)),
        (101, (101, 1)),
        (104, (104, 4)),
        (105, (205, 5)),
        (209, (209, 9)),
        (210, None),
    ],
)
def test_offset_for_timestamp(two_segments, load, timestamp_ms, expected):
    found = load(two_segments).offset_for_timestamp(timestamp_ms)
    assert found == (None if expected is None else TimestampOffset(*expected))


def test_a_lookup_returns_the_lowest_offset_not_the_lowest_timestamp(make_partition, make_batch, load):
    log = load(make_partition(segments={0: make_batch(0, [50, 300, 200, 100])}))
    assert log.offset_for_timestamp(90) == TimestampOffset(300, 1)


@pytest.mark.parametrize(
    ("limit_offset", "expected"), [(None, (207, 7)), (10, (207, 7)), (8, (207, 7)), (7, None), (0, None)]
)
def test_an_offset_at_the_limit_is_not_returned(two_segments, load, limit_offset, expected):
    found = load(two_segments).offset_for_timestamp(207, limit_offset)
    assert found == (None if expected is None else TimestampOffset(*expected))


def test_the_log_start_is_honoured_by_timestamp(two_segments, load):
    checkpoint(two_segments.parent, "log-start", 3)
    assert load(two_segments).offset_for_timestamp(0) == TimestampOffset(103, 3)


def test_a_segment_below_the_log_start_is_not_searched(two_segments, load):
    checkpoint(two_segments.parent, "log-start", 5)
    log = load(two_segments)
    assert log.offset_for_timestamp(104) == log.offset_for_timestamp(105) == TimestampOffset(205, 5)


def test_a_segment_without_timestamps_is_as_old_as_its_file(make_partition, make_batch, load, set_modified):
    directory = make_partition(segments={0: make_batch(0, [-1, -1]), 2: make_batch(2, [500])})
    set_modified(directory / "00000000000000000000.log", 400)
    log = load(directory)
    assert log.offset_for_timestamp(400) is None
    assert log.offset_for_timestamp(401) == TimestampOffset(500, 2)


def test_files_of_the_partition(make_partition, load):
    log = load(
        make_partition(
            segments={0: b""},
            files={
                "partition.metadata": "version: 0\ntopic_id: wFqg4oNsJ1B1z71xLHGZAw",
                "leader-epoch-checkpoint": "0\n2\n3 0\n4 5\n",
            },
        )
    )
    assert log.topic_id == "wFqg4oNsJ1B1z71xLHGZAw"
    assert log.leader_epochs == (EpochEntry(3, 0), EpochEntry(4, 5))


def snapshot(producer_id):
    body = struct.pack(">iqhiqiqiq", 1, producer_id, 0, 0, 0, 0, 1, 7, -1)
    return struct.pack(">hI", 1, crc32c(body)) + body


def snapshot_names(*offsets):
    return {f"{offset:020d}.snapshot": snapshot(offset) for offset in offsets}


@pytest.mark.parametrize(
    ("offsets", "log_start", "up_to_offset", "expected"),
    [
        ([], 0, None, None),
        ([5, 10], 0, None, 10),
        ([5, 10], 0, 9, 5),
        ([5, 10], 0, 4, None),
        # Beyond the log end, from before a crash.
        ([5, 11], 0, None, 5),
        # At or below the log start.
        ([5], 5, None, None),
        ([5], 4, None, 5),
        # One that is no segment's base offset counts only as the newest, and not below the last segment.
        ([5, 7, 10], 0, 9, 5),
        ([3], 0, None, None),
        ([7], 0, None, 7),
    ],
)
def test_the_newest_producer_snapshot(two_segments, load, offsets, log_start, up_to_offset, expected):
    for name, content in snapshot_names(*offsets).items():
        (two_segments / name).write_bytes(content)
    checkpoint(two_segments.parent, "log-start", log_start)
    found = load(two_segments).newest_producer_snapshot(up_to_offset)
    if expected is None:
        assert found is None
    else:
        assert found == ProducerSnapshot(expected, (ProducerStateEntry(expected, 0, 0, 0, 0, 1, 7, None),))


def test_an_older_snapshot_replaces_a_corrupt_one(two_segments, load, caplog):
    (two_segments / "00000000000000000005.snapshot").write_bytes(EMPTY_SNAPSHOT)
    (two_segments / "00000000000000000010.snapshot").write_bytes(EMPTY_SNAPSHOT[:-1])
    assert load(two_segments).newest_producer_snapshot() == ProducerSnapshot(5, ())
    assert "00000000000000000010.snapshot" in caplog.text


def test_swaps_left_from_a_crash_are_read(make_partition, make_batch, load, make_clean):
    directory = make_partition(
        segments={0: make_batch(0, [100, 101]), 2: make_batch(2, [102]), 3: make_batch(3, [103])},
        files={"00000000000000000000.log.swap": make_batch(1, [101, 102])},
    )
    make_clean(directory.parent)
    log = load(directory)
    assert [segment.base_offset for segment in log.segments] == [0, 3]
    assert log.segments[0].log_path.endswith(".log.swap")
    _, header = log.first_batch_at_or_after(0)
    assert (header.base_offset, header.last_offset) == (1, 2)
    assert log.offset_for_timestamp(0) == TimestampOffset(101, 1)
    assert log.log_end_offset == 4


def test_a_swap_that_gets_its_name_after_the_listing(make_partition, make_batch, load, make_clean):
    directory = make_partition(
        segments={3: make_batch(3, [103])}, files={"00000000000000000000.log.swap": make_batch(0, [100])}
    )
    make_clean(directory.parent)
    log = load(directory)
    (directory / "00000000000000000000.log.swap").rename(directory / "00000000000000000000.log")
    assert log.first_batch_at_or_after(0)[1].base_offset == 0


def test_a_segment_that_retention_renames_after_the_listing(two_segments, load):
    log = load(two_segments)
    path = two_segments / "00000000000000000000.log"
    path.rename(two_segments / "00000000000000000000.log.deleted")
    segment, header = log.first_batch_at_or_after(2)
    assert segment.log_path.endswith("00000000000000000000.log.deleted")
    assert header.base_offset == 2
    assert log.offset_for_timestamp(0) == TimestampOffset(100, 0)


def test_a_segment_that_a_cleaner_replaces_after_the_listing(two_segments, make_batch, load):
    log = load(two_segments)
    assert log.segments[0].size_bytes > 0
    path = two_segments / "00000000000000000000.log"
    path.rename(two_segments / "00000000000000000000.log.deleted")
    path.write_bytes(make_batch(3, [103]))
    _, header = log.first_batch_at_or_after(0)
    assert header.base_offset == 3


def test_a_segment_that_is_gone(two_segments, load):
    log = load(two_segments)
    (two_segments / "00000000000000000000.log").unlink()
    with pytest.raises(DataLossError, match="Read again"):
        log.first_batch_at_or_after(0)
    assert log.log_end_offset == 10


def test_an_unlistable_directory(two_segments, load):
    with pytest.raises(UnreadableError, match="orders-0"):
        load(two_segments, filesystem=refusing(two_segments))


def test_loading_opens_no_file_and_examines_no_segment(two_segments, load, make_clean):
    make_clean(two_segments.parent)
    filesystem = FileSystem()
    log = load(two_segments, filesystem=filesystem)
    assert log.segments[log.segment_index_for(7)].base_offset == 5
    assert filesystem.statistics.directories_listed == 1
    assert filesystem.statistics.files_opened == 0
    # The list of truncations, two checkpoints, and the clean-shutdown marker before and after the listing.
    assert filesystem.statistics.files_examined == 5


def test_segments_are_made_once(two_segments, load):
    log = load(two_segments)
    assert log.segments[0] is log.segments[-2]
    assert log.segments[1] is log.segments[log.segment_index_for(9)]
    assert [segment.base_offset for segment in log.segments] == [0, 5]
    assert [segment.base_offset for segment in log.segments[1:]] == [5]
    assert len(log.segments) == 2
    with pytest.raises(IndexError):
        _ = log.segments[2]


def test_options_reach_the_segments(two_segments, load):
    segment = load(two_segments, use_indexes=False, max_batch_bytes=1000).segments[0]
    assert not segment.use_indexes
    assert segment.max_batch_bytes == 1000


def test_only_some_of_very_many_segments_are_held(make_partition, make_batch, load, monkeypatch):
    """The last one always is, because its end was determined once."""
    monkeypatch.setattr(segments, "_MOST_OPENED", 3)
    batches = {offset: make_batch(offset, [100, 101]) for offset in range(0, 20, 2)}
    log = load(make_partition(segments=batches))
    assert log.log_end_offset == 20
    last = log.segments[-1]
    first = log.segments[0]
    assert log.segments[0] is first
    for index in range(1, 9):
        assert log.segments[index].base_offset == 2 * index
    assert log.segments[0] is not first
    assert log.segments[-1] is last
    assert [segment.base_offset for segment in log.segments] == list(range(0, 20, 2))
    assert log.segments.reopen(4) is log.segments[4]
    assert log.segments[-1] is last
