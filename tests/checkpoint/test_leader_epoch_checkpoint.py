from __future__ import annotations

import itertools
import os
import tempfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.checkpoint import EpochEntry, read_leader_epoch_checkpoint, write_leader_epoch_checkpoint
from storage_core.checkpoint.partition_files import parse_leader_epoch_checkpoint
from storage_core.errors import CorruptCheckpointError
from storage_core.filesystem import FileSystem

PATH = "leader-epoch-checkpoint"


def parse(data):
    return [(entry.epoch, entry.start_offset) for entry in parse_leader_epoch_checkpoint(data, PATH)]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", []),
        (b"0\n", []),
        (b"0\n1\n0 0\n", [(0, 0)]),
        (b"0\n2\n3 0\n4 5\n", [(3, 0), (4, 5)]),
        # The rules of assigning an epoch: what is not above takes the place of what it contradicts.
        (b"0\n2\n3 0\n3 5\n", [(3, 0)]),
        (b"0\n3\n3 0\n4 5\n4 3\n", [(3, 0), (4, 3)]),
        (b"0\n3\n3 0\n5 5\n4 6\n", [(3, 0), (4, 6)]),
        (b"0\n3\n3 0\n4 5\n5 5\n", [(3, 0), (5, 5)]),
        (b"0\n3\n3 2\n4 5\n5 0\n", [(5, 0)]),
    ],
)
def test_parses(data, expected):
    assert parse(data) == expected


@pytest.mark.parametrize(
    "data",
    [
        b"0\n1\n0 0 0\n",
        b"0\n1\n0\n",
        b"0\n1\n-1 0\n",
        b"0\n1\n0 -1\n",
        b"0\n1\n2147483648 0\n",
        b"0\n2\n0 0\n",
        b"7\n1\n0 0\n",
    ],
)
def test_refuses(data):
    with pytest.raises(CorruptCheckpointError, match=PATH):
        parse(data)


@given(st.lists(st.tuples(st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1)), max_size=20))
def test_epochs_and_start_offsets_ascend(entries):
    text = "".join(f"{epoch} {start}\n" for epoch, start in entries)
    parsed = parse(f"0\n{len(entries)}\n{text}".encode())
    assert all(a[0] < b[0] and a[1] < b[1] for a, b in itertools.pairwise(parsed))
    assert set(parsed) <= set(entries)
    assert bool(parsed) == bool(entries)


# -- Writing --------


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ([], b"0\n0\n"),
        ([(0, 0)], b"0\n1\n0 0\n"),
        ([(3, 0), (4, 5)], b"0\n2\n3 0\n4 5\n"),
        ([(2**31 - 1, 2**63 - 1)], b"0\n1\n2147483647 9223372036854775807\n"),
    ],
)
def test_writes_the_bytes_of_kafka(tmp_path, entries, expected):
    path = tmp_path / PATH
    write_leader_epoch_checkpoint(FileSystem(), str(path), [EpochEntry(*entry) for entry in entries])
    assert path.read_bytes() == expected


@given(
    st.lists(st.integers(0, 2**31 - 1), max_size=10, unique=True),
    st.lists(st.integers(0, 2**63 - 1), max_size=10, unique=True),
)
def test_what_is_written_is_read(epochs, start_offsets):
    entries = tuple(map(EpochEntry, sorted(epochs), sorted(start_offsets)))
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, PATH)
        write_leader_epoch_checkpoint(FileSystem(), path, entries)
        assert read_leader_epoch_checkpoint(FileSystem(), path) == entries
