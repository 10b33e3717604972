"""What a log directory may hold, and what is refused (232)."""

from __future__ import annotations

import pytest

from storage_core import read_table
from storage_core.errors import CorruptCheckpointError, LogDirectoryError, OptionError
from tests.log.logs import (
    MARKER,
    append,
    contents,
    crash,
    fingerprint,
    names,
    offsets,
    open_directory,
    small,
    unclean,
    write,
)

META = "version=1\ncluster.id=c\nnode.id=1\n"


@pytest.mark.parametrize(
    "found", ["notes.txt", "Documents/", "disk-1/file", "no-partition/", "orders-0/photo.jpg", "a.b/"]
)
def test_a_directory_of_other_things_is_refused(tmp_path, found):
    path = tmp_path / "home" / found
    (path if found.endswith("/") else path.parent).mkdir(parents=True)
    if not found.endswith("/"):
        path.write_text("precious")
    before = fingerprint(tmp_path)
    with pytest.raises(LogDirectoryError, match="an empty directory or a log directory, found"):
        open_directory(tmp_path / "home")
    assert fingerprint(tmp_path) == before


def test_an_unknown_directory_in_a_log_directory_is_refused(tmp_path):
    # A broker does not start over it either.
    write(tmp_path)
    (tmp_path / "backup").mkdir()
    with pytest.raises(LogDirectoryError, match="found 'backup'"):
        open_directory(tmp_path)
    assert (tmp_path / MARKER).exists()


def test_a_file_is_no_directory(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(LogDirectoryError, match="Expected a directory"):
        open_directory(tmp_path / "file")


def test_other_entries_of_a_log_directory_are_left_alone(tmp_path):
    write(tmp_path)
    others = ["lost+found", "remote-log-index-cache", "__cluster_metadata-0", ".snapshots"]
    others += [f"orders-1.{'0' * 32}-{suffix}" for suffix in ("delete", "stray", "future")]
    for other in others:
        (tmp_path / other).mkdir()
        (tmp_path / other / "00000000000000000000.log").write_bytes(b"left alone")
    (tmp_path / "bootstrap.checkpoint").write_bytes(b"left alone")
    before = contents(tmp_path)
    with open_directory(tmp_path) as logs:
        assert [(log.topic, log.partition) for log in logs.logs()] == [("orders", 0)]
    assert contents(tmp_path) == before


def test_a_linked_partition_is_refused(tmp_path):
    write(tmp_path / "elsewhere")
    write(tmp_path / "root", topic="clicks")
    (tmp_path / "root/orders-0").symlink_to(tmp_path / "elsewhere/orders-0")
    with pytest.raises(LogDirectoryError, match="symbolic link"):
        open_directory(tmp_path / "root")


def test_a_brokers_directory_is_refused_unless_it_is_called_one(tmp_path):
    write(tmp_path)
    (tmp_path / "meta.properties").write_text(META)
    before = fingerprint(tmp_path)
    with pytest.raises(LogDirectoryError, match=r"that is not a broker's.*broker_directory=True"):
        open_directory(tmp_path)
    assert fingerprint(tmp_path) == before
    with open_directory(tmp_path, broker_directory=True) as logs:
        append(logs.get("orders"))
    assert offsets(open_directory(tmp_path, read_only=True).get("orders")) == list(range(13))


def test_what_a_commit_has_left_is_undone(tmp_path):
    """Without a journal, nothing was begun."""
    write(tmp_path)
    (tmp_path / "segmentlog.commit-in-progress").mkdir()
    with open_directory(tmp_path) as logs:
        append(logs.get("orders"))
    assert not (tmp_path / "segmentlog.commit-in-progress").exists()
    assert offsets(open_directory(tmp_path, read_only=True).get("orders")) == list(range(13))


# Topics whose names begin with a dot, which Kafka allows.


@pytest.mark.parametrize("topic", [".hidden", "..twice", ".Trash-1000", ".segmentlog"])
def test_a_topic_may_begin_with_a_dot(tmp_path, topic):
    with open_directory(tmp_path) as logs:
        log = logs.create(topic, 3)
        append(log, 12)
        log.delete_records(7)
    for _ in range(2):
        with open_directory(tmp_path) as logs:
            log = logs.get(topic, 3)
            assert (log.log_start_offset, offsets(log)) == (7, [7, 8, 9, 10, 11])
            assert read_table(tmp_path, subscribe=topic)["offset"].to_pylist() == [7, 8, 9, 10, 11]


def test_a_log_of_such_a_topic_is_recovered_before_the_marker_says_that_all_is_well(tmp_path):
    write(tmp_path, topic=".hidden")
    unclean(tmp_path)
    with (tmp_path / ".hidden-0/00000000000000000010.log").open("ab") as torn:
        torn.write(b"torn")
    with open_directory(tmp_path) as logs:
        assert offsets(logs.get(".hidden")) == list(range(12))
    assert (tmp_path / MARKER).exists()
    assert (tmp_path / ".hidden-0/00000000000000000010.log").stat().st_size == 200


def test_a_log_of_such_a_topic_that_a_crash_left_without_files_is_one(tmp_path):
    logs = open_directory(tmp_path)
    (tmp_path / ".hidden-0").mkdir()
    crash(logs)
    with open_directory(tmp_path) as logs:
        append(logs.get(".hidden"), 2)


def test_a_hidden_directory_that_is_merely_named_like_a_partition_is_left_alone(tmp_path):
    """A desktop keeps what was deleted in one."""
    write(tmp_path)
    (tmp_path / ".Trash-1000/files").mkdir(parents=True)
    (tmp_path / ".Trash-1000/files/photo.jpg").write_bytes(b"precious")
    before = contents(tmp_path)
    with open_directory(tmp_path) as logs:
        assert [log.topic for log in logs.logs()] == ["orders"]
    assert contents(tmp_path) == before


def test_a_hidden_link_to_a_partition_is_refused(tmp_path):
    write(tmp_path / "elsewhere", topic=".hidden")
    write(tmp_path / "root")
    (tmp_path / "root/.hidden-0").symlink_to(tmp_path / "elsewhere/.hidden-0")
    with pytest.raises(LogDirectoryError, match="symbolic link"):
        open_directory(tmp_path / "root")


@pytest.mark.parametrize("topic", [".segmentlog-", ".segmentlog-commits", f".segmentlog-stage-{'0' * 32}-0"])
def test_no_topic_is_made_that_is_named_like_our_own_files(tmp_path, topic):
    with open_directory(tmp_path) as logs:
        before = names(tmp_path)
        with pytest.raises(OptionError, match=r"'\.segmentlog-'"):
            logs.create(topic)
        assert names(tmp_path) == before


def test_a_log_of_such_a_topic_that_is_there_already_is_one_like_any_other(tmp_path):
    """A broker knows nothing of our names."""
    write(tmp_path)
    name = f".segmentlog-stage-{'0' * 32}-0"
    (tmp_path / "orders-0").rename(tmp_path / f"{name}-0")
    for checkpoint in tmp_path.glob("*-checkpoint"):
        checkpoint.write_text(checkpoint.read_text().replace("orders", name))
    with open_directory(tmp_path, config=small()) as logs:
        log = logs.get(name)
        log.delete_records(7)
        append(log)
    with open_directory(tmp_path) as logs:
        assert offsets(logs.get(name)) == list(range(7, 13))
    assert read_table(tmp_path, subscribe=name)["offset"].to_pylist() == list(range(7, 13))


@pytest.mark.parametrize("data", [b'{"generation":1}\n' * 900, bytes(20_000)])
def test_nothing_is_appended_that_no_reader_accepts_because_the_list_of_commits_is_damaged(tmp_path, data):
    write(tmp_path)
    (tmp_path / ".segmentlog-commits").write_bytes(data)
    before = contents(tmp_path)
    with pytest.raises(CorruptCheckpointError, match="not certain which jobs are committed"):
        read_table(tmp_path)
    with pytest.raises(CorruptCheckpointError, match="not certain which jobs are committed"):
        open_directory(tmp_path)
    assert contents(tmp_path) == before
    (tmp_path / ".segmentlog-commits").unlink()
    with open_directory(tmp_path) as logs:
        append(logs.get("orders"))


# -- Checkpoints --------


def test_checkpoints_are_written_when_asked_for(tmp_path):
    with open_directory(tmp_path) as logs:
        log = logs.create("orders")
        append(log, 3)
        logs.checkpoint()
        assert (tmp_path / "recovery-point-offset-checkpoint").read_text() == "0\n1\norders 0 0\n"
        log.flush()
        logs.checkpoint()
        assert (tmp_path / "recovery-point-offset-checkpoint").read_text() == "0\n1\norders 0 3\n"


def test_the_high_watermark_of_a_replica_comes_back(tmp_path):
    with open_directory(tmp_path) as logs:
        log = logs.create("orders")
        append(log, 5)
        log.update_high_watermark(3)
    with open_directory(tmp_path) as logs:
        assert logs.get("orders").high_watermark == 3


def test_unreadable_checkpoints_count_as_none(tmp_path):
    write(tmp_path)
    for name in names(tmp_path):
        if name.endswith("checkpoint"):
            (tmp_path / name).write_text("garbage")
    with open_directory(tmp_path) as logs:
        log = logs.get("orders")
        assert (log.log_start_offset, log.high_watermark, log.log_end_offset) == (0, 12, 12)
