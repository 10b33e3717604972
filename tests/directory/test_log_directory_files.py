from __future__ import annotations

import logging

import pytest

from storage_core.checkpoint import MetaProperties
from storage_core.directory import LogDirectoryFiles, PartitionDirectory
from storage_core.errors import CorruptCheckpointError, UnreadableError
from storage_core.filesystem import FileSystem
from tests.faults.observed_filesystem import refusing

CHECKPOINT = b"0\n1\norders 0 42\n"


@pytest.fixture
def root(tmp_path):
    return LogDirectoryFiles(FileSystem(), str(tmp_path))


def test_a_root_without_files(root):
    assert not root.clean_shutdown
    assert root.meta_properties is None
    assert root.recovery_points == {}
    assert root.log_start_offsets == {}
    assert root.high_watermarks == {}


def test_a_root_with_all_files(root, tmp_path):
    (tmp_path / ".kafka_cleanshutdown").touch()
    (tmp_path / "meta.properties").write_bytes(b"version=1\nnode.id=1\ncluster.id=abc\n")
    (tmp_path / "recovery-point-offset-checkpoint").write_bytes(CHECKPOINT)
    (tmp_path / "log-start-offset-checkpoint").write_bytes(CHECKPOINT.replace(b"42", b"7"))
    (tmp_path / "replication-offset-checkpoint").write_bytes(CHECKPOINT.replace(b"42", b"50"))
    assert root.clean_shutdown
    assert root.meta_properties == MetaProperties(1, 1, "abc", None)
    assert root.recovery_points == {("orders", 0): 42}
    assert root.log_start_offsets == {("orders", 0): 7}
    assert root.high_watermarks == {("orders", 0): 50}


@pytest.mark.parametrize(
    ("file_name", "attribute"),
    [
        ("recovery-point-offset-checkpoint", "recovery_points"),
        ("log-start-offset-checkpoint", "log_start_offsets"),
    ],
)
def test_a_corrupt_checkpoint_counts_as_empty_with_one_warning(root, tmp_path, caplog, file_name, attribute):
    (tmp_path / file_name).write_bytes(b"garbage")
    with caplog.at_level(logging.WARNING):
        assert getattr(root, attribute) == {}
        assert getattr(root, attribute) == {}
    assert len(caplog.records) == 1
    assert str(tmp_path / file_name) in caplog.text


def test_a_corrupt_high_watermark_is_an_error(root, tmp_path):
    (tmp_path / "replication-offset-checkpoint").write_bytes(b"garbage")
    with pytest.raises(CorruptCheckpointError):
        _ = root.high_watermarks


def test_an_unreadable_checkpoint_is_an_error():
    with pytest.raises(UnreadableError, match="log-start-offset-checkpoint"):
        _ = LogDirectoryFiles(refusing("log-start-offset-checkpoint"), "/logs").log_start_offsets


def test_nothing_is_read_before_it_is_asked_for(tmp_path):
    filesystem = FileSystem()
    root = LogDirectoryFiles(filesystem, str(tmp_path))
    directory = PartitionDirectory(str(tmp_path / "orders-0"), "orders", 0, root)
    assert directory.topic_partition == ("orders", 0)
    assert filesystem.statistics == FileSystem().statistics


@pytest.mark.parametrize(
    ("topic", "is_internal"), [("orders", False), ("__consumer_offsets", True), ("__cluster_metadata", True)]
)
def test_internal_topics(root, topic, is_internal):
    assert PartitionDirectory("path", topic, 0, root).is_internal == is_internal
