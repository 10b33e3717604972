"""Frames: where the payload of a value begins, and by which schema it is to be read."""

from __future__ import annotations

import time
import uuid

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.values.decoding import Payloads
from storage_core.values.frames import (
    KEY_HEADER,
    NO_FRAME,
    VALUE_HEADER,
    SchemaName,
    message_types,
    split_frames,
)
from tests.examples import examples

_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_GUID = "0e0b6f05-5bd5-4e6b-8c6a-3a0e6b5bd54e"
_GUID_FRAME = b"\1" + uuid.UUID(_GUID).bytes
# A value and its header as the serializers of confluent-kafka 2.16.1 write them, and what they mean: the name of the schema,
# the path of the Protobuf message, the payload.
_OF_CONFLUENT = [
    (b"\0\0\0\0\1\5\2x", None, SchemaName(1), None, b"\5\2x"),
    (b'\0\0\0\0\3{"a":1}', None, SchemaName(3), None, b'{"a":1}'),
    (
        b"\5\2x",
        b'\x01\x12\x07\xc1\x9bU@K"\x9c\xe0\x11\xd6\xdb|\xb4\xdc',
        SchemaName(None, "1207c19b-5540-4b22-9ce0-11d6db7cb4dc", b""),
        None,
        b"\5\2x",
    ),
    (b"\0\0\0\0\4\0\x08\7", None, SchemaName(4), (0,), b"\x08\7"),
    (b"\0\0\0\0\4\2\6\x08\7", None, SchemaName(4), (3,), b"\x08\7"),
    (b"\0\0\0\0\4\4\6\2\n\2hi", None, SchemaName(4), (3, 1), b"\n\2hi"),
    (b"\0\0\0\0\4\4\4\x8a\1\n\2hi", None, SchemaName(4), (2, 69), b"\n\2hi"),
    (
        b"\n\2hi",
        b"\1O\x0e\x9c\x18\xd9fN\x12\x81\x8d@ol\xfb\xd1\xa9\4\4\x8a\1",
        SchemaName(None, "4f0e9c18-d966-4e12-818d-406f6cfbd1a9", b"\4\4\x8a\1"),
        (2, 69),
        b"\n\2hi",
    ),
]


def _payloads(values):
    return Payloads.of_array(pa.array(values, pa.binary()))


def _split(values, headers=None, name=VALUE_HEADER):
    """Return the name and payload of each value, None for both if it has no frame; and the messages of errors by row."""
    payloads = _payloads(values)
    frames = split_frames(payloads, None if headers is None else pa.array(headers, _HEADERS), name)
    rows = []
    for number, start, end in zip(frames.name_numbers, frames.starts, payloads.ends, strict=True):
        payload = payloads.data[start:end].tobytes()
        rows.append((None, None) if number == NO_FRAME else (frames.names[number], payload))
    assert all(error.reason == "unframed" and error.schema_id is None for error in frames.errors)
    assert [error.row for error in frames.errors] == np.flatnonzero(frames.name_numbers == NO_FRAME).tolist()
    return rows, {error.row: error.message for error in frames.errors}


@pytest.mark.parametrize(("value", "header", "name", "path", "payload"), _OF_CONFLUENT)
def test_frames_of_confluent_serializers_are_split(value, header, name, path, payload):
    headers = [[{"key": VALUE_HEADER, "value": header}]] if header else None
    payloads = _payloads([b"before", value])
    frames = split_frames(payloads, headers and pa.array([None, *headers], _HEADERS), VALUE_HEADER)
    assert frames.names == (name,)
    start = int(frames.starts[1])
    if path is not None:
        found = message_types(name, Payloads(payloads.data, frames.starts[1:], payloads.ends[1:]))
        assert (found.paths, found.path_numbers.tolist(), found.errors) == ([path], [0], [])
        start = int(found.starts[0])
    assert payloads.data[start : payloads.ends[1]].tobytes() == payload


def test_a_frame_may_have_nothing_behind_it():
    assert _split([b"\0\0\0\0\7"]) == ([(SchemaName(7), b"")], {})


def test_values_without_a_frame_are_errors_that_name_what_they_are():
    glue = b"\3\5" + uuid.UUID(_GUID).bytes
    values = [
        b"",
        b"\0\0\0\7",
        b"plain text",
        b"\xc3\1" + bytes(8),
        glue,
        b"\3\1" + glue[2:],
        b"\0\0\0\0\7ok",
    ]
    rows, messages = _split(values)
    assert [row[0] for row in rows] == [None] * 6 + [SchemaName(7)]
    assert messages == {
        0: "it is shorter than the 5 bytes of a frame",
        1: "it is shorter than the 5 bytes of a frame",
        2: "its first byte is not the 00 of a frame",
        3: "the frame is that of a single Avro object, which has a fingerprint in place of an id",
        4: "the frame is that of AWS Glue, which keeps its schemas elsewhere",
        5: "its first byte is not the 00 of a frame",
    }


def test_the_last_header_of_the_name_goes_before_the_prefix():
    framed = b"\0\0\0\0\5payload"
    guid, other = {"key": VALUE_HEADER, "value": _GUID_FRAME}, {"key": VALUE_HEADER, "value": b"\0\0\0\0\7"}
    foreign = {"key": "trace", "value": b"\1"}
    headers = [None, [], [foreign, guid], [guid, other, foreign], [{"key": KEY_HEADER, "value": _GUID_FRAME}]]
    rows, messages = _split([framed] * 5, headers)
    plain, by_guid, by_id = SchemaName(5), SchemaName(None, _GUID, b""), SchemaName(7, None, b"")
    assert rows == [(plain, b"payload")] * 2 + [(by_guid, framed), (by_id, framed), (plain, b"payload")]
    assert not messages
    # The other column has its own header.
    assert _split([framed] * 5, headers, KEY_HEADER)[0][4] == (by_guid, framed)


def test_a_header_without_a_value_does_not_count_and_one_that_is_wrong_does():
    headers = [
        [{"key": VALUE_HEADER, "value": value}]
        for value in (None, b"", b"\0\0\0\0", _GUID_FRAME[:-1], b"\2" * 17)
    ]
    rows, messages = _split([b"\0\0\0\0\5x"] * 5, headers)
    assert rows == [(SchemaName(5), b"x")] + [(None, None)] * 4
    assert set(messages.values()) == {
        "the header that names the schema has neither 01 and a GUID nor 00 and an id"
    }


def test_headers_of_apicurio_are_named():
    headers = [[{"key": f"apicurio.{column}.globalId", "value": bytes(8)}] for column in ("value", "key")]
    rows, messages = _split([b"\0\0\0\0\5x"] * 2, headers)
    assert rows[1] == (SchemaName(5), b"x")
    assert messages == {
        0: "the schema is named by headers of Apicurio Registry, which keeps its schemas elsewhere"
    }


def test_headers_of_a_slice_belong_to_its_rows():
    headers = pa.array(
        [[{"key": VALUE_HEADER, "value": _GUID_FRAME}], None, [{"key": "a", "value": b""}]], _HEADERS
    )
    frames = split_frames(_payloads([b"\0\0\0\0\5x"] * 2), headers.slice(1), VALUE_HEADER)
    assert frames.names == (SchemaName(5),)
    assert frames.errors == []


def test_nothing_to_split_gives_nothing():
    assert _split([], []) == ([], {})


_ids = st.integers(-(1 << 31), (1 << 31) - 1)
_framed = st.builds(
    lambda number, rest: b"\0" + number.to_bytes(4, "big", signed=True) + rest, _ids, st.binary(max_size=6)
)
_values = st.one_of(_framed, st.binary(max_size=8))
_header_values = st.one_of(st.none(), st.just(_GUID_FRAME + b"\2"), _framed, st.binary(max_size=3))
_headers = st.lists(
    st.fixed_dictionaries({"key": st.sampled_from([VALUE_HEADER, KEY_HEADER, "x"]), "value": _header_values}),
    max_size=3,
)


def _plainly_split(value, headers):
    given_headers = [each["value"] for each in headers or () if each["key"] == VALUE_HEADER]
    if given_headers and given_headers[-1] is not None:
        header = given_headers[-1]
        if header[:1] == b"\1" and len(header) >= 17:
            return SchemaName(None, str(uuid.UUID(bytes=header[1:17])), header[17:]), value
        if header[:1] == b"\0" and len(header) >= 5:
            return SchemaName(int.from_bytes(header[1:5], "big", signed=True), None, header[5:]), value
        return None, None
    if value[:1] == b"\0" and len(value) >= 5:
        return SchemaName(int.from_bytes(value[1:5], "big", signed=True)), value[5:]
    return None, None


@examples(300)
@given(st.lists(st.tuples(_values, st.none() | _headers), max_size=12))
def test_any_values_are_split_as_one_by_one(records):
    values, headers = [value for value, _ in records], [of_record for _, of_record in records]
    assert _split(values, headers)[0] == [_plainly_split(*record) for record in records]
    assert _split(values)[0] == [_plainly_split(value, None) for value in values]


def _zigzag(number):
    encoded, left = b"", (number << 1) ^ (number >> 63)
    while left >= 0x80:
        encoded, left = encoded + bytes([left & 0x7F | 0x80]), left >> 7
    return encoded + bytes([left])


_paths = st.lists(st.integers(0, (1 << 31) - 1) | st.integers(0, 3), min_size=1, max_size=4).map(tuple)


@examples(200)
@given(st.lists(st.tuples(_paths, st.booleans(), st.binary(max_size=3)), max_size=90))
def test_message_indexes_are_read_with_what_follows_them(messages):
    heads = [
        b"\0" if path == (0,) and is_short else _zigzag(len(path)) + b"".join(map(_zigzag, path))
        for path, is_short, _ in messages
    ]
    payloads = _payloads([head + rest for head, (_, _, rest) in zip(heads, messages, strict=True)])
    found = message_types(SchemaName(1), payloads)
    assert [found.paths[number] for number in found.path_numbers] == [path for path, _, _ in messages]
    assert (found.starts - payloads.starts).tolist() == [len(head) for head in heads]
    assert found.errors == []
    for head, (path, _, _) in zip(heads, messages, strict=True):
        of_all = message_types(SchemaName(1, None, head), payloads)
        assert (of_all.paths, of_all.path_numbers.tolist()) == ([path], [0] * len(messages))
        assert of_all.starts.tolist() == payloads.starts.tolist()


def test_indexes_that_cannot_be_are_errors_of_their_rows():
    too_many = _zigzag(1 << 30) + bytes(50)
    bad = [b"", b"\x80", b"\4\2", b"\1", b"\2\1", b"\xff" * 5, too_many, b"\2\x80\x80\x80\x80\x80\0"]
    found = message_types(SchemaName(1), _payloads([b"\0ok", *bad, b"\2\6ok"]))
    assert [error.row for error in found.errors] == list(range(1, 9))
    assert {(error.reason, error.message) for error in found.errors} == {
        ("malformed", "the indexes of the message type cannot be read")
    }
    assert found.path_numbers.tolist() == [0, *[NO_FRAME] * 8, 1]
    assert found.paths == [(0,), (3,)]
    of_all = message_types(SchemaName(1, None, b"\1"), _payloads([b"a", b"b"]))
    assert ([error.row for error in of_all.errors], of_all.path_numbers.tolist()) == ([0, 1], [NO_FRAME] * 2)


def test_many_different_paths_take_time_in_proportion():
    payloads = _payloads([_zigzag(1) + _zigzag(number) for number in range(60_000)])
    began = time.process_time()
    found = message_types(SchemaName(1), payloads)
    assert len(found.paths) == 60_000
    assert time.process_time() - began < 10


def test_names_are_described_for_messages():
    assert SchemaName(17).described == "schema id 17"
    assert SchemaName(None, _GUID, b"").described == f"GUID {_GUID}"
    assert "8 bytes" in SchemaName(0).described
