"""From windows to sections: what is decompressed together, and what is not decompressed at all."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

import storage_core.record.section as sections_module
from storage_core.errors import BatchTooLargeError, CorruptRecordError, UnsupportedFormatError
from storage_core.record import WantedFields, decode_records
from storage_core.record.section import MAX_ROWS, SectionMaker
from tests.record.encoding import Batch, counted_records
from tests.record.legacy_encoding import Message, Wrapper, compress_set, plain_messages

EVERYTHING = WantedFields(headers=True)
OFFSETS = WantedFields(timestamp=False, key=False, value=False)
TIMESTAMPS = WantedFields(key=False, value=False)
NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
LOG_APPEND_TIME = 0x08
LIMIT = 64 << 20


@pytest.fixture
def sections(batch_bytes, window_of):
    """Makes the sections of batches given as (content, codec, other header fields)."""

    def sections(batches, wanted=EVERYTHING, limit_bytes=LIMIT, maker=None):
        data, base = b"", 0
        for content, codec, changes in batches:
            count = changes.get("record_count", 1)
            fields = {"record_count": count, "last_offset_delta": count - 1, **changes}
            data += batch_bytes(base, [content], codec=codec, **fields)
            base += fields["last_offset_delta"] + 1
        window = window_of(data, 7000)
        maker = maker or SectionMaker(limit_bytes, wanted)
        return maker.sections(window, np.arange(len(batches)))

    return sections


def contents(made):
    """Per section, the uncompressed records of its batches."""
    return [
        [
            section.buffer[start:end].tobytes()
            for start, end in zip(section.starts.tolist(), section.ends.tolist(), strict=True)
        ]
        for section in made
    ]


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD])
def test_compressed_batches_share_a_section(sections, codec):
    batches = [(bytes([number]) * 50, codec, {}) for number in range(5)]
    assert contents(sections(batches)) == [[content for content, _, _ in batches]]


def test_codecs_may_be_mixed_and_still_make_one_section(sections):
    batches = [(b"a" * 9, GZIP, {}), (b"b" * 9, ZSTD, {}), (b"c" * 9, NONE, {}), (b"d" * 9, LZ4, {})]
    assert contents(sections(batches)) == [[b"a" * 9, b"b" * 9, b"c" * 9, b"d" * 9]]


def test_sections_know_the_positions_of_their_batches(sections):
    (section,) = sections([(b"a" * 9, NONE, {}), (b"b" * 9, GZIP, {})])
    assert section.positions.tolist() == [7000, 7070]
    assert section.headers["base_offset"].tolist() == [0, 1]
    assert section.path == "/logs/events-0/0.log"


def test_none(sections):
    assert list(sections([])) == []


@pytest.mark.parametrize("codec", [NONE, ZSTD])
@pytest.mark.parametrize("wanted", [EVERYTHING, OFFSETS])
def test_sections_have_about_as_many_rows_as_an_arrow_batch(sections, codec, wanted):
    batches = [(b"x" * 7 * 20_000, codec, {"record_count": 20_000}) for _ in range(10)]
    counts = [section.headers["record_count"].sum() for section in sections(batches, wanted)]
    assert sum(counts) == 200_000
    assert max(counts) < MAX_ROWS + 20_000
    assert len(counts) <= 4


# -- Room for what is decompressed --------


@pytest.fixture
def small_output(monkeypatch):
    monkeypatch.setattr(sections_module, "WINDOW_BYTES", 1000)
    monkeypatch.setattr(sections_module, "_FULL_SECTION_BYTES", 750)


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD])
@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([300] * 5, [3, 2]),  # 900 bytes are enough
        ([700, 700, 100], [1, 2]),  # the second does not fit after the first
        ([1000, 1], [1, 1]),
        ([1001, 1], [1, 1]),  # one too many: the buffer grows
        ([5000, 100, 20_000, 7], [2, 2]),
        ([1, 100_000], [1, 1]),
    ],
)
def test_batches_of_any_size_find_room(sections, small_output, codec, sizes, expected):
    batches = [(bytes([number]) * size, codec, {}) for number, size in enumerate(sizes)]
    made = contents(sections(batches))
    assert [content for section in made for content in section] == [content for content, _, _ in batches]
    if sizes[0] <= 1001:
        assert [len(section) for section in made] == expected


# -- The limit --------


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD])
@pytest.mark.parametrize("limit_bytes", [100, 5000, 10_000_000])
def test_a_batch_may_inflate_to_the_limit_and_no_further(sections, codec, limit_bytes):
    fits, too_large = b"\0" * limit_bytes, b"\0" * (limit_bytes + 1)
    assert contents(sections([(fits, codec, {})], limit_bytes=limit_bytes)) == [[fits]]
    with pytest.raises(BatchTooLargeError, match="maxDecompressedBatchBytes") as caught:
        list(sections([(b"a", codec, {}), (too_large, codec, {})], limit_bytes=limit_bytes))
    assert caught.value.offset == 1
    assert caught.value.position_bytes > 7000
    assert caught.value.end_position_bytes > caught.value.position_bytes
    assert f"at most {limit_bytes} bytes" in str(caught.value)


def assert_a_bomb_is_refused(made):
    tracemalloc.start()
    try:
        with pytest.raises(BatchTooLargeError):
            list(made)
        assert tracemalloc.get_traced_memory()[1] < 20 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("codec", [GZIP, LZ4, ZSTD])
def test_a_bomb_takes_no_more_memory_than_the_limit(sections, codec):
    made = sections([(b"\0" * (50 << 20), codec, {})], limit_bytes=1 << 20)
    assert_a_bomb_is_refused(made)


# -- What a codec refuses --------


@pytest.mark.parametrize(
    ("codec", "name"), [(GZIP, "gzip"), (SNAPPY, "snappy"), (LZ4, "lz4"), (ZSTD, "zstd")]
)
def test_garbage_names_the_batch_and_its_codec(sections, codec, name):
    with pytest.raises(CorruptRecordError, match=f"records compressed with {name}") as caught:
        list(sections([(b"a", NONE, {}), (b"", codec, {"payload": b"garbage"})]))
    assert (caught.value.offset, caught.value.last_offset) == (1, 1)
    assert (caught.value.position_bytes, caught.value.end_position_bytes) == (7062, 7062 + 68)


@pytest.mark.parametrize("codec", [5, 6, 7])
@pytest.mark.parametrize("wanted", [EVERYTHING, OFFSETS])
def test_an_unknown_codec(sections, codec, wanted):
    with pytest.raises(UnsupportedFormatError, match=f"codec number {codec}"):
        list(sections([(b"", codec, {"payload": b"anything"})], wanted))


# -- What the headers tell --------


class TestHeadersOnly:
    """Offsets of a batch without gaps come from its header: its records are not looked at."""

    GARBAGE = (b"", ZSTD, {"payload": b"garbage", "record_count": 3})
    APPEND_TIME = (b"", ZSTD, {"payload": b"garbage", "record_count": 3, "attributes": LOG_APPEND_TIME})

    def counts(self, made):
        return [section.headers["record_count"].tolist() for section in made]

    def test_offsets_of_batches_without_gaps(self, sections):
        assert self.counts(sections([self.GARBAGE] * 4, OFFSETS)) == [[3, 3, 3, 3]]

    def test_log_append_time(self, sections):
        assert self.counts(sections([self.APPEND_TIME] * 2, TIMESTAMPS)) == [[3, 3]]

    def test_timestamps_of_producers_need_the_records(self, sections):
        with pytest.raises(CorruptRecordError):
            list(sections([self.APPEND_TIME, self.GARBAGE], TIMESTAMPS))

    @pytest.mark.parametrize("field", ["key", "value", "headers"])
    def test_bytes_need_the_records(self, sections, field):
        names = ("timestamp", "key", "value", "headers")
        wanted = WantedFields(**{name: name == field for name in names})
        with pytest.raises(CorruptRecordError):
            list(sections([self.APPEND_TIME], wanted))

    def test_offsets_with_gaps_need_the_records(self, sections):
        gap = (b"", ZSTD, {"payload": b"garbage", "record_count": 3, "last_offset_delta": 3})
        with pytest.raises(CorruptRecordError):
            list(sections([self.GARBAGE, gap], OFFSETS))

    def test_batches_with_and_without_gaps_in_one_window(self, sections):
        gap = (b"x" * 30, ZSTD, {"record_count": 3, "last_offset_delta": 5})
        assert self.counts(sections([self.GARBAGE, gap, gap, self.GARBAGE], OFFSETS)) == [[3], [3, 3], [3]]

    def test_a_count_that_no_batch_within_the_limit_can_have(self, sections):
        # A billion offsets would be eight gigabytes.
        hostile = (b"", ZSTD, {"payload": b"garbage", "record_count": 10**9})
        with pytest.raises(CorruptRecordError):
            list(sections([hostile], OFFSETS))

    @pytest.mark.parametrize(
        ("count", "is_believed"), [(2**20, True), (2**20 + 1, False), (9_000_000, False)]
    )
    def test_a_count_that_is_too_large_to_be_believed(self, sections, count, is_believed):
        # Within the limit, but the rows would cost hundreds of megabytes, and a writer of hundred bytes nothing.
        doubtful = (b"", ZSTD, {"payload": b"garbage", "record_count": count})
        if is_believed:
            assert self.counts(sections([doubtful], OFFSETS)) == [[count]]
        else:
            with pytest.raises(CorruptRecordError):
                list(sections([doubtful], OFFSETS))


# -- Messages of older formats --------


@pytest.fixture
def older_sections(window_of):
    """Makes the sections of messages, wrappers and batches as they are in a file."""

    def older_sections(entries, wanted=EVERYTHING, limit_bytes=LIMIT):
        window = window_of(b"".join(entry.encode() for entry in entries), 7000)
        maker = SectionMaker(limit_bytes, wanted)
        return maker.sections(window, np.arange(len(window.starts)))

    return older_sections


def offsets_decoded(made, wanted=EVERYTHING):
    """Per section, the offsets of its records."""
    return [decode_records(section, wanted).offsets.tolist() for section in made]


@pytest.mark.parametrize("magic", [0, 1])
def test_plain_messages_are_left_where_they_are(older_sections, magic):
    messages = plain_messages(5, magic=magic)
    made = list(older_sections(messages))
    assert contents(made) == [[message.encode() for message in messages]]
    size = len(messages[0].encode())
    assert made[0].positions.tolist() == [7000 + size * number for number in range(5)]
    assert made[0].starts.tolist() == [size * number for number in range(5)]


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4])
def test_the_sets_of_wrappers_share_a_section(older_sections, magic, codec):
    wrappers = [
        Wrapper(plain_messages(3, start=start, magic=magic), codec, magic) for start in range(0, 15, 3)
    ]
    assert contents(older_sections(wrappers)) == [[wrapper.encode_set() for wrapper in wrappers]]
    assert offsets_decoded(older_sections(wrappers)) == [list(range(15))]


def test_wrappers_of_any_codec_and_plain_messages_make_one_section(older_sections):
    entries = [
        *plain_messages(2, magic=0),
        Wrapper(plain_messages(2, start=2, magic=0), LZ4, 0),
        Wrapper(plain_messages(2, start=4), SNAPPY),
        *plain_messages(2, start=6),
        Wrapper(plain_messages(2, start=8), GZIP),
    ]
    assert offsets_decoded(older_sections(entries)) == [list(range(10))]


def test_formats_that_change_within_a_window_come_in_order(older_sections):
    entries = [
        *plain_messages(2, magic=0),
        Batch(counted_records(2), 2),
        Batch(counted_records(2), 4, codec=ZSTD),
        Wrapper(plain_messages(2, start=6)),
        *plain_messages(2, start=8),
        Batch(counted_records(2), 10, codec=GZIP),
    ]
    assert offsets_decoded(older_sections(entries)) == [[0, 1], [2, 3, 4, 5], [6, 7, 8, 9], [10, 11]]


@pytest.mark.parametrize("wanted", [OFFSETS, TIMESTAMPS])
def test_the_header_of_a_wrapper_does_not_tell_its_offsets(older_sections, wanted):
    # Its own offset follows that of the message before.
    entries = [Message(4), Wrapper((Message(5),)), Wrapper(plain_messages(3, start=6))]
    assert offsets_decoded(older_sections(entries, wanted), wanted) == [[4, 5, 6, 7, 8]]


def test_sections_of_plain_messages_have_no_more_rows_than_an_arrow_batch(older_sections):
    counts = [len(section.starts) for section in older_sections(plain_messages(MAX_ROWS + 10))]
    assert counts == [MAX_ROWS, 10]


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4])
@pytest.mark.parametrize("magic", [0, 1])
def test_a_wrapper_may_inflate_to_the_limit_and_no_further(older_sections, codec, magic):
    small, large = (
        Wrapper((Message(5, value=bytes(size), magic=magic),), codec, magic) for size in (9, 90_000)
    )
    limit_bytes = len(large.encode_set())
    entries = [small, Wrapper(tuple(Message(6, value=bytes(90_000), magic=magic) for _ in "1"), codec, magic)]
    assert offsets_decoded(older_sections(entries, limit_bytes=limit_bytes))[-1][-1] == 6
    with pytest.raises(BatchTooLargeError, match="maxDecompressedBatchBytes") as caught:
        list(older_sections(entries, limit_bytes=limit_bytes - 1))
    assert (caught.value.offset, caught.value.last_offset) == (6, 6)
    assert caught.value.position_bytes == 7000 + len(small.encode())


@pytest.mark.parametrize("codec", [GZIP, LZ4])
def test_a_wrapper_that_is_a_bomb_takes_no_more_memory_than_the_limit(older_sections, codec):
    bomb = Wrapper(codec=codec, offset=3, payload=compress_set(codec, bytes(50 << 20), 1))
    made = older_sections([bomb], limit_bytes=1 << 20)
    assert_a_bomb_is_refused(made)


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize(
    ("codec", "name"),
    [(GZIP, "gzip"), (SNAPPY, "snappy"), (LZ4, "lz4"), (ZSTD, "zstd"), (7, "codec number 7")],
)
@pytest.mark.parametrize("wanted", [EVERYTHING, OFFSETS])
def test_a_wrapper_of_garbage_is_named_with_its_codec(older_sections, magic, codec, name, wanted):
    bad = Wrapper(codec=codec, magic=magic, offset=9, payload=b"garbage")
    with pytest.raises(CorruptRecordError, match=f"records compressed with {name}") as caught:
        list(older_sections([Message(3), bad], wanted))
    assert (caught.value.offset, caught.value.last_offset) == (4, 9)
    start = 7000 + len(Message(3).encode())
    assert (caught.value.position_bytes, caught.value.end_position_bytes) == (
        start,
        start + len(bad.encode()),
    )
