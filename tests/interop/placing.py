"""Placing partitions that were written elsewhere under the topics of a stopped broker.

The files move as an operator would move them. The broker's partition directory keeps its `partition.metadata` with
the cluster's topic id; all other files come from the source. The source root's checkpoint entries for the partition
move, too.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

CHECKPOINTS = (
    "recovery-point-offset-checkpoint",
    "log-start-offset-checkpoint",
    "replication-offset-checkpoint",
)
_TOPIC_ID_FILE = "partition.metadata"


def place(
    source_root: Path, broker_root: Path, topic: str, *, source_topic: str | None = None, partitions: int = 1
) -> None:
    """Replace the files of a topic's partitions and take over their checkpoint entries.

    Args:
        source_root: Holds the files.
        broker_root: The root of a stopped broker.
        topic: An existing topic of the broker.
        source_topic: The topic's name in the source, if it differs.
        partitions: The partition count.
    """
    source_topic = source_topic or topic
    for partition in range(partitions):
        _place_files(source_root / f"{source_topic}-{partition}", broker_root / f"{topic}-{partition}")
    for checkpoint in CHECKPOINTS:
        offsets = read_checkpoint(broker_root / checkpoint)
        found = read_checkpoint(source_root / checkpoint)
        for partition in range(partitions):
            offsets.pop((topic, partition), None)
            if (source_topic, partition) in found:
                offsets[topic, partition] = found[source_topic, partition]
        _write_checkpoint(broker_root / checkpoint, offsets)


def _place_files(source: Path, target: Path) -> None:
    assert (target / _TOPIC_ID_FILE).exists(), "the broker did not create this partition"
    for path in target.iterdir():
        if path.name != _TOPIC_ID_FILE:
            path.unlink()
    for path in source.iterdir():
        if path.name != _TOPIC_ID_FILE:
            # Keep the times: retention uses a file's time if its segment has no timestamps.
            shutil.copy2(path, target)


def add_offsets(root: Path, checkpoint: str, offsets: Mapping[str, int]) -> None:
    """Add offsets for partition 0 of topics to a checkpoint."""
    path = root / checkpoint
    _write_checkpoint(path, read_checkpoint(path) | {(topic, 0): offset for topic, offset in offsets.items()})


def write_offsets(root: Path, checkpoint: str, offsets: Mapping[str, int]) -> None:
    """Replace a checkpoint with one that holds only partition 0 of these topics."""
    _write_checkpoint(root / checkpoint, {(topic, 0): offset for topic, offset in offsets.items()})


def read_checkpoint(path: Path) -> dict[tuple[str, int], int]:
    """Return the offsets in a checkpoint file, by topic and partition; empty if the file is missing."""
    if not path.exists():
        return {}
    version, count, *lines = path.read_text().splitlines() or ["0", "0"]
    assert version == "0"
    assert int(count) == len(lines)
    entries = (line.split() for line in lines)
    return {(topic, int(partition)): int(offset) for topic, partition, offset in entries}


def _write_checkpoint(path: Path, offsets: dict[tuple[str, int], int]) -> None:
    lines = [f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items()]
    path.write_text("\n".join(["0", str(len(lines)), *lines, ""]))
