from __future__ import annotations

from crc32c import crc32c

from storage_core.commit.manifest import StagedPiece
from storage_core.commit.stage_placement import OpenPiece, RunFigures

FIRST = RunFigures(1000, 3, 40, 40, 70, 90, None, None, b"headers of the first")
SECOND = RunFigures(500, 2, 20, 20, 60, 80, None, None, b"and of the second")


def test_what_is_added_counts():
    piece = OpenPiece("t", 3, "file", 700)
    piece.add(FIRST)
    piece.add(SECOND)
    fingerprint = crc32c(b"headers of the firstand of the second")
    assert piece.staged() == StagedPiece("t", 3, "file", 700, 1500, 5, 60, 70, 90, fingerprint)
    assert piece.offset_count == 60


def test_the_largest_timestamp_may_come_later():
    piece = OpenPiece("t", 3, "file", 0)
    piece.add(SECOND)
    piece.add(FIRST)
    staged = piece.staged()
    assert (staged.first_timestamp_ms, staged.max_timestamp_ms) == (60, 90)


def test_timestamps_below_zero():
    piece = OpenPiece("t", 3, "file", 0)
    piece.add(RunFigures(100, 1, 1, 1, -1, -1, None, None, b""))
    staged = piece.staged()
    assert (staged.first_timestamp_ms, staged.max_timestamp_ms) == (-1, -1)


def test_offsets_that_are_kept():
    piece = OpenPiece("t", 3, "file", 0)
    piece.add(RunFigures(100, 1, 2, 5, 1, 1, 0, 4, b""))
    piece.add(RunFigures(100, 1, 2, 2, 1, 1, 2**31, 2**31 + 1, b""))
    staged = piece.staged()
    assert (staged.min_offset, staged.max_offset, staged.record_count) == (0, 2**31 + 1, 4)
    assert staged.offset_count == 2**31 + 2
