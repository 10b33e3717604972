from __future__ import annotations

import pytest

from storage_core.compaction.cleaner import source_windows
from storage_core.errors import BatchTooLargeError, CorruptRecordError
from tests.compaction.segments import open_segment
from tests.record.encoding import Batch, Record
from tests.record.legacy_encoding import Message

BATCHES = [Batch((Record(0), Record(2)), base_offset=base).encode() for base in (10, 13, 20)]


def read(segment, start_position_bytes=0, **options):
    """Return what the windows hold, byte by byte, and the last offset of each batch."""
    found, last_offsets = b"", []
    for window in source_windows(segment, start_position_bytes, **options):
        found += window.buffer[: window.end].tobytes()
        last_offsets += window.last_offsets.tolist()
    return found, last_offsets


def test_all_batches_are_read(tmp_path):
    assert read(open_segment(tmp_path, b"".join(BATCHES), 10)) == (b"".join(BATCHES), [12, 15, 22])


def test_windows_may_be_smaller_than_a_batch(tmp_path):
    segment = open_segment(tmp_path, b"".join(BATCHES), 10)
    assert read(segment, window_bytes=10) == (b"".join(BATCHES), [12, 15, 22])


def test_reading_begins_at_a_boundary(tmp_path):
    segment = open_segment(tmp_path, b"".join(BATCHES), 10)
    assert read(segment, len(BATCHES[0])) == (b"".join(BATCHES[1:]), [15, 22])


def test_an_empty_segment_has_no_batches(tmp_path):
    assert read(open_segment(tmp_path, b"")) == (b"", [])


def test_messages_of_old_formats_are_batches(tmp_path):
    messages = [Message(3).encode(), Message(5, magic=0).encode(), Batch((Record(),), base_offset=6).encode()]
    assert read(open_segment(tmp_path, b"".join(messages))) == (b"".join(messages), [3, 5, 6])


@pytest.mark.parametrize("window_bytes", [100, 1 << 20])
@pytest.mark.parametrize("position", [21, 40, -1])
def test_a_wrong_checksum_is_damage(tmp_path, position, window_bytes):
    damaged = bytearray(BATCHES[1])
    damaged[position] ^= 1
    segment = open_segment(tmp_path, BATCHES[0] + damaged + BATCHES[2], 10)
    with pytest.raises(CorruptRecordError, match="with the CRC in its header") as raised:
        read(segment, window_bytes=window_bytes)
    assert raised.value.position_bytes == len(BATCHES[0])
    assert raised.value.end_position_bytes == len(BATCHES[0] + BATCHES[1])


@pytest.mark.parametrize(
    ("content", "position"),
    [
        (BATCHES[0] + BATCHES[1][:-1], len(BATCHES[0])),
        (BATCHES[0] + BATCHES[1][:10], len(BATCHES[0])),
        (BATCHES[0] + bytes(100), len(BATCHES[0])),
        (BATCHES[0] + b"\0", len(BATCHES[0])),
        (BATCHES[0] + b"garbage of any kind" * 10, len(BATCHES[0])),
        # A length beyond the end of the file.
        (BATCHES[0] + BATCHES[1][:8] + b"\x7f\xff\xff\xff" + BATCHES[1][12:], len(BATCHES[0])),
        (b"\0" * 61, 0),
    ],
    ids=["torn", "torn header", "zeros", "one byte", "garbage", "length", "nothing else"],
)
def test_bytes_that_are_no_batch_are_damage(tmp_path, content, position):
    with pytest.raises(CorruptRecordError) as raised:
        read(open_segment(tmp_path, content, 10))
    assert raised.value.position_bytes == position


@pytest.mark.parametrize(
    ("batches", "found"),
    [
        ([BATCHES[1], BATCHES[0]], "from 16 on, found one with offsets 10 to 12"),
        ([BATCHES[0], BATCHES[0]], "from 13 on, found one with offsets 10 to 12"),
        ([Batch((Record(),), base_offset=9).encode()], "from 10 on, found one with offsets 9 to 9"),
        (
            [Batch((Record(),), base_offset=20, last_offset_delta=-1).encode()],
            "from 10 on, found one with offsets 20 to 19",
        ),
        (
            [Batch((Record(),), base_offset=2**63 - 1, last_offset_delta=1).encode()],
            f"from 10 on, found one with offsets {2**63 - 1} to {-(2**63)}",
        ),
    ],
)
@pytest.mark.parametrize("window_bytes", [80, 1 << 20])
def test_batches_out_of_order_are_damage(tmp_path, batches, found, window_bytes):
    with pytest.raises(CorruptRecordError, match=found):
        read(open_segment(tmp_path, b"".join(batches), 10), window_bytes=window_bytes)


def test_a_batch_above_every_bound_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("storage_core.segment.log_segment.DEFAULT_MAX_BATCH_BYTES", 0)
    segment = open_segment(tmp_path, b"".join(BATCHES), 10, max_message_bytes=50)
    with pytest.raises(BatchTooLargeError, match=r"at most 62 bytes.*max\.message\.bytes"):
        read(segment, window_bytes=50)
