"""Which bytes differ between a broker's partition directory and ours, by file and field.

File names lose their numbers (`<base>.log`), and positions of batches and entries are left out. A directory thus
yields a few facts that are the same in every run.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from tests.interop.partition_state import snapshot_entries_in_order
from tests.interop.placing import CHECKPOINTS, read_checkpoint

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path


class Difference(NamedTuple):
    """One fact: this differs in these files."""

    file: str
    what: str


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    start: int
    end: int


# `RecordBatch` of format v2 (KIP-98).
_HEADER = (
    _Field("base offset", 0, 8),
    _Field("length", 8, 12),
    _Field("leader epoch", 12, 16),
    _Field("magic", 16, 17),
    _Field("CRC", 17, 21),
    _Field("attributes", 21, 23),
    _Field("last offset delta", 23, 27),
    _Field("base timestamp", 27, 35),
    _Field("largest timestamp", 35, 43),
    _Field("producer id", 43, 51),
    _Field("producer epoch", 51, 53),
    _Field("base sequence", 53, 57),
    _Field("count", 57, 61),
)
_HEADER_BYTES = 61
_CODEC_BITS = 7
_ENTRY_BYTES = {".index": 8, ".timeindex": 12, ".txnindex": 34}


def differences(theirs: Path, ours: Path) -> set[Difference]:
    """Compare two partition directories of the same log."""
    names = {path.name for directory in (theirs, ours) for path in directory.iterdir() if path.is_file()}
    found = set()
    for name in names:
        kind = re.sub(r"^\d{20}", "<offset>", name)
        files = (theirs / name, ours / name)
        if not files[0].exists():
            found.add(Difference(kind, "only ours"))
        elif not files[1].exists():
            found.add(Difference(kind, "only Kafka's"))
        else:
            contents = (files[0].read_bytes(), files[1].read_bytes())
            if contents[0] != contents[1]:
                found.update(Difference(kind, what) for what in _what_differs(name, *contents))
    return found


def root_differences(theirs: Path, ours: Path, topics: Collection[str]) -> set[Difference]:
    """Compare the files next to these topics' partition directories."""
    found = set()
    for name in sorted(_names_in_root(theirs) | _names_in_root(ours)):
        files = (theirs / name, ours / name)
        if not files[0].exists():
            found.add(Difference(name, "only ours"))
        elif not files[1].exists():
            found.add(Difference(name, "only Kafka's"))
        elif name in CHECKPOINTS:
            entries = [
                {place: offset for place, offset in read_checkpoint(path).items() if place[0] in topics}
                for path in files
            ]
            if entries[0] != entries[1]:
                found.add(Difference(name, "entries"))
        elif files[0].read_bytes() != files[1].read_bytes():
            found.add(Difference(name, "content"))
    return found


def _names_in_root(root: Path) -> set[str]:
    return {path.name for path in root.iterdir() if path.is_file() or path.name.startswith("__")}


def _what_differs(name: str, theirs: bytes, ours: bytes) -> Iterator[str]:
    suffix = name[name.rfind(".") :] if "." in name else ""
    if suffix == ".log":
        yield from _in_logs(theirs, ours)
    elif suffix in _ENTRY_BYTES:
        yield from _in_entries(theirs, ours, _ENTRY_BYTES[suffix])
    elif suffix == ".snapshot":
        # The CRC covers the order.
        entries = [snapshot_entries_in_order(content) for content in (theirs, ours)]
        yield "order of entries" if sorted(entries[0]) == sorted(entries[1]) else "entries"
    elif name == "partition.metadata":
        # `version: 0\ntopic_id: `
        yield "topic id" if theirs[:21] == ours[:21] and len(theirs) == len(ours) else "content"
    else:
        yield "content"


def _in_logs(theirs: bytes, ours: bytes) -> Iterator[str]:
    pairs = (list(_batches(theirs)), list(_batches(ours)))
    if len(pairs[0]) != len(pairs[1]):
        yield "number of batches"
    for their, our in zip(*pairs, strict=False):
        codec = their[22] & _CODEC_BITS
        for field in _HEADER:
            if their[field.start : field.end] != our[field.start : field.end]:
                yield f"{field.name} (bytes {field.start}-{field.end - 1} of a batch)"
        if their[_HEADER_BYTES:] != our[_HEADER_BYTES:]:
            yield f"records (bytes {_HEADER_BYTES} and on of a batch)" + (", compressed" if codec else "")


def _batches(content: bytes) -> Iterator[bytes]:
    position = 0
    while position + 12 <= len(content):
        (length,) = struct.unpack_from(">i", content, position + 8)
        if length <= 0:
            # The preallocated tail of the file.
            return
        yield content[position : position + 12 + length]
        position += 12 + length


def _in_entries(theirs: bytes, ours: bytes, entry_bytes: int) -> Iterator[str]:
    if theirs.rstrip(b"\0") == ours.rstrip(b"\0"):
        yield "zeros at the end"
        return
    entries = [
        {content[start : start + entry_bytes] for start in range(0, len(content), entry_bytes)}
        for content in (theirs, ours)
    ]
    if entries[0] - entries[1]:
        yield "entries only Kafka's"
    if entries[1] - entries[0]:
        yield "entries only ours"
