from __future__ import annotations

import pytest

from storage_core.checkpoint import ProducerStateEntry
from storage_core.filesystem import FileSystem
from storage_core.log.producer_state_manager import ProducerSnapshots

EMPTY = bytes.fromhex("000148674bc700000000")
ENTRY = ProducerStateEntry(5, 2, 7, 30, 3, 1_600_000_000_000, -1, None)


def write(directory, *offsets, content=EMPTY):
    for offset in offsets:
        (directory / f"{offset:020d}.snapshot").write_bytes(content)


def names(directory):
    return sorted(path.name for path in directory.iterdir())


def offsets_on_disk(directory):
    return [int(name[:20]) for name in names(directory) if name.endswith(".snapshot")]


def open_snapshots(directory, **options):
    return ProducerSnapshots(FileSystem(), str(directory), **options)


def test_it_finds_the_snapshots_of_a_directory(tmp_path):
    write(tmp_path, 30, 4, 2**63 - 1)
    for name in (
        "00000000000000000005.log",
        "00000000000000000006.snapshot.deleted",
        "00000000000000000007.snapshot.tmp",
        "8.snapshot",
        "x0000000000000000009.snapshot",
        "99999999999999999999.snapshot",
    ):
        (tmp_path / name).touch()
    (tmp_path / "00000000000000000010.snapshot").mkdir()
    snapshots = open_snapshots(tmp_path)
    assert snapshots.offsets == (4, 30, 2**63 - 1)
    assert snapshots.latest_offset == 2**63 - 1


def test_what_was_written_is_read(tmp_path):
    snapshots = open_snapshots(tmp_path)
    snapshots.write(9, [ENTRY])
    snapshots.write(4, [])
    assert snapshots.offsets == (4, 9)
    assert names(tmp_path) == ["00000000000000000004.snapshot", "00000000000000000009.snapshot"]
    assert (tmp_path / "00000000000000000004.snapshot").read_bytes() == EMPTY
    assert open_snapshots(tmp_path).read_latest() == (9, (ENTRY,))


def test_a_snapshot_is_replaced(tmp_path):
    write(tmp_path, 9)
    snapshots = open_snapshots(tmp_path)
    snapshots.write(9, [ENTRY])
    assert snapshots.offsets == (9,)
    assert open_snapshots(tmp_path).read_latest() == (9, (ENTRY,))


def test_a_flush_is_left_out_where_it_is_not_wanted(tmp_path):
    filesystem = FileSystem()
    snapshots = ProducerSnapshots(filesystem, str(tmp_path))
    snapshots.write(9, [], flush=False)
    assert filesystem.statistics.flushes == 0
    snapshots.write(10, [])
    assert filesystem.statistics.flushes == 2


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        EMPTY[:9],
        EMPTY[:-1] + b"\1",
        b"\0\1\0\0\0\0\0\0\0\0",
        b"\0\2" + EMPTY[2:],
        bytes.fromhex("000105aeec6b00000002000000000000000100000000000100000000000000010000"),
    ],
    ids=["empty", "cut", "changed", "CRC", "version", "cut entries"],
)
def test_a_damaged_snapshot_makes_room_for_the_one_before(tmp_path, damaged, caplog):
    snapshots = open_snapshots(tmp_path)
    snapshots.write(4, [ENTRY])
    write(tmp_path, 9, 12, content=damaged)
    snapshots = open_snapshots(tmp_path)
    assert snapshots.read_latest() == (4, (ENTRY,))
    assert snapshots.offsets == (4,)
    assert offsets_on_disk(tmp_path) == [4]
    assert "00000000000000000012.snapshot" in caplog.text


def test_a_snapshot_that_was_removed_meanwhile(tmp_path):
    write(tmp_path, 4, 9)
    snapshots = open_snapshots(tmp_path)
    (tmp_path / "00000000000000000009.snapshot").unlink()
    assert snapshots.read_latest() == (4, ())
    assert snapshots.offsets == (4,)


@pytest.mark.parametrize(
    ("bases", "kept"),
    [
        # The newest stays if no segment begins after it; other strays are deleted.
        ([0, 3, 9], [3, 9, 12]),
        ([0, 3, 12], [3, 12]),
        ([0, 3, 13], [3]),
        ([0, 11], [12]),
        ([20], []),
        ([5, 9, 12], [5, 9, 12]),
        ([5, 9], [5, 9, 12]),
        ([0], [12]),
        ([], [12]),
    ],
)
def test_strays(tmp_path, bases, kept):
    write(tmp_path, 3, 5, 9, 12)
    snapshots = open_snapshots(tmp_path)
    snapshots.delete_strays(bases)
    assert list(snapshots.offsets) == kept
    assert offsets_on_disk(tmp_path) == kept


def test_deleting(tmp_path):
    write(tmp_path, 3, 5, 9, 12, 15)
    snapshots = open_snapshots(tmp_path)
    snapshots.delete(9)
    snapshots.delete(9)
    assert snapshots.offsets == (3, 5, 12, 15)
    snapshots.delete_outside(3, 12)
    assert snapshots.offsets == (5, 12)
    assert offsets_on_disk(tmp_path) == [5, 12]
    snapshots.delete_all()
    assert snapshots.offsets == ()
    assert names(tmp_path) == []


def test_what_a_truncation_deletes_does_not_come_back_after_a_crash(tmp_path):
    write(tmp_path, 3, 5, 9, 12)
    filesystem = FileSystem()
    snapshots = ProducerSnapshots(filesystem, str(tmp_path))
    snapshots.delete_outside(0, 12)
    assert filesystem.statistics.flushes == 0
    snapshots.delete_outside(0, 5)
    assert filesystem.statistics.flushes == 1
    snapshots.delete_all()
    assert filesystem.statistics.flushes == 2


def test_the_snapshots_of_deleted_segments_are_renamed_first(tmp_path):
    write(tmp_path, 3, 5, 9, 12)
    snapshots = open_snapshots(tmp_path)
    renamed = [f"{offset:020d}.snapshot.deleted" for offset in (3, 9)]
    assert snapshots.mark_deleted([9, 4, 3]) == [str(tmp_path / each) for each in renamed]
    assert snapshots.mark_deleted([9, 3]) == []
    assert snapshots.offsets == (5, 12)
    assert [each for each in names(tmp_path) if each.endswith(".deleted")] == renamed


def test_a_snapshot_that_is_gone_needs_no_deletion(tmp_path):
    write(tmp_path, 3, 7)
    snapshots = open_snapshots(tmp_path)
    (tmp_path / f"{3:020d}.snapshot").unlink()
    assert snapshots.mark_deleted([3, 7]) == [str(tmp_path / f"{7:020d}.snapshot.deleted")]
