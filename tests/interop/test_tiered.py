"""What a broker with tiered storage leaves: its two halves, put together by hand, hold what consumers read."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

import storage_core
from tests.interop.clients import ISOLATION_LEVELS, assert_same_rows, rows_of
from tests.interop.produced import EMPTY, TRANSACTIONS
from tests.interop.tiered import DELETED, KEPT, OVERLAPPING, RETAINED, TIERED

if TYPE_CHECKING:
    from pathlib import Path

    from tests.interop.tiered import Tiered

_SUFFIXES = ("log", "index", "timeindex", "txnindex", "snapshot")


@pytest.fixture(scope="module")
def joined(tiered: Tiered, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a log directory with the segments of both tiers, as a broker without tiers would have them."""
    joined = tmp_path_factory.mktemp("joined") / "logs"
    shutil.copytree(tiered.log_directory, joined)
    for topic in TIERED:
        for base, path in tiered.remote_segments(topic).items():
            for suffix in _SUFFIXES:
                if (source := path.with_suffix(f".{suffix}")).exists():
                    shutil.copy(source, joined / f"{topic}-0" / f"{base:020}.{suffix}")
    return joined


@pytest.mark.parametrize("isolation_level", ISOLATION_LEVELS)
def test_both_tiers_together_hold_what_a_consumer_reads(tiered, joined, isolation_level):
    table = storage_core.read_table(joined, isolation_level=isolation_level, include_headers=True)
    rows = [row for row in rows_of(table) if row.topic in TIERED]

    expected = [row for topic in sorted(TIERED) for row in tiered.rows[isolation_level][topic]]
    assert_same_rows(sorted(rows), sorted(expected))


def test_the_tiers_hold_what_the_settings_ask(tiered):
    for topic in TIERED.keys() - {EMPTY}:
        local, remote = tiered.local_segments(topic), tiered.remote_segments(topic)
        start, end = tiered.offsets[topic, 0]
        assert min(remote) <= start < end
        assert (min(local) > start) == (topic != KEPT)
        both = local.keys() & remote.keys()
        assert bool(both) == (topic in {KEPT, OVERLAPPING})
        assert [base for base in both if local[base].read_bytes() != remote[base].read_bytes()] == []
    assert not tiered.remote_segments(EMPTY)
    assert tiered.offsets[RETAINED, 0][0] > 0
    assert min(tiered.remote_segments(DELETED)) < tiered.offsets[DELETED, 0][0]
    stable = tiered.stable_offsets[TRANSACTIONS, 0]
    assert max(tiered.remote_segments(TRANSACTIONS)) < stable < tiered.offsets[TRANSACTIONS, 0][1]
