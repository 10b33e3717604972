"""A tiered topic for tests: a whole log, and the two halves that a broker with tiered storage would keep of it."""

from __future__ import annotations

import shutil
from itertools import pairwise
from pathlib import Path

from tests.log.logs import name, open_directory, small, table, value

NAME = "orders-0"
START_CHECKPOINT = "log-start-offset-checkpoint"
EPOCHS = "leader-epoch-checkpoint"
REMOTE_SUFFIXES = ("log", "index", "timeindex", "txnindex")


def make_whole(root: Path, segment_bytes: int = 1000) -> Path:
    """Eight segments of some ten batches in three leader epochs, with transactions that overlap; timestamps ascend unevenly."""
    with open_directory(root, config=small(segment_bytes)) as logs:
        log = logs.create("orders")
        open_ones = {}
        for number in range(70):
            batch = table(value(number), timestamps=[1_000 * number - 700 * (number % 3)])
            kind = number % 10
            if kind in (2, 4, 7):
                if number % 3 not in open_ones:
                    open_ones[number % 3] = log.transaction(number % 3)
                open_ones[number % 3].append(batch)
            else:
                log.append(batch, leader_epoch=number // 25)
            if kind in (5, 9) and open_ones:
                transaction = open_ones.pop(min(open_ones))
                (transaction.abort if number % 4 else transaction.commit)()
        for transaction in open_ones.values():
            transaction.commit()
    return root


def bases_of(root: Path) -> list[int]:
    return sorted(int(path.stem) for path in (root / NAME).glob("*.log"))


def cut(
    whole: Path,
    path: Path,
    local_from: int,
    remote_to: int,
    start: int | None = 0,
    *,
    uploaded: Path | None = None,
) -> tuple[str, str]:
    """Cut a whole log: segments from a number on are local, those below another number remote, so that some may be both.

    Another broker may have uploaded the remote ones, from a log with other borders between segments, ``uploaded``.
    The names in the remote half are as a broker's: a producer snapshot has that of the offset that it is of.

    Returns:
        The local log directory and the remote one.
    """
    bases = bases_of(whole)
    local, remote = path / "local", path / "remote" / NAME
    shutil.copytree(whole, local)
    for each in (local / NAME).iterdir():
        if each.name[:20].isdigit() and int(each.name[:20]) < bases[local_from]:
            each.unlink()
    if start is not None:
        (local / START_CHECKPOINT).write_text(f"0\n1\norders 0 {start}\n")
    remote.mkdir(parents=True)
    topic_id = (whole / NAME / "partition.metadata").read_bytes()
    whole = uploaded or whole
    bases = [*bases_of(whole), 1 << 60]
    end = bases[remote_to]
    for base, next_base in list(pairwise(bases))[:remote_to]:
        for suffix in REMOTE_SUFFIXES:
            file = whole / NAME / name(base, suffix)
            if file.exists() and (suffix != "txnindex" or file.stat().st_size):
                shutil.copy(file, remote)
        if (whole / NAME / name(next_base, "snapshot")).exists():
            shutil.copy(whole / NAME / name(next_base, "snapshot"), remote)
    (remote / "partition.metadata").write_bytes(topic_id)
    epochs = [
        line for line in (whole / NAME / EPOCHS).read_text().splitlines()[2:] if int(line.split()[1]) < end
    ]
    (remote / EPOCHS).write_text("\n".join(["0", str(len(epochs)), *epochs, ""]))
    return str(local), str(remote.parent)
