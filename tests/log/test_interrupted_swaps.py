"""Files that a crash left in between: removed, finished or undone."""

from __future__ import annotations

import pytest

from storage_core.filesystem import FileSystem
from storage_core.log.log_loader import complete_interrupted_swaps
from tests.log.logs import BATCH_BYTES, contents, name, names, offsets, open_directory, reopened, unclean

# Temporary and orphaned files (189, 218, 220).


def test_what_waits_for_its_removal_is_removed(root, path):
    (path / name(0, "log.deleted")).write_bytes(b"1")
    (path / name(0, "index.deleted")).write_bytes(b"2")
    (path / name(5, "snapshot.deleted")).write_bytes(b"3")
    (path / (name(5)[:20] + "-0000000001.checkpoint.deleted")).write_bytes(b"4")
    assert reopened(root)[-1] == list(range(35))
    assert [each for each in names(path) if each.endswith(".deleted")] == [
        name(5)[:20] + "-0000000001.checkpoint.deleted"
    ]


def test_index_files_without_a_log_file_are_removed(root, path):
    for suffix in ("index", "timeindex", "txnindex"):
        (path / name(7, suffix)).write_bytes(b"")
    before = [each for each in names(path) if not each.startswith(name(7)[:20])]
    reopened(root)
    assert names(path) == before


def test_half_written_checkpoints_are_removed(root, path):
    for each in ("leader-epoch-checkpoint.tmp", "partition.metadata.tmp", name(35, "snapshot.tmp")):
        (path / each).write_bytes(b"half")
    before = contents(path)
    reopened(root)
    assert {each: content for each, content in before.items() if not each.endswith(".tmp")} == contents(path)


def copy_as(path, base_offset, suffix):
    for kind in ("log", "index", "timeindex"):
        content = (path / name(base_offset, kind)).read_bytes()
        (path / name(base_offset, kind + suffix)).write_bytes(content)


@pytest.mark.parametrize("is_clean", [True, False])
def test_incomplete_output_of_a_compaction_is_removed(root, path, is_clean):
    before = contents(path)
    if not is_clean:
        unclean(root)
    copy_as(path, 10, ".cleaned")
    assert reopened(root)[-1] == list(range(35))
    assert contents(path) == before


@pytest.mark.parametrize("is_clean", [True, False])
def test_complete_output_takes_the_place_of_what_it_replaces(root, path, is_clean):
    if not is_clean:
        unclean(root)
    # Of offsets 0 to 19 a compaction has kept the first and the last.
    (path / name(0, "log.swap")).write_bytes(
        (path / name(0)).read_bytes()[:BATCH_BYTES] + (path / name(10)).read_bytes()[-BATCH_BYTES:]
    )
    (path / name(0, "index.swap")).write_bytes(b"")
    (path / name(0, "timeindex.swap")).write_bytes(b"")
    with open_directory(root) as logs:
        log = logs.get("orders")
        assert offsets(log) == [0, *range(19, 35)]
        assert log.segment_base_offsets == (0, 20, 30)
    assert not [each for each in names(path) if each.endswith(".swap") or each.startswith(name(10)[:20])]


def test_empty_output_takes_the_place_of_the_segment_with_its_name_and_of_no_other(root, path):
    (path / name(10, "txnindex")).write_bytes(b"")
    for kind in ("log", "index", "timeindex"):
        (path / name(10, kind + ".swap")).write_bytes(b"")
    with open_directory(root) as logs:
        log = logs.get("orders")
        assert offsets(log) == [*range(10), *range(20, 35)]
        assert log.segment_base_offsets == (0, 10, 20, 30)
    assert [each for each in names(path) if each.startswith(name(10)[:20])] == [
        name(10, "index"), name(10), name(10, "timeindex"),
    ]  # fmt: skip


class Calls(FileSystem):
    """Notes what changes names in a directory, and what brings them to the disk."""

    def __init__(self):
        super().__init__()
        self.made = []

    def delete(self, path):
        self.made.append(("delete", path[-28:]))
        return super().delete(path)

    def rename(self, source, target):
        self.made.append(("rename", target[-28:]))
        super().rename(source, target)

    def flush_directory(self, path):
        self.made.append(("flush", path))
        super().flush_directory(path)


def test_names_that_only_the_system_knows_are_on_disk_before_what_they_replace_goes(root, path):
    """A process that was killed has made them; if the power goes as well, the disk would know neither."""
    copy_as(path, 0, ".swap")
    (path / name(10, "log.deleted")).write_bytes(b"")
    filesystem = Calls()
    complete_interrupted_swaps(filesystem, str(path))
    kinds = [kind for kind, _ in filesystem.made]
    assert kinds[0] == "flush"
    first_rename, last_delete = kinds.index("rename"), len(kinds) - 1 - kinds[::-1].index("delete")
    assert "flush" in kinds[last_delete:first_rename]
    assert kinds[-1] == "flush"


def test_a_split_that_was_not_complete_is_undone(root, path):
    before = contents(path)
    copy_as(path, 10, ".cleaned")
    copy_as(path, 20, ".swap")
    assert reopened(root)[-1] == list(range(35))
    assert contents(path) == before
