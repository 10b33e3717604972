from __future__ import annotations

import pytest

from storage_core.checkpoint import MetaProperties, read_meta_properties
from storage_core.checkpoint.root_files import parse_meta_properties
from storage_core.errors import CorruptCheckpointError
from storage_core.filesystem import FileSystem

PATH = "meta.properties"
VERSION_1 = b"""#
#Fri Nov 20 12:40:00 UTC 2026
node.id=1
directory.id=Y_BoylQoLD38V3qyZTqeJQ
version=1
cluster.id=MkU3OEVBNTcwNTJENDM2Qk
"""


def parse(data):
    return parse_meta_properties(data, PATH)


def test_version_1():
    assert parse(VERSION_1) == MetaProperties(1, 1, "MkU3OEVBNTcwNTJENDM2Qk", "Y_BoylQoLD38V3qyZTqeJQ")


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", MetaProperties(0, None, None, None)),
        (b"broker.id=7\nversion=0\ncluster.id=abc\n", MetaProperties(0, 7, "abc", None)),
        (b"broker.id=-1\n", MetaProperties(0, -1, None, None)),
        (b"node.id=7\n", MetaProperties(0, None, None, None)),
    ],
)
def test_version_0(data, expected):
    assert parse(data) == expected


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"version=2\nnode.id=1\ncluster.id=abc\n", "Expected version 0 or 1"),
        (b"version=x\n", "a whole number as version, found 'x'"),
        (b"version=1\ncluster.id=abc\n", "Expected node.id"),
        (b"version=1\nnode.id=1\n", "Expected cluster.id"),
        (b"version=1\ncluster.id=\\u00g0\n", r"Expected four hexadecimal digits after \u, found '\\u00g0'"),
        (b"version=1\nnode.id=one\ncluster.id=abc\n", "a whole number as node.id, found 'one'"),
    ],
)
def test_refuses(data, message):
    with pytest.raises(CorruptCheckpointError) as caught:
        parse(data)
    assert message in str(caught.value)


def test_reads_a_file(tmp_path):
    path = str(tmp_path / PATH)
    assert read_meta_properties(FileSystem(), path) is None
    (tmp_path / PATH).write_bytes(VERSION_1)
    assert read_meta_properties(FileSystem(), path) == parse(VERSION_1)
