from __future__ import annotations

import contextlib
import os
import struct
import tracemalloc

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from storage_core.errors import BatchTooLargeError, CorruptRecordError, DataLossError
from storage_core.filesystem import FileSystem
from storage_core.segment.batch_walk import BatchWalk, read_batch
from tests.examples import examples
from tests.record.legacy_encoding import GZIP, Message, Wrapper, plain_messages

# Written by a broker, one after the other: the three batches below and two markers (see EXPECTED).
TRANSACTION_LOG = bytes.fromhex(
    "0000000000000000000000430000000302ac05cfd800100000000100000000000000010000000000000002000000000000000100"
    "00000000000000000210000000026102310010000202026202320000000000000000020000003a00000003026d9705ac00100000"
    "00000000000000000003000000000000000300000000000000020000000000000000000110000000026302330000000000000000"
    "030000003f0000000302207c5be200000000000000000000000000040000000000000004ffffffffffffffffffffffffffff0000"
    "00011a000000026e0c6e6f6e74786e000000000000000004000000420000000302c82feab2003000000000000000000000000500"
    "0000000000000500000000000000020000ffffffff000000012000000008000000000c0000000000070000000000000000050000"
    "004200000004022b6577d20030000000000000000000000006000000000000000600000000000000010000ffffffff0000000120"
    "00000008000000010c00000000000700"
)
# (position, end, base offset, last offset, max timestamp)
EXPECTED = [
    (0, 79, 0, 1, 2),
    (79, 149, 2, 2, 3),
    (149, 224, 3, 3, 4),
    (224, 302, 4, 4, 5),
    (302, 380, 5, 5, 6),
]
EMPTY_BATCH = bytes.fromhex(
    "000000000000000f000000310000000f025d4e3d62000000000016ffffffffffffffff0000018bcfe568000000000000005b7f00"
    "91000003d700000000"
)


def test_batches_of_a_broker(open_walk):
    assert list(open_walk(TRANSACTION_LOG).iter_summaries()) == EXPECTED
    headers = list(open_walk(TRANSACTION_LOG).batches())
    assert [header.producer_id for header in headers] == [1, 2, -1, 2, 1]
    assert [header.leader_epoch for header in headers] == [3, 3, 3, 3, 4]
    assert [header.is_control for header in headers] == [False, False, False, True, True]
    assert [header.record_count for header in headers] == [2, 1, 1, 1, 1]


def test_an_empty_batch_is_walked_over(open_walk):
    assert list(open_walk(EMPTY_BATCH, base_offset=10).iter_summaries()) == [(0, 61, 15, 37, 1700000000000)]


@pytest.mark.parametrize("index", range(len(EXPECTED)))
def test_a_walk_may_begin_at_every_boundary(open_walk, index):
    walk = open_walk(TRANSACTION_LOG)
    assert list(walk.iter_summaries(EXPECTED[index][0])) == EXPECTED[index:]
    # Also backwards, with the block of another place in hand.
    assert list(walk.iter_summaries(0)) == EXPECTED


def test_a_torn_tail_ends_the_walk_at_each_byte(tmp_path):
    path = tmp_path / "0.log"
    for cut in range(len(TRANSACTION_LOG) + 1):
        whole = [batch for batch in EXPECTED if batch[1] <= cut]
        path.write_bytes(TRANSACTION_LOG[:cut])
        with FileSystem().open(str(path)) as log_file:
            assert list(BatchWalk(log_file, 0, cut).iter_summaries()) == whole
        path.write_bytes(TRANSACTION_LOG)
        with FileSystem().open(str(path)) as log_file:
            assert list(BatchWalk(log_file, 0, cut).iter_summaries()) == whole


@pytest.mark.parametrize("rest", [b"\xff", b"\xff" * 17])
def test_a_rest_too_short_to_tell_the_format_is_passed_over(open_walk, rest):
    assert list(open_walk(TRANSACTION_LOG + rest).iter_summaries()) == EXPECTED


@pytest.mark.parametrize("rest", [b"\xff" * 18, b"\xff" * 60, bytes(17) + b"\1"])
def test_a_rest_that_is_no_torn_batch_is_damage(open_walk, rest):
    with pytest.raises(CorruptRecordError) as caught:
        list(open_walk(TRANSACTION_LOG + rest).iter_summaries())
    assert caught.value.position_bytes == 380


@pytest.mark.parametrize("zeros", [1, 12, 17, 18, 60, 61, 62, 4096, 5000, 1_000_000])
def test_a_zero_tail_ends_the_walk(open_walk, zeros):
    assert list(open_walk(TRANSACTION_LOG + bytes(zeros)).iter_summaries()) == EXPECTED


def test_a_preallocated_tail_is_not_read(tmp_path):
    filesystem = FileSystem()
    path = tmp_path / "preallocated.log"
    path.write_bytes(TRANSACTION_LOG)
    os.truncate(path, 1 << 30)
    with filesystem.open(str(path)) as log_file:
        assert list(BatchWalk(log_file, 0, 1 << 30).iter_summaries()) == EXPECTED
    assert filesystem.statistics.bytes_read <= 16 * 1024


def test_zeros_with_something_after_them_are_damage(open_walk):
    walk = open_walk(TRANSACTION_LOG + bytes(100) + TRANSACTION_LOG)
    with pytest.raises(CorruptRecordError) as caught:
        list(walk.iter_summaries())
    assert caught.value.position_bytes == 380


@pytest.mark.parametrize(
    ("position", "value"),
    [
        pytest.param(16, b"\3", id="magic 3"),
        pytest.param(16, b"\xff", id="magic -1"),
        pytest.param(8, struct.pack(">i", 48), id="shorter than a header"),
        pytest.param(8, struct.pack(">i", 13), id="shorter than any message"),
        pytest.param(8, struct.pack(">i", 0), id="length 0 without zeros after it"),
        pytest.param(8, struct.pack(">i", -1), id="negative length"),
        pytest.param(8, struct.pack(">i", -(2**31)), id="smallest length"),
        pytest.param(23, struct.pack(">i", -1), id="negative last offset delta"),
        pytest.param(0, struct.pack(">q", 1), id="offset repeats"),
        pytest.param(0, struct.pack(">q", -1), id="offset below the base offset"),
        pytest.param(
            0, struct.pack(">q", 2**63 - 1) + struct.pack(">i", 58) + bytes(4) + b"\2" + bytes(9) + b"\1"
        ),
    ],
)
def test_damage_is_an_error_that_says_where(open_walk, position, value):
    content = bytearray(TRANSACTION_LOG)
    content[79 + position : 79 + position + len(value)] = value
    batches = open_walk(content).iter_summaries()
    assert next(batches) == EXPECTED[0]
    with pytest.raises(CorruptRecordError) as caught:
        next(batches)
    assert caught.value.position_bytes == 79
    assert caught.value.path.endswith(".log")


def test_an_offset_below_the_file_name_is_damage(open_walk):
    with pytest.raises(CorruptRecordError, match="from 1 on, as the file's name says"):
        list(open_walk(TRANSACTION_LOG, base_offset=1).iter_summaries())


@pytest.mark.parametrize("length", [302, 10_000, 2**31 - 1])
def test_a_length_beyond_the_end_is_not_read(tmp_path, length):
    content = TRANSACTION_LOG[:79] + struct.pack(">qi", 2, length) + TRANSACTION_LOG[91:]
    filesystem = FileSystem()
    path = tmp_path / "torn.log"
    path.write_bytes(content)
    with filesystem.open(str(path)) as log_file:
        assert list(BatchWalk(log_file, 0, len(content)).iter_summaries()) == EXPECTED[:1]
    assert filesystem.statistics.bytes_read == len(content)


def test_a_file_that_is_cut_while_it_is_read_ends_the_walk(tmp_path, make_batch):
    content = b"".join(make_batch(offset, value=bytes(1000)) for offset in range(100))
    path = tmp_path / "cut.log"
    path.write_bytes(content)
    with FileSystem().open(str(path)) as log_file:
        batches = BatchWalk(log_file, 0, len(content)).iter_summaries()
        next(batches)
        os.truncate(path, 30_000)
        assert len(list(batches)) < 30


def test_of_large_batches_only_headers_are_read(tmp_path, make_batch):
    content = b"".join(make_batch(offset, value=bytes(100_000)) for offset in range(50))
    filesystem = FileSystem()
    path = tmp_path / "large.log"
    path.write_bytes(content)
    with filesystem.open(str(path)) as log_file:
        assert len(list(BatchWalk(log_file, 0, len(content)).iter_summaries())) == 50
    assert filesystem.statistics.bytes_read <= 4096 + 49 * 61


def test_one_read_serves_many_small_batches(tmp_path, make_batch):
    content = b"".join(make_batch(offset) for offset in range(10_000))
    filesystem = FileSystem()
    path = tmp_path / "small.log"
    path.write_bytes(content)
    with filesystem.open(str(path)) as log_file:
        assert len(list(BatchWalk(log_file, 0, len(content)).iter_summaries())) == 10_000
    assert filesystem.statistics.reads <= 3 + len(content) // 60_000
    assert filesystem.statistics.bytes_read <= len(content) * 1.01


@pytest.mark.parametrize("offset", range(-1, 7))
def test_first_reaching(open_walk, offset):
    header = open_walk(TRANSACTION_LOG).first_reaching(offset, 0)
    expected = next((batch for batch in EXPECTED if batch[3] >= offset), None)
    assert (header and header.position_bytes) == (expected and expected[0])


@pytest.mark.parametrize("is_right", [True, False])
def test_a_large_batch_is_proven_without_holding_it(tmp_path, make_batch, is_right):
    """Nor what a damaged length says in a sparse file."""
    size = 48 << 20
    large = bytearray(make_batch(0, (1,))).ljust(size, b"\0")
    struct.pack_into(">i", large, 8, size - 12)
    struct.pack_into(">I", large, 17, crc32c(bytes(large[21:])) ^ (not is_right))
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(make_batch(0, (1,)) + large[:7] + b"\1" + large[8:] + make_batch(2, (1,)))
    del large
    with FileSystem().open(str(path)) as log_file:
        walk = BatchWalk(log_file, 0, path.stat().st_size)
        places = [batch[0] for batch in walk.iter_summaries()]
        tracemalloc.start()
        try:
            assert walk.is_proven(places[2], 0) == is_right
            assert tracemalloc.get_traced_memory()[1] < 16 << 20
        finally:
            tracemalloc.stop()


def test_batch_at(open_walk):
    walk = open_walk(TRANSACTION_LOG)
    assert walk.batch_at(149).base_offset == 3
    assert walk.batch_at(0).base_offset == 0
    assert walk.batch_at(380) is None
    # Beside a boundary, the length reads as one that reaches beyond the end.
    assert walk.batch_at(150) is None


@examples(60)
@given(
    shapes=st.lists(
        st.tuples(st.integers(0, 5), st.integers(0, 30), st.sampled_from([0, 1, 100, 3000, 5000, 70_000])),
        max_size=40,
    ),
    zeros=st.integers(0, 200),
    data=st.data(),
)
def test_a_walk_meets_what_was_written(tmp_path_factory, make_batch, make_segment, shapes, zeros, data):
    batches, offset = [], 5
    for gap, delta, size in shapes:
        offset += gap
        batches.append(
            make_batch(
                offset,
                (size, 7),
                offset_deltas=[0, delta + 1],
                last_offset_delta=delta + 2,
                value=bytes(size),
            )
        )
        offset += delta + 3
    segment = make_segment(5, batches)
    path = tmp_path_factory.mktemp("walk") / "5.log"
    path.write_bytes(segment.log + bytes(zeros))
    with FileSystem().open(str(path)) as log_file:
        walk = BatchWalk(log_file, 5, len(segment.log) + zeros)
        assert list(walk.iter_summaries()) == segment.batches
        headers = list(walk.batches())
        assert [header.position_bytes for header in headers] == [batch[0] for batch in segment.batches]
        assert [read_batch(log_file, header, 1 << 20) for header in headers] == batches
        if batches:
            start = data.draw(st.integers(0, len(batches) - 1))
            assert list(walk.iter_summaries(segment.batches[start][0])) == segment.batches[start:]


@given(content=st.binary(max_size=400))
def test_garbage_ends_or_raises(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("walk") / "0.log"
    path.write_bytes(content)
    with FileSystem().open(str(path)) as log_file:
        batches = BatchWalk(log_file, 0, len(content)).batches()
        with contextlib.suppress(CorruptRecordError):
            assert len(list(batches)) <= len(content) // 26


@pytest.fixture
def open_content(tmp_path):
    path = tmp_path / "content.log"

    def open_file(content):
        path.write_bytes(content)
        return FileSystem().open(str(path))

    return open_file


def test_read_batch_gives_the_whole_batch(open_content):
    with open_content(TRANSACTION_LOG) as log_file:
        for header in BatchWalk(log_file, 0, 380).batches():
            batch = read_batch(log_file, header, 1000)
            assert batch == TRANSACTION_LOG[header.position_bytes : header.end_position_bytes]


def test_read_batch_checks_the_limit_before_it_reads(tmp_path):
    filesystem = FileSystem()
    path = tmp_path / "0.log"
    path.write_bytes(TRANSACTION_LOG)
    with filesystem.open(str(path)) as log_file:
        header = BatchWalk(log_file, 0, 380).batch_at(0)
        before = filesystem.statistics.bytes_read
        with pytest.raises(BatchTooLargeError, match="maxDecompressedBatchBytes"):
            read_batch(log_file, header, 78)
        assert filesystem.statistics.bytes_read == before
        assert len(read_batch(log_file, header, 79)) == 79


@pytest.mark.parametrize("position", [17, 21, 45, 78])
def test_read_batch_checks_the_crc(open_content, position):
    content = bytearray(TRANSACTION_LOG)
    content[position] ^= 1
    with open_content(content) as log_file:
        header = BatchWalk(log_file, 0, 380).batch_at(0)
        with pytest.raises(CorruptRecordError, match="CRC") as caught:
            read_batch(log_file, header, 1000)
    error = caught.value
    assert (error.position_bytes, error.end_position_bytes) == (0, 79)
    assert (error.offset, error.last_offset) == (0, 1)


def test_read_batch_of_a_file_cut_meanwhile_is_data_loss(open_content):
    with open_content(TRANSACTION_LOG) as log_file:
        header = BatchWalk(log_file, 0, 380).batch_at(0)
        os.truncate(log_file.path, 70)
        with pytest.raises(DataLossError):
            read_batch(log_file, header, 1000)


@pytest.mark.parametrize(
    "entry",
    [
        Message(magic=0).encode(),
        Message(timestamp_ms=7).encode(),
        Wrapper(plain_messages(3, magic=0), GZIP, 0).encode(),
        Wrapper(plain_messages(3), GZIP).encode(),
    ],
    ids=["v0", "v1", "v0 wrapper", "v1 wrapper"],
)
def test_the_crc_of_old_formats_covers_what_follows_it(open_content, entry):
    for position in range(len(entry)):
        content = bytearray(entry)
        content[position] ^= 0x80
        # Offset, length and the bytes that say how to read the rest make another header.
        if position < 12 or position in (16, 17):
            continue
        with open_content(content) as log_file:
            header = BatchWalk(log_file, 0, len(content)).batch_at(0)
            with pytest.raises(CorruptRecordError, match="CRC"):
                read_batch(log_file, header, 1000)
    with open_content(entry) as log_file:
        header = BatchWalk(log_file, 0, len(entry)).batch_at(0)
        assert read_batch(log_file, header, 1000) == entry
