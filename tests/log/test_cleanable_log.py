"""What of a log is to be cleaned, and when: first dirty offset, first uncleanable offset, dirty ratio, age, order."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from storage_core import LogConfig
from storage_core.log.log_cleaner_manager import (
    CleaningSources,
    LogToClean,
    find_first_dirty_offset,
    log_to_clean,
)

NOW_MS = 1_000_000
CONFIG = LogConfig(cleanup_policy="compact")


def segment(base_offset, size_bytes, *, youngest_ms=-1, first_ms=-1):
    return SimpleNamespace(
        base_offset=base_offset,
        size_bytes=size_bytes,
        largest_timestamp=SimpleNamespace(timestamp_ms=youngest_ms),
        first_batch_timestamp_ms=first_ms,
        modified_ms=-1,
    )


def log(*segments, end=100, stable=None):
    """Segments as (base offset, size), the last one active, and the last stable offset."""
    found = [segment(*each) if isinstance(each, tuple) else each for each in segments]
    return CleaningSources(found), end if stable is None else stable


TEN_TENS = [(base, 10) for base in range(0, 100, 10)]


def offsets(of_log, dirty=0, config=CONFIG):
    found = log_to_clean(*of_log, dirty, config, NOW_MS)
    return found.first_dirty_offset, found.first_uncleanable_offset


def sizes(of_log, dirty=0, config=CONFIG):
    found = log_to_clean(*of_log, dirty, config, NOW_MS)
    return found.clean_bytes, found.cleanable_bytes


@pytest.mark.parametrize(
    ("checkpoint", "offset", "is_reset"),
    [
        (None, 20, False),
        (20, 20, False),
        (50, 50, False),
        (100, 100, False),
        (19, 20, True),
        (0, 20, True),
        (101, 20, True),
    ],
    ids=["none", "log start", "inside", "log end", "below the start", "zero", "beyond the end"],
)
def test_the_checkpoint_is_believed_within_the_log(checkpoint, offset, is_reset):
    checkpoints = {} if checkpoint is None else {"orders-0": checkpoint}
    state = SimpleNamespace(
        path="orders-0",
        config=CONFIG,
        directory=SimpleNamespace(topic_partition="orders-0"),
        view=SimpleNamespace(offsets=SimpleNamespace(log_start_offset=20, log_end_offset=100)),
        cleaning=SimpleNamespace(
            checkpoint=SimpleNamespace(offset=checkpoints.get, update=checkpoints.__setitem__)
        ),
    )
    assert find_first_dirty_offset(state) == offset
    assert checkpoints.get("orders-0") == (offset if is_reset else checkpoint)


def test_the_active_segment_is_never_cleaned():
    assert offsets(log(*TEN_TENS)) == (0, 90)


def test_nothing_is_cleaned_of_a_log_with_one_segment():
    found = log_to_clean(*log((0, 10), end=10), 0, CONFIG, NOW_MS)
    assert (found.first_uncleanable_offset, found.cleanable_bytes, found.cleanable_ratio) == (0, 0, 0.0)


@pytest.mark.parametrize(
    ("stable", "end"), [(100, 90), (90, 90), (89, 80), (80, 80), (45, 40), (10, 10), (9, 0), (0, 0)]
)
def test_cleaning_ends_with_the_segment_before_an_undecided_transaction(stable, end):
    assert offsets(log(*TEN_TENS, stable=stable)) == (0, end)


def test_what_is_dirty_only_within_the_segment_of_an_undecided_transaction_is_not_cleaned():
    found = log_to_clean(*log(*TEN_TENS, stable=47), 43, CONFIG, NOW_MS)
    assert (found.first_dirty_offset, found.first_uncleanable_offset, found.cleanable_bytes) == (43, 40, 0)


# Youngest record of each segment: 0 to 900 ms ago, the lower offsets the older.
AGES = [segment(base, 10, youngest_ms=NOW_MS - 900 + base * 10) for base in range(0, 100, 10)]


@pytest.mark.parametrize(
    ("lag_ms", "end"), [(0, 90), (100, 90), (101, 80), (150, 80), (500, 50), (900, 10), (901, 0), (1000, 0)]
)
def test_cleaning_ends_before_the_first_segment_that_is_too_young(lag_ms, end):
    config = CONFIG.replace(min_compaction_lag_ms=lag_ms)
    # A segment that is exactly as old as the lag is old enough; the active one, 0 ms old, does not count.
    assert offsets(log(*AGES), config=config) == (0, end)


def test_how_young_a_clean_segment_is_does_not_matter():
    young = segment(0, 10, youngest_ms=NOW_MS)
    config = CONFIG.replace(min_compaction_lag_ms=100)
    assert offsets(log(young, *AGES[1:]), dirty=10, config=config) == (10, 90)
    assert offsets(log(young, *AGES[1:]), dirty=9, config=config) == (9, 0)


def test_the_part_before_it_is_clean_the_rest_is_dirty():
    assert sizes(log(*TEN_TENS), dirty=30) == (30, 60)


def test_a_segment_that_is_clean_in_part_counts_as_both():
    assert sizes(log(*TEN_TENS), dirty=35) == (40, 60)


def test_the_active_segment_counts_as_neither():
    assert sizes(log((0, 10), (10, 1000), end=20)) == (0, 10)


def test_everything_clean():
    found = log_to_clean(*log(*TEN_TENS), 90, CONFIG, NOW_MS)
    assert (found.clean_bytes, found.cleanable_bytes, found.cleanable_ratio) == (90, 0, 0.0)


def test_clean_up_to_within_the_active_segment():
    assert sizes(log(*TEN_TENS), dirty=95) == (100, 0)


def test_a_log_that_starts_in_the_middle_of_a_segment():
    assert sizes(log(*TEN_TENS), dirty=15) == (20, 80)


@pytest.mark.parametrize(
    ("clean", "cleanable", "ratio", "is_eligible"),
    [(50, 50, 0.5, False), (49, 51, 0.51, True), (100, 0, 0.0, False), (0, 1, 1.0, True), (0, 0, 0.0, False)],
)
def test_a_log_is_due_once_more_than_the_ratio_is_dirty(clean, cleanable, ratio, is_eligible):
    found = LogToClean(0, 10, clean, cleanable, is_overdue=False)
    assert found.cleanable_ratio == ratio
    assert found.is_eligible(0.5) is is_eligible


def test_a_clean_log_is_not_due_even_with_a_ratio_of_zero():
    assert not LogToClean(0, 10, 10, 0, is_overdue=False).is_eligible(0)


@pytest.mark.parametrize(("cleanable", "is_eligible"), [(1, True), (0, False)])
def test_an_overdue_log_is_due_if_there_is_anything_to_clean(cleanable, is_eligible):
    assert LogToClean(0, 10, 1000, cleanable, is_overdue=True).is_eligible(0.5) is is_eligible


def first(*timestamps_ms):
    """Ten-byte segments with these timestamps in their first batches, and an active one."""
    inactive = [
        segment(number * 10, 10, first_ms=timestamp_ms) for number, timestamp_ms in enumerate(timestamps_ms)
    ]
    return log(*inactive, segment(len(inactive) * 10, 10, first_ms=1))


@pytest.mark.parametrize(
    ("timestamps_ms", "dirty", "is_overdue"),
    [
        ([NOW_MS - 500], 0, False),
        ([NOW_MS - 501], 0, True),
        ([NOW_MS, NOW_MS - 501], 0, True),
        ([NOW_MS - 501, NOW_MS], 10, False),
        ([NOW_MS - 501, NOW_MS], 9, True),
        ([-1, 0], 0, False),
        ([2**63 - 1], 0, False),
        ([], 0, False),
    ],
    ids=[
        "as old",
        "older",
        "the second",
        "clean",
        "clean in part",
        "without time",
        "an empty one",
        "only active",
    ],
)
def test_a_log_is_overdue_when_a_dirty_segment_began_before_the_largest_lag(timestamps_ms, dirty, is_overdue):
    config = CONFIG.replace(max_compaction_lag_ms=500)
    assert log_to_clean(*first(*timestamps_ms), dirty, config, NOW_MS).is_overdue is is_overdue


def test_without_a_largest_lag_no_log_is_overdue():
    assert not log_to_clean(*first(1), 0, CONFIG, NOW_MS).is_overdue
