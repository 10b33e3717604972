from __future__ import annotations

import numpy as np
import pytest
from crc32c import crc32c

from storage_core.commit.manifest import StagedBatches
from storage_core.commit.stage_placement import BatchRuns, PlacedRun
from storage_core.log_config import LogConfig
from storage_core.record.record_batches import RecordBatches
from tests.record.encoding import Batch, counted_records

# Records, first timestamp and base offset of each batch.
SHAPES = [(2, 100, 0), (3, 50, 10), (1, 900, 20), (4, 300, 2**31 + 30), (5, 400, 2**31 + 40)]
BATCHES = [Batch(counted_records(count, start=start), offset).encode() for count, start, offset in SHAPES]
PARTITIONS = np.array([4, 4, 4, 0, 7])


def runs(*, keeps_offsets=False):
    return BatchRuns(RecordBatches.parse(b"".join(BATCHES)), PARTITIONS, keeps_offsets=keeps_offsets)


def piece(**fields):
    return StagedBatches("t", 0, "f", 700, **fields)


def test_a_run_is_the_batches_of_one_partition():
    found = runs()
    assert found.starts.tolist() == [0, 3, 4]
    assert found.stops.tolist() == [3, 4, 5]
    assert found.partitions.tolist() == [4, 0, 7]
    assert found.sizes_bytes.tolist() == [sum(map(len, BATCHES[:3])), len(BATCHES[3]), len(BATCHES[4])]


def fingerprint(first, stop):
    return crc32c(b"".join(each[8:12] + each[16:61] for each in BATCHES[first:stop]))


def test_a_run_is_added_to_a_piece():
    found = runs().added_to(piece(), 1, 4)
    # A batch's largest timestamp is that of its last record here.
    size_bytes = sum(map(len, BATCHES[1:4]))
    assert found == StagedBatches("t", 0, "f", 700, size_bytes, 3, 8, 52, 900, fingerprint(1, 4))
    assert found.offset_count == 8


def test_a_second_run_is_added_to_a_piece():
    found = runs().added_to(runs().added_to(piece(), 1, 3), 3, 5)
    size_bytes = sum(map(len, BATCHES[1:5]))
    assert found == StagedBatches("t", 0, "f", 700, size_bytes, 4, 13, 52, 900, fingerprint(1, 5))


def test_the_largest_timestamp_may_be_in_the_first_run():
    found = runs().added_to(runs().added_to(piece(), 2, 3), 3, 4)
    assert (found.first_timestamp_ms, found.max_timestamp_ms) == (900, 900)


def test_batches_without_timestamps():
    data = Batch(counted_records(1, start=-1)).encode()
    found = BatchRuns(RecordBatches.parse(data), np.array([0]), keeps_offsets=False).added_to(piece(), 0, 1)
    assert (found.first_timestamp_ms, found.max_timestamp_ms) == (-1, -1)


def test_batches_that_keep_their_offsets():
    found = runs(keeps_offsets=True).added_to(piece(), 1, 3)
    assert (found.min_offset, found.max_offset) == (10, 20)
    found = runs(keeps_offsets=True).added_to(found, 3, 4)
    assert (found.min_offset, found.max_offset) == (10, 2**31 + 33)
    assert found.offset_count == 2**31 + 24


def test_offsets_must_fit_an_index():
    assert runs(keeps_offsets=True).fitting(0, 5, piece(), None) == 3
    assert runs(keeps_offsets=True).fitting(1, 5, piece(), None) == 3
    # The fourth batch ends at offset 2^31 + 33.
    assert runs(keeps_offsets=True).fitting(3, 5, piece(min_offset=34, batch_count=1), None) == 4
    assert runs(keeps_offsets=True).fitting(3, 5, piece(min_offset=33, batch_count=1), None) == 3
    assert runs().fitting(0, 5, piece(), None) == 5
    assert runs().fitting(0, 5, piece(record_count=2**31 - 5), None) == 2
    assert runs().fitting(0, 5, piece(record_count=2**31 - 4), None) == 1
    assert runs().fitting(0, 5, piece(record_count=2**31), None) == 0


@pytest.mark.parametrize(("more", "fitting"), [(0, 3), (1, 3), (-1, 2)])
def test_a_segment_has_a_size(more, fitting):
    size_bytes = sum(map(len, BATCHES[:3])) + more
    assert runs().fitting(0, 5, piece(), LogConfig(internal_segment_bytes=size_bytes)) == fitting
    size_bytes += 1000
    assert (
        runs().fitting(0, 5, piece(size_bytes=1000), LogConfig(internal_segment_bytes=size_bytes)) == fitting
    )
    assert runs().fitting(0, 5, piece(), None) == 5


@pytest.mark.parametrize(("segment_ms", "fitting"), [(800, 5), (799, 5), (798, 2), (203, 2), (202, 2)])
def test_a_segment_has_an_age_that_counts_from_its_first_batch(segment_ms, fitting):
    assert runs().fitting(0, 5, piece(), LogConfig(segment_ms=segment_ms)) == fitting


def test_the_first_batch_of_a_piece_may_have_come_before():
    old = piece(first_timestamp_ms=300, batch_count=9)
    assert runs().fitting(0, 5, old, LogConfig(segment_ms=600)) == 5
    assert runs().fitting(0, 5, old, LogConfig(segment_ms=599)) == 2
    without = piece(first_timestamp_ms=-1, batch_count=9)
    assert runs().fitting(0, 5, without, LogConfig(segment_ms=1)) == 5


def test_offsets_count_within_a_piece():
    placed = [
        PlacedRun(0, 2, None, 0),
        PlacedRun(2, 3, None, 50),
        PlacedRun(3, 4, None, 7),
        PlacedRun(4, 5, None, 0),
    ]
    assert runs().with_offsets(placed).headers["base_offset"].tolist() == [0, 2, 50, 7, 0]
    kept = runs(keeps_offsets=True).with_offsets(placed)
    assert kept.headers["base_offset"].tolist() == [offset for *_, offset in SHAPES]
