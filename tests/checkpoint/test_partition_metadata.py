from __future__ import annotations

import pytest

from storage_core.checkpoint import read_partition_metadata, write_partition_metadata
from storage_core.checkpoint.partition_files import parse_partition_metadata
from storage_core.errors import CorruptCheckpointError
from storage_core.filesystem import FileSystem

PATH = "partition.metadata"
WRITTEN_BY_KAFKA = b"version: 0\ntopic_id: wFqg4oNsJ1B1z71xLHGZAw"


def parse(data):
    return parse_partition_metadata(data, PATH)


@pytest.mark.parametrize(
    "data",
    [
        WRITTEN_BY_KAFKA,
        WRITTEN_BY_KAFKA + b"\n",
        WRITTEN_BY_KAFKA + b"\nand more",
        WRITTEN_BY_KAFKA + b"==",
        WRITTEN_BY_KAFKA.replace(b"version: 0", b"version:\t 3"),
        WRITTEN_BY_KAFKA.replace(b"topic_id", b"anything"),
        # The last two bits of 22 characters are not part of the id.
        WRITTEN_BY_KAFKA[:-1] + b"x",
    ],
)
def test_parses(data):
    assert parse(data) == "wFqg4oNsJ1B1z71xLHGZAw"


def test_the_metadata_topic_has_a_reserved_id():
    assert parse(b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ") == "AAAAAAAAAAAAAAAAAAAAAQ"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"version: 0",
        b"version:0\ntopic_id: wFqg4oNsJ1B1z71xLHGZAw",
        b"version: -1\ntopic_id: wFqg4oNsJ1B1z71xLHGZAw",
        b"version: x\ntopic_id: wFqg4oNsJ1B1z71xLHGZAw",
        b"version: 0\ntopic_id: wFqg4oNsJ1B1z71xLHGZA",
        b"version: 0\ntopic_id: wFqg4oNsJ1B1z71xLHGZAw ",
        b"version: 0\ntopic_id: wFqg4oNsJ1B1z71xLHG+/w",
        b"version: 0\ntopic_id: wFqg: 4oNsJ1B1z71xLHGZ",
        b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA",
        b"version: 0\ntopic_id: \xff",
    ],
)
def test_refuses(data):
    with pytest.raises(CorruptCheckpointError, match=PATH):
        parse(data)


def test_reads_a_file(tmp_path):
    path = str(tmp_path / PATH)
    assert read_partition_metadata(FileSystem(), path) is None
    (tmp_path / PATH).write_bytes(WRITTEN_BY_KAFKA)
    assert read_partition_metadata(FileSystem(), path) == "wFqg4oNsJ1B1z71xLHGZAw"
    (tmp_path / PATH).write_bytes(b" " * 5000)
    with pytest.raises(CorruptCheckpointError, match="at most 4096 bytes"):
        read_partition_metadata(FileSystem(), path)


# -- Writing --------


def test_writes_the_bytes_of_kafka(tmp_path):
    path = tmp_path / PATH
    path.write_bytes(b"anything, and longer than what takes its place, which has 43 bytes")
    write_partition_metadata(FileSystem(), str(path), "wFqg4oNsJ1B1z71xLHGZAw")
    assert path.read_bytes() == WRITTEN_BY_KAFKA
    assert len(WRITTEN_BY_KAFKA) == 43
    assert read_partition_metadata(FileSystem(), str(path)) == "wFqg4oNsJ1B1z71xLHGZAw"
    assert [entry.name for entry in tmp_path.iterdir()] == [PATH]


@pytest.mark.parametrize(
    "topic_id",
    [
        "",
        "orders",
        "AAAAAAAAAAAAAAAAAAAAAA",
        "wFqg4oNsJ1B1z71xLHGZAw==",
        "wFqg4oNsJ1B1z71xLHGZAx",
        "wFqg4oNsJ1B1z71xLHGZAw\n",
        "wFqg4oNsJ1B1z71xLHG+/w",
    ],
)
def test_writes_no_other_id(tmp_path, topic_id):
    path = tmp_path / PATH
    with pytest.raises(CorruptCheckpointError, match=PATH):
        write_partition_metadata(FileSystem(), str(path), topic_id)
    assert list(tmp_path.iterdir()) == []
