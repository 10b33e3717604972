"""The content of a partition directory, read without the code under test, to compare two of them."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from crc32c import crc32c

if TYPE_CHECKING:
    from pathlib import Path

_ENTRY = struct.Struct(">qhiqiqiq")
# After a crash, a broker leaves incomplete files and overwrites them later; we remove them.
_PASSING = {".deleted", ".tmp"}


class ProducerEntry(NamedTuple):
    """One producer in a snapshot (`ProducerSnapshot.json`)."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp_ms: int
    coordinator_epoch: int
    current_transaction_first_offset: int


@dataclass(frozen=True, slots=True)
class PartitionState:
    """The files of a partition by name, decoded where the order of entries is unspecified.

    Attributes:
        logs: Log files.
        indexes: Offset, time and transaction indexes.
        snapshots: Producer snapshots, sorted.
        leader_epochs: Epoch and start offset; None without a file.
        others: Names of all other files, except incomplete ones and those that await deletion.
    """

    logs: dict[str, bytes]
    indexes: dict[str, bytes]
    snapshots: dict[str, list[ProducerEntry]]
    leader_epochs: list[tuple[int, int]] | None
    others: set[str]


def state_of(partition: Path) -> PartitionState:
    """Read all files of a partition whose log is closed."""
    logs, indexes, snapshots, others = {}, {}, {}, set()
    for path in sorted(partition.iterdir()):
        if path.suffix == ".log":
            logs[path.name] = path.read_bytes()
        elif path.suffix in {".index", ".timeindex", ".txnindex"}:
            indexes[path.name] = path.read_bytes()
        elif path.suffix == ".snapshot":
            snapshots[path.name] = sorted(snapshot_entries_in_order(path.read_bytes()))
        elif path.suffix not in _PASSING and path.name != "leader-epoch-checkpoint":
            others.add(path.name)
    return PartitionState(logs, indexes, snapshots, _leader_epochs(partition), others)


def log_end_offset_of(state: PartitionState) -> int:
    """Return the offset after the last batch, or the base offset of the last segment; for logs of format v2."""
    name, content = max(state.logs.items())
    end, position = int(name.removesuffix(".log")), 0
    while position < len(content):
        base, size = struct.unpack_from(">qi", content, position)
        (delta,) = struct.unpack_from(">i", content, position + 23)
        end, position = base + delta + 1, position + 12 + size
    assert position == len(content), "torn"
    return end


def leader_epochs_below(state: PartitionState, offset: int) -> list[tuple[int, int]]:
    """Return the epochs that began below an offset: an election adds one at the log end without a record."""
    return [entry for entry in state.leader_epochs or [] if entry[1] < offset]


def _leader_epochs(partition: Path) -> list[tuple[int, int]] | None:
    path = partition / "leader-epoch-checkpoint"
    if not path.exists():
        return None
    version, count, *lines = path.read_text().splitlines()
    assert (version, int(count)) == ("0", len(lines))
    return [(int(epoch), int(start)) for epoch, start in (line.split() for line in lines)]


def snapshot_entries_in_order(content: bytes) -> list[ProducerEntry]:
    """Return the entries of a snapshot in file order."""
    version, crc, count = struct.unpack_from(">hIi", content)
    assert version == 1
    assert crc == crc32c(content[6:])
    assert len(content) == 10 + count * _ENTRY.size
    return [ProducerEntry(*fields) for fields in _ENTRY.iter_unpack(content[10:])]
