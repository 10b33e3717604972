from __future__ import annotations

import logging
import os

import pytest

from storage_core import read_table
from storage_core.directory import find_partitions
from storage_core.directory.discovery import directories_that_match
from storage_core.errors import LogDirectoryError, UnreadableError
from storage_core.filesystem import FileSystem
from tests.faults.observed_filesystem import before_each_call

EPOCHS = {"leader-epoch-checkpoint": "0\n0\n"}
UUID = "73b5281126dc4425b7779e2cfec013b3"


def found(tmp_path, *paths, **options):
    """Topic, partition, path and root of each partition, the paths relative to the temporary directory."""
    directories = find_partitions(FileSystem(), [str(tmp_path / path) for path in paths], **options)
    return [
        (
            directory.topic,
            directory.partition,
            os.path.relpath(directory.path, tmp_path),
            os.path.relpath(directory.root.path, tmp_path),
        )
        for directory in directories
    ]


def test_a_log_directory(tmp_path, make_partition):
    make_partition("logs/orders-10", files=EPOCHS)
    make_partition("logs/orders-2", files=EPOCHS)
    make_partition("logs/a.b-c-0", files=EPOCHS)
    assert found(tmp_path, "logs") == [
        ("a.b-c", 0, "logs/a.b-c-0", "logs"),
        ("orders", 2, "logs/orders-2", "logs"),
        ("orders", 10, "logs/orders-10", "logs"),
    ]


def test_a_folder_of_log_directories(tmp_path, make_partition):
    # Their own names parse as partitions of a topic "disk".
    make_partition("data/disk-1/orders-0", files=EPOCHS)
    make_partition("data/disk-2/orders-1", files=EPOCHS)
    (tmp_path / "data/disk-3").mkdir()
    (tmp_path / "data/notes.txt").touch()
    assert found(tmp_path, "data") == [
        ("orders", 0, "data/disk-1/orders-0", "data/disk-1"),
        ("orders", 1, "data/disk-2/orders-1", "data/disk-2"),
    ]


def test_a_log_directory_whose_name_looks_like_a_partition(tmp_path, make_partition):
    make_partition("kafka-logs-1/orders-0", files=EPOCHS)
    assert found(tmp_path, "kafka-logs-1") == [("orders", 0, "kafka-logs-1/orders-0", "kafka-logs-1")]


def test_one_partition_directory(tmp_path, make_partition):
    make_partition("logs/orders-0", files=EPOCHS)
    make_partition("logs/orders-1", files=EPOCHS)
    assert found(tmp_path, "logs/orders-1/") == [("orders", 1, "logs/orders-1", "logs")]


def test_a_relative_path_is_made_absolute(tmp_path, make_partition, monkeypatch):
    monkeypatch.chdir(make_partition(files=EPOCHS))
    (directory,) = find_partitions(FileSystem(), ["."])
    assert directory.path == str(tmp_path / "logs/orders-0")


@pytest.mark.parametrize(
    "file_name", ["00000000000000000000.log", "leader-epoch-checkpoint", "partition.metadata"]
)
def test_files_that_make_a_directory_a_partition(tmp_path, make_partition, file_name):
    make_partition(files={file_name: b""})
    assert len(found(tmp_path, "logs")) == 1


@pytest.mark.parametrize(
    "file_name",
    ["0.log", "x.log", "00000000000000000000.log.deleted", "00000000000000000000.index", "application.log"],
)
def test_files_that_do_not(tmp_path, make_partition, file_name):
    make_partition(files={file_name: b""})
    assert found(tmp_path, "logs") == []


def test_a_directory_named_like_a_log_file_makes_no_partition(tmp_path):
    (tmp_path / "logs/orders-0/00000000000000000000.log").mkdir(parents=True)
    assert found(tmp_path, "logs") == []


def test_other_entries_of_a_log_directory_are_skipped(tmp_path, make_partition, caplog):
    make_partition("logs/orders-0", files=EPOCHS)
    make_partition("logs/empty-0")
    make_partition("logs/remote-log-index-cache/orders-1", files=EPOCHS)
    make_partition("logs/segmentlog.commit-in-progress/orders-1", files=EPOCHS)
    (tmp_path / "logs/lost+found").mkdir()
    (tmp_path / "logs/meta.properties").touch()
    (tmp_path / "logs/orders-1").touch()
    with caplog.at_level(logging.WARNING):
        assert found(tmp_path, "logs") == [("orders", 0, "logs/orders-0", "logs")]
    assert [record.getMessage() for record in caplog.records] == [
        f"Left out directories in {tmp_path}/logs that are not partitions: empty-0"
    ]


@pytest.mark.parametrize(
    ("path", "left_out"),
    [
        ("data/disk-1", "directories in {data}/disk-1 that are not partitions: orders-1 copy"),
        ("data", "directories in {data}/disk-1 that are not partitions: orders-1 copy"),
        (
            "data/disk-1/*",
            "{data}/disk-1/orders-1 copy, a partition's directory that is not named <topic>-<partition>.",
        ),
    ],
    ids=["log directory", "folder of log directories", "glob of partitions"],
)
def test_a_renamed_partition_is_left_out_with_a_warning(tmp_path, make_partition, caplog, path, left_out):
    make_partition("data/disk-1/orders-0", files=EPOCHS)
    make_partition("data/disk-1/orders-1 copy", files={"00000000000000000000.log": b""})
    directories = directories_that_match(FileSystem(), str(tmp_path / path))
    assert found(tmp_path, *directories) == [("orders", 0, "data/disk-1/orders-0", "data/disk-1")]
    assert [record.getMessage() for record in caplog.records] == [
        "Left out " + left_out.format(data=tmp_path / "data")
    ]


@pytest.mark.parametrize("path", ["data/disk", "data", "data/disk/*"])
@pytest.mark.parametrize("file_name", ["00000000000000000000.log", "partition.metadata"])
def test_so_is_one_in_a_log_directory_without_others(tmp_path, make_partition, caplog, path, file_name):
    make_partition("data/disk/orders-0 copy", files={file_name: b""})
    make_partition("empty", files={"meta.properties": ""})
    (tmp_path / "data/disk/meta.properties").write_text("version=1\n")
    directories = directories_that_match(FileSystem(), str(tmp_path / path))
    assert found(tmp_path, *directories, "empty", must_be_log_directory=True) == []
    assert "Left out" in caplog.text
    assert "orders-0 copy" in caplog.text


def test_loose_files_of_a_log_beside_partitions_are_no_partition(tmp_path, make_partition, caplog):
    make_partition("logs/orders-0", files=EPOCHS)
    (tmp_path / "logs/00000000000000000000.log").touch()
    assert found(tmp_path, "logs") == [("orders", 0, "logs/orders-0", "logs")]
    assert caplog.text == ""


def test_a_log_directory_is_not_searched_deeper(tmp_path, make_partition):
    make_partition("logs/orders-0", files=EPOCHS)
    make_partition("logs/old/orders-1", files=EPOCHS)
    assert found(tmp_path, "logs") == [("orders", 0, "logs/orders-0", "logs")]


def test_a_folder_is_searched_one_level_deep(tmp_path, make_partition):
    make_partition("data/logs/orders-0", files=EPOCHS)
    assert found(tmp_path, "data") == [("orders", 0, "data/logs/orders-0", "data/logs")]
    assert found(tmp_path, ".") == []


def test_snapshots_that_a_file_system_keeps_are_left_out(tmp_path, make_partition):
    make_partition("data/.snapshot/orders-0", files=EPOCHS)
    assert found(tmp_path, "data") == []


@pytest.mark.parametrize("suffix", ["delete", "future", "stray"])
def test_suffixed_directories_are_left_out(tmp_path, make_partition, suffix, caplog):
    make_partition("logs/orders-0", files=EPOCHS)
    make_partition(f"logs/gone-0.{UUID}-{suffix}", files=EPOCHS)
    with caplog.at_level(logging.DEBUG):
        assert found(tmp_path, "logs") == [("orders", 0, "logs/orders-0", "logs")]
    assert [record.levelname for record in caplog.records] == ["DEBUG"]


def test_a_log_directory_of_deleted_partitions_is_empty(tmp_path, make_partition):
    make_partition(f"logs/gone-0.{UUID}-delete", files=EPOCHS)
    assert found(tmp_path, "logs") == []


def test_a_suffixed_directory_that_was_named_is_mentioned(tmp_path, make_partition, caplog):
    make_partition(f"logs/gone-0.{UUID}-delete", files=EPOCHS)
    assert found(tmp_path, f"logs/gone-0.{UUID}-delete") == []
    assert "-delete is not a live partition" in caplog.text


def test_a_missing_path(tmp_path):
    with pytest.raises(LogDirectoryError, match=r"found nothing.*/nowhere\]"):
        found(tmp_path, "nowhere")


def test_a_file(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(LogDirectoryError, match=r"found a file\. Name a log directory.*/file\]"):
        found(tmp_path, "file")


def test_an_empty_text_is_not_the_working_directory():
    with pytest.raises(LogDirectoryError, match="empty text"):
        find_partitions(FileSystem(), [""])


def test_an_empty_directory_has_no_partitions(tmp_path):
    assert found(tmp_path, ".") == []


@pytest.mark.parametrize(
    "paths",
    [
        ("logs", "logs"),
        ("logs", "logs/orders-0"),
        ("logs/orders-0", "logs"),
        ("logs", "link"),
        ("data", "link"),
    ],
)
def test_a_partition_named_twice_is_found_once(tmp_path, make_partition, paths):
    make_partition(files=EPOCHS)
    (tmp_path / "link").symlink_to("logs")
    (tmp_path / "data").mkdir()
    (tmp_path / "data/link").symlink_to("../logs")
    assert len(found(tmp_path, *paths, follow_symlinks=True)) == 1


def test_a_path_that_is_a_link_is_followed(tmp_path, make_partition):
    make_partition(files=EPOCHS)
    (tmp_path / "link").symlink_to("logs")
    assert found(tmp_path, "link") == [("orders", 0, "link/orders-0", "link")]


def test_linked_partitions_need_an_option(tmp_path, make_partition, caplog):
    make_partition("logs/orders-0", files=EPOCHS)
    make_partition("elsewhere/orders-1", files=EPOCHS)
    (tmp_path / "logs/orders-1").symlink_to("../elsewhere/orders-1")
    (tmp_path / "logs/broken-0").symlink_to("nowhere")
    assert found(tmp_path, "logs") == [("orders", 0, "logs/orders-0", "logs")]
    assert len(caplog.records) == 1
    assert "orders-1. Set followSymlinks to read them" in caplog.text
    assert found(tmp_path, "logs", follow_symlinks=True) == [
        ("orders", 0, "logs/orders-0", "logs"),
        ("orders", 1, "logs/orders-1", "logs"),
    ]


def test_a_link_to_itself_is_ignored_unless_links_are_followed(tmp_path, make_partition):
    make_partition("logs/orders-0", files=EPOCHS)
    (tmp_path / "logs/endless-0").symlink_to("endless-0")
    assert found(tmp_path, "logs") == [("orders", 0, "logs/orders-0", "logs")]
    with pytest.raises(LogDirectoryError, match="endless-0"):
        found(tmp_path, "logs", follow_symlinks=True)


def denying(denied):
    """Make a directory that this user may not list and whose files it may not examine."""

    def deny(call, path):
        is_below = path.startswith(f"{denied}/")
        if (call == "walk_directory" and (is_below or path == str(denied))) or (
            call == "status" and is_below
        ):
            raise UnreadableError("User nobody may not list this path.", path=path)

    return before_each_call(deny)


@pytest.mark.parametrize("denied", ["logs", "logs/orders-1"])
def test_an_unreadable_directory_is_an_error(tmp_path, make_partition, denied):
    make_partition("logs/orders-0", files=EPOCHS)
    make_partition("logs/orders-1", files=EPOCHS)
    with pytest.raises(UnreadableError, match=rf"User nobody.*{denied}"):
        read_table(str(tmp_path / "logs"), filesystem=denying(tmp_path / denied))


def test_an_unreadable_log_directory_in_a_folder_is_an_error(tmp_path, make_partition):
    make_partition("data/disk-1/orders-0", files=EPOCHS)
    make_partition("data/disk-2/orders-1", files=EPOCHS)
    with pytest.raises(UnreadableError, match="disk-2"):
        find_partitions(denying(tmp_path / "data/disk-2"), [str(tmp_path / "data")])


def test_lost_and_found_may_be_unreadable(tmp_path, make_partition):
    make_partition("logs/orders-0", files=EPOCHS)
    (tmp_path / "logs/lost+found").mkdir()
    assert len(find_partitions(denying(tmp_path / "logs/lost+found"), [str(tmp_path / "logs")])) == 1


def test_partitions_are_found_without_opening_a_file(tmp_path, make_partition):
    for partition in range(10):
        make_partition(f"logs/orders-{partition}", segments={0: b""}, files=EPOCHS)
    filesystem = FileSystem()
    assert len(find_partitions(filesystem, [str(tmp_path / "logs")])) == 10
    assert filesystem.statistics.files_opened == 0
    assert filesystem.statistics.directories_listed == 1


class TestAPartitionThatCannotBeRead:
    @pytest.fixture
    def root(self, tmp_path, make_partition, make_batch):
        for topic in ("clicks", "orders"):
            make_partition(f"logs/{topic}-0", {0: make_batch(0, [1, 2, 3])})
        return str(tmp_path / "logs")

    @pytest.mark.parametrize("options", [{"subscribe": "orders"}, {"assign": {"orders": [0]}}])
    def test_does_not_block_another_topic(self, root, options):
        table = read_table(root, filesystem=denying(f"{root}/clicks-0"), **options)
        assert table["topic"].to_pylist() == ["orders"] * 3

    @pytest.mark.parametrize("options", [{}, {"subscribe": "clicks"}])
    def test_is_an_error_for_who_reads_it(self, root, options):
        with pytest.raises(UnreadableError, match="clicks-0"):
            read_table(root, filesystem=denying(f"{root}/clicks-0"), **options)

    def test_is_an_error_where_another_copy_can_be_read(self, root, tmp_path, make_partition, make_batch):
        make_partition("other/clicks-0", {0: make_batch(0, [1, 2, 3])})
        with pytest.raises(UnreadableError, match="logs/clicks-0"):
            read_table(root, str(tmp_path / "other"), filesystem=denying(f"{root}/clicks-0"))

    def test_a_folder_of_disks_is_no_partition(self, tmp_path, make_partition):
        make_partition("disks/disk-1/orders-0", {0: b""})
        make_partition("disks/disk-2/orders-1", {0: b""})
        with pytest.raises(UnreadableError, match="disk-1"):
            find_partitions(denying(tmp_path / "disks/disk-1"), [str(tmp_path / "disks")])


class TestAPathThatIsTooHigh:
    @pytest.mark.parametrize("levels", [1, 2, 3])
    def test_log_directories_deeper_are_named(self, tmp_path, make_partition, levels):
        deeper = "/".join("abc"[:levels])
        make_partition(f"{deeper}/kafka-logs/orders-0", {0: b""})
        with pytest.raises(LogDirectoryError, match=r"found none\. There are some deeper") as caught:
            find_partitions(FileSystem(), [str(tmp_path)], must_be_log_directory=True)
        assert f"There are some deeper: {tmp_path}/{deeper}/kafka-logs. Name them, or a glob" in str(
            caught.value
        )

    def test_of_many_some_are_named(self, tmp_path, make_partition):
        for number in range(6):
            make_partition(f"hosts/host-{number}/logs/orders-{number}", {0: b""})
        with pytest.raises(LogDirectoryError, match=r"host-0/logs, .*host-1/logs, .*host-2/logs and 3 more"):
            find_partitions(FileSystem(), [str(tmp_path)], must_be_log_directory=True)

    def test_the_search_is_bounded(self, tmp_path):
        for number in range(700):
            (tmp_path / f"folder-{number}" / "deeper").mkdir(parents=True)
        filesystem = FileSystem()
        with pytest.raises(LogDirectoryError, match=r"none of their files\. Name a log directory, as"):
            find_partitions(filesystem, [str(tmp_path)], must_be_log_directory=True)
