from __future__ import annotations

import itertools
import struct

import pytest

from storage_core.errors import BatchTooLargeError
from storage_core.segment.batch_windows import read_windows


@pytest.fixture
def read(tmp_path, filesystem):
    path = tmp_path / "00000000000000000000.log"

    def read_content(
        content, *, start=0, end=None, lowest_offset=0, max_batch_bytes=1 << 20, window_bytes=200
    ):
        path.write_bytes(content)
        found = []
        with filesystem.open(str(path)) as log_file:
            for window in read_windows(
                log_file,
                start,
                len(content) if end is None else end,
                lowest_offset,
                max_batch_bytes=max_batch_bytes,
                window_bytes=window_bytes,
            ):
                places = (window.position_bytes + window.starts).tolist()
                found += zip(places, window.headers["base_offset"].tolist(), strict=True)
                read_content.last = window
                read_content.most_batches = max(read_content.most_batches, len(window.starts))
        return found

    read_content.most_batches = 0

    return read_content


@pytest.fixture
def batches(make_batch):
    sizes = [1, 30, 500, 2, 2, 900, 10, 10, 10, 300, 1]
    return [make_batch(10 * n, (n,), value=b"x" * size) for n, size in enumerate(sizes)]


def places_of(batches):
    position, places = 0, []
    for batch in batches:
        places.append((position, struct.unpack_from(">q", batch)[0]))
        position += len(batch)
    return places


@pytest.mark.parametrize("window_bytes", [61, 62, 100, 200, 1000, 1 << 20])
def test_every_batch_is_in_one_window(read, batches, window_bytes):
    assert read(b"".join(batches), window_bytes=window_bytes) == places_of(batches)
    assert read.last.error is None


def test_an_empty_range(read):
    assert read(b"") == []


@pytest.mark.parametrize("number", range(11))
def test_from_a_boundary_and_up_to_one(read, batches, number):
    places = places_of(batches)
    content = b"".join(batches)
    assert read(content, start=places[number][0]) == places[number:]
    assert read(content, end=places[number][0]) == places[:number]


@pytest.mark.parametrize("window_bytes", [61, 200, 4096])
def test_every_length_of_a_cut_off_file(read, batches, window_bytes):
    some = [batches[number] for number in (0, 1, 3, 6)]
    content, places = b"".join(some), places_of([*some, batches[7]])
    for length in range(len(content)):
        whole = [place for place, following in itertools.pairwise(places) if following[0] <= length]
        assert read(content[:length], window_bytes=window_bytes) == whole
        # As if the file had been cut after somebody asked for its size.
        assert read(content[:length], end=len(content), window_bytes=window_bytes) == whole
        assert read.last.error is None


def test_zeros_are_the_end(read, batches):
    content = b"".join(batches[:3])
    assert read(content + bytes(1000)) == places_of(batches[:3])
    assert read.last.is_preallocated_after


def test_bytes_that_are_no_batch_are_the_end_and_say_why(read, batches):
    assert read(b"".join(batches[:3]) + b"\x07" * 400) == places_of(batches[:3])
    assert "magic byte" in str(read.last.error)


def test_a_declared_size_beyond_the_end_takes_no_memory(read, batches):
    torn = bytearray(batches[3])
    torn[8:12] = struct.pack(">i", 2**31 - 1)
    assert read(b"".join(batches[:3]) + torn) == places_of(batches[:3])
    assert len(read.last.buffer) < 1000


def test_a_batch_above_the_limit_is_an_error_only_if_it_is_one(read, batches, make_batch):
    large = bytearray(make_batch(100, (1,), value=b"y" * 5000))
    front = b"".join(batches[:2])
    assert len(read(front + large + batches[2])) == 4
    with pytest.raises(
        BatchTooLargeError, match=r"at most 4000 bytes, found one of 50\d\d.*max.message.bytes"
    ):
        read(front + large + batches[2], max_batch_bytes=4000)
    large[1000] ^= 1
    assert read(front + large + batches[2], max_batch_bytes=4000) == places_of(batches[:2])


def test_windows_are_no_larger_after_a_large_batch(read, make_batch):
    small = [make_batch(n, (1,), value=b"x") for n in range(1, 200)]
    content = make_batch(0, (1,), value=b"y" * 20_000) + b"".join(small)
    assert len(read(content, window_bytes=4 * len(small[0]))) == 200
    assert read.most_batches == 4


def test_old_messages(read):
    import zlib

    def message(offset):
        body = bytes([0, 0]) + struct.pack(">i", -1) + struct.pack(">i", 3) + b"abc"
        return struct.pack(">qiI", offset, 4 + len(body), zlib.crc32(body)) + body

    content = b"".join(map(message, range(50)))
    assert read(content, window_bytes=100) == [(29 * n, n) for n in range(50)]
