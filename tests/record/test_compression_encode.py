from __future__ import annotations

import gzip
import random
import struct

import cramjam
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from storage_core.errors import OptionError
from storage_core.record.batch_header import CODEC_NAMES
from storage_core.record.compression import Decompressor, compressor
from tests.examples import examples
from tests.record.encoding import GZIP, LZ4, NONE, SNAPPY, XERIAL_HEADER, ZSTD
from tests.record.frames import xxh32

TEXT = b"the same words, the same words, and the same words once more. " * 2000
NOISE = random.Random(7).randbytes(200_000)
KIB = 1024

# Every level that Kafka allows, and some of the many of zstd.
LEVELS = {
    GZIP: [None, -1, *range(1, 10)],
    SNAPPY: [None],
    LZ4: [None, *range(1, 18)],
    ZSTD: [None, -131072, -1000, -5, -1, *range(23)],
}
EVERY_LEVEL = [(codec, level) for codec, levels in LEVELS.items() for level in levels]
SIZES = [1, 2, 100, *(kib * KIB + step for kib in (16, 32, 64, 128) for step in (-1, 0, 1)), 200_000]
every_codec = pytest.mark.parametrize("codec", LEVELS, ids=lambda codec: CODEC_NAMES[codec])


def decompress(codec, payload, size_bytes):
    output = memoryview(bytearray(size_bytes + 1))
    assert Decompressor().decompress_into(codec, memoryview(payload).cast("B"), output) == size_bytes
    return bytes(output[:size_bytes])


def decompress_elsewhere(codec, payload):
    """By libraries that are not ours."""
    if codec == GZIP:
        return gzip.decompress(payload)
    if codec == LZ4:
        return bytes(cramjam.lz4.decompress(payload))
    if codec == ZSTD:
        return zstandard.ZstdDecompressor().decompress(payload)
    content, position = b"", 16
    while position < len(payload):
        (size_bytes,) = struct.unpack_from(">i", payload, position)
        content += bytes(cramjam.snappy.decompress_raw(payload[position + 4 : position + 4 + size_bytes]))
        position += 4 + size_bytes
    return content


@every_codec
@pytest.mark.parametrize("size_bytes", SIZES)
@pytest.mark.parametrize("source", [TEXT, NOISE], ids=["text", "noise"])
def test_sizes_around_the_borders_of_blocks(codec, size_bytes, source):
    data = source[:size_bytes]
    compressed = bytes(compressor(codec)(data))
    assert decompress(codec, compressed, len(data)) == data
    assert decompress_elsewhere(codec, compressed) == data


@pytest.mark.parametrize(("codec", "level"), EVERY_LEVEL)
def test_every_level(codec, level):
    data = TEXT[: 3 * KIB] + NOISE[:KIB]
    compress = compressor(codec, level)
    # One compressor serves many batches.
    assert bytes(compress(data)) == bytes(compress(memoryview(data)))
    assert decompress_elsewhere(codec, bytes(compress(data))) == data


@every_codec
@given(data=st.binary(min_size=1, max_size=300))
@examples(30)
def test_any_bytes(codec, data):
    compressed = bytes(compressor(codec)(data))
    assert decompress(codec, compressed, len(data)) == data
    assert decompress_elsewhere(codec, compressed) == data


def test_without_a_codec_there_is_no_compressor():
    assert compressor(NONE) is None


def test_a_higher_level_makes_less_of_the_same():
    for codec, low, high in ((GZIP, 1, 9), (LZ4, 3, 12), (ZSTD, -1000, 19)):
        data = bytes(compressor(SNAPPY)(TEXT + NOISE[: 20 * KIB])) * 2
        assert len(compressor(codec, high)(data)) < len(compressor(codec, low)(data))


# -- Frames --------


def test_the_gzip_header_is_that_of_the_jdk():
    compressed = bytes(compressor(GZIP)(TEXT))
    assert compressed[:10].hex() == "1f8b08000000000000ff"
    # The CRC and the length of what was compressed.
    assert compressed[-4:] == len(TEXT).to_bytes(4, "little")


def test_snappy_is_framed_as_by_xerial_in_blocks_of_32_kib():
    compressed = bytes(compressor(SNAPPY)(NOISE[: 70 * KIB]))
    assert compressed[:16] == XERIAL_HEADER == bytes.fromhex("82534e41505059000000000100000001")
    sizes, position = [], 16
    while position < len(compressed):
        (size_bytes,) = struct.unpack_from(">i", compressed, position)
        block = compressed[position + 4 : position + 4 + size_bytes]
        sizes.append(len(bytes(cramjam.snappy.decompress_raw(block))))
        position += 4 + size_bytes
    assert sizes == [32 * KIB, 32 * KIB, 6 * KIB]


def lz4_blocks(frame):
    """Return whether it is stored as it is, and the size on disk, of each block; the frame ends with its end mark."""
    blocks, position = [], 7
    while True:
        (word,) = struct.unpack_from("<I", frame, position)
        position += 4
        if not word:
            assert position == len(frame)
            return blocks
        blocks.append((bool(word >> 31), word & 0x7FFFFFFF))
        position += word & 0x7FFFFFFF


def test_the_lz4_frame_is_that_of_kafka():
    frame = bytes(compressor(LZ4)(TEXT[: 70 * KIB]))
    assert frame[:7].hex() == "04224d18604082"
    assert frame[6] == xxh32(frame[4:6]) >> 8 & 0xFF
    assert [stored for stored, _ in lz4_blocks(frame)] == [False, False]


def test_what_lz4_does_not_make_smaller_is_stored_in_blocks_of_64_kib():
    frame = bytes(compressor(LZ4)(NOISE[: 130 * KIB]))
    assert lz4_blocks(frame) == [(True, 64 * KIB), (True, 64 * KIB), (True, 2 * KIB)]


def test_lz4_at_kafkas_default_level_is_the_quick_one():
    assert bytes(compressor(LZ4)(TEXT)) == bytes(compressor(LZ4, 9)(TEXT)) != bytes(compressor(LZ4, 8)(TEXT))


def test_zstd_is_one_frame():
    compressed = bytes(compressor(ZSTD)(TEXT))
    assert compressed[:4].hex() == "28b52ffd"
    assert zstandard.frame_content_size(compressed) == len(TEXT)
    assert not zstandard.get_frame_parameters(compressed).has_checksum


# -- Bad use --------


@pytest.mark.parametrize("codec", [-1, 5, 7, 8])
def test_an_unknown_codec_is_refused(codec):
    with pytest.raises(OptionError, match=f"codec, 0 to 4, found {codec}"):
        compressor(codec)


@pytest.mark.parametrize(
    ("codec", "level", "match"),
    [
        (NONE, 1, "none has none, found 1"),
        (SNAPPY, 0, "snappy has none, found 0"),
        (GZIP, 0, "gzip from -1 to 9 but 0, found 0"),
        (GZIP, 10, "found 10"),
        (GZIP, -2, "found -2"),
        (LZ4, 0, "lz4 from 1 to 17, found 0"),
        (LZ4, 18, "found 18"),
        (ZSTD, 23, "zstd from -131072 to 22, found 23"),
        (ZSTD, -131073, "found -131073"),
    ],
)
def test_a_level_that_a_codec_does_not_have_is_refused(codec, level, match):
    with pytest.raises(OptionError, match=match):
        compressor(codec, level)
