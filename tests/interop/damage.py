"""Random damage to a copy of a partition, as disks, crashes, faulty copies and manual edits cause it."""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.interop.log_bytes import Entry, entries_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_LENGTH_POSITION = 8
_EPOCH_POSITION = 12
_MAGIC_POSITION = 16
_HEADER_BYTES = {0: 26, 1: 34, 2: 61}


@dataclass(slots=True)
class _Partition:
    """The files of a partition under damage."""

    source: random.Random
    log: dict[int, bytearray]
    entries: dict[int, list[Entry]]
    indexes: dict[str, bytes]

    def segment(self) -> int:
        """A random segment that is not empty; all are equally likely."""
        return self.source.choice([base for base, content in self.log.items() if content])

    def closed_segment(self) -> int:
        closed = [base for base in sorted(self.log)[:-1] if self.log[base]]
        return self.source.choice(closed) if closed else self.segment()

    def last_segment(self) -> int:
        return max(base for base, content in self.log.items() if content)

    def entry(self) -> Entry:
        return self.source.choice([entry for entries in self.entries.values() for entry in entries])

    def position(self, segment: int) -> int:
        """A random position in a file; every other one is the start of an entry."""
        size = len(self.log[segment])
        starts = [entry.position for entry in self.entries[segment] if entry.position < size]
        if starts and self.source.random() < 0.5:
            return self.source.choice(starts)
        return self.source.randrange(size)


def damage_partition(directory: Path, source: random.Random) -> list[str]:
    """Damage the files of an intact partition and describe the damage. One in twelve stays intact."""
    if source.randrange(12) == 0:
        return []
    partition, done = _damage(directory, source)
    for path in directory.glob("*.log"):
        content = partition.log.get(int(path.stem))
        if content is None:
            path.unlink()
        elif content != path.read_bytes():
            path.write_bytes(content)
    for name, index in partition.indexes.items():
        (directory / name).write_bytes(index)
    return done


def _damage(directory: Path, source: random.Random) -> tuple[_Partition, list[str]]:
    log = {int(path.stem): bytearray(path.read_bytes()) for path in sorted(directory.glob("*.log"))}
    entries = {base: list(entries_of(bytes(content), base)) for base, content in log.items()}
    indexes = {path.name: path.read_bytes() for path in sorted(directory.glob("0*index"))}
    partition = _Partition(source, log, entries, indexes)
    done = []
    for _ in range(source.choice((1, 1, 1, 2, 2, 3))):
        if any(partition.log.values()):
            [way] = source.choices(tuple(_WAYS), tuple(_WAYS.values()))
            done.append(f"{way.__name__.strip('_')}: {way(partition)}")
    return partition, done


def _flip_bits(partition: _Partition) -> str:
    segment = partition.segment()
    content = partition.log[segment]
    flipped = []
    for _ in range(partition.source.randint(1, 3)):
        position = partition.source.randrange(len(content))
        bit = partition.source.randrange(8)
        content[position] ^= 1 << bit
        flipped.append(f"{position}.{bit}")
    return f"{segment} at {' '.join(flipped)}"


def _flip_in_header(partition: _Partition) -> str:
    entry = partition.entry()
    position = partition.source.randrange(_LENGTH_POSITION, _HEADER_BYTES[entry.magic])
    return _set(partition, entry, position, lambda byte: byte ^ 1 << partition.source.randrange(8))


def _flip_leader_epoch(partition: _Partition) -> str:
    """Flip a byte that no CRC covers, except the CRC itself in v0 and v1."""
    entry = partition.entry()
    position = partition.source.randrange(_EPOCH_POSITION, _MAGIC_POSITION)
    return _set(partition, entry, position, lambda byte: byte ^ 1 << partition.source.randrange(8))


def _flip_base_offset(partition: _Partition) -> str:
    entry = partition.entry()
    # Usually a low bit, so that the offset still fits the file.
    bit = partition.source.randrange(partition.source.choice((20, 20, 20, 63)))
    return _set(partition, entry, 7 - bit // 8, lambda byte: byte ^ 1 << bit % 8)


def _set_magic(partition: _Partition) -> str:
    magic = partition.source.choice((0, 1, 2, 3, 5, 127, 128, 255))
    return _set(partition, partition.entry(), _MAGIC_POSITION, lambda _: magic)


def _set(partition: _Partition, entry: Entry, position: int, change: Callable[[int], int]) -> str:
    content = partition.log.get(entry.segment, bytearray())
    at = entry.position + position
    if at >= len(content):
        return "nothing left there"
    before = content[at]
    content[at] = change(before)
    return f"{entry.segment} at {entry.position}+{position} from {before} to {content[at]}"


def _set_length(partition: _Partition) -> str:
    entry = partition.entry()
    content = partition.log.get(entry.segment, bytearray())
    at = entry.position + _LENGTH_POSITION
    if at + 4 > len(content):
        return "nothing left there"
    right = len(entry.content) - 12
    to_end = len(content) - entry.position - 12
    extremes = (0, 1, 13, 14, 21, 22, 48, 49, -1, -(1 << 31), (1 << 31) - 1, 1 << 24)
    near = (right - 1, right + 1, right * 2, to_end - 1, to_end, to_end + 1)
    length = partition.source.choice(extremes + near)
    struct.pack_into(">i", content, at, length)
    return f"{entry.segment} at {entry.position} from {right} to {length}"


def _cut_last_segment(partition: _Partition) -> str:
    return _cut(partition, partition.last_segment())


def _cut_closed_segment(partition: _Partition) -> str:
    return _cut(partition, partition.closed_segment())


def _cut(partition: _Partition, segment: int) -> str:
    content = partition.log[segment]
    shape = partition.source.randrange(3)
    if shape == 0:
        # No more than a broker ignores at the end of a file.
        size = max(0, len(content) - partition.source.randint(1, 17))
    else:
        size = partition.position(segment)
    was = len(content)
    del content[size:]
    return f"{segment} from {was} to {size}"


def _insert(partition: _Partition) -> str:
    segment = partition.segment()
    position = partition.position(segment)
    inserted = _filler(partition, partition.source.choice((1, 2, 16, 17, 61, 300)))
    partition.log[segment][position:position] = inserted
    return f"{segment} at {position}: {len(inserted)}"


def _append(partition: _Partition) -> str:
    segment = partition.segment()
    appended = _filler(partition, partition.source.choice((1, 12, 16, 17, 18, 61, 5_000)))
    partition.log[segment] += appended
    return f"{segment}: {len(appended)}{'' if any(appended) else ' zeros'}"


def _remove(partition: _Partition) -> str:
    segment = partition.segment()
    position = partition.position(segment)
    count = partition.source.choice((1, 12, 61, 500, 3_000))
    del partition.log[segment][position : position + count]
    return f"{segment} at {position}: {count}"


def _overwrite(partition: _Partition) -> str:
    segment = partition.segment()
    content = partition.log[segment]
    position = partition.position(segment)
    count = min(partition.source.choice((1, 8, 61, 512, 4_096)), len(content) - position)
    filler = _filler(partition, count)
    content[position : position + count] = filler
    return f"{segment} at {position}: {count}{'' if any(filler) else ' zeros'}"


def _filler(partition: _Partition, count: int) -> bytes:
    return bytes(count) if partition.source.random() < 0.5 else partition.source.randbytes(count)


def _repeat(partition: _Partition) -> str:
    """Write some entries again right after themselves, as a faulty copy does."""
    segment = partition.segment()
    entries = partition.entries[segment]
    if not entries:
        return "nothing left there"
    first = partition.source.randrange(len(entries))
    last = min(first + partition.source.randrange(3), len(entries) - 1)
    start, end = entries[first].position, entries[last].end
    content = partition.log[segment]
    content[end:end] = content[start:end]
    return f"{segment} from {start} to {end}"


def _tear(partition: _Partition) -> str:
    """Write the beginning of an entry before it, as a broker does that appends after a torn batch."""
    entry = partition.entry()
    content = partition.log.get(entry.segment, bytearray())
    if entry.position >= len(content):
        return "nothing left there"
    size = partition.source.randrange(1, len(entry.content))
    content[entry.position : entry.position] = entry.content[:size]
    return f"{entry.segment} at {entry.position}: {size}"


def _lose_segment(partition: _Partition) -> str:
    """Remove the log file but not its indexes."""
    if len(partition.log) == 1:
        return "the only one"
    segment = partition.source.choice(sorted(partition.log))
    del partition.log[segment]
    partition.entries[segment] = []
    return str(segment)


def _damage_index(partition: _Partition) -> str:
    """Damage an index. A broker rebuilds indexes after an unclean stop, so no row may depend on them."""
    names = [name for name, content in partition.indexes.items() if content]
    if not names:
        return "there is none"
    name = partition.source.choice(names)
    content = bytearray(partition.indexes[name])
    shape = partition.source.choice(("cut", "longer", "flipped", "foreign"))
    if shape == "cut":
        content = content[: partition.source.randrange(len(content))]
    elif shape == "longer":
        content += partition.source.randbytes(partition.source.choice((8, 12, 24, 34, 5)))
    elif shape == "flipped":
        content[partition.source.randrange(len(content))] ^= 1 << partition.source.randrange(8)
    else:
        content = bytearray(partition.indexes[partition.source.choice(names)])
    partition.indexes[name] = bytes(content)
    return f"{name} {shape}"


# The weight of each kind of damage.
_WAYS: dict[Callable[[_Partition], str], int] = {
    _flip_bits: 5,
    _flip_in_header: 4,
    _flip_leader_epoch: 1,
    _flip_base_offset: 2,
    _set_magic: 2,
    _set_length: 4,
    _cut_last_segment: 3,
    _cut_closed_segment: 3,
    _insert: 3,
    _append: 3,
    _remove: 3,
    _overwrite: 4,
    _repeat: 2,
    _tear: 2,
    _lose_segment: 1,
    _damage_index: 3,
}
