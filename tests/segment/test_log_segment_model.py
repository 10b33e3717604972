"""A segment against a plain list of batches: append, truncate, close, crash, recover, in any order."""

from __future__ import annotations

import shutil
import struct
import tempfile
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from storage_core.filesystem import FileSystem
from storage_core.log_config import LogConfig
from storage_core.record.record_batches import RecordBatches
from storage_core.segment import TimestampOffset
from storage_core.segment.log_segment import LogSegment
from tests.examples import examples

BASE = 1000


class SegmentMachine(RuleBasedStateMachine):
    make_batch = None

    @initialize(
        interval=st.sampled_from([0, 100, 300, 4096]),
        index_bytes=st.sampled_from([36, 120, 4096]),
        is_preallocated=st.booleans(),
    )
    def start(self, interval, index_bytes, is_preallocated):
        self.folder = tempfile.mkdtemp()
        self.config = LogConfig(
            index_interval_bytes=interval,
            segment_index_bytes=index_bytes,
            preallocate=is_preallocated,
            internal_segment_bytes=20_000,
        )
        # (bytes, first offset, last offset, largest timestamp)
        self.model = []
        self.segment = LogSegment.create(FileSystem(), self.folder, BASE, self.config, now_ms=0)

    def teardown(self):
        if hasattr(self, "folder"):
            self.segment.close_handlers()
            shutil.rmtree(self.folder)

    @property
    def next_offset(self):
        return self.model[-1][2] + 1 if self.model else BASE

    @rule(
        batches=st.lists(
            st.tuples(st.integers(0, 5), st.integers(1, 3), st.integers(-1, 60), st.integers(0, 150)),
            min_size=1,
            max_size=4,
        )
    )
    def append(self, batches):
        built = []
        for gap, count, timestamp_ms, size_bytes in batches:
            first = (built[-1][2] + 1 if built else self.next_offset) + gap
            batch = self.make_batch(first, (timestamp_ms,) * count, value=b"\0" * size_bytes)
            built.append((batch, first, first + count - 1, timestamp_ms))
        self.segment.append(RecordBatches.parse(b"".join(batch for batch, *_ in built)))
        self.model += built

    @rule(back=st.integers(-3, 20))
    def truncate(self, back):
        target = max(BASE, self.next_offset - back)
        kept = [batch for batch in self.model if batch[2] < target]
        cut_bytes = sum(len(batch[0]) for batch in self.model[len(kept) :])
        assert self.segment.truncate_to(target, now_ms=0) == cut_bytes
        self.model = kept

    @rule(is_sealed=st.booleans())
    def close_and_open(self, is_sealed):
        if is_sealed:
            self.segment.seal()
            self.segment.flush()
        self.segment.close()
        self.check_closed_files()
        self.segment = LogSegment(FileSystem(), self.folder, BASE, self.config, now_ms=0)
        self.segment.resize_indexes()

    @rule(tail=st.sampled_from([b"", bytes(200), b"\7" * 90, b"\0\0\0\1"]))
    def crash_and_recover(self, tail):
        self.segment.close_handlers()
        with open(self.segment.path, "ab") as file:
            file.write(tail)
        self.segment = LogSegment(FileSystem(), self.folder, BASE, self.config, now_ms=0)
        assert self.segment.recover().next_offset == self.next_offset
        self.check_closed_files()
        self.segment.resize_indexes()

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def crash_with_a_torn_end(self, data):
        self.segment.close_handlers()
        whole = b"".join(batch[0] for batch in self.model[:-1])
        size = len(whole) + data.draw(st.integers(0, len(self.model[-1][0]) - 1))
        with open(self.segment.path, "r+b") as file:
            file.truncate(size)
        self.model.pop()
        self.segment = LogSegment(FileSystem(), self.folder, BASE, self.config, now_ms=0)
        assert self.segment.recover().truncated_bytes == size - len(whole)
        self.segment.resize_indexes()

    @rule(offset=st.integers(BASE - 5, BASE + 80))
    def look_up_an_offset(self, offset):
        found = self.segment.translate_offset(offset)
        following = next((n for n, batch in enumerate(self.model) if batch[2] >= offset), None)
        if following is None:
            assert found is None
            return
        first = self.model[following]
        assert (found.base_offset, found.size_bytes) == (first[1], len(first[0]))
        assert found.position_bytes == sum(len(batch[0]) for batch in self.model[:following])

    @rule()
    def read(self):
        with open(self.segment.path, "rb") as file:
            assert file.read(self.segment.size_bytes) == b"".join(batch[0] for batch in self.model)

    @rule(timestamp_ms=st.integers(0, 62), start_offset=st.integers(BASE - 5, BASE + 60))
    def look_up_a_time(self, timestamp_ms, start_offset):
        matches = [
            TimestampOffset(largest_ms, max(first, start_offset))
            for _, first, last, largest_ms in self.model
            if largest_ms >= timestamp_ms and last >= start_offset
        ]
        assert self.segment.reader().offset_for_timestamp(timestamp_ms, start_offset) == (
            matches[0] if matches else None
        )

    @invariant()
    def state(self):
        if not hasattr(self, "folder"):
            return
        assert self.segment.size_bytes == sum(len(batch[0]) for batch in self.model)
        assert self.segment.read_next_offset() == self.next_offset
        assert self.segment.largest_timestamp == self.largest()

    def largest(self):
        largest = TimestampOffset(-1, BASE)
        for _, _, last, timestamp_ms in self.model:
            if timestamp_ms > largest.timestamp_ms:
                largest = TimestampOffset(timestamp_ms, last)
        return largest

    def check_closed_files(self):
        stem = Path(self.folder, f"{BASE:020d}")
        log = b"".join(batch[0] for batch in self.model)
        assert stem.with_suffix(".log").read_bytes() == log
        places, position = {}, 0
        for batch, _, last, _ in self.model:
            places[position] = last
            position += len(batch)
        entries = list(struct.iter_unpack(">ii", stem.with_suffix(".index").read_bytes()))
        assert entries == sorted(set(entries))
        assert all(places[position] == BASE + relative for relative, position in entries)
        times = list(struct.iter_unpack(">qi", stem.with_suffix(".timeindex").read_bytes()))
        assert [t for t, _ in times] == sorted({t for t, _ in times})
        if self.largest().timestamp_ms >= 0:
            assert times[-1] == (self.largest().timestamp_ms, self.largest().offset - BASE)
        else:
            assert times == []


@pytest.mark.hypothesis
def test_a_segment_is_a_list_of_batches(make_batch):
    SegmentMachine.make_batch = staticmethod(make_batch)
    run_state_machine_as_test(SegmentMachine, settings=examples(60, stateful_step_count=25))
