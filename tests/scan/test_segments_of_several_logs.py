"""Segments in one directory that do not belong together: files of several copies, or of two topics of one name."""

from __future__ import annotations

import pytest

from storage_core import LogConfig, LogDirectory
from storage_core.errors import CorruptRecordError
from tests.scan.conftest import batch, record
from tests.scan.copies import batches, checkpoint, offsets_of, write_copy


def keyed(start, end, *, epoch=0):
    """Batches of one record with a key each."""
    return {
        offset: batch(offset, [record(0, 0, b"k%d" % offset, b"v")], last_offset_delta=0, leader_epoch=epoch)
        for offset in range(start, end)
    }


class TestReads:
    def test_a_stale_segment_beside_the_one_that_replaced_it(self, tmp_path, caplog):
        cleaned = {base: data for base, data in batches(0, 100).items() if base % 20 == 0}
        write_copy(tmp_path, {0: cleaned, 50: batches(50, 100), 100: batches(100, 120)})
        with pytest.raises(
            CorruptRecordError, match="Expected offsets below 50, where this segment ends"
        ) as caught:
            offsets_of(tmp_path)
        assert (caught.value.offset, caught.value.path[-8:]) == (50, "0000.log")
        # From a segment's base offset on, that segment counts, as for a broker.
        expected = [*range(10), *range(20, 30), *range(40, 120)]
        assert offsets_of(tmp_path, mode="DROPMALFORMED") == expected
        assert "found a batch from 60 to 69" in caplog.text

    def test_two_topics_of_one_name(self, tmp_path):
        write_copy(tmp_path, {0: batches(0, 100, value=b"old", epoch=5), 30: batches(30, 60, value=b"new")})
        with pytest.raises(CorruptRecordError, match="found a batch from 30 to 39"):
            offsets_of(tmp_path)
        assert offsets_of(tmp_path, mode="DROPMALFORMED") == list(range(60))

    def test_leader_epochs_that_go_back_within_a_task(self, tmp_path, caplog):
        write_copy(tmp_path, {0: batches(0, 50, epoch=5), 50: batches(50, 80, epoch=1)})
        assert offsets_of(tmp_path, max_bytes_per_partition="64m") == list(range(80))
        assert "leader epochs go back from 5 to 1 at offset 50 of orders-0" in caplog.text

    def test_leader_epochs_that_ascend(self, tmp_path, caplog):
        write_copy(
            tmp_path, {0: batches(0, 50, epoch=1), 50: batches(50, 80, epoch=1), 80: batches(80, 90, epoch=7)}
        )
        assert offsets_of(tmp_path, max_bytes_per_partition="64m") == list(range(90))
        assert not caplog.records

    def test_a_lost_segment(self, tmp_path, caplog):
        write_copy(tmp_path, {0: batches(0, 50), 100: batches(100, 120)})
        assert offsets_of(tmp_path) == [*range(50), *range(100, 120)]
        assert "offsets 50 to 99 of orders-0 are missing before the next segment" in caplog.text

    @pytest.mark.parametrize("bounds", [{"starting_offsets": 100}, {"ending_offsets": 50}])
    def test_a_lost_segment_that_was_not_asked_for(self, tmp_path, caplog, bounds):
        write_copy(tmp_path, {0: batches(0, 50), 100: batches(100, 120)})
        offsets_of(tmp_path, **{name: {"orders": {"0": offset}} for name, offset in bounds.items()})
        assert not caplog.records

    def test_gaps_of_a_compacted_log(self, tmp_path, caplog):
        sparse = {base: data for base, data in batches(0, 50).items() if base != 20}
        write_copy(tmp_path / "holes", {0: sparse, 100: batches(100, 120)})
        assert len(offsets_of(tmp_path / "holes")) == 60
        write_copy(tmp_path / "known", {0: batches(0, 50), 100: batches(100, 120)})
        checkpoint(tmp_path / "known", "cleaner", 100)
        assert len(offsets_of(tmp_path / "known")) == 70
        assert not caplog.records


class TestOpen:
    def test_segments_that_overlap_are_seen_by_a_recovery(self, tmp_path, caplog):
        write_copy(tmp_path, {0: keyed(0, 100), 50: keyed(50, 100), 100: keyed(100, 120)})
        (tmp_path / "meta.properties").unlink()
        (tmp_path / ".kafka_cleanshutdown").unlink()
        with LogDirectory.open(tmp_path):
            pass
        assert "expected offsets below 50, where the next segment begins, found some up to 99" in caplog.text


class TestCleaning:
    @pytest.fixture
    def clean(self, tmp_path):
        """Writes segments as an own log directory, cleans it, and tells what its files were before and are now."""

        def run(segments):
            partition = write_copy(tmp_path, segments)
            (tmp_path / "meta.properties").unlink()
            config = LogConfig(cleanup_policy="compact")
            before = {path.name: path.read_bytes() for path in partition.glob("*.log")}
            try:
                with LogDirectory.open(tmp_path, config=config) as logs:
                    logs.get("orders").clean()
            finally:
                after = {path.name: path.read_bytes() for path in partition.glob("*.log")}
                is_same = before == after
            return is_same

        return run

    @pytest.mark.parametrize(
        "segments",
        [
            {0: keyed(0, 100), 50: keyed(50, 100), 100: keyed(100, 120)},
            {0: keyed(0, 100, epoch=5), 30: keyed(30, 60)},
            {0: keyed(0, 20), 20: keyed(20, 90), 50: keyed(50, 70), 70: keyed(70, 100)},
        ],
    )
    def test_segments_that_overlap_are_not_merged(self, clean, segments, tmp_path):
        with pytest.raises(CorruptRecordError, match="do not belong to one log"):
            clean(segments)
        for base_offset, content in segments.items():
            path = tmp_path / "orders-0" / f"{base_offset:020d}.log"
            assert path.read_bytes() == b"".join(content.values())

    def test_segments_that_follow_each_other_are(self, clean):
        assert not clean({0: keyed(0, 50), 50: keyed(50, 100), 100: keyed(100, 120)})
