"""The first write to a place: into what it may go, what it creates without rows, and what it leaves if it fails."""

from __future__ import annotations

import logging
import os

import pyarrow as pa
import pytest

from storage_core.errors import InvalidRecordError, LogDirectoryError, StorageError
from storage_core.filesystem import FileSystem
from tests.spark.writers import batch, rows, stage, write, writer_of

ONE_ROW = [batch(value=pa.array([b"v"]), partition=pa.array([0], pa.int32()))]
BEYOND = [batch(value=pa.array([b"v"]), partition=pa.array([5], pa.int32()))]


def writer(path, **options):
    return writer_of(path, "value", "partition", topic="t", **options)


def test_a_failed_first_write_leaves_no_files(root):
    made = writer(root)
    with pytest.raises(InvalidRecordError):
        stage(made, BEYOND)
    made.abort([None])
    assert os.listdir(root) == []
    write(writer(root), ONE_ROW)
    assert rows(root).num_rows == 1


def test_a_volume_on_which_no_commit_can_be_made_stays_as_new(root, monkeypatch):
    def link(*_):
        raise StorageError("Expected a file system with hard links, found one without.", path=str(root))

    (root / "lost+found").mkdir(parents=True)
    monkeypatch.setattr(FileSystem, "link", link)
    with pytest.raises(StorageError, match="a commit can link it"):
        writer(root)
    assert os.listdir(root) == ["lost+found"]


def test_a_failed_write_leaves_what_was_there_before(root):
    write(writer(root), ONE_ROW)
    before = sorted(os.listdir(root))
    made = writer(root)
    made.abort([])
    assert sorted(os.listdir(root)) == before


def test_a_failed_first_write_leaves_the_files_of_a_job_beside_it(root):
    failed, other = writer(root), writer(root)
    message = stage(other, ONE_ROW)
    failed.abort([])
    other.commit([message])
    assert rows(root)["value"].to_pylist() == [b"v"]


def test_a_job_commits_into_a_directory_that_a_failed_one_has_emptied(root):
    failed, other = writer(root), writer(root)
    failed.abort([])
    assert os.listdir(root) == []
    write(other, ONE_ROW)
    assert rows(root)["value"].to_pylist() == [b"v"]


@pytest.mark.parametrize("below", ["", "logs", "logs/deeper"])
def test_a_file_is_not_a_log_directory(tmp_path, below):
    file = tmp_path / "file"
    file.write_bytes(b"text")
    with pytest.raises(LogDirectoryError, match=r"^Expected a directory, found something else") as raised:
        writer(file / below)
    assert raised.value.path == str(file)
    assert file.read_bytes() == b"text"


def test_a_partition_beyond_those_of_a_new_topic_names_the_option(root):
    with pytest.raises(InvalidRecordError, match="option partitions says, which is 2: set it to more than"):
        stage(writer(root, partitions=2), BEYOND)


def test_a_partition_beyond_those_of_an_existing_topic_does_not(root):
    write(writer(root), ONE_ROW)
    with pytest.raises(InvalidRecordError, match=r"or null to have one chosen\.$"):
        stage(writer(root, partitions=2), BEYOND)


def test_a_partition_beyond_those_of_an_existing_topic_does_not_beside_a_new_one(root):
    write(writer(root), ONE_ROW)
    made = writer_of(root, "value", "topic", "partition")
    columns = {"value": [b"v", b"v"], "topic": ["t", "new"], "partition": pa.array([5, 0], pa.int32())}
    with pytest.raises(InvalidRecordError, match=r"or null to have one chosen\.$"):
        stage(made, [batch(**columns)])
    columns["partition"] = pa.array([0, 5], pa.int32())
    with pytest.raises(InvalidRecordError, match="option partitions says, which is 1: set it to more than"):
        stage(made, [batch(**columns)])


def test_a_negative_partition_does_not_name_the_option(root):
    negative = [batch(value=pa.array([b"v"]), partition=pa.array([-1], pa.int32()))]
    with pytest.raises(InvalidRecordError, match=r"^Invalid partition: -1"):
        stage(writer(root), negative)


def test_no_rows_create_the_topic_that_the_option_names(root):
    write(writer(root, partitions=3), [])
    assert sorted(name for name in os.listdir(root) if name.startswith("t-")) == ["t-0", "t-1", "t-2"]
    assert rows(root, subscribe="t").num_rows == 0
    write(writer(root), ONE_ROW)
    assert rows(root, subscribe="t").num_rows == 1


def test_an_empty_dataframe_without_a_topic_creates_an_empty_log_directory_and_warns(root, caplog):
    with caplog.at_level(logging.WARNING):
        write(writer_of(root, "value", "topic"), [])
    assert [text.split(",")[0] for text in caplog.messages] == [
        f"Writing an empty DataFrame to {root} created no topic"
    ]
    assert rows(root).num_rows == 0


@pytest.mark.parametrize("overwrite", [False, True])
def test_an_overwrite_without_rows_says_that_it_changes_nothing(root, caplog, overwrite):
    write(writer(root), ONE_ROW)
    with caplog.at_level(logging.WARNING):
        write(writer_of(root, "value", "topic", overwrite=overwrite), [])
    assert [text.split(",")[0] for text in caplog.messages] == (
        [f"Overwriting {root} with an empty DataFrame changed nothing"] if overwrite else []
    )
    assert rows(root).num_rows == 1


def test_an_overwrite_without_rows_empties_the_topic_of_the_option(root, caplog):
    write(writer(root), ONE_ROW)
    with caplog.at_level(logging.WARNING):
        write(writer(root, overwrite=True), [])
    assert caplog.messages == []
    assert rows(root, subscribe="t").num_rows == 0


def test_no_rows_create_no_topic_in_the_directory_of_a_broker(root):
    write(writer(root), [])
    write(writer_of(root, "value", topic="new", brokerDirectory="true"), [])
    assert sorted(name for name in os.listdir(root) if "-0" in name) == ["t-0"]


def test_a_restore_without_rows_of_an_empty_log_does_not_warn(root, tmp_path, caplog):
    source = tmp_path / "source"
    write(writer(source), ONE_ROW)
    write(writer(source, overwrite=True), [])
    columns = ("value", "topic", "partition", "offset")
    with caplog.at_level(logging.WARNING):
        write(writer_of(root, *columns, preserveOffsets="true", offsetsFrom=str(source)), [])
    assert "t-0" in os.listdir(root)
    assert caplog.messages == []
