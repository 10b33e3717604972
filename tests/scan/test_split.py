"""Cutting large spans and packing small ones."""

from __future__ import annotations

import dataclasses
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.filesystem import FileSystem
from storage_core.scan.plan import OPEN_COST_BYTES, cut_span, pack_spans
from storage_core.scan.spans import LogSpan, ReadSettings, SpanList
from storage_core.segment import AbortedTransaction, SegmentReader

SETTINGS = ReadSettings(1 << 20)


@pytest.fixture
def log(log_root):
    """Return one segment of 20 batches with ten offsets and some 2,000 bytes each."""
    log = log_root.rows()
    for _ in range(20):
        log.values(10, b"x" * 190)
    return log.write()


def segment_of(log, **options):
    return SegmentReader(FileSystem(), str(log.path), 0, **options)


def whole(log, span_of, **changes):
    status = log.log_path().stat()
    fields = {"end_offset": 200, "end_position_bytes": status.st_size, "version": status.st_ino, **changes}
    return span_of(directory=str(log.path), **fields)


def offsets(spans):
    return [(span.start_offset, span.end_offset) for span in spans]


class TestCutting:
    def test_a_span_that_is_small_enough_stays_whole(self, log, span_of):
        span = whole(log, span_of)
        assert cut_span(span, segment_of(log), span.size_bytes) == [span]

    @pytest.mark.parametrize("use_indexes", [True, False])
    @pytest.mark.parametrize("target_bytes", [1, 2000, 5000, 20_000])
    def test_the_pieces_make_up_the_span(self, log, span_of, target_bytes, use_indexes):
        span = whole(log, span_of)
        pieces = cut_span(span, segment_of(log, use_indexes=use_indexes), target_bytes)
        borders = [place[0] for place in log.places[0]]
        assert len(pieces) > 1
        for before, piece in pairwise(pieces):
            assert before.end_offset == piece.start_offset
            assert before.end_position_bytes == piece.position_bytes
            assert borders.index(piece.position_bytes) * 10 == piece.start_offset
            assert before.size_bytes >= target_bytes
        assert (pieces[0].start_offset, pieces[0].position_bytes) == (0, 0)
        assert (pieces[-1].end_offset, pieces[-1].end_position_bytes) == (200, span.end_position_bytes)
        batch_bytes = borders[1]
        # The index has an entry after every third batch.
        assert max(piece.size_bytes for piece in pieces) <= target_bytes + batch_bytes * (
            3 if use_indexes else 1
        )

    def test_without_an_index_every_batch_is_a_piece_if_need_be(self, log, span_of):
        pieces = cut_span(whole(log, span_of), segment_of(log, use_indexes=False), 1)
        assert offsets(pieces) == [(start, start + 10) for start in range(0, 200, 10)]

    def test_nothing_is_cut_within_the_batches_at_the_ends(self, log, span_of):
        _, second, third = (place[0] for place in log.places[0][:3])
        span = whole(
            log, span_of, start_offset=13, end_offset=17, position_bytes=second, end_position_bytes=third
        )
        assert cut_span(span, segment_of(log, use_indexes=False), 1) == [span]

    def test_a_range_that_begins_and_ends_within_batches(self, log, span_of):
        positions = [place[0] for place in log.places[0]]
        span = whole(
            log,
            span_of,
            start_offset=13,
            end_offset=37,
            position_bytes=positions[1],
            end_position_bytes=positions[4],
        )
        pieces = cut_span(span, segment_of(log, use_indexes=False), 1)
        assert offsets(pieces) == [(13, 20), (20, 30), (30, 37)]

    def test_each_piece_carries_its_own_transactions(self, log, span_of):
        first, across = AbortedTransaction(1, 2, 5, 6), AbortedTransaction(2, 5, 15, 16)
        span = whole(log, span_of, aborted_transactions=(first, across))
        pieces = cut_span(span, segment_of(log, use_indexes=False), 1)
        assert [piece.aborted_transactions for piece in pieces[:3]] == [(first, across), (across,), ()]

    def test_cuts_end_where_damage_is_met(self, log, span_of, overwrite):
        overwrite(log.log_path(), log.places[0][5][0] + 16, b"\x07")
        span = whole(log, span_of)
        pieces = cut_span(span, segment_of(log, use_indexes=False), 1)
        assert offsets(pieces)[-1] == (40, 200)
        assert pieces[-1].end_position_bytes == span.end_position_bytes

    def test_a_file_that_was_replaced_meanwhile_is_not_cut(self, log, span_of):
        # The cuts would be those of one file, and the inode that of another.
        span = dataclasses.replace(whole(log, span_of), version=1)
        assert cut_span(span, segment_of(log), 2000) == [span]


class TestPacking:
    def pack(self, spans, task_bytes, task_records=None):
        return pack_spans(SpanList(spans), SETTINGS, task_bytes=task_bytes, task_records=task_records)

    def test_nothing(self):
        assert self.pack([], 1 << 20) == []

    def test_opening_a_file_has_its_price(self, span_of):
        spans = [span_of() for _ in range(10)]
        # Each costs its 1,000 bytes and one MiB.
        tasks = self.pack(spans, 3 * (OPEN_COST_BYTES + 1000))
        assert [len(task.spans) for task in tasks] == [3, 3, 3, 1]

    def test_a_span_larger_than_a_task_has_one_of_its_own(self, span_of):
        small, large = span_of(), span_of(end_position_bytes=50 << 20)
        tasks = self.pack([small, large, small], 10 << 20)
        assert [task.spans for task in tasks] == [(small,), (large,), (small,)]

    def test_offsets_are_counted_too(self, span_of):
        spans = [span_of(end_offset=end) for end in (4, 4, 3, 10, 1)]
        tasks = self.pack(spans, 1 << 40, 10)
        assert [[span.end_offset for span in task.spans] for task in tasks] == [[4, 4], [3], [10], [1]]

    def test_settings_travel_with_each_task(self, span_of):
        (task,) = self.pack([span_of()], 1)
        assert task.settings is SETTINGS

    @given(
        sizes=st.lists(st.tuples(st.integers(1, 20 << 20), st.integers(1, 50)), max_size=30),
        task_bytes=st.integers(1, 64 << 20),
        task_records=st.none() | st.integers(50, 200),
    )
    def test_every_span_is_packed_once_and_in_order(self, sizes, task_bytes, task_records):
        spans = [
            LogSpan("t", number, "/d", 0, "f", 0, count, 0, size, 1)
            for number, (size, count) in enumerate(sizes)
        ]
        tasks = self.pack(spans, task_bytes, task_records)
        assert [span for task in tasks for span in task.spans] == spans
        for task in tasks:
            assert len(task.spans) == 1 or task.size_bytes + len(task.spans) * OPEN_COST_BYTES <= task_bytes
            if task_records is not None:
                assert sum(span.end_offset for span in task.spans) <= task_records
