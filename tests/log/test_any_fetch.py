"""Any log of replicated batches, fetched and read in any way, against the list of its batches."""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.errors import OffsetOutOfRangeError
from storage_core.record.batch_window import walk_window
from tests.examples import examples
from tests.log.logs import open_directory, small
from tests.log.producing import ABORT, COMMIT, data, marker, transactional

SEGMENT_BYTES = 600
SETTINGS = examples(40)

# Per batch: the gap in front of it, what it is, and how many records it has.
BATCHES = st.lists(
    st.tuples(
        st.sampled_from([0, 0, 0, 1, 7, 40]),
        st.sampled_from(["plain", "plain", "open", "commit", "abort"]),
        st.integers(1, 4),
        st.integers(1, 2),
    ),
    min_size=1,
    max_size=25,
)


class Model:
    """The batches of a log: base offset, last offset, bytes; and what Kafka's rules say of them."""

    def __init__(self, drawn):
        self.batches = []
        self.aborted = set()
        self.aborted_transactions = []
        self.undecided = {}
        self.kinds = {}
        offset = 0
        for gap, kind, size, producer in drawn:
            offset += gap
            count = size if kind in ("plain", "open") else 1
            if kind == "plain":
                batch = data(offset, count)
            elif kind == "open":
                batch = transactional(offset, count, producer=producer)
                self.undecided.setdefault(producer, []).extend(range(offset, offset + count))
            else:
                batch = marker(offset, producer=producer, kind=COMMIT if kind == "commit" else ABORT)
                ended = self.undecided.pop(producer, [])
                if kind == "abort":
                    self.aborted.update(ended)
                    self.aborted_transactions += [(producer, ended[0], offset)] if ended else []
            self.kinds[offset] = kind
            self.batches.append((offset, offset + count - 1, batch))
            offset += count
        self.end = offset
        self.last_stable = min((offsets[0] for offsets in self.undecided.values()), default=self.end)

    def records(self, start, end):
        return [
            offset
            for base, last, _ in self.batches
            if self.kinds[base] not in ("commit", "abort")
            for offset in range(base, last + 1)
            if start <= offset < end
        ]


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    root = tmp_path_factory.mktemp("fetch")
    with pytest.MonkeyPatch.context() as patch:
        # Hundreds of logs, none of which has to survive anything.
        patch.setattr(os, "fsync", lambda descriptor: None)
        with open_directory(root / "data", config=small(SEGMENT_BYTES, file_delete_delay_ms=0)) as opened:
            yield opened


def written(logs, model):
    """Write one log for all examples: begun anew each time."""
    log = logs.get_or_create("orders")
    log.truncate_fully_and_start_at(0)
    for _, _, batch in model.batches:
        log.append_batches(batch)
    log.update_high_watermark(model.end)
    return log


def batches_in(fetched):
    """Return the whole batches of what was fetched: base offsets, and how many bytes they take."""
    padded = np.frombuffer(fetched.data + bytes(16), np.uint8)
    window = walk_window("", 0, padded, len(fetched.data))
    return window.headers["base_offset"].tolist(), window.end


@SETTINGS
@given(BATCHES, st.data())
def test_a_fetch_gives_the_batches_from_the_start_on(logs, drawn, choices):
    model = Model(drawn)
    log = written(logs, model)
    bases = (*log.segment_base_offsets, 1 << 62)
    start = choices.draw(st.integers(0, model.end), "start")
    max_size_bytes = choices.draw(st.sampled_from([0, 1, 60, 80, 200, 10_000]), "size")
    min_one_message = choices.draw(st.booleans(), "min_one_message")
    fetched = log.fetch(start, max_size_bytes, min_one_message=min_one_message)
    expected = [each for each in model.batches if each[1] >= start]
    if not expected:
        assert fetched.data == b""
        return
    # Of the one segment that holds the first of them.
    next_base = next(base for base in bases if base > expected[0][0])
    expected = [each for each in expected if each[0] < next_base]
    first_bytes = len(expected[0][2])
    size_bytes = max(max_size_bytes, first_bytes) if min_one_message else max_size_bytes
    assert fetched.data == b"".join(batch for _, _, batch in expected)[:size_bytes]
    assert fetched.is_first_entry_incomplete == (size_bytes < first_bytes)
    assert fetched.base_offset == expected[0][0]


@SETTINGS
@given(BATCHES, st.data())
def test_a_committed_fetch_tells_the_aborted_transactions_of_its_batches(logs, drawn, choices):
    model = Model(drawn)
    log = written(logs, model)
    start = choices.draw(st.integers(0, model.end), "start")
    max_size_bytes = choices.draw(st.sampled_from([0, 1, 100, 250, 10_000]), "size")
    fetched = log.fetch(start, max_size_bytes, isolation_level="read_committed")
    bases, _ = batches_in(fetched)
    end = max((last + 1 for base, last, _ in model.batches if base in bases), default=start)
    assert end <= max(start, model.last_stable)
    found = [(each.producer_id, each.first_offset, each.last_offset) for each in fetched.aborted_transactions]
    # Kafka's LocalLog tells none with an empty answer, even inside an aborted transaction.
    expected = model.aborted_transactions if bases else []
    assert found == [each for each in expected if each[2] >= start and each[1] < end]


def test_an_empty_committed_fetch_inside_an_aborted_transaction_tells_none(logs):
    # Producer 2 is open from offset 1 on, inside the transaction that producer 1 aborts.
    log = written(logs, Model([(0, "open", 1, 1), (0, "open", 1, 2), (0, "abort", 1, 1)]))
    assert log.last_stable_offset == 1
    fetched = log.fetch(1, 10_000, isolation_level="read_committed")
    assert (fetched.data, fetched.aborted_transactions) == (b"", ())


@SETTINGS
@given(BATCHES, st.data())
def test_fetches_one_after_the_other_give_every_batch_once(logs, drawn, choices):
    model = Model(drawn)
    log = written(logs, model)
    max_size_bytes = choices.draw(st.sampled_from([0, 1, 100, 250, 10_000]), "size")
    got, offset = [], 0
    for _ in range(len(model.batches) + 1):
        if offset == model.end:
            break
        bases, _ = batches_in(log.fetch(offset, max_size_bytes))
        assert bases
        got += bases
        offset = next(last for base, last, _ in model.batches if base == bases[-1]) + 1
    assert got == [base for base, _, _ in model.batches]


@SETTINGS
@given(BATCHES, st.data())
def test_no_fetch_crosses_its_limit(logs, drawn, choices):
    model = Model(drawn)
    log = written(logs, model)
    high_watermark = choices.draw(st.integers(0, model.end), "high watermark")
    log.update_high_watermark(high_watermark)
    limits = {None: model.end, "read_uncommitted": high_watermark, "read_committed": log.last_stable_offset}
    assert log.last_stable_offset <= high_watermark
    assert model.last_stable >= log.last_stable_offset
    start = choices.draw(st.integers(0, model.end), "start")
    for isolation_level, limit in limits.items():
        fetched = log.fetch(start, 10_000, isolation_level=isolation_level)
        bases, size_bytes = batches_in(fetched)
        assert size_bytes == len(fetched.data)
        allowed = [base for base, last, _ in model.batches if last >= start and last < limit]
        assert bases == allowed[: len(bases)]
        # At least one, if there is one: reads do not end before the limit.
        assert bool(bases) == bool(allowed)


@SETTINGS
@given(BATCHES, st.data())
def test_reads_give_every_record_once(logs, drawn, choices):
    model = Model(drawn)
    log = written(logs, model)
    start = choices.draw(st.integers(0, model.end), "start")
    end = choices.draw(st.none() | st.integers(start, model.end + 5), "end")
    last = model.end if end is None else end

    def read(**options):
        found = log.read(start, end, **options)
        return [offset for batch in found for offset in batch["offset"].to_pylist()]

    assert read() == model.records(start, last)
    assert log.last_stable_offset == model.last_stable
    stable = [
        offset for offset in model.records(start, min(last, model.last_stable)) if offset not in model.aborted
    ]
    assert read(isolation_level="read_committed") == stable


@SETTINGS
@given(BATCHES, st.data())
def test_a_truncated_log_reads_as_the_rest_and_goes_on(logs, drawn, choices):
    model = Model(drawn)
    log = written(logs, model)
    target = choices.draw(st.integers(0, model.end), "target")
    log.truncate_to(target)
    assert log.log_end_offset == target
    # The batch that holds the offset goes as a whole.
    kept = [each for each in model.batches if each[1] < target]
    assert [offset for batch in log.read() for offset in batch["offset"].to_pylist()] == [
        offset
        for base, last, _ in kept
        if model.kinds[base] not in ("commit", "abort")
        for offset in range(base, last + 1)
    ]
    log.append_batches(data(target, 2))
    assert log.log_end_offset == target + 2
    assert [offset for batch in log.read(target) for offset in batch["offset"].to_pylist()] == [
        target,
        target + 1,
    ]


@SETTINGS
@given(BATCHES, st.data())
def test_out_of_range(logs, drawn, choices):
    model = Model(drawn)
    log = written(logs, model)
    start = choices.draw(st.integers(0, model.end), "log start")
    log.delete_records(start)
    assert log.log_start_offset == start
    for offset in (start - 1, model.end + 1):
        if offset >= 0:
            with pytest.raises(OffsetOutOfRangeError):
                log.fetch(offset, 100)
    assert log.fetch(model.end, 100).data == b""
    assert [offset for batch in log.read() for offset in batch["offset"].to_pylist()] == model.records(
        start, model.end
    )
