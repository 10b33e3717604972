from __future__ import annotations

import struct
from dataclasses import replace

import numpy as np
import pytest

from storage_core.errors import BatchTooLargeError, CorruptRecordError
from storage_core.record.batch_header import parse_batch_header
from storage_core.record.decode import batch_timestamps, decode_records
from storage_core.record.section import WantedFields, batch_section
from tests.record.encoding import GZIP, LOG_APPEND_TIME, LZ4, NONE, SNAPPY, ZSTD, snappy_block
from tests.record.golden_legacy import LEGACY, MISMATCHED
from tests.record.legacy_encoding import (
    CODECS,
    LZ4_CHECKSUM_OF_V0,
    Message,
    Wrapper,
    compress_set,
    entry,
    lz4_frame,
)
from tests.record.sections import (
    EVERYTHING,
    PATH,
    decode_whole_batches,
    decode_window,
    padded,
    rows_of,
    section_of,
    window_of,
)

COMPRESSED = [codec for codec in CODECS.values() if codec != NONE]
MAGICS = [0, 1]


def messages(*offsets, magic=1):
    return tuple(
        Message(offset, 1000 - offset, b"k%d" % offset, b"v%d" % offset, magic) for offset in offsets
    )


def refusal(wrapper, *, position_bytes=512):
    data = wrapper if isinstance(wrapper, bytes) else wrapper.encode()
    header = parse_batch_header(data, 0, position_bytes, path=PATH).with_base_offset(0)
    with pytest.raises(CorruptRecordError) as raised:
        decode_records(batch_section(data, header, path=PATH, limit_bytes=1 << 20), EVERYTHING)
    error = raised.value
    assert error.path == PATH
    assert (error.position_bytes, error.end_position_bytes) == (position_bytes, position_bytes + len(data))
    assert (error.offset, error.last_offset) == (header.base_offset, header.last_offset)
    return str(error)


@pytest.mark.parametrize("name", LEGACY)
def test_golden_messages(name):
    assert decode_window(LEGACY[name].data) == list(LEGACY[name].rows)


@pytest.mark.parametrize("magic", MAGICS)
def test_plain_messages_of_any_key_and_value(magic):
    contents = [None, b"", b"x", b"long" * 100]
    log = [
        Message(offset, offset - 3, key, value, magic)
        for offset, (key, value) in enumerate((key, value) for key in contents for value in contents)
    ]
    section = section_of(b"".join(message.encode() for message in log))
    columns = decode_records(section, EVERYTHING)
    assert rows_of(section, columns) == [message.row for message in log]
    assert columns.row_counts.tolist() == [1] * 16


def test_formats_may_change_from_message_to_message():
    log = [Message(number, number, b"k", b"v%d" % number, number % 2) for number in range(20)]
    section = section_of(b"".join(message.encode() for message in log))
    assert rows_of(section, decode_records(section, EVERYTHING)) == [message.row for message in log]


@pytest.mark.parametrize("magic", MAGICS)
@pytest.mark.parametrize("codec", COMPRESSED)
@pytest.mark.parametrize("offsets", [(5,), (5, 6, 7), (5, 9, 300), tuple(range(5, 500))])
@pytest.mark.parametrize("attributes", [0, LOG_APPEND_TIME])
def test_wrappers(magic, codec, offsets, attributes):
    wrapper = Wrapper(messages(*offsets, magic=magic), codec, magic, timestamp_ms=77, attributes=attributes)
    rows = decode_window(wrapper.encode())
    assert rows == wrapper.rows
    timestamps = {row[1] for row in rows}
    if magic == 0:
        assert timestamps == {-1}
    elif attributes:
        assert timestamps == {77}
    else:
        assert timestamps == {1000 - offset for offset in offsets}


@pytest.mark.parametrize("magic", MAGICS)
def test_keys_and_values_in_wrappers_may_be_null_or_empty(magic):
    log = tuple(
        Message(5 + number, 9, key, value, magic)
        for number, (key, value) in enumerate([(None, None), (b"", b""), (None, b""), (b"", None)])
    )
    assert decode_window(Wrapper(log, GZIP, magic).encode()) == [message.row for message in log]


@pytest.mark.parametrize("magic", MAGICS)
def test_bytes_behind_a_value_mean_nothing(magic):
    plain = Message(3, 4, b"k", b"v", magic, trailing=b"trailing")
    assert decode_window(plain.encode()) == [plain.row]
    wrapper = Wrapper((replace(plain, offset=8), replace(plain, offset=9)), GZIP, magic)
    assert decode_window(wrapper.encode()) == wrapper.rows


@pytest.mark.parametrize("magic", MAGICS)
@pytest.mark.parametrize("length", [-1, -2, -(2**31)])
def test_any_negative_length_is_null(magic, length):
    content = struct.pack(">i", length) * 2
    data = entry(7, magic, 0, bytes(8 * magic) + content)
    assert decode_window(data) == [(7, 0 if magic else -1, None, None, ())]


def test_only_what_is_asked_for_is_there():
    section = section_of(Message(3, 4, b"k", b"v").encode())
    nothing = decode_records(section, WantedFields(timestamp=False, key=False, value=False))
    assert (nothing.timestamps_ms, nothing.keys, nothing.values, nothing.headers) == (None,) * 4
    assert nothing.offsets.tolist() == [3]
    for name in ("timestamp", "key", "value", "headers"):
        flags = dict.fromkeys(("timestamp", "key", "value", "headers"), False) | {name: True}
        columns = decode_records(section, WantedFields(**flags))
        found = (columns.timestamps_ms, columns.keys, columns.values, columns.headers)
        assert [column is not None for column in found] == list(flags.values())


# -- Offsets --------


@pytest.mark.parametrize("codec", COMPRESSED)
@pytest.mark.parametrize("first", [0, 1, 1000, -5, -(2**63)])
def test_in_v1_only_the_distances_of_inner_offsets_count(codec, first):
    wrapper = Wrapper(
        messages(100, 101, 105), codec, inner_offsets=(first, first + 1, first + 5), offset=2**40
    )
    assert [row[0] for row in decode_window(wrapper.encode())] == [2**40 - 5, 2**40 - 4, 2**40]


def test_in_v0_inner_offsets_are_the_offsets():
    wrapper = Wrapper(messages(100, 101, 105, magic=0), GZIP, 0, offset=110)
    assert [row[0] for row in decode_window(wrapper.encode())] == [100, 101, 105]


def test_a_wrapper_at_offset_0_begins_there():
    # Some producers leave the offset unset; the records are counted from 0.
    wrapper = Wrapper(messages(0, 1, 2), GZIP, offset=0)
    assert [row[0] for row in decode_window(wrapper.encode())] == [0, 1, 2]
    single = Wrapper(messages(0), GZIP, offset=0, inner_offsets=(0,))
    assert [row[0] for row in decode_window(single.encode())] == [0]


def test_a_wrapper_below_its_last_inner_offset_is_refused():
    wrapper = Wrapper(messages(0, 1, 2), GZIP, offset=1)
    assert "to be no smaller than the last one in its set, found 1 around 2" in refusal(wrapper)


@pytest.mark.parametrize("magic", MAGICS)
@pytest.mark.parametrize("inner_offsets", [(5, 5, 9), (6, 5, 9), (9, 5, 6), (5, 9, 8)])
def test_inner_offsets_have_to_ascend(magic, inner_offsets):
    wrapper = Wrapper(messages(5, 6, 9, magic=magic), GZIP, magic, inner_offsets=inner_offsets, offset=9)
    assert "offsets to ascend" in refusal(wrapper)


def test_in_v0_an_offset_above_the_wrappers_is_refused():
    wrapper = Wrapper(messages(5, 6, 9, magic=0), GZIP, 0, offset=8)
    assert "found 9, which does not lie from 7 to 8" in refusal(wrapper)


@pytest.mark.parametrize("magic", MAGICS)
def test_offsets_that_overlap_the_batch_before_are_refused(magic):
    data = Message(6, magic=magic).encode() + Wrapper(messages(6, 7, magic=magic), GZIP, magic).encode()
    window = window_of(data)
    header = window.header(1)
    assert (header.base_offset, header.last_offset) == (7, 7)
    batch = data[int(window.starts[1]) :]
    section = batch_section(batch, header, path=PATH, limit_bytes=1000)
    with pytest.raises(CorruptRecordError, match="found 6, which does not lie from 7 to 7"):
        decode_records(section, EVERYTHING)


def test_negative_offsets_are_refused():
    assert "offsets to ascend" in refusal(Wrapper(messages(-3, 0), GZIP, inner_offsets=(-3, 0), offset=0))


# -- Messages of the other format, as an old cleaner left them (KAFKA-4298) --------


@pytest.mark.parametrize("name", MISMATCHED)
def test_golden_wrappers_of_the_other_format(name):
    assert decode_window(MISMATCHED[name].data) == list(MISMATCHED[name].rows)


@pytest.mark.parametrize("codec", COMPRESSED)
@pytest.mark.parametrize("attributes", [0, LOG_APPEND_TIME])
@pytest.mark.parametrize("count", [1, 3, 500])
def test_v0_messages_in_a_v1_wrapper_have_relative_offsets_and_no_timestamp(codec, attributes, count):
    inner = messages(*range(100, 100 + 2 * count, 2), magic=0)
    wrapper = Wrapper(inner, codec, 1, timestamp_ms=77, attributes=attributes)
    assert decode_window(wrapper.encode()) == [
        (offset, -1, b"k%d" % offset, b"v%d" % offset, ()) for offset in range(100, 100 + 2 * count, 2)
    ]


@pytest.mark.parametrize("codec", COMPRESSED)
@pytest.mark.parametrize("attributes", [0, LOG_APPEND_TIME])
@pytest.mark.parametrize("count", [1, 3, 500])
def test_v1_messages_in_a_v0_wrapper_have_their_own_offsets_and_timestamps(codec, attributes, count):
    inner = messages(*range(100, 100 + 2 * count, 2), magic=1)
    wrapper = Wrapper(inner, codec, 0, attributes=attributes)
    assert decode_window(wrapper.encode()) == [
        (offset, 1000 - offset, b"k%d" % offset, b"v%d" % offset, ())
        for offset in range(100, 100 + 2 * count, 2)
    ]


@pytest.mark.parametrize("magic", MAGICS)
@pytest.mark.parametrize("attributes", [0, LOG_APPEND_TIME])
def test_both_formats_in_one_wrapper(magic, attributes):
    inner = tuple(replace(message, magic=message.offset % 2) for message in messages(4, 5, 6, 7))
    wrapper = Wrapper(inner, GZIP, magic, timestamp_ms=77, attributes=attributes)
    times = [77, 77] if magic and attributes else [995, 993]
    assert [row[:2] for row in decode_window(wrapper.encode())] == [
        (4, -1), (5, times[0]), (6, -1), (7, times[1]),
    ]  # fmt: skip


@pytest.mark.parametrize("magic", MAGICS)
def test_the_lengths_of_a_message_are_those_of_its_own_format(magic):
    # A v0 message without key and value is eight bytes shorter than any of v1.
    shortest = Message(3, key=None, value=None, magic=1 - magic)
    wrapper = Wrapper((shortest,), GZIP, magic, timestamp_ms=5)
    assert decode_window(wrapper.encode()) == [shortest.row]


# -- What a set may not hold --------


@pytest.mark.parametrize("magic", MAGICS)
@pytest.mark.parametrize("codec", COMPRESSED)
def test_an_empty_set_is_refused(magic, codec):
    assert "hold messages, found none" in refusal(Wrapper((), codec, magic, offset=3))


@pytest.mark.parametrize("magic", MAGICS)
def test_a_set_of_half_a_message_is_refused(magic):
    half = Message(magic=magic).encode()[:-1]
    assert "hold messages, found none" in refusal(with_set(half, magic))


@pytest.mark.parametrize("magic", MAGICS)
@pytest.mark.parametrize("length", [-1, -2, -(2**31)])
def test_a_null_value_is_refused(magic, length):
    data = entry(3, magic, GZIP, bytes(8 * magic) + struct.pack(">ii", -1, length))
    assert "value is null" in refusal(data)


@pytest.mark.parametrize("magic", MAGICS)
@pytest.mark.parametrize("codec", [ZSTD, 5, 6, 7])
def test_a_codec_that_came_later_is_refused(magic, codec):
    name = "zstd" if codec == ZSTD else f"codec number {codec}"
    data = Message(3, value=b"anything", magic=magic, attributes=codec).encode()
    assert f"compressed with {name}, but messages of format v{magic} cannot be" in refusal(data)


@pytest.mark.parametrize("magic", MAGICS)
@pytest.mark.parametrize(("codec", "name"), [(GZIP, "gzip"), (SNAPPY, "snappy"), (LZ4, "lz4")])
@pytest.mark.parametrize("payload", [b"", b"garbage", b"\x1f\x8b\x08garbage", b"\x04\x22\x4d\x18garbage"])
def test_garbage_is_refused(magic, codec, name, payload):
    assert f"compressed with {name}" in refusal(Wrapper((), codec, magic, offset=3, payload=payload))


@pytest.mark.parametrize("magic", MAGICS)
@pytest.mark.parametrize("inner", [2, 3, -1])
def test_an_inner_message_of_no_old_format_is_refused(magic, inner):
    odd = entry(2, inner, 0, bytes(8) + b"\xff" * 8)
    for inner_set in (odd, messages(1, magic=magic)[0].encode() + odd):
        text = refusal(with_set(inner_set, magic))
        assert f"a message of a set to be of format v0 or v1, found magic {inner}" in text


@pytest.mark.parametrize("magic", MAGICS)
@pytest.mark.parametrize("codec", [*COMPRESSED, ZSTD, 7])
def test_a_wrapper_in_a_wrapper_is_refused(magic, codec):
    nested = Wrapper(messages(2, 3, magic=magic), GZIP, magic).encode()
    message = Message(3, 5, None, b"nested", magic, attributes=codec).encode()
    text = refusal(with_set(messages(1, magic=magic)[0].encode() + message, magic))
    assert f"not to be compressed itself, found codec number {codec}" in text
    assert "not to be compressed itself" in refusal(with_set(nested, magic))


@pytest.mark.parametrize("magic", MAGICS)
@pytest.mark.parametrize("count", [1, 3, 500])
def test_a_wrong_inner_crc_is_refused(magic, count):
    inner = [message.encode() for message in messages(*range(1, count + 1), magic=magic)]
    for row in {0, count // 2, count - 1}:
        spoilt = list(inner)
        spoilt[row] = messages(row + 1, magic=magic)[0].encode(crc=7)
        assert "match its CRC, found one that does not match 0x00000007" in refusal(
            with_set(b"".join(spoilt), magic, count)
        )


@pytest.mark.parametrize("magic", MAGICS)
@pytest.mark.parametrize("length", [13, 0, -1, -(2**31)])
def test_an_inner_length_that_is_none_is_refused(magic, length):
    inner = messages(1, magic=magic)[0].encode() + Message(2, magic=magic).encode(length=length)
    assert f"long enough, found a length of {length}" in refusal(with_set(inner + bytes(20), magic))


@pytest.mark.parametrize("magic", MAGICS)
@pytest.mark.parametrize("length", range(14, 22))
def test_an_inner_message_of_v1_that_has_only_room_for_v0_is_refused(magic, length):
    short = entry(2, 1, 0, bytes(length - 6))
    assert f"long enough for its format, found a length of {length}" in refusal(with_set(short, magic))


@pytest.mark.parametrize("magic", MAGICS)
@pytest.mark.parametrize("field", ["key", "value"])
@pytest.mark.parametrize("length", [2, 100, 2**31 - 1])
def test_a_key_or_a_value_that_does_not_fit_is_refused(magic, field, length):
    lengths = {"key": struct.pack(">i", length) + bytes(5), "value": struct.pack(">ii", -1, length) + b"x"}
    data = entry(3, magic, 0, bytes(8 * magic) + lengths[field])
    assert f"a message's {field} to lie within it, found a length of {length}" in refusal(data)
    good = messages(1, 2, magic=magic)
    inner = good[0].encode() + good[1].encode() + data
    assert f"a message's {field} to lie within it" in refusal(with_set(inner, magic))


@pytest.mark.parametrize("magic", MAGICS)
@pytest.mark.parametrize("cut", [1, 10, 20, 25])
@pytest.mark.parametrize("codec", COMPRESSED)
def test_a_partial_message_at_the_end_of_a_set_is_ignored(magic, cut, codec):
    inner = messages(1, 2, magic=magic)
    half = Message(9, magic=magic, value=b"v" * 9).encode()[:-cut]
    data = with_set(b"".join(message.encode() for message in inner) + half, magic, 2, codec)
    assert decode_window(data) == [message.row for message in inner]


def with_set(inner, magic, offset=3, codec=GZIP):
    """Return a wrapper around a set given as bytes."""
    wrapper = Wrapper((), codec, magic, offset=offset)
    return replace(wrapper, payload=compress_set(codec, inner, magic)).encode()


# -- Codecs --------


@pytest.mark.parametrize("magic", MAGICS)
def test_one_raw_snappy_block(magic):
    wrapper = Wrapper(messages(4, 5, magic=magic), SNAPPY, magic)
    raw = replace(wrapper, payload=snappy_block(wrapper.encode_set()))
    assert decode_window(raw.encode()) == wrapper.rows


def test_in_v1_the_lz4_checksum_of_early_clients_is_refused():
    wrapper = Wrapper(messages(4, 5), LZ4)
    broken = replace(wrapper, payload=lz4_frame(wrapper.encode_set(), LZ4_CHECKSUM_OF_V0))
    assert "compressed with lz4" in refusal(broken)


@pytest.mark.parametrize("codec", COMPRESSED)
@pytest.mark.parametrize("magic", MAGICS)
def test_a_wrapper_that_inflates_beyond_the_limit_is_refused(codec, magic):
    log = (Message(3, 5, None, bytes(1 << 20), magic),)
    data = Wrapper(log, codec, magic).encode()
    size_bytes = len(log[0].encode())
    assert len(decode_whole_batches(data, limit_bytes=size_bytes)) == 1
    with pytest.raises(BatchTooLargeError, match="maxDecompressedBatchBytes"):
        decode_whole_batches(data, limit_bytes=size_bytes - 1)


# -- Look-ups by time --------


@pytest.mark.parametrize("magic", MAGICS)
def test_the_timestamps_of_one_batch(magic):
    wrapper = Wrapper(messages(5, 9, magic=magic), GZIP, magic)
    for data, rows in ((wrapper.encode(), wrapper.rows), (Message(3, 8, magic=magic).encode(), None)):
        header = parse_batch_header(data, 0, 0, path=PATH).with_base_offset(2)
        offsets, timestamps_ms = batch_timestamps(data, header, path=PATH, limit_bytes=1000)
        expected = rows or [Message(3, 8, magic=magic).row]
        assert list(zip(offsets.tolist(), timestamps_ms.tolist(), strict=True)) == [
            row[:2] for row in expected
        ]


# -- Sections of many --------


def test_sets_one_behind_the_other_are_one_walk():
    wrappers = [Wrapper(messages(*range(start, start + 5)), GZIP) for start in range(0, 500, 5)]
    section = section_of_sets(wrappers)
    columns = decode_records(section, EVERYTHING)
    assert columns.row_counts.tolist() == [5] * 100
    assert rows_of(section, columns) == [row for wrapper in wrappers for row in wrapper.rows]


def test_half_a_message_ends_its_own_set_only():
    wrappers = [Wrapper(messages(*range(start, start + 5)), GZIP) for start in range(0, 50, 5)]
    # As long as it says, what is cut off would reach into the next set.
    half = Message(9, value=b"v" * 9).encode()[:-9]
    section = section_of_sets(wrappers, {3: half, 9: half})
    columns = decode_records(section, EVERYTHING)
    assert columns.row_counts.tolist() == [5] * 10
    assert rows_of(section, columns) == [row for wrapper in wrappers for row in wrapper.rows]


def test_the_batch_that_is_wrong_is_named():
    wrappers = [Wrapper(messages(*range(start, start + 5)), GZIP) for start in range(0, 50, 5)]
    wrappers[6] = replace(wrappers[6], inner_offsets=(0, 1, 1, 3, 4))
    with pytest.raises(CorruptRecordError) as raised:
        decode_records(section_of_sets(wrappers), EVERYTHING)
    assert (raised.value.offset, raised.value.last_offset) == (30, 34)


def section_of_sets(wrappers, after=None):
    """Return one section of what wrappers hold; ``after`` are bytes after some sets."""
    window = window_of(b"".join(wrapper.encode() for wrapper in wrappers))
    sets = [wrapper.encode_set() + (after or {}).get(number, b"") for number, wrapper in enumerate(wrappers)]
    borders = np.cumsum([0, *map(len, sets)])
    section = section_of(Message(0).encode())
    return replace(
        section,
        buffer=padded(b"".join(sets)),
        starts=borders[:-1],
        ends=borders[1:],
        headers=window.headers,
        positions=window.starts,
    )
