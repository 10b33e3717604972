"""A log directory in which every name that somebody may choose tries to run a script."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pyarrow as pa

from tests.log.logs import append, flip, name, open_directory

if TYPE_CHECKING:
    from pathlib import Path

SCRIPTS = (
    "<script>complain('script')</script>",
    "\"><img src=x onerror=complain('image')>",
    "'><svg onload=complain('svg')>",
    "javascript:complain('address')",
    "</title></style></script><script>complain('end')</script>",
    "{{complain('template')}}${complain('literal')}",
    "a\x00b\x1b[31m\u202ec\u2028d&lt;",
)
# What may be in a file's name.
FILE_NAMES = (
    "<img src=x onerror=complain()>",
    '" onclick="complain()',
    "'><script>complain()<",
    "a\nb\x1b[2J&amp;",
)


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack(">h", len(data)) + data


def offset_commit(group: str, topic: str, partition: int, offset: int, metadata: str) -> tuple[bytes, bytes]:
    """Key and value of a record of __consumer_offsets (OffsetCommitKey version 1, OffsetCommitValue version 3)."""
    key = struct.pack(">h", 1) + text(group) + text(topic) + struct.pack(">i", partition)
    value = struct.pack(">hqi", 3, offset, -1) + text(metadata) + struct.pack(">q", 1_700_000_000_000)
    return key, value


def make_hostile_directory(path: Path) -> Path:
    """Groups and notes of clients, names of files and the directory's own, and damage, in a new directory below a path."""
    root = path / "<script>complain('root')<"
    with open_directory(root) as logs:
        log = logs.create("orders")
        append(log, 35, timestamps=range(1_699_999_000_000, 1_699_999_035_000, 1_000))
        offsets = logs.create("__consumer_offsets")
        for number, script in enumerate(SCRIPTS):
            key, value = offset_commit(script, "orders", 0, number, f"metadata {script}")
            offsets.append(pa.table({"key": [key], "value": [value]}))
        log.transaction().append(pa.table({"value": [b"open"], "timestamp": pa.array([1_699_999_100_000])}))
    flip(root / "orders-0" / name(10), 450)
    for each in FILE_NAMES:
        (root / each).write_bytes(b"x")
        (root / "orders-0" / each).write_bytes(b"x")
    return root
