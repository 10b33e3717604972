"""Logs that began in message format v0 or v1."""

from __future__ import annotations

import pytest

from storage_core.segment import TimestampOffset
from tests.record.legacy_encoding import GZIP, LOG_APPEND_TIME, LZ4, Message, Wrapper

OLD_MS, NEW_MS = 1_500_000_000_000, 1_600_000_000_000


def plain(*offsets, magic=0, timestamp_ms=-1):
    return b"".join(Message(offset, timestamp_ms, None, b"v", magic).encode() for offset in offsets)


def wrapper(*offsets, magic=1, timestamp_ms=NEW_MS, append_time_ms=None, codec=GZIP):
    messages = tuple(Message(offset, timestamp_ms + offset, None, b"v", magic) for offset in offsets)
    attributes = 0 if append_time_ms is None else LOG_APPEND_TIME
    return Wrapper(messages, codec, magic, None, append_time_ms, attributes).encode()


@pytest.fixture
def upgraded(make_partition, make_batch, set_modified):
    """Three segments, of v0, of v1 and of v2: offsets 0 to 9, 10 to 19 and 20 to 24."""
    directory = make_partition(
        segments={
            0: plain(0, 1, 2) + wrapper(3, 4, 9, magic=0, codec=LZ4),
            10: wrapper(10, 11, 14) + plain(15, magic=1, timestamp_ms=NEW_MS) + wrapper(16, 19),
            20: make_batch(20, [NEW_MS + 100 + number for number in range(5)]),
        }
    )
    set_modified(directory / f"{0:020d}.log", OLD_MS)
    return directory


@pytest.mark.parametrize("use_indexes", [True, False])
def test_a_log_that_has_grown_through_all_formats(upgraded, load, use_indexes):
    log = load(upgraded, use_indexes=use_indexes)
    assert (log.log_start_offset, log.log_end_offset) == (0, 25)
    reached = [log.first_batch_at_or_after(offset)[1].last_offset for offset in (0, 3, 8, 9, 12, 15, 17, 20)]
    assert reached == [0, 9, 9, 9, 14, 15, 19, 24]


@pytest.mark.parametrize(
    ("entries", "end"),
    [
        pytest.param(plain(5, 7), 8, id="v0"),
        pytest.param(plain(5, 6, magic=1), 7, id="v1"),
        pytest.param(wrapper(5, 11, magic=0), 12, id="v0 wrapper"),
        pytest.param(wrapper(5, 11), 12, id="v1 wrapper"),
    ],
)
@pytest.mark.parametrize("tail", [0, 17, 25, 5000])
def test_a_log_ends_after_its_last_message(make_partition, load, entries, end, tail):
    directory = make_partition(segments={0: plain(0, 1), 2: entries + bytes(tail)})
    assert load(directory).log_end_offset == end


@pytest.mark.parametrize("cut", [1, 10, 30])
def test_a_torn_message_is_no_part_of_the_log(make_partition, load, cut):
    entries = wrapper(5, 11) + Message(12, NEW_MS, None, bytes(20)).encode()
    directory = make_partition(segments={0: entries[:-cut]})
    log = load(directory)
    assert log.log_end_offset == 12
    assert log.offset_for_timestamp(NEW_MS + 11) == TimestampOffset(NEW_MS + 11, 11)


@pytest.mark.parametrize(
    ("timestamp_ms", "expected"),
    [
        # The search ends at a segment without timestamps whose file is young enough.
        (OLD_MS - 5, None),
        (OLD_MS, None),
        (OLD_MS + 1, TimestampOffset(NEW_MS + 10, 10)),
        (NEW_MS + 11, TimestampOffset(NEW_MS + 11, 11)),
        (NEW_MS + 12, TimestampOffset(NEW_MS + 14, 14)),
        (NEW_MS + 15, TimestampOffset(NEW_MS + 16, 16)),
        (NEW_MS + 19, TimestampOffset(NEW_MS + 19, 19)),
        (NEW_MS + 20, TimestampOffset(NEW_MS + 100, 20)),
        (NEW_MS + 105, None),
    ],
)
@pytest.mark.parametrize("skip_damage", [True, False])
@pytest.mark.parametrize("is_clean", [True, False])
def test_a_segment_without_timestamps_is_as_old_as_its_file(
    upgraded, load, make_clean, timestamp_ms, expected, is_clean, skip_damage
):
    if is_clean:
        make_clean(upgraded.parent)
    assert load(upgraded, skip_damage=skip_damage).offset_for_timestamp(timestamp_ms) == expected


def test_a_log_start_within_a_wrapper(upgraded, load):
    checkpoint = upgraded.parent / "log-start-offset-checkpoint"
    checkpoint.write_text("0\n1\norders 0 12\n")
    log = load(upgraded)
    assert log.log_start_offset == 12
    assert log.offset_for_timestamp(NEW_MS) == TimestampOffset(NEW_MS + 14, 14)


def test_append_times_hold_for_all_messages_of_a_wrapper(make_partition, load):
    directory = make_partition(segments={0: wrapper(0, 1, 2, append_time_ms=NEW_MS)})
    log = load(directory)
    assert log.offset_for_timestamp(OLD_MS) == TimestampOffset(NEW_MS, 0)
    assert log.offset_for_timestamp(NEW_MS + 1) is None
