from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from storage_core.errors import BatchTooLargeError, CorruptRecordError, UnsupportedFormatError
from storage_core.record.batch_header import parse_batch_header
from storage_core.record.decode import batch_timestamps, decode_records
from storage_core.record.section import PADDING_BYTES, batch_section
from tests.record import golden
from tests.record.encoding import (
    CODECS,
    GZIP,
    LZ4,
    SNAPPY,
    ZSTD,
    Batch,
    Record,
    counted_records,
)
from tests.record.encoding import compress as compress_records
from tests.record.golden import GOLDEN
from tests.record.sections import EVERYTHING, PATH, decode_window, rows_of

every_codec = pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
every_compression = pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD], ids=list(CODECS)[1:])


def section_of_batch(data, *, limit_bytes=1 << 20, position_bytes=0):
    header = parse_batch_header(data, 0, position_bytes, path=PATH)
    return batch_section(data, header, path=PATH, limit_bytes=limit_bytes)


def times_of(data, *, limit_bytes=1 << 20):
    header = parse_batch_header(data, 0, 0, path=PATH)
    offsets, timestamps_ms = batch_timestamps(data, header, path=PATH, limit_bytes=limit_bytes)
    assert offsets.dtype == timestamps_ms.dtype == np.int64
    return list(zip(offsets.tolist(), timestamps_ms.tolist(), strict=True))


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_batches_hold_what_kafka_put_in(name):
    assert decode_window(GOLDEN[name].data) == list(GOLDEN[name].rows)


@every_codec
@pytest.mark.parametrize("count", [1, 2, 100, 5000])
def test_batches_of_every_codec_and_size(codec, count):
    batch = Batch(counted_records(count, key=b"key", value=b"value" * 10), 70, codec=codec)
    assert decode_window(batch.encode()) == batch.rows


@every_codec
def test_a_batch_that_inflates_far_beyond_its_size(codec):
    batch = Batch((Record(value=bytes(3_000_000)),), codec=codec)
    assert decode_window(batch.encode()) == batch.rows


@every_codec
def test_the_buffer_is_padded(codec):
    batch = Batch(counted_records(3), codec=codec)
    section = section_of_batch(batch.encode())
    size_bytes = len(batch.encode_records())
    assert len(section.buffer) == size_bytes + PADDING_BYTES
    assert (section.starts.tolist(), section.ends.tolist()) == ([0], [size_bytes])


def test_a_batch_may_be_a_memoryview():
    for name in ("none", "lz4"):
        batch = golden.TWO_RECORDS[name]
        section = section_of_batch(memoryview(batch.data))
        assert rows_of(section, decode_records(section, EVERYTHING)) == list(batch.rows)


# Sizes at which the guess of how far a batch inflates is met, and where it grows.
BORDERS = [1000, 65_535, 65_536, 65_537, 262_143, 262_144, 262_145]


@every_compression
@pytest.mark.parametrize("size_bytes", BORDERS)
def test_the_limit_is_met_to_the_byte(codec, size_bytes):
    value = bytes(size_bytes - len(Record(value=bytes(size_bytes)).encode(0)) + size_bytes)
    batch = Batch((Record(value=value),), codec=codec)
    assert len(batch.encode_records()) == size_bytes
    for limit_bytes in (size_bytes, size_bytes + 1, 1 << 22):
        section = section_of_batch(batch.encode(), limit_bytes=limit_bytes)
        assert rows_of(section, decode_records(section, EVERYTHING)) == batch.rows
    with pytest.raises(BatchTooLargeError):
        section_of_batch(batch.encode(), limit_bytes=size_bytes - 1)


@every_compression
def test_a_batch_beyond_the_limit_is_named_with_the_option_to_raise(codec):
    data = Batch((Record(value=bytes(5000)),), 33, codec=codec).encode()
    with pytest.raises(BatchTooLargeError, match=r"at most 4096 bytes.*maxDecompressedBatchBytes") as raised:
        section_of_batch(data, limit_bytes=4096, position_bytes=700)
    error = raised.value
    assert (error.path, error.position_bytes, error.end_position_bytes) == (PATH, 700, 700 + len(data))
    assert (error.offset, error.last_offset) == (33, 33)


@every_compression
def test_a_payload_that_its_codec_refuses_is_damage(codec):
    batch = Batch(counted_records(3), 33, codec=codec, payload=b"certainly nothing compressed")
    data = batch.encode()
    with pytest.raises(
        CorruptRecordError, match=f"records compressed with {list(CODECS)[codec]}, but"
    ) as raised:
        section_of_batch(data, position_bytes=700)
    error = raised.value
    assert (error.path, error.position_bytes, error.end_position_bytes) == (PATH, 700, 700 + len(data))
    assert (error.offset, error.last_offset) == (33, 35)


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_a_codec_that_does_not_exist_is_named(codec):
    data = Batch(counted_records(1), codec=codec, payload=b"?").encode()
    with pytest.raises(UnsupportedFormatError, match=f"codec number {codec}") as raised:
        section_of_batch(data)
    assert (raised.value.path, raised.value.position_bytes, raised.value.offset) == (PATH, 0, 0)


@every_compression
def test_a_compressed_batch_that_ends_early_is_damage(codec):
    records = Batch(counted_records(3)).encode_records()
    for size_bytes in range(len(records)):
        payload = compress_records(codec, records[:size_bytes])
        batch = Batch(counted_records(3), codec=codec, payload=payload)
        section = section_of_batch(batch.encode())
        with pytest.raises(CorruptRecordError):
            decode_records(section, EVERYTHING)


# Over a gigabyte each, out of a megabyte and less; the limit is 8 MiB.
BOMBS = """
import gzip, resource, struct, sys, time

import pyarrow as pa

from storage_core.errors import BatchTooLargeError
from storage_core.record.batch_header import parse_batch_header
from storage_core.record.section import batch_section
from tests.record.encoding import GZIP, LZ4, SNAPPY, XERIAL_HEADER, ZSTD, Batch, Record, snappy_block
from tests.record.frames import lz4_frame

LIMIT_BYTES = 8 << 20
PART = bytes(4 << 20)
chunk = snappy_block(PART)
frame = lz4_frame([PART], block_size_code=7)
zstd = pa.Codec("zstd").compress(PART, asbytes=True)
bombs = [
    (GZIP, gzip.compress(PART) * 256),
    (GZIP, gzip.compress(bytes(64 << 20), 9)),
    (SNAPPY, XERIAL_HEADER + (struct.pack(">i", len(chunk)) + chunk) * 4),
    (SNAPPY, b"\\xff\\xff\\xff\\xff\\x0f" + bytes(100)),
    (SNAPPY, XERIAL_HEADER + struct.pack(">i", 20) + b"\\xff\\xff\\xff\\xff\\x0f" + bytes(15)),
    (LZ4, frame[:7] + frame[7:-4] * 64 + bytes(4)),
    (ZSTD, zstd * 256),
    (ZSTD, pa.Codec("zstd").compress(bytes(64 << 20), asbytes=True)),
]

def peak_kib():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

for codec, payload in bombs:
    data = Batch((Record(),), codec=codec, payload=payload).encode()
    header = parse_batch_header(data, 0, 0, path="log")
    before_kib, start = peak_kib(), time.process_time()
    try:
        batch_section(data, header, path="log", limit_bytes=LIMIT_BYTES)
    except BatchTooLargeError:
        seconds = time.process_time() - start
        print(codec, peak_kib() - before_kib, round(seconds, 3))
"""


def test_bombs_are_refused_quickly_and_within_the_limit():
    root = str(Path(__file__).parents[2])
    environment = os.environ | {"PYTHONPATH": root}
    command = [sys.executable, "-c", BOMBS]
    run = subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=root, check=True, timeout=300
    )
    results = [line.split() for line in run.stdout.splitlines()]
    assert [int(codec) for codec, _, _ in results] == [GZIP, GZIP, SNAPPY, SNAPPY, SNAPPY, LZ4, ZSTD, ZSTD]
    for _, growth_kib, seconds in results:
        # The limit, what a codec holds on its own, and what the attempts before left over.
        assert int(growth_kib) < 40 << 10
        assert float(seconds) < 2


@pytest.mark.parametrize("name", [name for name, batch in GOLDEN.items() if batch.rows])
def test_offsets_and_timestamps_of_golden_batches(name):
    batch = GOLDEN[name]
    assert times_of(batch.data) == [row[:2] for row in batch.rows]


def test_an_empty_batch_has_no_timestamps():
    assert times_of(golden.EMPTY.data) == []


def test_timestamps_of_a_batch_beyond_the_limit_are_refused():
    batch = Batch((Record(value=bytes(5000)),), codec=GZIP)
    with pytest.raises(BatchTooLargeError):
        times_of(batch.encode(), limit_bytes=4096)


def test_timestamps_of_records_that_are_wrong_are_refused():
    batch = Batch((Record(0, 5), Record(3, 6)))
    for count in (1, 3):
        with pytest.raises(CorruptRecordError):
            times_of(replace(batch, count=count).encode())


@every_codec
def test_what_a_batch_holds_does_not_depend_on_what_stands_around_it(codec):
    batches = [Batch(counted_records(count), 100 * count, codec=codec) for count in (1, 90, 3)]
    ends = np.cumsum([0, *(len(batch.encode()) for batch in batches)]).tolist()
    data = b"".join(batch.encode() for batch in batches)
    for batch, (start, end) in zip(batches, pairwise(ends), strict=True):
        assert decode_window(data[start:end]) == batch.rows
    assert decode_window(data) == [row for batch in batches for row in batch.rows]
