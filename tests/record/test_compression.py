from __future__ import annotations

import gzip
import random
import struct
import time
import zlib
from contextlib import suppress

import cramjam
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from storage_core.record.batch_header import CODEC_NAMES
from storage_core.record.compression import Decompressor, OutputFullError, UndecodableError
from tests.examples import examples
from tests.record.encoding import (
    CODECS,
    GZIP,
    LZ4,
    SNAPPY,
    XERIAL_HEADER,
    ZSTD,
    compress,
    snappy_block,
    xerial,
)
from tests.record.frames import lz4_frame, xxh32, zstd_skippable_frame

TEXT = b"the same words, the same words, and the same words once more. " * 20
NOISE = random.Random(7).randbytes(2_000)
DATA = TEXT + NOISE
COMPRESSED = {codec: compress(codec, DATA) for codec in (GZIP, SNAPPY, LZ4, ZSTD)}

every_codec = pytest.mark.parametrize("codec", COMPRESSED, ids=lambda codec: CODEC_NAMES[codec])


def decompress(codec, payload, limit_bytes=1 << 17, *, decompressor=None):
    """Return what comes out, if it is at most ``limit_bytes``."""
    output = bytearray(limit_bytes + 1)
    decompressor = decompressor or Decompressor()
    size_bytes = decompressor.decompress_into(codec, memoryview(payload), memoryview(output))
    assert not any(output[size_bytes:])
    return bytes(output[:size_bytes])


def refuses(codec, payload, match=None):
    with pytest.raises(UndecodableError, match=match):
        decompress(codec, payload)
    return True


def test_codecs_are_numbered_as_in_the_attributes():
    assert {name: number for number, name in enumerate(CODEC_NAMES)} == CODECS


@pytest.mark.parametrize("codec", [5, 6, 7, 8, -1])
def test_another_codec_is_refused_by_its_number(codec):
    assert refuses(codec, DATA, f"codec number {codec} is unknown")


# Around the sizes at which the formats begin a new block.
SIZES = [0, 1, 2, 15, 16, 100, 32_767, 32_768, 32_769, 65_535, 65_536, 65_537, 131_071, 131_072]


@every_codec
@pytest.mark.parametrize("size_bytes", SIZES)
def test_any_size_comes_out_as_it_went_in(codec, size_bytes):
    for source in (b"a" * size_bytes, random.Random(1).randbytes(size_bytes)):
        # A stream of xerial's without a chunk is what a Java client makes of no bytes.
        assert decompress(codec, compress(codec, source), 1 << 18) == source


def test_what_another_library_wrote():
    for codec, module in {
        GZIP: cramjam.gzip,
        LZ4: cramjam.lz4,
        ZSTD: cramjam.zstd,
        SNAPPY: cramjam.snappy,
    }.items():
        write = module.compress_raw if codec == SNAPPY else module.compress
        assert decompress(codec, bytes(write(DATA))) == DATA


@every_codec
def test_the_output_may_be_filled_but_for_one_byte(codec):
    assert decompress(codec, COMPRESSED[codec], len(DATA)) == DATA
    assert decompress(codec, COMPRESSED[codec], len(DATA) + 1) == DATA


@every_codec
@pytest.mark.parametrize("limit_bytes", [0, 1, 15, 1000, len(DATA) - 1])
def test_more_than_the_output_holds_is_told_apart_from_damage(codec, limit_bytes):
    with pytest.raises(OutputFullError):
        decompress(codec, COMPRESSED[codec], limit_bytes)


@every_codec
def test_the_payload_may_be_part_of_a_larger_buffer(codec):
    payload = memoryview(b"before" + COMPRESSED[codec] + b"after")[6:-5]
    assert decompress(codec, payload) == DATA


@every_codec
def test_a_payload_cut_off_anywhere_is_refused_or_has_a_smaller_whole(codec):
    payload = COMPRESSED[codec]
    wholes = 0
    for size_bytes in range(len(payload)):
        for limit_bytes in (10, len(DATA)):
            try:
                found = decompress(codec, payload[:size_bytes], limit_bytes)
            except (UndecodableError, OutputFullError):
                continue
            assert DATA.startswith(found)
            assert len(found) < len(DATA)
            wholes += 1
    # Only chunks of snappy and frames of zstd may repeat: here, there are none.
    assert wholes <= {SNAPPY: 2 * 4, ZSTD: 2}.get(codec, 0)


@every_codec
def test_flipped_bits_are_refused_or_change_what_comes_out(codec):
    generator = random.Random(codec)
    for _ in range(500):
        damaged = bytearray(COMPRESSED[codec])
        for _ in range(generator.choice([1, 1, 2, 8])):
            reach = generator.choice([16, len(damaged)])
            damaged[generator.randrange(reach)] ^= 1 << generator.randrange(8)
        try:
            decompress(codec, damaged, generator.choice([0, 100, len(DATA), 1 << 16]))
        except (UndecodableError, OutputFullError):
            continue


@every_codec
@given(payload=st.binary(max_size=200), prefix=st.booleans())
def test_any_bytes_are_decoded_or_refused(codec, payload, prefix):
    start = COMPRESSED[codec][:16] if prefix else b""
    with suppress(UndecodableError, OutputFullError):
        assert len(decompress(codec, start + payload, 1000)) <= 1000


def outcome(codec, payload, limit_bytes, decompressor):
    try:
        return decompress(codec, payload, limit_bytes, decompressor=decompressor)
    except (UndecodableError, OutputFullError) as error:
        return type(error)


@given(st.integers(0, 2**32))
@examples(4)
def test_what_was_decompressed_before_does_not_matter(seed):
    generator = random.Random(seed)
    kept = Decompressor()
    for _ in range(300):
        codec = generator.choice(list(COMPRESSED))
        source = generator.choice([TEXT, NOISE, DATA, b"", b"x", bytes(200_000)])
        payload = bytearray(compress(codec, source))
        damage = generator.choice(["none", "none", "cut", "flipped", "twice", "junk after"])
        if damage == "cut":
            del payload[generator.randrange(len(payload)) :]
        elif damage == "flipped":
            payload[generator.randrange(len(payload))] ^= 1 << generator.randrange(8)
        elif damage == "twice":
            payload *= 2
        elif damage == "junk after":
            payload += generator.randbytes(generator.randrange(1, 40))
        limit_bytes = generator.choice([0, 1, len(source), len(source), 1 << 18])
        expected = outcome(codec, payload, limit_bytes, Decompressor())
        assert outcome(codec, payload, limit_bytes, kept) == expected
        if damage == "none" and limit_bytes >= len(source):
            assert expected == source


@every_codec
def test_payloads_around_the_size_of_a_read(codec):
    # What is noise stays about as large as it is, so that some payload is exactly one read of 64 KiB.
    noise = random.Random(2).randbytes(300_000)
    kept = Decompressor()
    for size_bytes in [*range(65_480, 65_560), 131_072, 300_000]:
        payload = compress(codec, noise[:size_bytes])
        assert decompress(codec, payload, 1 << 19, decompressor=kept) == noise[:size_bytes]
        assert decompress(codec, COMPRESSED[codec], decompressor=kept) == DATA


# gzip


def test_gzip_members_follow_one_another():
    payload = b"".join(gzip.compress(part, mtime=0) for part in (TEXT, b"", NOISE, b"x"))
    assert decompress(GZIP, payload) == TEXT + NOISE + b"x"


def test_a_gzip_header_may_have_a_name_a_comment_and_a_checksum():
    header = b"\x1f\x8b\x08\x1f\0\0\0\0\0\xff" + struct.pack("<H", 3) + b"ext" + b"name\0" + b"comment\0"
    header += struct.pack("<H", zlib.crc32(header) & 0xFFFF)
    assert decompress(GZIP, header + gzip.compress(DATA, mtime=0)[10:]) == DATA


@pytest.mark.parametrize("system", [0x00, 0x03, 0xFF], ids=["old JDK", "zlib", "JDK"])
def test_the_operating_system_in_a_gzip_header_does_not_matter(system):
    payload = bytearray(COMPRESSED[GZIP])
    payload[9] = system
    assert decompress(GZIP, payload) == DATA


@pytest.mark.parametrize(
    "junk",
    [
        b"\0",
        b"junk",
        bytes(100),
        b"\x1f",
        b"\x1f\x8b",
        b"\x1f\x8b\x08",
        b"\x1f\x8b\x08" + bytes(14),
        b"\x1f\x8bno member of any kind",
        b"\x1f\x8b\x07" + bytes(30),
    ],
)
def test_gzip_ignores_what_is_no_further_member(junk):
    assert decompress(GZIP, COMPRESSED[GZIP] + junk) == DATA


def test_a_further_gzip_member_that_is_damaged_is_refused():
    damaged = bytearray(COMPRESSED[GZIP])
    damaged[-5] ^= 1
    assert refuses(GZIP, COMPRESSED[GZIP] + damaged)
    assert refuses(GZIP, COMPRESSED[GZIP] * 2 + COMPRESSED[GZIP][:-1], "cut off")


@pytest.mark.parametrize("position", [-1, -4, -5, -8])
def test_gzip_checks_its_checksum_and_its_size(position):
    damaged = bytearray(COMPRESSED[GZIP])
    damaged[position] ^= 1
    assert refuses(GZIP, damaged)


def test_gzip_is_no_zlib_stream_and_no_bare_deflate():
    assert refuses(GZIP, zlib.compress(DATA))
    assert refuses(GZIP, zlib.compress(DATA)[2:-4])


@pytest.mark.parametrize("size_bytes", [4095, 4096, 4097, 12_287, 12_288, 12_289, 100_000])
def test_a_gzip_member_may_end_at_any_piece(size_bytes):
    # Stored, not deflated, so that the compressed size follows the uncompressed one.
    for part in range(size_bytes - 40, size_bytes):
        writer = zlib.compressobj(0, wbits=31)
        payload = writer.compress(NOISE[:1] * part) + writer.flush()
        assert decompress(GZIP, payload + COMPRESSED[GZIP] + b"junk", 1 << 18) == NOISE[:1] * part + DATA


def test_gzip_members_without_content_take_time_in_proportion():
    start = time.process_time()
    assert decompress(GZIP, gzip.compress(b"", mtime=0) * 150_000) == b""
    # What is proportional takes 0.3 s, what copies the rest for each member 12 s.
    assert time.process_time() - start < 6


# snappy


def test_xerial_chunks_follow_one_another():
    for block_bytes in (1, 7, 1000, len(DATA)):
        assert decompress(SNAPPY, xerial(DATA, block_bytes)) == DATA


def test_xerial_chunks_may_be_larger_than_the_writers():
    assert decompress(SNAPPY, xerial(TEXT * 100, 1 << 20)) == TEXT * 100


def test_xerial_streams_follow_one_another():
    assert decompress(SNAPPY, xerial(TEXT) + xerial(NOISE) + XERIAL_HEADER + xerial(b"end")) == DATA + b"end"


@pytest.mark.parametrize("versions", [(1, 1), (2, 1), (7, 7)])
def test_xerial_versions_do_not_matter(versions):
    assert (
        decompress(SNAPPY, xerial(DATA).replace(struct.pack(">ii", 1, 1), struct.pack(">ii", *versions)))
        == DATA
    )


@pytest.mark.parametrize("source", [b"", b"x", TEXT, NOISE, DATA])
def test_snappy_without_framing_is_one_block(source):
    assert decompress(SNAPPY, snappy_block(source)) == source


def test_the_header_of_a_xerial_stream_alone_holds_nothing():
    assert decompress(SNAPPY, XERIAL_HEADER) == b""


@pytest.mark.parametrize("junk", [b"\0", b"\xff\xff", b"abc"])
def test_up_to_three_bytes_behind_the_last_chunk_are_ignored(junk):
    assert decompress(SNAPPY, xerial(DATA) + junk) == DATA


def test_an_empty_snappy_payload_is_refused():
    assert refuses(SNAPPY, b"", "the snappy stream is empty")


@pytest.mark.parametrize("chunk_bytes", [-1, -(2**31), 2**31 - 1, 11])
def test_a_chunk_that_does_not_fit_is_refused(chunk_bytes):
    payload = XERIAL_HEADER + struct.pack(">i", chunk_bytes) + bytes(10)
    assert refuses(SNAPPY, payload, f"a snappy chunk of {chunk_bytes} bytes does not fit")


def test_a_chunk_without_bytes_is_refused():
    assert refuses(SNAPPY, XERIAL_HEADER + bytes(4))


def test_googles_framing_is_refused():
    assert refuses(SNAPPY, bytes(cramjam.snappy.compress(DATA)))


@pytest.mark.parametrize("declared", [b"\x80\x80\x80\x80\x80", b"\xff\xff\xff\xff\xff\x01"])
def test_a_block_length_beyond_five_bytes_is_refused(declared):
    assert refuses(SNAPPY, declared + bytes(20))


def test_a_block_that_declares_other_than_it_holds_is_refused():
    block = snappy_block(b"x" * 100)
    assert block[0] == 100
    assert refuses(SNAPPY, b"\x63" + block[1:])
    assert refuses(SNAPPY, b"\x65" + block[1:])


# lz4


def test_the_checksum_of_lz4_frames():
    # The header checksums that Kafka's frames have, and the published value of no bytes.
    assert xxh32(b"\x60\x40") >> 8 & 0xFF == 0x82
    assert xxh32(b"") == 0x02CC5D05


@pytest.mark.parametrize("stored", [False, True], ids=["compressed", "stored"])
@pytest.mark.parametrize("content_checksum", [False, True], ids=["", "content checksum"])
@pytest.mark.parametrize("content_size", [False, True], ids=["", "content size"])
@pytest.mark.parametrize("block_checksums", [False, True], ids=["", "block checksums"])
def test_lz4_frames_with_any_option(block_checksums, content_size, content_checksum, stored):
    frame = lz4_frame(
        [TEXT, NOISE, b"x"],
        block_checksums=block_checksums,
        content_size=content_size,
        content_checksum=content_checksum,
        stored=stored,
    )
    expected = TEXT + NOISE + b"x"
    assert decompress(LZ4, frame) == expected
    for junk in (b"\0", b"junk", bytes(100), b"\xff" * 100):
        assert decompress(LZ4, frame + junk) == expected


@pytest.mark.parametrize("code", [4, 5, 6, 7])
def test_lz4_block_sizes(code):
    block = b"a" * (1 << 2 * code + 8)
    assert decompress(LZ4, lz4_frame([block, b"b"], block_size_code=code), 5 << 20) == block + b"b"


@pytest.mark.parametrize("code", [0, 1, 2, 3])
def test_other_lz4_block_sizes_are_refused(code):
    assert refuses(LZ4, lz4_frame([b"a"], block_size_code=code))


def test_a_block_larger_than_the_frame_says_is_refused():
    assert refuses(LZ4, lz4_frame([b"a" * 65_537]))


def test_an_lz4_frame_without_blocks_is_empty():
    assert decompress(LZ4, lz4_frame([])) == b""


def test_only_the_first_lz4_frame_is_read():
    assert decompress(LZ4, lz4_frame([TEXT]) + lz4_frame([NOISE])) == TEXT


@pytest.mark.parametrize("blocks", [[], [TEXT], [TEXT, NOISE]])
@pytest.mark.parametrize("content_checksum", [False, True])
def test_an_lz4_frame_without_its_end_mark_is_refused(blocks, content_checksum):
    frame = lz4_frame(blocks, end_mark=False, content_checksum=content_checksum)
    for rest in (b"", b"\0", bytes(3)):
        assert refuses(LZ4, frame + rest, "the LZ4 frame is cut off")


def test_a_wrong_lz4_header_checksum_is_refused():
    assert lz4_frame([TEXT])[6] == 0x82
    # 1a is what old clients computed, for messages of format v0 only.
    for checksum in (0x1A, 0x83):
        assert refuses(LZ4, lz4_frame([TEXT], header_checksum=checksum))


@pytest.mark.parametrize("content_size", [False, True])
@pytest.mark.parametrize("block_count", [1, 80])
def test_a_wrong_lz4_content_checksum_is_read(block_count, content_size):
    """As by Kafka's consumer, which never compares it. It has to be there."""
    data = TEXT * block_count
    frame = lz4_frame([TEXT] * block_count, content_checksum=True, content_size=content_size)
    wrong = frame[:-4] + bytes(byte ^ 0xFF for byte in frame[-4:])
    assert decompress(LZ4, wrong) == decompress(LZ4, frame) == data
    assert decompress(LZ4, wrong + b"more") == data
    assert refuses(LZ4, frame[:-1])
    # The checksums of the header and of blocks are compared.
    assert refuses(LZ4, wrong[: 14 if content_size else 6] + b"\0" + wrong[15 if content_size else 7 :])


def test_a_wrong_lz4_block_checksum_is_refused():
    frame = bytearray(lz4_frame([TEXT], block_checksums=True))
    frame[-5] ^= 1
    assert refuses(LZ4, frame)


@pytest.mark.parametrize(
    "payload", [b"", b"\x04", b"\x04\x22\x4d\x18", b"\x04\x22\x4d\x18\x60\x40", b"no frame"]
)
def test_what_is_no_lz4_frame_is_refused(payload):
    assert refuses(LZ4, payload, "magic is missing")


@pytest.mark.parametrize("flags", [0x20, 0xA0, 0xE0, 0x62])
def test_lz4_versions_and_flags_that_do_not_exist_are_refused(flags):
    descriptor = bytes([flags, 0x40])
    frame = b"\x04\x22\x4d\x18" + descriptor + bytes([xxh32(descriptor) >> 8 & 0xFF]) + bytes(20)
    assert refuses(LZ4, frame)


# zstd


@pytest.mark.parametrize("checksum", [False, True])
@pytest.mark.parametrize("content_size", [False, True])
def test_zstd_with_and_without_content_size_and_checksum(content_size, checksum):
    writer = zstandard.ZstdCompressor(write_content_size=content_size, write_checksum=checksum)
    stream = writer.compressobj(size=len(DATA) if content_size else -1)
    assert decompress(ZSTD, stream.compress(DATA) + stream.flush()) == DATA


def test_a_zstd_frame_may_end_with_an_empty_block():
    stream = zstandard.ZstdCompressor().compressobj()
    payload = stream.compress(DATA) + stream.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK) + stream.flush()
    assert payload[-3:] == b"\1\0\0"
    assert decompress(ZSTD, payload) == DATA


def test_zstd_frames_follow_one_another():
    frames = [compress(ZSTD, part) for part in (TEXT, b"", NOISE)]
    assert decompress(ZSTD, b"".join(frames)) == DATA


@pytest.mark.parametrize("content", [b"", b"anything", bytes(100_000)])
def test_zstd_frames_to_be_skipped_are_skipped(content):
    skippable = zstd_skippable_frame(content)
    payload = skippable + compress(ZSTD, TEXT) + skippable * 2 + compress(ZSTD, NOISE) + skippable
    assert decompress(ZSTD, payload) == DATA


def test_bytes_behind_a_zstd_frame_are_refused():
    for junk in (b"junk", bytes(100)):
        assert refuses(ZSTD, COMPRESSED[ZSTD] + junk)


def test_a_wrong_zstd_checksum_is_refused():
    payload = bytearray(zstandard.ZstdCompressor(write_checksum=True).compress(DATA))
    payload[-1] ^= 1
    assert refuses(ZSTD, payload)


def test_a_zstd_window_of_2_gib_is_refused():
    # Magic, descriptor without a content size, window of 2 GiB, one raw block of one byte.
    assert refuses(ZSTD, b"\x28\xb5\x2f\xfd\x00\xa8" + b"\x09\0\0a")
