"""A recovery of a tiered topic's local half keeps what a broker needs to find the remote half."""

from __future__ import annotations

import shutil

import pytest

from storage_core import LogDirectory
from tests.recover.recovering import EXAMPLES, PARTITION_DIRECTORY, run, run_in_place, write_checkpoint

CHECKPOINT = "log-start-offset-checkpoint"
EPOCHS = f"{PARTITION_DIRECTORY}/leader-epoch-checkpoint"
# The epoch of all batches is 0: the newer leader has not written yet.
EPOCHS_TEXT = "0\n2\n0 {start}\n4 8234\n"


@pytest.fixture(params=[0, 1000])
def half(tmp_path, request):
    """Return a log's last three segments, the newest with a torn end; the checkpoint says that it begins earlier."""
    root = tmp_path / "source"
    shutil.copytree(EXAMPLES / PARTITION_DIRECTORY, root / PARTITION_DIRECTORY)
    shutil.copy(EXAMPLES / "meta.properties", root)
    for base_offset in (0, 1787):
        for path in (root / PARTITION_DIRECTORY).glob(f"{base_offset:020d}.*"):
            path.unlink()
    write_checkpoint(root / CHECKPOINT, request.param)
    (root / EPOCHS).write_text(EPOCHS_TEXT.format(start=request.param))
    with (root / PARTITION_DIRECTORY / "00000000000000007209.log").open("ab") as log:
        log.write(b"torn")
    return root


def kept(root):
    return (root / CHECKPOINT).read_bytes(), (root / EPOCHS).read_bytes()


@pytest.mark.parametrize("policy", ["kafka", "tail", "salvage"])
def test_a_copy(half, tmp_path, policy):
    report = run(half, tmp_path / "target", policy)
    assert kept(tmp_path / "target") == kept(half)
    (missing,) = [each for each in report.partitions[0].left_out if each.end_offset > each.start_offset]
    assert missing.end_offset == 3614
    assert "unless they are in remote storage" in missing.reason


@pytest.mark.parametrize("policy", ["kafka", "salvage"])
def test_in_place(half, tmp_path, policy):
    before = kept(half)
    run_in_place(half, tmp_path / "aside", policy)
    assert kept(half) == before


def test_opening(half):
    before = kept(half)
    with LogDirectory.open(half, recovery="kafka", broker_directory=True):
        pass
    assert kept(half) == before
