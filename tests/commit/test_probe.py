"""A file system that does not do what a commit needs is refused before a job begins."""

from __future__ import annotations

import errno
import os

import pytest

from storage_core import FileSystem
from storage_core.commit.job import probe_filesystem
from storage_core.errors import StorageError
from tests.commit.jobs import JOBS, ROOT, staged_job
from tests.faults.simulated_filesystem import SimulatedFileSystem


def test_the_probe_leaves_no_file(tmp_path):
    probe_filesystem(FileSystem(), str(tmp_path))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("call", "step"),
    [
        ("create", "write and flush a file"),
        ("truncate", "write and flush a file"),
        ("flush", "write and flush a file"),
        ("link", "link it"),
        ("rename", "rename it"),
        ("flush_directory", "flush the directory"),
    ],
)
def test_the_step_that_fails_is_named(call, step):
    filesystem = SimulatedFileSystem()
    filesystem.make_directory(ROOT)
    filesystem.fail = lambda each: OSError(errno.EPERM, "not here") if each.name == call else None
    with pytest.raises(StorageError, match=f"can {step}, found one that refused: .*not here"):
        probe_filesystem(filesystem, ROOT)


def test_a_job_probes_the_file_system_first():
    filesystem = SimulatedFileSystem()
    filesystem.fail = lambda each: OSError(errno.EPERM, "no links") if each.name == "link" else None
    with pytest.raises(StorageError, match="can link it"):
        staged_job(filesystem, ROOT, JOBS[0])
    filesystem.fail = None
    staged_job(filesystem, ROOT, JOBS[0])
    assert not [path for path in filesystem.files() if "probe" in path]
