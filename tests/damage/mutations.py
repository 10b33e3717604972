"""Ways to damage a log directory. Each changes its files and describes the change."""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from crc32c import crc32c

from tests.damage.entries import FIELDS, Entry

if TYPE_CHECKING:
    from tests.damage.base_log import BaseLog

Files = dict[str, bytes]

EXTREMES = (
    0,
    1,
    -1,
    2,
    13,
    14,
    48,
    49,
    127,
    2**31 - 1,
    -(2**31),
    2**31 - 13,
    2**63 - 1,
    -(2**63),
    2**62,
    2**24,
)
_RANGES = {"b": 8, "h": 16, "i": 32, "q": 64, "I": 32}
# How often each kind of file is damaged, among the kinds that a log has.
_WEIGHTS = {
    "log": 60, "index": 10, "timeindex": 8, "txnindex": 6, "snapshot": 5, "leader-epoch-checkpoint": 2,
    "partition.metadata": 2, "root": 7, "deleted": 1,
}  # fmt: skip


@dataclass(frozen=True)
class Mutation:
    """One piece of damage.

    Attributes:
        kind: The category that the campaign counts.
        paths: The affected files.
        text: The exact change.
        apply: Makes the change; skips a file that no longer exists.
        is_forged: Whether the CRC was recomputed, so that the bytes it covers are no longer the original.
    """

    kind: str
    paths: tuple[str, ...]
    text: str
    apply: Callable[[Files], None]
    is_forged: bool = False


def kind_of_file(path: str) -> str:
    """Return the purpose of a file, by its name."""
    name = path.rpartition("/")[2]
    suffix = name.rpartition(".")[2]
    if name in ("leader-epoch-checkpoint", "partition.metadata"):
        return name
    if name[:20].isdigit():
        return suffix
    return "root"


def draw_mutations(rng: random.Random, log: BaseLog) -> list[Mutation]:
    """Return one, two or three mutations for a log."""
    count = rng.choice((1, 1, 1, 1, 2, 2, 3))
    return [_draw(rng, log) for _ in range(count)]


def _draw(rng: random.Random, log: BaseLog) -> Mutation:
    by_kind: dict[str, list[str]] = {}
    for path in sorted(log.files):
        by_kind.setdefault(kind_of_file(path), []).append(path)
    kinds = sorted(by_kind)
    kind = rng.choices(kinds, [_WEIGHTS.get(each, 1) for each in kinds])[0]
    path = rng.choice(by_kind[kind])
    if rng.random() < 0.12:
        return _whole_file(rng, path, by_kind[kind])
    entries = log.entries.get(path)
    if entries and rng.random() < 0.5:
        return _field(rng, path, rng.choice(entries))
    if kind in ("index", "timeindex", "txnindex", "snapshot") and rng.random() < 0.4:
        return _word(rng, path, len(log.files[path]))
    return _bytes(rng, path, log, entries or [])


def _whole_file(rng: random.Random, path: str, alike: list[str]) -> Mutation:
    other = rng.choice(alike)
    what = rng.choice(("swap", "copy over", "remove", "empty", "rename"))
    if what == "swap":
        return Mutation("swapped files", (path, other), f"swap {path} and {other}", _Swap(path, other))
    if what == "copy over":
        return Mutation("copied over another file", (path,), f"copy {other} over {path}", _Copy(other, path))
    if what == "remove":
        return Mutation("removed a file", (path,), f"remove {path}", _Rename(path, None))
    if what == "empty":
        return _edit("emptied a file", path, "empty", lambda data: b"")
    folder, slash, name = path.rpartition("/")
    if name[:20].isdigit():
        name = f"{rng.choice((0, 1, 7, 10**6)):020d}{name[20:]}"
    target = folder + slash + name
    return Mutation("renamed a file", (path, target), f"rename {path} to {target}", _Rename(path, target))


@dataclass(frozen=True)
class _Swap:
    first: str
    second: str

    def __call__(self, files: Files) -> None:
        if self.first in files and self.second in files:
            files[self.first], files[self.second] = files[self.second], files[self.first]


@dataclass(frozen=True)
class _Copy:
    source: str
    target: str

    def __call__(self, files: Files) -> None:
        if self.source in files and self.target in files:
            files[self.target] = files[self.source]


@dataclass(frozen=True)
class _Rename:
    """Renames a file, or removes it."""

    source: str
    target: str | None

    def __call__(self, files: Files) -> None:
        if self.source in files:
            content = files.pop(self.source)
            if self.target is not None:
                files[self.target] = content


def _field(rng: random.Random, path: str, entry: Entry) -> Mutation:
    """Set a header field of an entry; sometimes recompute the CRC, as a malicious writer would."""
    name, position, code = rng.choice(FIELDS[entry.magic])
    old = struct.unpack_from(">" + code, entry.data, position)[0]
    value = rng.choice(
        (*EXTREMES, old + 1, old - 1, old + rng.randrange(-50, 50), old ^ 1 << rng.randrange(32))
    )
    bits = _RANGES[code]
    value &= 2**bits - 1
    if code != "I" and value >= 2 ** (bits - 1):
        value -= 2**bits
    is_forged = rng.random() < 0.25 and name != "crc"
    changed = bytearray(entry.data)
    struct.pack_into(">" + code, changed, position, value)
    if is_forged:
        _make_crc_right(changed)
    text = f"{name} of the entry at {entry.position}: {old} becomes {value}{', CRC made right' if is_forged else ''}"
    kind = "forged a field" if is_forged else "changed a field"

    def set_field(data: bytes) -> bytes:
        return data[: entry.position] + bytes(changed) + data[entry.end :] if len(data) >= entry.end else data

    return _edit(kind, path, text, set_field, is_forged=is_forged)


def _make_crc_right(entry: bytearray) -> None:
    if entry[16] == 2:
        entry[17:21] = crc32c(bytes(entry[21:])).to_bytes(4, "big")
    else:
        entry[12:16] = zlib.crc32(bytes(entry[16:])).to_bytes(4, "big")


def _word(rng: random.Random, path: str, size: int) -> Mutation:
    """Set four or eight bytes of an index or a snapshot to a number."""
    code = rng.choice("iq")
    width = struct.calcsize(code)
    position = rng.randrange(max(size // 2, 1)) * 2
    value = rng.choice(EXTREMES) & (2 ** (8 * width) - 1)
    word = value.to_bytes(width, "big")
    return _edit(
        "changed a word", path, f"{width} bytes at {position} become {word.hex()}",
        lambda data: data[:position] + word[: max(len(data) - position, 0)] + data[position + width :],
    )  # fmt: skip


def _bytes(rng: random.Random, path: str, log: BaseLog, entries: list[Entry]) -> Mutation:
    """Change bytes anywhere, or at entry boundaries."""
    size = len(log.files[path])
    borders = [0, size, *(border for entry in entries for border in (entry.position, entry.end))]

    def place() -> int:
        return rng.choice(borders) if rng.random() < 0.35 else rng.randrange(size + 1)

    start, end = sorted((place(), place()))
    if rng.random() < 0.5:
        end = min(start + rng.choice((1, 2, 4, 8, 17, 61)), size)
    what = rng.choice(("flip", "flip", "cut", "insert", "repeat", "zero", "truncate", "append", "overwrite"))
    if what == "flip":
        flips = [
            (rng.randrange(max(size, 1)), 1 << rng.randrange(8)) for _ in range(rng.choice((1, 1, 1, 2, 3)))
        ]
        return _edit("flipped bits", path, f"flip {flips}", lambda data: _flipped(data, flips))
    if what == "cut":
        return _edit("cut a range", path, f"cut {start} to {end}", lambda data: data[:start] + data[end:])
    if what == "zero":
        return _edit(
            "zeroed a range", path, f"zero {start} to {end}",
            lambda data: data[:start] + bytes(len(data[start:end])) + data[end:],
        )  # fmt: skip
    if what == "truncate":
        return _edit("truncated", path, f"truncate to {start}", lambda data: data[:start])
    if what == "repeat":
        target = place()
        return _edit(
            "repeated a range", path, f"copy {start} to {end} in at {target}",
            lambda data: data[:target] + data[start:end] + data[target:],
        )  # fmt: skip
    garbage = rng.choice((bytes(20), b"\xff" * 9, rng.randbytes(rng.randrange(1, 90))))
    if what == "append":
        return _edit("appended bytes", path, f"append {garbage.hex()}", lambda data: data + garbage)
    if what == "insert":
        return _edit(
            "inserted bytes", path, f"insert {garbage.hex()} at {start}",
            lambda data: data[:start] + garbage + data[start:],
        )  # fmt: skip
    return _edit(
        "overwrote bytes", path, f"write {garbage.hex()} at {start}",
        lambda data: data[:start] + garbage[: max(len(data) - start, 0)] + data[start + len(garbage) :],
    )  # fmt: skip


def _flipped(data: bytes, flips: list[tuple[int, int]]) -> bytes:
    changed = bytearray(data)
    for position, bit in flips:
        if position < len(changed):
            changed[position] ^= bit
    return bytes(changed)


def _edit(
    kind: str, path: str, text: str, change: Callable[[bytes], bytes], *, is_forged: bool = False
) -> Mutation:
    def apply(files: Files) -> None:
        if path in files:
            files[path] = change(files[path])

    return Mutation(kind, (path,), f"{path}: {text}", apply, is_forged)
