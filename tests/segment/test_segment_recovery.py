from __future__ import annotations

import itertools
import random
import struct
import tracemalloc
import zlib

import pytest

from storage_core.errors import BatchTooLargeError, CorruptRecordError, OffsetOverflowError
from storage_core.segment import AbortedTransaction, TimestampOffset
from storage_core.segment.segment_recovery import RecoveredSegment

TIMESTAMPS_MS = [5, 10, 7, -1, 30, 30, 8]


@pytest.fixture
def batches(make_batch):
    sizes = [1, 9, 40, 3, 3, 20, 1]
    return [
        make_batch(3 * n, (t,) * (1 + n % 3), value=b"x" * size)
        for n, (t, size) in enumerate(zip(TIMESTAMPS_MS, sizes, strict=True))
    ]


def next_offset_of(batch):
    return struct.unpack_from(">q", batch)[0] + struct.unpack_from(">i", batch, 23)[0] + 1


def check_files(folder, make_segment, batches, interval):
    expected = make_segment(0, batches, index_interval_bytes=interval)
    assert folder.bytes_of(".log") == expected.log
    assert folder.bytes_of(".index") == expected.offset_index_bytes
    assert folder.bytes_of(".timeindex") == expected.time_index_bytes


@pytest.mark.parametrize("interval", [0, 100, 4096])
def test_recovering_what_was_closed_cleanly_changes_nothing(folder, append, make_segment, batches, interval):
    segment = folder.create(index_interval_bytes=interval)
    append(segment, *batches)
    segment.close()
    names = folder.names
    recovered = folder.open(index_interval_bytes=interval).recover()
    assert recovered == RecoveredSegment(0, 19, len(b"".join(batches)), None)
    check_files(folder, make_segment, batches, interval)
    assert folder.names == names


@pytest.mark.parametrize(
    "indexes",
    [
        {},
        {".index": bytes(4096), ".timeindex": bytes(4092)},
        {".index": b"\xff" * 80, ".timeindex": b"\x11" * 121},
        {".index": struct.pack(">ii", 3, 999), ".timeindex": struct.pack(">qi", 2**50, 999)},
        {".index": b"abc", ".timeindex": b"", ".txnindex": b"x" * 40},
    ],
)
def test_indexes_are_built_anew_whatever_was_there(folder, make_segment, batches, indexes):
    folder.put(".log", b"".join(batches))
    for suffix, content in indexes.items():
        folder.put(suffix, content)
    segment = folder.open(index_interval_bytes=0)
    segment.recover()
    check_files(folder, make_segment, batches, 0)
    assert [segment.translate_offset(next_offset_of(b) - 1).size_bytes for b in batches] == list(
        map(len, batches)
    )
    assert segment.reader().offset_for_timestamp(20) == TimestampOffset(30, 12)
    assert (".txnindex" in folder.names) == (".txnindex" in indexes)
    if ".txnindex" in indexes:
        assert folder.bytes_of(".txnindex") == b""


def test_every_length_of_a_cut_off_log(folder, make_segment, batches):
    log = b"".join(batches)
    ends = list(itertools.accumulate(map(len, batches), initial=0))
    for length in range(len(log) + 1):
        folder.put(".log", log[:length])
        count = sum(end <= length for end in ends) - 1
        segment = folder.open(index_interval_bytes=100)
        recovered = segment.recover()
        next_offset = next_offset_of(batches[count - 1]) if count else 0
        assert recovered == RecoveredSegment(length - ends[count], next_offset, ends[count], None)
        check_files(folder, make_segment, batches[:count], 100)
        assert segment.read_next_offset() == next_offset
        assert segment.size_bytes == ends[count]


def test_every_flipped_byte_ends_the_log_before_its_batch(folder, make_segment, batches):
    log = b"".join(batches)
    ends = list(itertools.accumulate(map(len, batches), initial=0))
    for position in range(len(log)):
        number = sum(end <= position for end in ends) - 1
        # The CRC covers neither base offset nor leader epoch: a change there is noticed only if it breaks the order.
        if position - ends[number] < 8 or 12 <= position - ends[number] < 16:
            continue
        damaged = bytearray(log)
        damaged[position] ^= 0x81
        folder.put(".log", damaged)
        recovered = folder.open(index_interval_bytes=100).recover()
        assert recovered.truncated_bytes == len(log) - ends[number]
        check_files(folder, make_segment, batches[:number], 100)


def test_a_base_offset_out_of_order_ends_the_log(folder, make_batch, make_segment):
    batches = [make_batch(0), make_batch(5), make_batch(5), make_batch(9)]
    folder.put(".log", b"".join(batches))
    recovered = folder.open().recover()
    assert recovered.next_offset == 6
    assert "offsets from 6 on, found one from 5 to 5" in str(recovered.problem)
    check_files(folder, make_segment, batches[:2], 4096)


def test_a_base_offset_below_the_files_name_ends_the_log(folder, make_batch):
    folder.put(".log", make_batch(9), 10)
    assert folder.open(10).recover().next_offset == 10
    assert folder.bytes_of(".log", 10) == b""


@pytest.mark.parametrize(
    ("tail", "message"),
    [
        (bytes(5000), None),
        (bytes(10), None),
        (b"\1" * 17, None),
        (b"\7" * 300, "magic byte"),
        (struct.pack(">qi", 19, 20) + b"\0\0\0\0\2" + bytes(60), "at least 49 bytes, found 20"),
    ],
)
def test_what_comes_after_the_batches_is_cut_off(folder, make_segment, batches, tail, message):
    folder.put(".log", b"".join(batches) + tail)
    recovered = folder.open().recover()
    assert recovered.truncated_bytes == len(tail)
    assert message in str(recovered.problem) if message else recovered.problem is None
    check_files(folder, make_segment, batches, 4096)


def test_a_wrong_crc_is_named(folder, batches):
    log = bytearray(b"".join(batches))
    log[-1] ^= 1
    folder.put(".log", log)
    problem = folder.open().recover().problem
    assert isinstance(problem, CorruptRecordError)
    position = len(log) - len(batches[-1])
    assert (problem.position_bytes, problem.end_position_bytes) == (position, len(log))
    assert (problem.offset, problem.last_offset) == (18, 18)


def test_damage_at_random_places_of_a_large_segment(folder, make_batch, make_segment):
    chance = random.Random(3)
    batches = [make_batch(n, (n,), value=b"x" * chance.choice([10, 300, 40_000])) for n in range(600)]
    log = b"".join(batches)
    ends = list(itertools.accumulate(map(len, batches), initial=0))
    assert len(log) > 6_000_000
    for _ in range(5):
        number = chance.randrange(600)
        damaged = bytearray(log)
        damaged[chance.randrange(ends[number] + 16, ends[number + 1])] ^= 0x20
        folder.put(".log", damaged)
        assert folder.open().recover().next_offset == number
        check_files(folder, make_segment, batches[:number], 4096)


def test_nothing_is_changed_before_it_is_confirmed(folder, append, batches):
    segment = folder.create(index_interval_bytes=0)
    append(segment, *batches)
    segment.close_handlers()
    with open(segment.path, "ab") as file:
        file.write(b"\7" * 100)

    def content():
        return [folder.bytes_of(suffix) for suffix in (".log", ".index", ".timeindex")]

    before, found = content(), []

    def refuse(recovered):
        found.append(recovered)
        assert content() == before
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        folder.open().recover(confirm=refuse)
    assert content() == before
    assert [(each.truncated_bytes, each.next_offset) for each in found] == [(100, 19)]


def test_the_observer_sees_the_valid_batches_and_tells_of_aborts(folder, batches, monkeypatch):
    monkeypatch.setattr("storage_core.segment.batch_walk.WINDOW_BYTES", 200)
    damaged = bytearray(batches[5])
    damaged[-1] ^= 1
    folder.put(".log", b"".join(batches[:5]) + damaged + batches[6])
    folder.put(".txnindex", b"left over")
    seen = []

    def observe(window):
        offsets = window.headers["base_offset"].tolist()
        assert [window.header(number).base_offset for number in range(len(offsets))] == offsets
        assert len(window.starts) == len(offsets)
        seen.extend(offsets)
        return [AbortedTransaction(7, 0, offset, 0) for offset in offsets if offset == 6]

    segment = folder.open()
    segment.recover(observe)
    assert seen == [0, 3, 6, 9, 12]
    assert folder.bytes_of(".txnindex") == struct.pack(">hqqqq", 0, 7, 0, 6, 0)


@pytest.mark.parametrize("refused", [0, 1, 3])
def test_a_batch_that_the_observer_refuses_ends_the_log(folder, make_segment, batches, refused):
    """A marker that says nothing, under a right CRC."""
    folder.put(".log", b"".join(batches))
    seen = []

    def observe(window):
        headers = [window.header(number) for number in range(len(window.starts))]
        if len(headers) > refused:
            raise CorruptRecordError("no marker", position_bytes=headers[refused].position_bytes)
        seen.extend(header.base_offset for header in headers)

    recovered = folder.open(index_interval_bytes=0).recover(observe)
    assert seen == [0, 3, 6][:refused], "nothing twice"
    assert recovered.problem.args == ("no marker",)
    check_files(folder, make_segment, batches[:refused], 0)


def test_an_offset_that_does_not_fit_is_an_error_and_nothing_is_changed(folder, make_batch):
    log = make_batch(0) + make_batch(2**31)
    folder.put(".log", log)
    with pytest.raises(OffsetOverflowError, match=f"up to {2**31 - 1}.*found {2**31}") as caught:
        folder.open().recover()
    assert caught.value.position_bytes == len(log) // 2
    assert folder.bytes_of(".log") == log
    assert folder.names == [".log"]


@pytest.mark.parametrize("offset", [2**63 - 2, 2**63 - 1])
def test_nothing_follows_the_largest_offset(folder, make_batch, offset):
    last = make_batch(2**63 - 1)
    folder.put(".log", last + make_batch(offset), 2**63 - 2)
    recovered = folder.open(2**63 - 2).recover()
    assert (recovered.next_offset, recovered.end_position_bytes) == (2**63, len(last))
    assert "batches are out of order" in str(recovered.problem)


def test_a_batch_larger_than_a_window(folder, make_batch, make_segment):
    batches = [make_batch(0), make_batch(1, value=b"x" * (9 << 20)), make_batch(2)]
    folder.put(".log", b"".join(batches))
    assert folder.open().recover().next_offset == 3
    check_files(folder, make_segment, batches, 4096)


def test_a_batch_larger_than_any_that_is_read(folder, make_batch, monkeypatch):
    monkeypatch.setattr("storage_core.segment.log_segment.DEFAULT_MAX_BATCH_BYTES", 1 << 20)
    log = make_batch(0) + make_batch(1, value=b"x" * (5 << 20)) + make_batch(2)
    folder.put(".log", log)
    with pytest.raises(BatchTooLargeError, match=r"max\.message\.bytes"):
        folder.open().recover()
    assert folder.bytes_of(".log") == log
    assert folder.open(max_message_bytes=6 << 20).recover().next_offset == 3


def test_memory_does_not_grow_with_the_segment(folder, make_batch):
    batch = make_batch(0, (5,), value=b"x" * 16_000)
    with open(folder.path / "00000000000000000000.log", "wb") as file:
        file.writelines(struct.pack(">q", offset) + batch[8:] for offset in range(4000))
    segment = folder.open()
    tracemalloc.start()
    try:
        assert segment.recover().next_offset == 4000
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # The segment has 64 MB.
    assert peak_bytes < 8 << 20


def test_a_preallocated_segment_after_a_crash(folder, append, batches, make_segment):
    segment = folder.create(preallocate=True, internal_segment_bytes=10_000)
    append(segment, *batches)
    segment.close_handlers()
    assert len(folder.bytes_of(".log")) == 10_000
    recovered = folder.open(preallocate=True).recover()
    assert recovered.next_offset == 19
    assert recovered.problem is None
    check_files(folder, make_segment, batches, 4096)


def test_an_index_without_room_for_all_entries(folder, append, make_batch):
    batches = [make_batch(n, (n,)) for n in range(20)]
    append(folder.create(), *batches)
    segment = folder.open(index_interval_bytes=0, segment_index_bytes=48)
    assert segment.recover().next_offset == 20
    assert len(folder.bytes_of(".index")) == 48
    assert len(folder.bytes_of(".timeindex")) == 48
    assert segment.largest_timestamp == TimestampOffset(19, 19)


def test_appending_goes_on_after_recovery(folder, append, make_batch, make_segment):
    batches = [make_batch(n, (n,)) for n in range(12)]
    folder.put(".log", b"".join(batches[:6]) + b"torn")
    segment = folder.open(index_interval_bytes=100)
    segment.recover()
    segment.resize_indexes()
    append(segment, *batches[6:])
    segment.close()
    assert folder.bytes_of(".log") == b"".join(batches)
    assert segment.largest_timestamp == TimestampOffset(11, 11)
    assert segment.read_next_offset() == 12


def test_old_messages(folder):
    def message(offset, magic):
        body = (
            bytes([magic, 0])
            + (struct.pack(">q", offset) if magic else b"")
            + struct.pack(">ii", -1, 3)
            + b"abc"
        )
        return struct.pack(">qiI", offset, 4 + len(body), zlib.crc32(body)) + body

    messages = [message(n, n // 5) for n in range(10)]
    damaged = bytearray(messages[8])
    damaged[-1] ^= 1
    folder.put(".log", b"".join(messages[:8]) + damaged + messages[9])
    segment = folder.open(index_interval_bytes=50)
    recovered = segment.recover()
    assert recovered.next_offset == 8
    assert segment.largest_timestamp == TimestampOffset(7, 7)
    assert folder.bytes_of(".log") == b"".join(messages[:8])
    entries = [(2, 58), (4, 116), (6, 182)]
    assert folder.bytes_of(".index") == b"".join(struct.pack(">ii", *entry) for entry in entries)


# A broker's segment of two batches, limited to 200 bytes, with index.interval.bytes=50.
BROKER_LOG = bytes.fromhex(
    "00000000000000000000004000000000028b759e7500000000000000000000000000010000000000000001ffffffffffffffffffff"
    "ffffffff000000011c000000046b300c76616c756530000000000000000001000000400000000002fe60b178000000000000000000"
    "00000000020000000000000002ffffffffffffffffffffffffffff000000011c000000046b310c76616c75653100"
)


def test_the_recovery_scenario_of_a_broker(folder, make_batch):
    assert BROKER_LOG[:76] == make_batch(0, (1,), key=b"k0", value=b"value0")
    folder.put(".log", BROKER_LOG)
    segment = folder.open(index_interval_bytes=50)
    assert segment.recover().next_offset == 2
    assert folder.bytes_of(".index") == bytes.fromhex("000000010000004c")
    assert folder.bytes_of(".timeindex") == bytes.fromhex("000000000000000200000001")

    third = make_batch(2, (3,), key=b"k2", value=b"value2")
    fourth = bytearray(make_batch(3, (4,), key=b"k3", value=b"value3"))
    fourth[-4] ^= 0xFF
    folder.put(".log", third + fourth, 2)
    active = folder.open(2, index_interval_bytes=50)
    recovered = active.recover()
    assert (recovered.truncated_bytes, recovered.next_offset) == (76, 3)
    active.resize_indexes()
    assert folder.bytes_of(".log", 2) == third
    assert folder.bytes_of(".index", 2) == bytes(10485760)
    assert folder.bytes_of(".timeindex", 2) == bytes.fromhex("000000000000000300000000") + bytes(
        10485756 - 12
    )
