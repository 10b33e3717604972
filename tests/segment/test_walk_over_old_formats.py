"""Walking over messages of format v0 and v1, alone and among batches of format v2."""

from __future__ import annotations

import os
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.errors import CorruptRecordError
from storage_core.filesystem import FileSystem
from storage_core.segment.batch_walk import BatchWalk, read_batch
from tests.examples import examples
from tests.record.legacy_encoding import GZIP, Message, Wrapper

# Two records, (283843 ms, key1, value1) and (1234 ms, key2, value2), at offsets 0 and 1, as Kafka's own
# client writes them in each format.
V0 = bytes.fromhex(
    "00000000000000000000001875f0f41d0000000000046b6579310000000676616c756531000000000000000100000018751bc3a6"
    "0000000000046b6579320000000676616c756532"
)
V1 = bytes.fromhex(
    "0000000000000000000000200685b364010000000000000454c3000000046b6579310000000676616c7565310000000000000001"
    "0000002005093005010000000000000004d2000000046b6579320000000676616c756532"
)
V0_GZIP = bytes.fromhex(
    "0000000000000001000000486a1cc1b20001ffffffff0000003a1f8b08000000000000ff6360800389d20f5f64c12c96ecd44a43"
    "20cd569698539a6a08956704ab913ebc0caec608aec60800ee26f24848000000"
)
V1_SNAPPY = bytes.fromhex(
    "00000000000000010000006fd86eb5c3010200000000000454c3ffffffff0000005982534e415050590000000001000000010000"
    "0045580000190114200685b364010910540454c3000000046b6579310000000676616c7565310109010123102005093005010901"
    "010804d200092c28320000000676616c756532"
)
V2 = bytes.fromhex(
    "000000000000000000000055ffffffff02e58cf1ff00000000000100000000000454c300000000000454c3ffffffffffffffffff"
    "ffffffffff0000000220000000086b6579310c76616c756531002400e1bf2202086b6579320c76616c75653200"
)
# A wrapper of the offsets 10 to 12, timestamps 1, 3 and 2, and a message with log append time.
V1_WRAPPER_AT_10 = bytes.fromhex(
    "000000000000000c0000005dd7a60a8201010000000000000003ffffffff000000471f8b08000000000000ff636080038936b599"
    "d68c301e88c19808220c9144240e5e677e0757c30c124d021146501126909a3d4cf6b270352011c66410610c001bf201796c0000"
    "00"
)
V1_APPEND_TIME_AT_10 = bytes.fromhex(
    "000000000000000a00000018ddf1afb80108000000000000000f00000001610000000131"
)
EMPTY_V0 = Message(magic=0, value=None).encode()


def at(offset, entry):
    """Return the same entry at another offset, which no CRC covers."""
    return struct.pack(">q", offset) + entry[8:]


def placed(entries):
    """Entries back to back: their bytes, and (position, end position) of each."""
    places, position = [], 0
    for entry in entries:
        places.append((position, position + len(entry)))
        position += len(entry)
    return b"".join(entries), places


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        pytest.param(V0, [(0, 36, 0, 0, -1), (36, 72, 1, 1, -1)], id="v0"),
        pytest.param(V1, [(0, 44, 0, 0, 283843), (44, 88, 1, 1, 1234)], id="v1"),
        pytest.param(V0_GZIP, [(0, 84, 0, 1, -1)], id="v0 wrapper"),
        pytest.param(V1_SNAPPY, [(0, 123, 0, 1, 283843)], id="v1 wrapper"),
        pytest.param(V1_WRAPPER_AT_10, [(0, 105, 0, 12, 3)], id="v1 wrapper after a gap"),
        pytest.param(V1_APPEND_TIME_AT_10, [(0, 36, 10, 10, 15)], id="v1 with log append time"),
        pytest.param(EMPTY_V0, [(0, 26, 0, 0, -1)], id="the shortest message"),
    ],
)
def test_messages_of_a_broker(open_walk, content, expected):
    assert list(open_walk(content).iter_summaries()) == expected


def test_headers_say_what_the_formats_have(open_walk):
    entries = [at(0, V0[:36]), at(2, V0_GZIP), at(3, V1[:44]), at(5, V1_SNAPPY), at(6, V2)]
    content, places = placed(entries)
    headers = list(open_walk(content).batches())
    assert [(header.position_bytes, header.end_position_bytes) for header in headers] == places
    assert [header.magic for header in headers] == [0, 0, 1, 1, 2]
    assert [header.is_wrapper for header in headers] == [False, True, False, True, False]
    assert [(header.base_offset, header.last_offset) for header in headers] == [
        (0, 0),
        (1, 2),
        (3, 3),
        (4, 5),
        (6, 7),
    ]
    assert [header.max_timestamp_ms for header in headers] == [-1, -1, 283843, 283843, 283843]
    assert not any(header.is_transactional or header.is_control for header in headers)
    assert {header.leader_epoch for header in headers} == {-1}


def test_a_wrapper_may_begin_right_after_the_previous_batch(open_walk):
    content, (_, second, third) = placed([at(99, V1[:44]), V1_WRAPPER_AT_10, V1_WRAPPER_AT_10])
    content = content[: second[0]] + at(200, content[second[0] : second[1]]) + at(300, content[third[0] :])
    walk = open_walk(content, base_offset=50)
    assert [batch[2:4] for batch in walk.iter_summaries()] == [(99, 99), (100, 200), (201, 300)]
    # A walk that begins with it knows the file's name only.
    assert [batch[2:4] for batch in walk.iter_summaries(second[0])] == [(50, 200), (201, 300)]
    assert walk.batch_at(third[0]).base_offset == 50
    assert walk.first_reaching(150, 0).base_offset == 100
    assert walk.first_reaching(150, second[0]).base_offset == 50


def test_only_its_records_tell_where_a_wrapper_begins(open_walk):
    content, (_, second) = placed([at(5, V1[:44]), V1_WRAPPER_AT_10])
    walk = open_walk(content)
    assert walk.first_offset(walk.batch_at(second[0]), 1000) == 10
    assert walk.first_offset(walk.batch_at(0), 1000) == 5


def test_a_wrapper_spans_no_more_offsets_than_a_header_can_say(open_walk):
    walk = open_walk(at(2**40, V0_GZIP))
    assert list(walk.iter_summaries()) == [(0, 84, 2**40 - 2**31 + 1, 2**40, -1)]
    (header,) = walk.batches()
    assert (header.base_offset, header.last_offset) == (2**40 - 2**31 + 1, 2**40)


@pytest.mark.parametrize("entry", [V0[36:], V1[44:], V0_GZIP, V1_SNAPPY], ids=["v0", "v1", "v0w", "v1w"])
def test_offsets_do_not_repeat(open_walk, entry):
    batches = open_walk(at(5, V1[:44]) + at(5, entry)).iter_summaries()
    assert next(batches)[3] == 5
    with pytest.raises(CorruptRecordError, match="from 6 on, found a batch at offset 5") as caught:
        next(batches)
    assert caught.value.position_bytes == 44


def test_a_message_below_the_file_name_is_damage(open_walk):
    with pytest.raises(CorruptRecordError, match="from 7 on, as the file's name says"):
        list(open_walk(at(6, V1[:44]), base_offset=7).iter_summaries())


@pytest.mark.parametrize(("magic", "length"), [(0, 13), (0, 0), (0, -1), (1, 21), (1, 13), (1, -(2**31))])
def test_a_length_too_small_for_the_format_is_damage(open_walk, magic, length):
    entry = Message(1, key=b"k", magic=magic).encode(length=length)
    batches = open_walk(V0[:36] + entry + bytes(60)).iter_summaries()
    next(batches)
    with pytest.raises(CorruptRecordError, match="length") as caught:
        next(batches)
    assert caught.value.position_bytes == 36


def test_a_torn_tail_ends_the_walk_at_each_byte(tmp_path):
    entries = [V0[:36], at(2, V0_GZIP), at(3, EMPTY_V0), at(4, V1[:44]), at(6, V1_SNAPPY), at(8, V2)]
    content, places = placed(entries)
    path = tmp_path / "0.log"
    for cut in range(len(content) + 1):
        whole = [place for place in places if place[1] <= cut]
        path.write_bytes(content[:cut])
        with FileSystem().open(str(path)) as log_file:
            assert [batch[:2] for batch in BatchWalk(log_file, 0, cut).iter_summaries()] == whole
            # Cut since its size was asked for: what is left of the last header tells nothing.
            found = [batch[:2] for batch in BatchWalk(log_file, 0, len(content)).iter_summaries()]
            assert found == whole


@pytest.mark.parametrize("zeros", [1, 17, 18, 25, 26, 33, 34, 61, 5000])
@pytest.mark.parametrize("entry", [V0, V1, V0_GZIP, EMPTY_V0], ids=["v0", "v1", "v0 wrapper", "shortest"])
def test_a_zero_tail_ends_the_walk(open_walk, entry, zeros):
    whole = list(open_walk(entry).iter_summaries())
    assert list(open_walk(entry + bytes(zeros)).iter_summaries()) == whole


@pytest.mark.parametrize("rest", range(1, 18))
def test_the_shortest_message_is_found_at_the_end_of_a_file(open_walk, rest):
    content = at(1, EMPTY_V0) + at(2, EMPTY_V0) + b"\xff" * rest
    assert list(open_walk(content).iter_summaries()) == [(0, 26, 1, 1, -1), (26, 52, 2, 2, -1)]
    assert [header.size_bytes for header in open_walk(content).batches()] == [26, 26]


def test_blocks_hold_many_small_messages(tmp_path):
    content = b"".join(at(offset, V0[:36]) for offset in range(20_000))
    filesystem = FileSystem()
    path = tmp_path / "small.log"
    path.write_bytes(content)
    with filesystem.open(str(path)) as log_file:
        assert [batch[3] for batch in BatchWalk(log_file, 0, len(content)).iter_summaries()] == list(
            range(20_000)
        )
    assert filesystem.statistics.reads <= 3 + len(content) // 60_000
    assert filesystem.statistics.bytes_read <= len(content) * 1.01


@pytest.mark.parametrize("place", [1, 7, 99])
def test_a_message_out_of_order_is_found_among_many(open_walk, place):
    entries = [Message(10 * number, number).encode() for number in range(100)]
    entries[place] = at(10 * place - 10, entries[place])
    walked = []
    with pytest.raises(CorruptRecordError) as raised:
        walked.extend(open_walk(b"".join(entries)).iter_summaries())
    places = placed(entries)[1]
    assert raised.value.position_bytes == places[place][0]
    expected = [(*places[number], 10 * number, 10 * number, number) for number in range(place)]
    assert walked == expected


def test_a_walk_may_be_asked_for_other_headers_on_the_way(open_walk):
    entries = [Message(number, number, value=b"v" * 50).encode() for number in range(400)]
    walk = open_walk(b"".join(entries))
    for number, header in enumerate(walk.batches()):
        assert (header.base_offset, header.crc) == (number, int.from_bytes(entries[number][12:16], "big"))
        assert walk.batch_at(0).base_offset == 0


def test_of_large_messages_only_headers_are_read(tmp_path):
    entries = [Message(offset, value=bytes(100_000), magic=offset % 2).encode() for offset in range(50)]
    filesystem = FileSystem()
    path = tmp_path / "large.log"
    path.write_bytes(b"".join(entries))
    with filesystem.open(str(path)) as log_file:
        assert len(list(BatchWalk(log_file, 0, sum(map(len, entries))).iter_summaries())) == 50
    assert filesystem.statistics.bytes_read <= 4096 + 49 * 61


def test_a_file_that_is_cut_while_it_is_read_ends_the_walk(tmp_path):
    content = b"".join(Message(offset, value=bytes(1000)).encode() for offset in range(100))
    path = tmp_path / "cut.log"
    path.write_bytes(content)
    with FileSystem().open(str(path)) as log_file:
        batches = BatchWalk(log_file, 0, len(content)).iter_summaries()
        next(batches)
        os.truncate(path, 30_000)
        assert len(list(batches)) < 30


PAYLOADS = st.sampled_from([0, 1, 30, 100, 3000, 5000, 70_000])
GAPS = st.integers(0, 5)
ENTRIES = st.one_of(
    st.tuples(st.sampled_from(["message"]), st.sampled_from([0, 1]), GAPS, st.just(0), PAYLOADS),
    st.tuples(st.sampled_from(["wrapper"]), st.sampled_from([0, 1]), GAPS, st.integers(0, 30), PAYLOADS),
    st.tuples(st.sampled_from(["batch"]), st.just(2), GAPS, st.integers(0, 30), PAYLOADS),
)


def build(shapes, base_offset, make_batch):
    """Entries of any format, and (base offset, last offset, largest timestamp) as a walk from the start sees them."""
    entries, expected, next_offset = [], [], base_offset
    for kind, magic, gap, delta, size in shapes:
        first = next_offset + gap
        last = first + delta
        timestamp_ms = 1000 + last
        if kind == "batch":
            entries.append(make_batch(first, (timestamp_ms,), last_offset_delta=delta, value=bytes(size)))
            expected.append((first, last, timestamp_ms))
        elif kind == "message":
            entries.append(Message(first, timestamp_ms, None, bytes(size), magic).encode())
            expected.append((first, last, timestamp_ms if magic else -1))
        else:
            # What a wrapper holds is of no interest to a walk.
            entry = Wrapper((), GZIP, magic, last, timestamp_ms, payload=bytes(size))
            entries.append(entry.encode())
            expected.append((next_offset, last, timestamp_ms if magic else -1))
        next_offset = last + 1
    return entries, expected


@examples(80)
@given(shapes=st.lists(ENTRIES, max_size=40), zeros=st.integers(0, 200), data=st.data())
def test_a_walk_meets_what_was_written(tmp_path_factory, make_batch, shapes, zeros, data):
    entries, expected = build(shapes, 5, make_batch)
    content, places = placed(entries)
    whole = [place + offsets for place, offsets in zip(places, expected, strict=True)]
    path = tmp_path_factory.mktemp("walk") / "5.log"
    path.write_bytes(content + bytes(zeros))
    with FileSystem().open(str(path)) as log_file:
        walk = BatchWalk(log_file, 5, len(content) + zeros)
        assert list(walk.iter_summaries()) == whole
        headers = list(walk.batches())
        assert [
            (
                each.position_bytes,
                each.end_position_bytes,
                each.base_offset,
                each.last_offset,
                each.max_timestamp_ms,
            )
            for each in headers
        ] == whole
        assert [read_batch(log_file, header, 1 << 20) for header in headers] == entries
        if entries:
            start = data.draw(st.integers(0, len(entries) - 1))
            found = list(walk.iter_summaries(places[start][0]))
            assert found[1:] == whole[start + 1 :]
            assert found[0][:2] == places[start]
            assert 5 <= found[0][2] <= whole[start][2]
            target = data.draw(st.integers(0, whole[-1][3] + 1))
            reached = next((each for each in whole if each[3] >= target), None)
            header = walk.first_reaching(target, 0)
            assert (header and header.position_bytes) == (reached and reached[0])
