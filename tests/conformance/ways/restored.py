"""Restored: what Spark reads, it writes to another log directory, with the same offsets.

A broker judges such copies in ``tests/interop/test_restored_cases.py``. Here they are read back.
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from conformance.expected import comparable, first_difference
from conformance.restored import options_to_read, options_to_write, restored_partitions, restored_rows
from conformance.rules import ISOLATION_LEVELS, OFFSET_FIELDS, READ_COMMITTED, READ_UNCOMMITTED
from conformance.ways.offsets import offset_of
from conformance.ways.way import Way
from storage_core.directory import PartitionLog, find_partitions
from storage_core.filesystem import FileSystem

if TYPE_CHECKING:
    from conformance.case_under_test import CaseUnderTest, Options
    from conformance.spark_process import ClassicSpark

# Many batches, and of a larger log many segments; the largest records need segments of this size.
_SMALL: Options = {"batch.size": 2_000, "internal.segment.bytes": 130_000, "compression.type": "zstd"}


def _restore(case: CaseUnderTest, session: ClassicSpark, isolation_level: str, written_as: Options) -> None:
    with tempfile.TemporaryDirectory(dir=case.logs.parent) as folder:
        root = Path(folder, "logs")
        options = {**options_to_write(case.logs), **written_as}
        session.copy(case.logs, options_to_read(case, isolation_level), root, options)
        _check_offsets(case, root, isolation_level)
        expected = restored_rows(case, isolation_level)
        for level in ISOLATION_LEVELS:
            rows = comparable(case.read(case.selection(), level, root))
            difference = first_difference(rows, expected)
            case.check_equal(difference, None, f"restored from {isolation_level}, read as {level}")


def _check_offsets(case: CaseUnderTest, root: Path, isolation_level: str) -> None:
    """Check that the log starts and ends where it did, and that all of it may be read."""
    filesystem = FileSystem()
    expected = {partition.name: partition for partition in restored_partitions(case, isolation_level)}
    directories = find_partitions(filesystem, [str(root)])
    logs = {f"{each.topic}-{each.partition}": PartitionLog.load(filesystem, each) for each in directories}
    case.check_equal(sorted(logs), sorted(expected), "restored partitions")
    for name, partition in expected.items():
        for field in OFFSET_FIELDS:
            wanted = partition.log_start_offset if field == "log_start_offset" else partition.end_offset
            case.check_equal(offset_of(logs[name], field), wanted, f"{field} of the restored {name}")


WAYS = (
    Way(
        "restored",
        f"{READ_COMMITTED}, as by default",
        partial(_restore, isolation_level=READ_COMMITTED, written_as={}),
        session="classic",
        # A copy by Spark takes seconds.
        is_quick=False,
    ),
    Way(
        "restored",
        f"{READ_UNCOMMITTED}, in small batches",
        partial(_restore, isolation_level=READ_UNCOMMITTED, written_as=_SMALL),
        session="classic",
        is_quick=False,
    ),
)
