from __future__ import annotations

import contextlib
import os
import tempfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.checkpoint import read_offset_checkpoint, write_offset_checkpoint
from storage_core.checkpoint.root_files import parse_offset_checkpoint
from storage_core.errors import CorruptCheckpointError, UnreadableError
from storage_core.filesystem import FileSystem
from tests.faults.observed_filesystem import refusing

PATH = "replication-offset-checkpoint"


def parse(data):
    return parse_offset_checkpoint(data, PATH)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", {}),
        (b"0\n", {}),
        (b"0", {}),
        (b"0\n0\n", {}),
        (b"0\n1\norders 0 42\n", {("orders", 0): 42}),
        (b"0\n1\norders 0 42", {("orders", 0): 42}),
        (b"0\r\n1\r\norders 0 42\r\n", {("orders", 0): 42}),
        (
            b"0\n2\norders 0 42\na.b_c-d 11 9223372036854775807\n",
            {("orders", 0): 42, ("a.b_c-d", 11): 2**63 - 1},
        ),
        # Fields are split at any run of blanks; those at the end of a line do not count.
        (b"0\n1\norders \t 0\t42 \n", {("orders", 0): 42}),
        (b"+0\n+1\norders +0 -1\n", {("orders", 0): -1}),
        # Of two lines for one partition the later counts.
        (b"0\n2\norders 0 1\norders 0 2\n", {("orders", 0): 2}),
    ],
)
def test_parses(data, expected):
    assert parse(data) == expected


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\n", "a version number in line 1"),
        (b"x\n1\norders 0 42\n", "a version number in line 1"),
        (b" 0\n1\norders 0 42\n", "a version number in line 1"),
        (b"1\n1\norders 0 42\n", "Expected version 0 in this checkpoint file, found 1"),
        (b"0\n\norders 0 42\n", "the number of entries in line 2"),
        (b"0\n-1\n", "the number of entries in line 2"),
        (b"0\n99999999999\n", "the number of entries in line 2"),
        (b"0\n2\norders 0 42\n", "Expected 2 entries as the second line says, found 1"),
        (b"0\n1\norders 0 42\norders 1 42\n", "Expected 1 entries as the second line says, found 2"),
        (b"0\n1\norders 0\n", "3 fields in line 3"),
        (b"0\n1\norders 0 42 7\n", "3 fields in line 3"),
        (b"0\n1\n orders 0 42\n", "3 fields in line 3"),
        (b"0\n1\norders 0 42\n\n", "3 fields in line 4"),
        (b"0\n1\norders x 42\n", "'<topic> <partition> <offset>' in line 3, found 'orders x 42'"),
        (b"0\n1\norders 0 4_2\n", "'<topic> <partition> <offset>' in line 3"),
        (b"0\n1\norders 0 9223372036854775808\n", "'<topic> <partition> <offset>' in line 3"),
        (b"0\n1\norders 2147483648 42\n", "'<topic> <partition> <offset>' in line 3"),
        ("0\n1\norders 0 ٤٢\n".encode(), "'<topic> <partition> <offset>' in line 3"),
        (b"0\n1\norders 0 " + b"9" * 10_000 + b"\n", "'<topic> <partition> <offset>' in line 3"),
        (b"0\n1\n\xff\xfe 0 42\n", "UTF-8"),
        (b"\0\0\0\0", "a version number in line 1"),
    ],
)
def test_refuses(data, message):
    with pytest.raises(CorruptCheckpointError) as caught:
        parse(data)
    assert message in str(caught.value)
    assert PATH in str(caught.value)


def test_a_message_does_not_repeat_a_long_line():
    with pytest.raises(CorruptCheckpointError) as caught:
        parse(b"0\n1\n" + b"x" * 1_000_000)
    assert len(str(caught.value)) < 300


@given(st.binary(max_size=200) | st.text("0123 \n\tab", max_size=60).map(str.encode))
def test_any_bytes_parse_or_are_refused(data):
    with contextlib.suppress(CorruptCheckpointError):
        parse(data)


def test_a_missing_file_has_no_entries(tmp_path):
    assert read_offset_checkpoint(FileSystem(), str(tmp_path / PATH)) == {}


def test_no_more_than_the_limit_is_read(tmp_path):
    path = tmp_path / PATH
    with path.open("wb") as file:
        file.truncate(2**31)
    filesystem = FileSystem()
    with pytest.raises(CorruptCheckpointError, match="Expected at most 33554432 bytes"):
        read_offset_checkpoint(filesystem, str(path))
    assert filesystem.statistics.bytes_read == 0


def test_a_file_that_may_not_be_read_is_not_taken_for_a_corrupt_one():
    with pytest.raises(UnreadableError):
        read_offset_checkpoint(refusing(PATH), PATH)


def test_a_file_of_line_ends_is_refused_before_it_is_taken_apart():
    with pytest.raises(CorruptCheckpointError, match="Expected at most 500000 entries"):
        parse_offset_checkpoint(b"0\n1\n" + b"\n" * 20_000_000, PATH)


# -- Writing --------


@pytest.mark.parametrize(
    ("offsets", "expected"),
    [
        ({}, b"0\n0\n"),
        ({("orders", 0): 42}, b"0\n1\norders 0 42\n"),
        (
            {("orders", 10): 7, ("a.b_c-d", 0): 2**63 - 1, ("orders", 2): 0},
            b"0\n3\na.b_c-d 0 9223372036854775807\norders 2 0\norders 10 7\n",
        ),
    ],
)
def test_writes_the_bytes_of_kafka(tmp_path, offsets, expected):
    path = tmp_path / PATH
    write_offset_checkpoint(FileSystem(), str(path), offsets)
    assert path.read_bytes() == expected
    assert read_offset_checkpoint(FileSystem(), str(path)) == offsets


topics = st.text("abcXYZ019._-", min_size=1, max_size=249)


@given(
    st.dictionaries(
        st.tuples(topics, st.integers(0, 2**31 - 1)), st.integers(-(2**63), 2**63 - 1), max_size=20
    )
)
def test_what_is_written_is_read(offsets):
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, PATH)
        write_offset_checkpoint(FileSystem(), path, offsets)
        assert read_offset_checkpoint(FileSystem(), path) == offsets
