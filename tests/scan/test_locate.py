"""From offsets to places in segment files."""

from __future__ import annotations

import pytest

from storage_core.directory import PartitionLog, find_partitions
from storage_core.errors import DataLossError
from storage_core.filesystem import FileSystem
from storage_core.scan.isolation import AbortedTransactions
from storage_core.scan.offset_ranges import PartitionRange, locate_spans
from storage_core.segment import AbortedTransaction
from tests.faults.observed_filesystem import before_each_call

# A batch of ten values of 300 bytes: more than a page after two of them, so that indexes count.
VALUE = b"x" * 300


@pytest.fixture
def log(log_root):
    """Segments of 0 to 99, 100 to 199 and 200 to 229, ten offsets a batch."""
    log = log_root.rows()
    for number in range(23):
        log.values(10, VALUE)
        if number in (9, 19):
            log.roll()
    return log.write()


def load(log, **options):
    filesystem = FileSystem()
    (directory,) = find_partitions(filesystem, [str(log.path)])
    return PartitionLog.load(filesystem, directory, **options)


def located(log, start, end, *aborted, **options):
    return list(locate_spans(PartitionRange(load(log, **options), start, end, AbortedTransactions(aborted))))


def places(spans):
    return [
        (span.base_offset, span.start_offset, span.end_offset, span.position_bytes, span.end_position_bytes)
        for span in spans
    ]


def position(log, base_offset, number):
    """Return where a batch of a segment begins."""
    return log.places[base_offset][number][0]


def size(log, base_offset):
    return log.log_path(base_offset).stat().st_size


@pytest.mark.parametrize("use_indexes", [True, False])
class TestPlaces:
    def test_a_whole_log_is_a_span_a_segment(self, log, use_indexes):
        assert places(located(log, 0, 230, use_indexes=use_indexes)) == [
            (0, 0, 100, 0, size(log, 0)),
            (100, 100, 200, 0, size(log, 100)),
            (200, 200, 230, 0, size(log, 200)),
        ]

    def test_a_range_is_cut_at_whole_batches(self, log, use_indexes):
        assert places(located(log, 35, 55, use_indexes=use_indexes)) == [
            (0, 35, 55, position(log, 0, 3), position(log, 0, 6))
        ]

    def test_a_range_on_borders_of_batches_takes_none_besides(self, log, use_indexes):
        assert places(located(log, 30, 50, use_indexes=use_indexes)) == [
            (0, 30, 50, position(log, 0, 3), position(log, 0, 5))
        ]

    def test_one_offset_is_one_batch(self, log, use_indexes):
        assert places(located(log, 137, 138, use_indexes=use_indexes)) == [
            (100, 137, 138, position(log, 100, 3), position(log, 100, 4))
        ]

    def test_a_range_over_several_segments(self, log, use_indexes):
        assert places(located(log, 95, 201, use_indexes=use_indexes)) == [
            (0, 95, 100, position(log, 0, 9), size(log, 0)),
            (100, 100, 200, 0, size(log, 100)),
            (200, 200, 201, 0, position(log, 200, 1)),
        ]

    @pytest.mark.parametrize("offset", [0, 50, 100, 230])
    def test_an_empty_range_is_nowhere(self, log, offset, use_indexes):
        assert located(log, offset, offset, use_indexes=use_indexes) == []


def test_a_span_names_its_file(log):
    (span,) = located(log, 100, 110)
    assert (span.topic, span.partition, span.directory) == ("events", 0, str(log.path))
    assert span.file_name == "00000000000000000100.log"
    assert span.version == log.log_path(100).stat().st_ino


def test_the_size_of_a_closed_file_is_known_for_good(log):
    sizes = [span.file_size_bytes for span in located(log, 50, 230)]
    assert sizes == [size(log, 0), size(log, 100), None]


def test_a_segment_in_the_middle_is_not_opened(log):
    found = load(log)
    opened = []
    filesystem = before_each_call(lambda call, path: call == "open" and opened.append(path))
    for segment in found.segments:
        segment.filesystem = filesystem
    assert len(list(locate_spans(PartitionRange(found, 5, 225)))) == 3
    assert {path.rpartition("/")[2].partition(".")[0] for path in opened} == {f"{0:020d}", f"{200:020d}"}


def test_a_span_carries_only_the_transactions_that_concern_it(log):
    early, across, late = (
        AbortedTransaction(1, 5, 20, 21),
        AbortedTransaction(2, 90, 110, 111),
        AbortedTransaction(3, 200, 210, 211),
    )
    first, second = located(log, 30, 150, early, across, late)
    assert first.aborted_transactions == second.aborted_transactions == (across,)


class TestGaps:
    @pytest.fixture
    def gaps(self, log_root):
        """0 to 9, a gap to 50, 50 to 59, a gap to 100, where the next segment begins."""
        log = log_root.rows().values(10, VALUE).skip(40).values(10, VALUE).skip(40).roll()
        return log.values(10, VALUE).skip(5).values(1).write()

    def test_a_range_within_a_gap_is_nowhere(self, gaps):
        assert located(gaps, 10, 50) == []
        assert located(gaps, 60, 100) == []
        assert located(gaps, 110, 115) == []

    def test_a_range_that_begins_in_a_gap(self, gaps):
        assert places(located(gaps, 20, 55)) == [
            (0, 50, 55, position(gaps, 0, 1), position(gaps, 0, 1) + position(gaps, 0, 1))
        ]

    def test_a_range_that_ends_in_a_gap(self, gaps):
        assert places(located(gaps, 5, 45)) == [(0, 5, 45, 0, position(gaps, 0, 1))]
        assert places(located(gaps, 55, 80)) == [(0, 55, 80, position(gaps, 0, 1), size(gaps, 0))]

    def test_a_range_over_the_border_that_begins_in_a_gap(self, gaps):
        assert places(located(gaps, 70, 101)) == [(100, 100, 101, 0, position(gaps, 100, 1))]


class TestWhereAWalkStops:
    """A walk ends without an error at a torn batch and at zeros, but the bytes after them must be read."""

    def test_after_a_batch_that_is_cut_off(self, log):
        path = log.log_path()
        path.write_bytes(path.read_bytes()[:-1])
        assert places(located(log, 95, 105)) == [
            (0, 95, 100, position(log, 0, 9), size(log, 0)),
            (100, 100, 105, 0, position(log, 100, 1)),
        ]
        assert places(located(log, 93, 97)) == [(0, 93, 97, position(log, 0, 9), size(log, 0))]

    def test_before_a_hole_of_zeros(self, log_root):
        log = log_root.rows()
        for _ in range(10):
            log.values(10, b"x" * 1000)
        log.roll().values(1).write()
        start, end = log.places[0][4][:2]
        content = bytearray(log.log_path().read_bytes())
        content[start:end] = bytes(end - start)
        log.log_path().write_bytes(content)
        for first in (45, 40):
            (span,) = located(log, first, 47)
            assert (span.position_bytes, span.end_position_bytes) == (start, size(log, 0))
        # The index leads past the hole.
        assert places(located(log, 70, 80)) == [(0, 70, 80, position(log, 0, 7), position(log, 0, 8))]

    def test_zeros_at_the_end_of_a_closed_segment(self, log):
        with log.log_path().open("ab") as file:
            file.write(bytes(10_000))
        assert places(located(log, 95, 100)) == [(0, 95, 100, position(log, 0, 9), size(log, 0))]


def test_an_empty_segment_is_passed_over(log_root):
    log = log_root.rows()
    log.values(1).roll().values(1).roll().values(1).write()
    log.log_path(1).write_bytes(b"")
    assert [span.base_offset for span in located(log, 0, 3)] == [0, 2]


def test_a_segment_that_was_renamed_since_the_listing(log):
    found = load(log)
    log.log_path(100).rename(f"{log.log_path(100)}.deleted")
    spans = list(locate_spans(PartitionRange(found, 150, 160)))
    assert [span.file_name for span in spans] == ["00000000000000000100.log.deleted"]


def test_a_segment_that_is_gone_since_the_listing(log):
    found = load(log)
    log.log_path(100).unlink()
    with pytest.raises(DataLossError, match="listed a moment ago"):
        list(locate_spans(PartitionRange(found, 150, 160)))
