"""Explanations as values: sums, plain data, and the table for people."""

from __future__ import annotations

import pytest

from storage_core.filesystem import IoStatistics
from storage_core.scan.explanation import (
    PartitionExplanation,
    ScanExplanation,
    ScanTotals,
    SpanExplanation,
    TaskExplanation,
)


def span(number):
    start = 100 * number
    return SpanExplanation("/logs/a-0/0.log", 900, start, start + 100, 0, 0, number, number + 1, 1, 0)


@pytest.fixture
def explanation():
    read = PartitionExplanation(
        "a", 0, "/logs/a-0", None, 0, 9, 0, 9, 2, 5, 4, 1, 2, 1, 3600, (span(2), span(3), span(4))
    )
    unread = PartitionExplanation("longer-name", 12, "/logs/longer-name-12", "not wanted")
    return ScanExplanation(
        (read, unread),
        (TaskExplanation(3, 300, 3),),
        ScanTotals(2, 1, 4, 1, 3, 1, 3600, 300, 3),
        IoStatistics(bytes_read=61, files_opened=2, directories_listed=1),
    )


def test_sums(explanation):
    read, unread = explanation.partitions
    assert (read.planned_bytes, read.segments_skipped) == (300, 3)
    assert (unread.planned_bytes, unread.segments_skipped) == (0, None)
    assert span(2).size_bytes == 100


def test_the_table(explanation):
    assert str(explanation).splitlines() == [
        "partition       offsets read  of offsets  segments  bytes        batches",
        "a-0             2 to 5        0 to 9      1 of 4    300 of 3600  3",
        "  0.log  bytes 200 to 300 of 900, offsets 2 to 3, 1 batches, task 0",
        "  0.log  bytes 300 to 400 of 900, offsets 3 to 4, 1 batches, task 0",
        "  0.log  bytes 400 to 500 of 900, offsets 4 to 5, 1 batches, task 0",
        "longer-name-12  not read: not wanted",
        "1 of 2 partitions, 1 of 4 segments, 300 of 3600 bytes, 3 batches in 3 pieces for 1 tasks",
        "planning opened 2 files, listed 1 directories and read 61 bytes",
    ]
