"""What may stand in a log directory, and what is refused (232)."""

from __future__ import annotations

import pytest

from storage_core.errors import LogDirectoryError
from tests.log.logs import MARKER, append, contents, fingerprint, offsets, open_directory, write

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


def test_what_else_stands_in_a_log_directory_is_left_alone(tmp_path):
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
    with pytest.raises(LogDirectoryError, match=r"belongs to a broker.*broker_directory=True"):
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
