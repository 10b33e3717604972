"""The ways in which the directories of a node are broken, each applied to a copy of its own."""

from __future__ import annotations

import gzip
import os
import random
import re
import shutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.interop.broker_roots import Node

_CHECKPOINTS = (
    "recovery-point-offset-checkpoint",
    "log-start-offset-checkpoint",
    "replication-offset-checkpoint",
    "cleaner-offset-checkpoint",
)
_UNIQUE = "0123456789abcdef0123456789abcdef"
_OTHER_ID = "AAAAAAAAQACAAAAAAAAAqg"


def _partition(node: Node, rng: random.Random) -> Path:
    return rng.choice(node.partitions())


def _disk(node: Node, rng: random.Random) -> Path:
    return rng.choice(node.disks)


def _log(node: Node, rng: random.Random) -> Path:
    return rng.choice(sorted(_partition(node, rng).glob("*.log")))


def _replace(path: Path, pattern: str, by: str) -> None:
    path.write_text(re.sub(pattern, by, path.read_text(), flags=re.MULTILINE))


def _cut(path: Path, rng: random.Random) -> None:
    os.truncate(path, rng.randrange(1, path.stat().st_size))


def _garbage(path: Path, rng: random.Random) -> None:
    path.write_bytes(rng.randbytes(rng.randrange(5, 60)))


def _flip(path: Path, rng: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


# Directories that are no partitions.


def _nothing(node: Node, rng: random.Random) -> None:
    del node, rng


def _directory(*names: str) -> Callable[[Node, random.Random], None]:
    def apply(node: Node, rng: random.Random) -> None:
        (_disk(node, rng) / rng.choice(names)).mkdir()

    return apply


def _filled_directory(*names: str) -> Callable[[Node, random.Random], None]:
    def apply(node: Node, rng: random.Random) -> None:
        path = _disk(node, rng) / rng.choice(names)
        path.mkdir()
        (path / "notes.txt").write_text("keep")

    return apply


def _copied_as(suffix: str) -> Callable[[Node, random.Random], None]:
    def apply(node: Node, rng: random.Random) -> None:
        path = _partition(node, rng)
        shutil.copytree(path, _disk(node, rng) / (path.name + suffix))

    return apply


def _renamed_to(suffix: str) -> Callable[[Node, random.Random], None]:
    def apply(node: Node, rng: random.Random) -> None:
        path = _partition(node, rng)
        path.rename(path.with_name(path.name + suffix))

    return apply


def _on_two_disks(node: Node, rng: random.Random) -> None:
    path = _partition(node, rng)
    for disk in node.disks:
        if disk != path.parent:
            shutil.copytree(path, disk / path.name)


def _link_to_a_directory(node: Node, rng: random.Random) -> None:
    target = node.folder / "elsewhere"
    target.mkdir()
    (_disk(node, rng) / rng.choice(("elsewhere", "backup"))).symlink_to(target)


def _files(node: Node, rng: random.Random) -> None:
    for name in ("notes.txt", "orders-9", "core.1234"):
        (_disk(node, rng) / name).write_text("keep")


# meta.properties.


def _meta(change: Callable[[Path, random.Random], None]) -> Callable[[Node, random.Random], None]:
    def apply(node: Node, rng: random.Random) -> None:
        change(_disk(node, rng) / "meta.properties", rng)

    return apply


def _without_directory_ids(node: Node, rng: random.Random) -> None:
    del rng
    for disk in node.disks:
        _replace(disk / "meta.properties", "^directory.id=.*\n", "")


def _one_directory_id(node: Node, rng: random.Random) -> None:
    del rng
    for disk in node.disks[1:]:
        shutil.copyfile(node.disks[0] / "meta.properties", disk / "meta.properties")


def _without_meta(node: Node, rng: random.Random) -> None:
    del rng
    for disk in node.disks:
        (disk / "meta.properties").unlink()


def _other_cluster_id(node: Node, rng: random.Random) -> None:
    """Change the id of one of two disks: a single one may well be that of another cluster."""
    if len(node.disks) > 1:
        _replace(_disk(node, rng) / "meta.properties", "cluster.id=.*", "cluster.id=" + _OTHER_ID)


# partition.metadata.


def _metadata(change: Callable[[Path, random.Random], None]) -> Callable[[Node, random.Random], None]:
    def apply(node: Node, rng: random.Random) -> None:
        change(_partition(node, rng) / "partition.metadata", rng)

    return apply


def _id_of_another_topic(node: Node, rng: random.Random) -> None:
    path = _partition(node, rng)
    other = next(each for each in node.partitions() if each.name[:6] != path.name[:6])
    shutil.copyfile(other / "partition.metadata", path / "partition.metadata")


def _foreign_id_of_a_whole_topic(node: Node, rng: random.Random) -> None:
    del rng
    for path in node.partitions():
        if path.name.startswith("events"):
            _replace(path / "partition.metadata", "topic_id: .*", f"topic_id: {_OTHER_ID}")


def _all_without_metadata(node: Node, rng: random.Random) -> None:
    del rng
    for path in node.partitions():
        (path / "partition.metadata").unlink()


def _partition_of_no_topic(node: Node, rng: random.Random) -> None:
    """Add a whole directory of another cluster's topic, or a partition that the topic does not have."""
    path = _partition(node, rng)
    name = rng.choice(("payments-0", path.name.rpartition("-")[0] + "-17"))
    copy = _disk(node, rng) / name
    shutil.copytree(path, copy)
    if rng.random() < 0.5:
        _replace(copy / "partition.metadata", "topic_id: .*", f"topic_id: {_OTHER_ID}")


def _gone_partition(node: Node, rng: random.Random) -> None:
    shutil.rmtree(_partition(node, rng))


def _emptied_partition(node: Node, rng: random.Random) -> None:
    path = _partition(node, rng)
    for each in path.iterdir():
        each.unlink()


# Checkpoints of a log directory.


def _checkpoint(
    name: str, change: Callable[[Path, random.Random], None]
) -> Callable[[Node, random.Random], None]:
    def apply(node: Node, rng: random.Random) -> None:
        change(_disk(node, rng) / name, rng)

    return apply


def _text(*texts: str) -> Callable[[Path, random.Random], None]:
    def change(path: Path, rng: random.Random) -> None:
        path.write_text(rng.choice(texts))

    return change


def _gone(path: Path, rng: random.Random) -> None:
    del rng
    path.unlink()


_WRONG_CHECKPOINTS = (
    "hello\nworld\n",
    "0\n",
    "0\n2\norders 0 5\n",
    "0\n1\norders 0\n",
    "0\n1\norders zero 5\n",
    "1\n0\n",
    "0\n-1\n",
    "0\n1\norders 0 99999999999999999999\n",
    "\0" * 30,
    "0\n1\norders 0 5\n\n",
)


# Files of a partition.


def _torn_tail(node: Node, rng: random.Random) -> None:
    path = max(_partition(node, rng).glob("*.log"))
    os.truncate(path, path.stat().st_size - rng.randrange(1, 60))


def _flipped_log(node: Node, rng: random.Random) -> None:
    _flip(_log(node, rng), rng)


def _emptied_log(node: Node, rng: random.Random) -> None:
    os.truncate(_log(node, rng), 0)


def _lost_log(node: Node, rng: random.Random) -> None:
    _log(node, rng).unlink()


def _archived_logs(node: Node, rng: random.Random) -> None:
    path = _partition(node, rng)
    logs = sorted(path.glob("*.log"))
    for log in logs[: rng.randrange(1, len(logs) + 1)]:
        log.with_name(log.name + ".gz").write_bytes(gzip.compress(log.read_bytes()))
        log.unlink()


def _lost_index(node: Node, rng: random.Random) -> None:
    _log(node, rng).with_suffix(rng.choice((".index", ".timeindex"))).unlink()


def _flipped_index(node: Node, rng: random.Random) -> None:
    _flip(_log(node, rng).with_suffix(rng.choice((".index", ".timeindex"))), rng)


def _misnamed(*names: str) -> Callable[[Node, random.Random], None]:
    def apply(node: Node, rng: random.Random) -> None:
        path = _log(node, rng)
        shutil.copyfile(path, path.with_name(rng.choice(names)))

    return apply


def _directory_in_a_partition(*names: str) -> Callable[[Node, random.Random], None]:
    def apply(node: Node, rng: random.Random) -> None:
        (_partition(node, rng) / rng.choice(names)).mkdir()

    return apply


def _epochs(change: Callable[[Path, random.Random], None]) -> Callable[[Node, random.Random], None]:
    def apply(node: Node, rng: random.Random) -> None:
        change(_partition(node, rng) / "leader-epoch-checkpoint", rng)

    return apply


def _snapshots(node: Node, rng: random.Random) -> None:
    path = rng.choice(sorted(_partition(node, rng).glob("*.snapshot")))
    rng.choice((_flip, _cut, _garbage, _gone))(path, rng)


def _partition_is_a_file(node: Node, rng: random.Random) -> None:
    path = _partition(node, rng)
    shutil.rmtree(path)
    path.write_text("nothing")


# The cluster's metadata, which is on the first disk.


def _cluster(change: Callable[[Path, random.Random], None]) -> Callable[[Node, random.Random], None]:
    def apply(node: Node, rng: random.Random) -> None:
        change(node.disks[0] / "__cluster_metadata-0", rng)

    return apply


def _gone_directory(path: Path, rng: random.Random) -> None:
    del rng
    shutil.rmtree(path)


def _flipped_cluster_log(path: Path, rng: random.Random) -> None:
    _flip(path / "00000000000000000000.log", rng)


def _cut_cluster_log(path: Path, rng: random.Random) -> None:
    _cut(path / "00000000000000000000.log", rng)


def _quorum_state(path: Path, rng: random.Random) -> None:
    rng.choice((_garbage, _gone, _cut))(path / "quorum-state", rng)


def _whole_disk(node: Node, rng: random.Random) -> None:
    """Leave an empty directory in place of a disk: it is not mounted."""
    disk = _disk(node, rng)
    shutil.rmtree(disk)
    disk.mkdir()


def _gone_disk(node: Node, rng: random.Random) -> None:
    shutil.rmtree(_disk(node, rng))


WAYS: dict[str, Callable[[Node, random.Random], None]] = {
    "nothing": _nothing,
    "directory without a dash": _directory("lost+found", ".snapshot", "backup", "old_orders", "tmp.1"),
    "directory with a dash": _directory("backup-old", "orders-x", "orders-0.bak", "-0", "orders-", "a-1-b"),
    "directory with a suffix": _directory("orders-0-delete", "orders-0.1-future", "x-stray", "-stray"),
    "directory like an unknown partition": _directory(".Trash-1000", "backup-2024", "orders--1", "a b-1"),
    "filled directory like a partition": _filled_directory(".Trash-1000", "backup-2024", "orders-77"),
    "filled directory without a dash": _filled_directory("lost+found", "archive"),
    "remote-log-index-cache": _directory("remote-log-index-cache"),
    "link to a directory": _link_to_a_directory,
    "files": _files,
    "copied as -delete": _copied_as(f".{_UNIQUE}-delete"),
    "copied as -future": _copied_as(f".{_UNIQUE}-future"),
    "copied as -stray": _copied_as(f".{_UNIQUE}-stray"),
    "renamed to -delete": _renamed_to(f".{_UNIQUE}-delete"),
    "renamed to -future": _renamed_to(f".{_UNIQUE}-future"),
    "renamed to -stray": _renamed_to(f".{_UNIQUE}-stray"),
    "on two disks": _on_two_disks,
    "gone meta.properties": _meta(_gone),
    "empty meta.properties": _meta(_text("")),
    "cut meta.properties": _meta(_cut),
    "garbage as meta.properties": _meta(_garbage),
    "other node.id": _meta(lambda path, _: _replace(path, "node.id=.*", "node.id=7")),
    "other cluster.id": _other_cluster_id,
    "other version": _meta(lambda path, rng: _replace(path, "version=.*", f"version={rng.choice((0, 2))}")),
    "no version": _meta(lambda path, _: _replace(path, "version=.*\n", "")),
    "wrong directory.id": _meta(
        lambda path, rng: _replace(
            path, "directory.id=.*", "directory.id=" + rng.choice(("AA", _OTHER_ID, "AAAAAAAAAAAAAAAAAAAAAQ"))
        )
    ),
    "no directory.id": _without_directory_ids,
    "one directory.id": _one_directory_id,
    "no meta.properties at all": _without_meta,
    "gone partition.metadata": _metadata(_gone),
    "empty partition.metadata": _metadata(_text("")),
    "cut partition.metadata": _metadata(_cut),
    "garbage as partition.metadata": _metadata(_garbage),
    "foreign topic id": _metadata(lambda path, _: _replace(path, "topic_id: .*", "topic_id: " + _OTHER_ID)),
    "reserved topic id": _metadata(
        lambda path, _: _replace(path, "topic_id: .*", "topic_id: AAAAAAAAAAAAAAAAAAAAAA")
    ),
    "other version of partition.metadata": _metadata(lambda path, _: _replace(path, "version: 0", "version: 1")),
    "id of another topic": _id_of_another_topic,
    "foreign id of a whole topic": _foreign_id_of_a_whole_topic,
    "all without partition.metadata": _all_without_metadata,
    "partition of no topic": _partition_of_no_topic,
    "gone partition": _gone_partition,
    "emptied partition": _emptied_partition,
    "partition is a file": _partition_is_a_file,
    **{
        f"{what} {name}": _checkpoint(name, change)
        for name in _CHECKPOINTS
        for what, change in (
            ("wrong", _text(*_WRONG_CHECKPOINTS)),
            ("garbage as", _garbage),
            ("empty", _text("")),
            ("gone", _gone),
        )
    },
    "torn tail": _torn_tail,
    "flipped log": _flipped_log,
    "emptied log": _emptied_log,
    "lost log": _lost_log,
    "archived logs": _archived_logs,
    "lost index": _lost_index,
    "flipped index": _flipped_index,
    "misnamed log": _misnamed("abc.log", "00000.log", "-1.log", "copy of 00000000000000000000.log"),
    "misnamed index": _misnamed("abc.index", "x.timeindex", "y.txnindex", "z.snapshot"),
    "other file": _misnamed("notes.txt", "00000000000000000000.log.bak", "0.log.tmp"),
    "directory in a partition": _directory_in_a_partition("folder", "00000000000000000999.log", "a.log"),
    "gone epochs": _epochs(_gone),
    "empty epochs": _epochs(_text("")),
    "garbage as epochs": _epochs(_garbage),
    "wrong epochs": _epochs(_text("0\n1\n0\n", "0\n2\n0 0\n", "1\n1\n0 0\n", "0\n1\n0 500\n")),
    "broken snapshot": _snapshots,
    "gone cluster metadata": _cluster(_gone_directory),
    "flipped cluster metadata": _cluster(_flipped_cluster_log),
    "cut cluster metadata": _cluster(_cut_cluster_log),
    "broken quorum-state": _cluster(_quorum_state),
    "empty disk": _whole_disk,
    "gone disk": _gone_disk,
}  # fmt: skip
