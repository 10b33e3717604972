"""What planning hands to tasks travels to other processes."""

from __future__ import annotations

import dataclasses
import pickle
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.scan import spans as spans_module
from storage_core.scan.spans import LogSpan, ReadSettings, ScanTask, SpanList
from storage_core.segment import AbortedTransaction
from storage_core.segment.file_names import log_file_name


@pytest.fixture
def task(span_of):
    spans = (
        span_of(aborted_transactions=(AbortedTransaction(7, 2, 5, 6),)),
        span_of(position_bytes=500, end_position_bytes=700),
    )
    return ScanTask(spans, ReadSettings(1000))


def test_sizes_are_those_of_the_bytes_covered(task):
    assert [span.size_bytes for span in task.spans] == [1000, 200]
    assert task.size_bytes == 1200


def test_a_task_survives_pickling(task):
    assert pickle.loads(pickle.dumps(task)) == task


def test_a_task_is_small_on_the_wire(span_of):
    # Spark sends every task to a Python worker.
    task = ScanTask((span_of(),), ReadSettings(64 << 20))
    assert len(pickle.dumps(task)) < 600


def test_a_task_cannot_be_changed(task):
    with pytest.raises(dataclasses.FrozenInstanceError):
        task.spans[0].end_offset = 11


def any_span():
    """Return any span, also such as no planning makes."""
    offsets = st.integers(0, 2**63 - 1)
    sizes = st.integers(0, 2**40)
    transactions = st.lists(st.just(AbortedTransaction(7, 2, 5, 6)), max_size=2).map(tuple)
    return st.builds(
        LogSpan,
        topic=st.sampled_from(["orders", "events"]),
        partition=st.integers(0, 1),
        directory=st.sampled_from(["/a", "/b"]),
        base_offset=offsets,
        file_name=st.none() | st.just("00000000000000000007.log.deleted"),
        start_offset=offsets,
        end_offset=st.integers(0, 2**63),
        position_bytes=sizes,
        end_position_bytes=sizes,
        version=st.integers(0, 2**64 - 1),
        file_size_bytes=st.none() | sizes,
        aborted_transactions=transactions,
        segment_end_bytes=st.none() | sizes,
        segment_end_offset=st.none() | st.integers(0, 2**63),
        is_first=st.booleans(),
    ).map(
        lambda span: (
            span if span.file_name else dataclasses.replace(span, file_name=log_file_name(span.base_offset))
        )
    )


@given(st.lists(any_span(), max_size=9), st.sampled_from([1, 3, 256]), st.data())
def test_a_list_of_spans_is_like_any_other(expected, spans_in_a_pack, data):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(spans_module, "_SPANS_IN_A_PACK", spans_in_a_pack)
        check_list(SpanList(expected), expected, data)


def check_list(found, expected, data):
    assert found == expected
    assert found == SpanList(expected)
    assert found.sizes_bytes.tolist() == [span.size_bytes for span in expected]
    assert found != [*expected, None]
    assert (len(found), list(found)) == (len(expected), expected)
    start, stop = data.draw(st.integers(-9, 9)), data.draw(st.integers(-9, 9))
    step = data.draw(st.sampled_from([1, 1, 2, -1]))
    part = found[start:stop:step]
    assert list(part) == expected[start:stop:step]
    assert list(part[1:]) == expected[start:stop:step][1:]
    assert pickle.loads(pickle.dumps(part)) == tuple(part)
    for index, span in enumerate(expected):
        assert found[index] == found[index - len(expected)] == span
    with pytest.raises(IndexError):
        found[len(expected)]


def test_the_offsets_of_spans_are_counted(span_of):
    spans = [span_of(start_offset=0, end_offset=2**63), span_of(start_offset=5, end_offset=9)]
    assert SpanList(spans).offset_counts.tolist() == [2**63, 4]


def test_a_span_takes_a_hundred_bytes(span_of):
    def spans(count):
        for number in range(count):
            yield span_of(base_offset=number, file_name=f"{number:020d}.log", version=10**6 + number)

    SpanList(spans(10))
    tracemalloc.start()
    try:
        held = SpanList(spans(20_000))
        size_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(held) == 20_000
    assert size_bytes < 100 * 20_000


def test_by_default_loss_is_an_error_and_indexes_are_used():
    assert ReadSettings(1000) == ReadSettings(1000, fail_on_data_loss=True, use_indexes=True)
