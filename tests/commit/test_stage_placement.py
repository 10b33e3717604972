from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from storage_core.commit import stage_placement
from storage_core.commit.manifest import manifest_bytes, parse_manifest
from storage_core.commit.stage_placement import BatchRuns, OpenFiles, PartitionStage, StagePlacement
from storage_core.filesystem import FileSystem
from storage_core.log_config import LogConfig
from storage_core.record.record_batches import RecordBatches
from tests.commit.staged import PACK, STAGE, staged_names
from tests.record.encoding import Batch, counted_records

BATCH = Batch(counted_records(2, start=1000, value=b"v" * 100)).encode()
SIZE = len(BATCH)


class Places:
    """A placement, and what was staged of three partitions."""

    def __init__(self, root, *, piece_bytes=10 * SIZE, task=3, **config):
        self.files = OpenFiles(FileSystem(), str(root))
        self.stage = replace(STAGE, task=task)
        self.placement = StagePlacement(self.files, self.stage, LogConfig(**config), piece_bytes)
        self.stages = [PartitionStage("t", number) for number in range(3)]

    def place(self, *partitions, offsets=None):
        """Place a batch for each of these partitions; where each run goes."""
        base_offsets = range(len(partitions)) if offsets is None else offsets
        data = [
            Batch(counted_records(2, start=1000, value=b"v" * 100), base_offset=each) for each in base_offsets
        ]
        batches = RecordBatches.parse(b"".join(batch.encode() for batch in data))
        runs = BatchRuns(batches, np.array(partitions), keeps_offsets=offsets is not None)
        placed = self.placement.write(runs, self.stages)
        return [(run.start, run.stop, run.segment is not None, run.first_offset) for run in placed]

    def staged(self):
        """Return the pieces as the manifest has them."""
        data = manifest_bytes(self.stage, self.placement.complete(self.stages))
        self.files.close()
        return parse_manifest(data, "manifest").pieces

    def pieces(self):
        """Per piece: partition, file, position and size in batches, offsets."""
        return [
            (
                piece.partition,
                piece.file,
                piece.position_bytes / SIZE,
                piece.size_bytes / SIZE,
                piece.offset_count,
            )
            for piece in self.staged()
        ]


def test_small_runs_go_to_the_pack_file(tmp_path):
    places = Places(tmp_path)
    assert places.place(0, 0, 1, 2) == [(0, 2, False, 0), (2, 3, False, 0), (3, 4, False, 0)]
    assert places.pieces() == [(0, PACK, 0, 2, 4), (1, PACK, 2, 1, 2), (2, PACK, 3, 1, 2)]
    assert staged_names(tmp_path) == [PACK + ".pack"]


def test_the_next_run_of_a_partition_extends_its_piece(tmp_path):
    places = Places(tmp_path)
    places.place(0, 1)
    assert places.place(1, 1, 0) == [(0, 2, False, 2), (2, 3, False, 0)]
    assert places.pieces() == [(0, PACK, 0, 1, 2), (1, PACK, 1, 3, 6), (0, PACK, 4, 1, 2)]


def test_a_large_run_becomes_a_segment(tmp_path):
    places = Places(tmp_path, piece_bytes=3 * SIZE)
    assert places.place(0, 1, 1, 1) == [(0, 1, False, 0), (1, 4, True, 0)]
    # Once it has a segment, all of it goes there.
    assert places.place(0, 1) == [(0, 1, False, 2), (1, 2, True, 6)]
    assert places.pieces() == [(0, PACK, 0, 2, 4), (1, PACK + "-0", 0, 4, 8)]


@pytest.mark.parametrize(
    ("task", "batches", "exists", "is_segment"),
    [(0, 3, False, True), (0, 2, False, False), (1, 3, False, False), (0, 3, True, False)],
)
def test_a_long_run_that_begins_a_new_log_becomes_a_segment(
    tmp_path, monkeypatch, task, batches, exists, is_segment
):
    monkeypatch.setattr(stage_placement, "_LINKED_RUN_BYTES", 3 * SIZE)
    if exists:
        (tmp_path / "t-1").mkdir()
    places = Places(tmp_path, task=task)
    assert places.place(*[1] * batches) == [(0, batches, is_segment, 0)]
    # The rest of it goes to the same place.
    assert places.place(1, 1, 1, 1) == [(0, 4, is_segment, 2 * batches)]
    assert [piece.batch_count for piece in places.staged()] == [batches + 4]


def test_a_long_run_that_follows_a_short_one_goes_to_the_pack_file(tmp_path, monkeypatch):
    monkeypatch.setattr(stage_placement, "_LINKED_RUN_BYTES", 3 * SIZE)
    places = Places(tmp_path, task=0)
    places.place(1)
    assert places.place(1, 1, 1) == [(0, 3, False, 2)]
    assert [piece.batch_count for piece in places.staged()] == [4]


def test_packed_bytes_count_towards_a_segment(tmp_path):
    places = Places(tmp_path, piece_bytes=3 * SIZE)
    places.place(0, 0)
    assert places.place(0) == [(0, 1, True, 0)]
    assert places.pieces() == [(0, PACK, 0, 2, 4), (0, PACK + "-0", 0, 1, 2)]


def test_a_segment_ends_at_its_size_and_another_one_begins(tmp_path):
    places = Places(tmp_path, piece_bytes=3 * SIZE, internal_segment_bytes=4 * SIZE + 1)
    assert places.place(*[1] * 10) == [(0, 4, True, 0), (4, 8, True, 0), (8, 10, True, 0)]
    assert places.place(1, 1, 1) == [(0, 2, True, 4), (2, 3, True, 0)]
    assert places.pieces() == [
        (1, PACK + "-0", 0, 4, 8),
        (1, PACK + "-1", 0, 4, 8),
        (1, PACK + "-2", 0, 4, 8),
        (1, PACK + "-3", 0, 1, 2),
    ]
    assert staged_names(tmp_path) == sorted(
        f"{PACK}-{number}{suffix}" for number in range(4) for suffix in (".log", ".index", ".timeindex")
    )


def test_pieces_of_a_partition_are_listed_in_their_order(tmp_path):
    places = Places(tmp_path, piece_bytes=3 * SIZE, internal_segment_bytes=4 * SIZE)
    places.place(0, 0)
    places.place(*[0] * 9)
    assert [piece[1] for piece in places.pieces()] == [PACK, PACK + "-0", PACK + "-1", PACK + "-2"]


def test_a_packed_piece_fits_a_segment(tmp_path):
    places = Places(tmp_path, piece_bytes=100 * SIZE, internal_segment_bytes=3 * SIZE)
    places.place(0, 0)
    places.place(0, 0)
    assert places.pieces() == [(0, PACK, 0, 2, 4), (0, PACK + "-0", 0, 2, 4)]


def test_a_segment_with_a_full_index_ends(tmp_path):
    places = Places(tmp_path, piece_bytes=SIZE, index_interval_bytes=0, segment_index_bytes=16)
    places.place(0, 0, 0, 0)
    places.place(0)
    assert [piece[1:] for piece in places.pieces()] == [(PACK + "-0", 0, 4, 8), (PACK + "-1", 0, 1, 2)]


@pytest.mark.parametrize("piece_bytes", [1, 1 << 20])
def test_a_piece_spans_no_more_offsets_than_an_index_can_hold(tmp_path, piece_bytes):
    places = Places(tmp_path, piece_bytes=piece_bytes)
    far = 1 << 32
    places.place(0, 0, 0, offsets=[5, 100, far])
    places.place(0, 0, offsets=[far + 10, 2 * far])
    assert [(piece.min_offset, piece.max_offset) for piece in places.staged()] == [
        (5, 101),
        (far, far + 11),
        (2 * far, 2 * far + 1),
    ]
