from __future__ import annotations

import pytest

from storage_core.errors import OffsetOutOfRangeError
from storage_core.log.log_state import LogOffsets

# Start, end, high watermark, recovery point.
OFFSETS = LogOffsets(10, 100, 80, 50)


def test_an_append_moves_the_log_end_and_the_high_watermark_of_an_only_replica():
    assert OFFSETS.appended(120, is_only_replica=True) == LogOffsets(10, 120, 120, 50)
    assert OFFSETS.appended(120, is_only_replica=False) == LogOffsets(10, 120, 80, 50)


@pytest.mark.parametrize(("wanted", "got"), [(5, 10), (10, 10), (90, 90), (100, 100), (101, 100)])
def test_the_high_watermark_is_kept_within_the_log(wanted, got):
    assert OFFSETS.with_high_watermark(wanted) == LogOffsets(10, 100, got, 50)


def test_the_log_start_goes_up_alone_and_takes_the_recovery_point_along():
    assert OFFSETS.with_log_start(60) == LogOffsets(60, 100, 80, 60)
    assert OFFSETS.with_log_start(30) == LogOffsets(30, 100, 80, 50)
    assert OFFSETS.with_log_start(9) is OFFSETS
    assert OFFSETS.with_log_start(10) is OFFSETS


def test_the_log_start_does_not_pass_the_high_watermark():
    assert OFFSETS.with_log_start(80).log_start_offset == 80
    with pytest.raises(OffsetOutOfRangeError, match="at most 80, the high watermark, found 81"):
        OFFSETS.with_log_start(81)


def test_a_truncation_lowers_what_lies_above_it():
    assert OFFSETS.truncated(90, 90) == LogOffsets(10, 90, 80, 50)
    assert OFFSETS.truncated(60, 60) == LogOffsets(10, 60, 60, 50)
    assert OFFSETS.truncated(20, 20) == LogOffsets(10, 20, 20, 20)
    assert OFFSETS.truncated(5, 5) == LogOffsets(5, 5, 5, 5)


def test_only_whole_batches_that_are_left_count_as_flushed():
    truncated = OFFSETS.truncated(45, 40)
    assert truncated == LogOffsets(10, 45, 45, 40, gap_start=40)
    assert truncated.batches_end_offset == 40
    assert truncated.flushed(45) == truncated
    appended = truncated.appended(50, is_only_replica=True)
    assert appended == LogOffsets(10, 50, 50, 40)
    assert appended.flushed(50).recovery_point == 50


def test_a_log_that_starts_anew_has_one_offset_only():
    assert OFFSETS.restarted(7, 7) == LogOffsets(7, 7, 7, 7)


def test_a_flush_moves_the_recovery_point_up():
    assert OFFSETS.flushed(100) == LogOffsets(10, 100, 80, 100)
    assert OFFSETS.flushed(40) == OFFSETS


@pytest.mark.parametrize(
    ("first_unstable", "stable"),
    [(None, 80), (70, 70), (80, 80), (95, 80), (10, 10), (3, 10)],
)
def test_the_last_stable_offset_lies_before_the_first_undecided_transaction(first_unstable, stable):
    # Never below the log start, though a transaction may have begun there.
    assert LogOffsets(10, 100, 80, 50, first_unstable).last_stable_offset == stable
