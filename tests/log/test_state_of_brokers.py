"""What Kafka itself wrote about its logs, told again from the batches alone."""

from __future__ import annotations

import pytest
from conformance.archives import unpack_case

from storage_core.checkpoint import read_leader_epoch_checkpoint
from storage_core.filesystem import FileSystem
from storage_core.log.leader_epoch_cache import LeaderEpochCache
from storage_core.log.log_segments import LogSegments
from storage_core.log.producer_state_manager import ProducerStateManager, rebuild_producer_state
from storage_core.log_config import LogConfig
from storage_core.segment import TransactionIndex
from storage_core.segment.log_segment import LogSegment

FILES = FileSystem()
NEVER_MS = 1 << 62
# Compaction, retention and expiry take away what a replay would need: these cases have none of them.
CASES = ["idempotent", "txn", "txn-ongoing"]


@pytest.fixture(scope="module", params=CASES)
def partitions(request, tmp_path_factory):
    """Return the directories of one case that hold batches."""
    logs, _ = unpack_case(request.param, tmp_path_factory.mktemp(request.param) / "case")
    found = sorted({path.parent for path in logs.rglob("*.log")})
    assert found
    return found


def segments_of(directory):
    bases = sorted(int(path.name[:20]) for path in directory.glob("*.log"))
    return LogSegments([LogSegment(FILES, str(directory), base, LogConfig(), now_ms=0) for base in bases])


def test_every_snapshot_byte_for_byte(partitions, tmp_path):
    compared = 0
    for directory in partitions:
        segments = segments_of(directory)
        for snapshot in sorted(directory.glob("*.snapshot")):
            offset = int(snapshot.name[:20])
            elsewhere = tmp_path / directory.name / str(offset)
            elsewhere.mkdir(parents=True)
            manager = ProducerStateManager(FILES, str(elsewhere), expiration_ms=NEVER_MS)
            rebuild_producer_state(manager, segments, 0, offset, 0, is_after_clean_shutdown=False)
            assert (elsewhere / snapshot.name).read_bytes() == snapshot.read_bytes(), snapshot
            compared += 1
    assert compared > len(partitions)


def test_every_transaction_index(partitions):
    for directory in partitions:
        manager = ProducerStateManager(FILES, str(directory), expiration_ms=NEVER_MS)
        for segment in segments_of(directory):
            aborted = [entry for window in segment.windows() for entry in manager.observe(window)]
            path = directory / f"{segment.base_offset:020d}.txnindex"
            index = TransactionIndex.read(FILES, str(path), segment.base_offset)
            assert tuple(aborted) == index.entries, path


def test_the_leader_epochs(partitions, tmp_path):
    for directory in partitions:
        checkpoint = read_leader_epoch_checkpoint(FILES, str(directory / "leader-epoch-checkpoint"))
        cache = LeaderEpochCache(FILES, str(tmp_path / f"{directory.name}-epochs"))
        for segment in segments_of(directory):
            for window in segment.windows():
                cache.observe(window.headers)
        # An epoch may have begun without a batch.
        assert checkpoint[: len(cache.entries)] == cache.entries or not cache.entries
