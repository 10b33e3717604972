"""Hand-made partition directories."""

from __future__ import annotations

import os

import pytest

from storage_core.directory import LogDirectoryFiles, PartitionDirectory, PartitionLog
from storage_core.filesystem import FileSystem
from tests.segment.conftest import build_batch


@pytest.fixture
def make_batch():
    return build_batch


@pytest.fixture
def make_partition(tmp_path):
    """Write a partition directory from its segments (base offset -> batches) and other files (name -> text)."""

    def make(path="logs/orders-0", segments=None, files=None):
        directory = tmp_path / path
        directory.mkdir(parents=True)
        for base_offset, data in (segments or {}).items():
            (directory / f"{base_offset:020d}.log").write_bytes(data)
        for name, content in (files or {}).items():
            (directory / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        return directory

    return make


@pytest.fixture
def load():
    """Load the log of a partition directory whose root is its parent."""

    def load_log(directory, **options):
        topic, partition = directory.name.rsplit("-", 1)
        filesystem = options.pop("filesystem", None) or FileSystem()
        root = LogDirectoryFiles(filesystem, str(directory.parent))
        found = PartitionDirectory(str(directory), topic, int(partition), root)
        return PartitionLog.load(filesystem, found, **options)

    return load_log


@pytest.fixture
def make_clean():
    """Mark a log directory as cleanly shut down."""

    def mark(root):
        (root / ".kafka_cleanshutdown").write_bytes(b'{"version":0,"brokerEpoch":9}')

    return mark


@pytest.fixture
def set_modified():
    def touch(path, modified_ms):
        os.utime(path, ns=(modified_ms * 1_000_000, modified_ms * 1_000_000))

    return touch
