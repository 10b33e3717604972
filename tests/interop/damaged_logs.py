"""The kinds of damage that a recovery must handle, each applied to a log of its own.

The logs are copies of one intact log, damaged after the broker was killed.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from tests.interop.log_bytes import entries_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def _bases(partition: Path) -> list[int]:
    return sorted(int(path.stem) for path in partition.glob("*.log"))


def _file(partition: Path, number: int, suffix: str) -> Path:
    """Return a file of the n-th segment."""
    return partition / f"{_bases(partition)[number]:020}{suffix}"


def _flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 0x10
    path.write_bytes(content)


def _batch_positions(path: Path) -> list[int]:
    return [entry.position for entry in entries_of(path.read_bytes(), int(path.stem))]


class Checkpointed(NamedTuple):
    """What the root's checkpoints say of the partition after the damage.

    Attributes:
        recovery_point: None for no line.
        log_start: None to keep the existing line.
    """

    recovery_point: int | None = None
    log_start: int | None = None


def _nothing(partition: Path) -> None:
    del partition


def _torn(partition: Path) -> None:
    path = _file(partition, -1, ".log")
    os.truncate(path, path.stat().st_size - 10)


def _torn_in_a_header(partition: Path) -> None:
    path = _file(partition, -1, ".log")
    os.truncate(path, _batch_positions(path)[-1] + 7)


def _garbage_after(partition: Path) -> None:
    with open(_file(partition, -1, ".log"), "ab") as log:
        log.write(bytes(range(1, 200)))


def _zeros_after(partition: Path) -> None:
    with open(_file(partition, -1, ".log"), "ab") as log:
        log.write(bytes(5_000))


def _empty_last(partition: Path) -> None:
    os.truncate(_file(partition, -1, ".log"), 0)


def _flipped_in_the_middle(partition: Path) -> None:
    path = _file(partition, 1, ".log")
    positions = _batch_positions(path)
    _flip(path, positions[len(positions) // 2] + 70)


def _flipped_in_the_first_batch(partition: Path) -> None:
    _flip(_file(partition, 2, ".log"), 50)


def _flipped_magic(partition: Path) -> None:
    path = _file(partition, -1, ".log")
    _flip(path, _batch_positions(path)[-2] + 16)


def _flipped_below_the_recovery_point(partition: Path) -> Checkpointed:
    """Flip a bit that a recovery does not read."""
    path = _file(partition, 1, ".log")
    _flip(path, _batch_positions(path)[1] + 70)
    return Checkpointed(_bases(partition)[3] + 1)


def _recovery_point_at_a_base(partition: Path) -> Checkpointed:
    return Checkpointed(_bases(partition)[-2])


def _cut_at_a_batch(partition: Path) -> None:
    """Remove whole batches from the end of a segment that is not the last: an offset gap, but no damage."""
    path = _file(partition, 1, ".log")
    os.truncate(path, _batch_positions(path)[-1])


def _repeated_batch(partition: Path) -> None:
    """Repeat a batch, so the log, and perhaps the index, holds its offsets twice."""
    path = _file(partition, -1, ".log")
    content = path.read_bytes()
    position = _batch_positions(path)[-1]
    with open(path, "ab") as log:
        log.write(content[position:])


def _lost_segment(partition: Path) -> None:
    _file(partition, 2, ".log").unlink()


def _lost_indexes(partition: Path) -> None:
    _file(partition, 0, ".index").unlink()
    _file(partition, 1, ".timeindex").unlink()
    _file(partition, 2, ".index").unlink()
    _file(partition, 2, ".timeindex").unlink()


def _lost_index_below_the_recovery_point(partition: Path) -> Checkpointed:
    _file(partition, 0, ".index").unlink()
    _file(partition, 1, ".timeindex").unlink()
    return Checkpointed(_bases(partition)[3])


def _broken_indexes(partition: Path) -> None:
    for number, suffix in ((0, ".index"), (1, ".timeindex"), (-1, ".index")):
        path = _file(partition, number, suffix)
        path.write_bytes(bytes(reversed(range(100))))


def _broken_transaction_index(partition: Path) -> None:
    for path in partition.glob("*.txnindex"):
        # A broker that is killed while it aborts may leave an empty one.
        if path.stat().st_size:
            _flip(path, 3)
        with open(path, "ab") as index:
            index.write(b"some")


def _lost_transaction_index(partition: Path) -> None:
    for path in partition.glob("*.txnindex"):
        path.unlink()


def _broken_snapshots(partition: Path) -> None:
    for path in partition.glob("*.snapshot"):
        _flip(path, path.stat().st_size - 1)


def _broken_snapshot_at_the_recovery_point(partition: Path) -> Checkpointed:
    base = _bases(partition)[-1]
    _flip(partition / f"{base:020}.snapshot", 12)
    return Checkpointed(base)


def _lost_snapshots(partition: Path) -> None:
    for path in partition.glob("*.snapshot"):
        path.unlink()


def _stray_snapshots(partition: Path) -> None:
    base, later = _bases(partition)[-2:]
    content = (partition / f"{base:020}.snapshot").read_bytes()
    (partition / f"{base + 1:020}.snapshot").write_bytes(content)
    (partition / f"{later + 1_000_000:020}.snapshot").write_bytes(content)


def _lost_epochs(partition: Path) -> None:
    (partition / "leader-epoch-checkpoint").unlink()


def _epochs_beyond_the_end(partition: Path) -> None:
    (partition / "leader-epoch-checkpoint").write_text("0\n3\n0 0\n1 10\n2 100000\n")


def _left_over_files(partition: Path) -> None:
    """Leave files of deletions and by an interrupted compaction."""
    for suffix in (".log", ".index"):
        path = _file(partition, 1, suffix)
        for ending in (".deleted", ".cleaned"):
            path.with_name(path.name + ending).write_bytes(path.read_bytes())
    (partition / "00000000000009999999.index").write_bytes(b"")
    (partition / "00000000000009999999.timeindex").write_bytes(b"")


def _complete_swap(partition: Path) -> None:
    """Leave a compacted segment next to the ones that it replaces."""
    path = _file(partition, 1, ".log")
    content = path.read_bytes()
    positions = _batch_positions(path)
    path.with_name(path.name + ".swap").write_bytes(content[: positions[1]] + content[positions[2] :])
    for suffix in (".index", ".timeindex"):
        path.with_name(path.stem + suffix + ".swap").write_bytes(b"")


def _unfinished_split(partition: Path) -> None:
    """Leave a split interrupted after one half was renamed."""
    path = _file(partition, 1, ".log")
    path.with_name(path.name + ".swap").write_bytes(path.read_bytes())
    path.with_name(path.name + ".cleaned").write_bytes(path.read_bytes())


def _lost_first_segment(partition: Path) -> None:
    for path in partition.glob(f"{_bases(partition)[0]:020}.*"):
        path.unlink()


def _lost_all_segments(partition: Path) -> None:
    for path in partition.glob("*.log"):
        path.unlink()


def _lost_everything(partition: Path) -> None:
    for path in partition.iterdir():
        if path.name != "partition.metadata":
            path.unlink()


def _emptied_in_the_middle(partition: Path) -> None:
    os.truncate(_file(partition, 2, ".log"), 0)


def _log_start_in_a_batch(partition: Path) -> Checkpointed:
    return Checkpointed(log_start=_bases(partition)[2] + 7)


def _log_start_beyond_the_end(partition: Path) -> Checkpointed:
    del partition
    return Checkpointed(log_start=1_000_000)


def _recovery_point_beyond_the_end(partition: Path) -> Checkpointed:
    del partition
    return Checkpointed(recovery_point=1_000_000)


def _cut_below_the_recovery_point(partition: Path) -> Checkpointed:
    """Bytes are missing although they were flushed."""
    path = _file(partition, -1, ".log")
    base = _bases(partition)[-1]
    os.truncate(path, _batch_positions(path)[-2] + 30)
    return Checkpointed(recovery_point=base + 10_000)


def _unknown_files(partition: Path) -> None:
    (partition / "notes.txt").write_text("do not delete")
    (partition / "1.log.backup").write_bytes(b"anything")
    (partition / "folder").mkdir()


def _offset_out_of_reach(partition: Path) -> None:
    """Write an offset too far above the base offset, as old cleaners left it: recovery splits the segment."""
    path = _file(partition, -1, ".log")
    content = bytearray(path.read_bytes())
    position = _batch_positions(path)[-1]
    content[position : position + 8] = (_bases(partition)[-1] + (1 << 31) + 5).to_bytes(8, "big")
    path.write_bytes(content)


# Topic: the damage. Unless it returns otherwise, the recovery point is the log start.
DAMAGED_LOGS: dict[str, Callable[[Path], Checkpointed | None]] = {
    f"damaged-{way.__name__.strip('_').replace('_', '-')}": way
    for way in (
        _nothing,
        _torn,
        _torn_in_a_header,
        _garbage_after,
        _zeros_after,
        _empty_last,
        _flipped_in_the_middle,
        _flipped_in_the_first_batch,
        _flipped_magic,
        _flipped_below_the_recovery_point,
        _recovery_point_at_a_base,
        _cut_at_a_batch,
        _repeated_batch,
        _lost_segment,
        _lost_indexes,
        _lost_index_below_the_recovery_point,
        _broken_indexes,
        _broken_transaction_index,
        _lost_transaction_index,
        _broken_snapshots,
        _broken_snapshot_at_the_recovery_point,
        _lost_snapshots,
        _stray_snapshots,
        _lost_epochs,
        _epochs_beyond_the_end,
        _left_over_files,
        _complete_swap,
        _unfinished_split,
        _lost_first_segment,
        _lost_all_segments,
        _lost_everything,
        _emptied_in_the_middle,
        _log_start_in_a_batch,
        _log_start_beyond_the_end,
        _recovery_point_beyond_the_end,
        _cut_below_the_recovery_point,
        _unknown_files,
        _offset_out_of_reach,
    )
}
