"""Segments made from literal bytes, and what the cleaner makes of them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from storage_core.compaction import CleanedTransactions, CleanRules, CleanStatistics, OffsetMap, clean_into
from storage_core.filesystem import FileSystem
from storage_core.log_config import LogConfig
from storage_core.segment.log_segment import LogSegment
from tests.compaction.keys import put

NOW_MS = 1000


def open_segment(directory, content, base_offset=0, *, modified_ms=0, **config):
    """Return a segment whose log file has some bytes."""
    path = Path(directory, f"{base_offset:020d}.log")
    path.write_bytes(content)
    os.utime(path, ns=(modified_ms * 1_000_000,) * 2)
    return LogSegment(FileSystem(), str(directory), base_offset, LogConfig(**config), now_ms=0)


def map_of(offsets, latest_offset=10**9, slots=1000):
    """Return a map that knows the last offset of some keys."""
    made = OffsetMap(24 * slots)
    for key, offset in offsets.items():
        put(made, [key], [offset])
    made.latest_offset = latest_offset
    return made


@dataclass
class Cleaned:
    """What a cleaning leaves."""

    content: bytes
    aborted: list
    statistics: CleanStatistics


def clean(
    directory,
    sources,
    offsets,
    *,
    latest_offset=10**9,
    aborted=(),
    throttle=lambda size_bytes: None,
    upper_bound_offset=10**9,
    now_ms=NOW_MS,
    delete_retention_ms=24,
    legacy_delete_horizon_ms=0,
    transactions=None,
    **rules,
):
    """Clean segments into another one beside the first of them."""
    transactions = CleanedTransactions() if transactions is None else transactions
    transactions.add_aborted(aborted)
    destination = LogSegment.create(
        FileSystem(), str(directory), sources[0].base_offset, LogConfig(), now_ms=0, suffix=".cleaned"
    )
    try:
        statistics = clean_into(
            destination,
            sources,
            map_of(offsets, latest_offset),
            transactions,
            CleanRules(now_ms, delete_retention_ms, legacy_delete_horizon_ms, upper_bound_offset, **rules),
            throttle=throttle,
        )
        entries = list(destination.transaction_index.read().entries)
        return Cleaned(Path(destination.path).read_bytes(), entries, statistics)
    finally:
        destination.delete()
