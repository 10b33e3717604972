"""Staged batches come to a log with their offsets and their epoch, and are otherwise what they were."""

from __future__ import annotations

import random

import pytest

from storage_core import FileSystem
from storage_core.commit_files.journal import StagedFileRange
from storage_core.commit_replay.staged_batches import copy_batches
from storage_core.errors import CorruptRecordError
from storage_core.record.batch_header import last_offsets
from storage_core.record.record_batches import RecordBatches
from tests.commit_replay.test_append import batch
from tests.faults.simulated_filesystem import SimulatedFileSystem

EPOCH = 7
# Sizes of values: tiny batches, batches of some KiB, and some that are larger than what is copied at once.
SIZES = {
    "tiny": [1] * 9000,
    "small": [100 + 17 * (number % 50) for number in range(800)],
    "large": [40_000] * 30,
    "huge": [700_000],
    "small with a large one": [10] * 300 + [500_000] + [10] * 300,
    "mixed": [random.Random(number).choice([1, 3000, 70_000]) for number in range(100)],
}


def copied(filesystem, root, data, *, before=b"", base_offset=1000, after=b""):
    """Copy batches from the middle of a file to the end of another; return that one and what was said of them."""
    source, target = f"{root}/pack", f"{root}/log"
    with filesystem.open_for_writing(source, create=True) as file:
        file.write_at([b"?" * 33, data, after], 0)
    with filesystem.open_for_writing(target, create=True) as log, filesystem.open(source) as pack:
        log.write_at([before], 0)
        staged = StagedFileRange("pack", 33, len(data))
        found = list(copy_batches(pack, staged, log, len(before), base_offset, EPOCH))
        content = log.read_at(log.size_bytes(), 0)
    return content, found


@pytest.mark.parametrize("name", SIZES)
def test_each_batch_gets_its_offset_and_the_epoch(tmp_path, name):
    data = b"".join(batch(count=1 + number % 3, size=size) for number, size in enumerate(SIZES[name]))
    expected = RecordBatches.parse(data).with_offsets(1000, EPOCH)
    content, found = copied(FileSystem(), tmp_path, data, before=b"before", after=batch())
    assert content == b"before" + b"".join(bytes(piece) for piece in expected.pieces)
    assert [offset for heads in found for offset in last_offsets(heads.headers).tolist()] == (
        expected.last_offsets.tolist()
    )
    starts = 6 + expected.sizes_bytes.cumsum() - expected.sizes_bytes
    assert [position for heads in found for position in heads.positions_bytes.tolist()] == starts.tolist()


@pytest.mark.parametrize("size", [1, 40_000])
def test_kept_offsets_stay(tmp_path, size):
    data = batch(base_offset=50, size=size) + batch(base_offset=70, size=size)
    content, _ = copied(FileSystem(), tmp_path, data, base_offset=None)
    found = RecordBatches.parse(content)
    assert found.headers["base_offset"].tolist() == [50, 70]
    assert found.headers["leader_epoch"].tolist() == [EPOCH, EPOCH]


@pytest.mark.parametrize(
    "data", [batch()[:-1], batch() + b"\0", batch() + batch()[:60], b"x" * 100, batch() + b"\0" * 100]
)
def test_an_incomplete_batch_is_refused(data):
    filesystem = SimulatedFileSystem()
    filesystem.make_directory("/data")
    with pytest.raises(CorruptRecordError, match="complete record batch"):
        copied(filesystem, "/data", data)


def test_a_file_that_is_too_short_is_refused(tmp_path):
    (tmp_path / "pack").write_bytes(batch())
    filesystem = FileSystem()
    with (
        filesystem.open(f"{tmp_path}/pack") as pack,
        filesystem.open_for_writing(f"{tmp_path}/log", create=True) as log,
        pytest.raises(CorruptRecordError, match=r"bytes of complete batches in a staged file"),
    ):
        list(copy_batches(pack, StagedFileRange("pack", 0, len(batch()) + 1), log, 0, 0, EPOCH))
