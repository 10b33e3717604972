"""The cleaner beside a reference that follows Kafka's rules record by record: the same files, pass after pass.

Compared are every field of every header, every record, the transaction index, which segments became one, the
checkpoint, and, of a batch that nothing was taken from, its bytes.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from storage_core import LogConfig, LogDirectory
from storage_core.log import CleanerConfig
from tests.compaction import reference_cleaner
from tests.compaction.plain_batches import PlainSegment, encode, read_segments
from tests.compaction.random_logs import ACTIONS, START_MS, LogWriter
from tests.compaction.reference_cleaner import Cleaned, LastRecord, Rules
from tests.damage.campaign import fast_folder
from tests.examples import examples
from tests.faults.counting import cases
from tests.faults.soak import CAMPAIGN_SECONDS
from tests.log.logs import Clock

SLOT_BYTES = 24
TOPIC = "orders"

ROUNDS = st.lists(
    st.tuples(
        ACTIONS,
        # How much time passes, how far every replica is, and whether the process was started again.
        st.sampled_from([0, 10, 1_000, 2_000, 100_000_000]),
        st.sampled_from([1, 1, 1, 0.5]),
        st.sampled_from([False, False, True]),
        st.booleans(),
    ),
    min_size=1,
    max_size=4,
)
CONFIGURATIONS = st.fixed_dictionaries(
    {
        "internal_segment_bytes": st.sampled_from([1_200, 3_000, 100_000]),
        "delete_retention_ms": st.sampled_from([0, 1_000, 1_500, 86_400_000]),
        "min_compaction_lag_ms": st.sampled_from([0, 0, 0, 60]),
        "segment_index_bytes": st.sampled_from([48, 10_000]),
        "index_interval_bytes": st.sampled_from([0, 300]),
    }
)
SLOTS = st.sampled_from([2, 3, 5, 1_000, 1_000])


@dataclass
class Compared:
    """One log that is cleaned again and again, and what the reference says it becomes."""

    root: str
    config: LogConfig
    slots: int
    clock: Clock = field(default_factory=lambda: Clock(START_MS))
    writer: LogWriter = field(default_factory=LogWriter)
    outcomes: Counter[str] = field(default_factory=Counter)

    def open(self) -> None:
        self.logs = LogDirectory.open(self.root, config=self.config, clock=self.clock)
        self.log = self.logs.get_or_create(TOPIC)

    def reopen(self) -> None:
        self.logs.close()
        self.open()

    @property
    def rules(self) -> Rules:
        return Rules(
            self.config.delete_retention_ms,
            self.config.min_compaction_lag_ms,
            self.config.internal_segment_bytes,
            self.config.segment_index_bytes,
            int(self.slots * 0.9),
        )

    def write(self, actions, *, is_decided: bool) -> None:
        """Append what the actions say, and begin a new segment after it."""
        for action in actions:
            self.append(self.writer.batches(action))
            if action[0] == "roll":
                self.log.roll()
        if is_decided:
            self.append(self.writer.end_transactions(len(actions) % 2))
        self.log.roll()
        # Files are as old as their records.
        for segment in self.log.segment_base_offsets:
            seconds = self.writer.now_ms // 1_000
            os.utime(Path(self.log.path, f"{segment:020d}.log"), (seconds, seconds))

    def append(self, batches) -> None:
        for batch in batches:
            self.log.append_batches(encode([batch]))

    def expected(self) -> Cleaned | None:
        """Return what the reference makes of the files; None if there is nothing to clean."""
        segments, now_ms = self.segments(), self.clock.now_ms()
        dirty = reference_cleaner.dirty_range(
            segments,
            self.rules,
            checkpoint=self.checkpoint(),
            log_start_offset=self.log.log_start_offset,
            log_end_offset=self.log.log_end_offset,
            last_stable_offset=self.log.last_stable_offset,
            now_ms=now_ms,
        )
        if not reference_cleaner.cleanable_bytes(segments, dirty):
            return None
        last_records = {
            number: LastRecord(None if state.last_offset < 0 else state.last_offset, state.producer_epoch)
            for number, state in self.log._state.producers.producers.items()
        }
        return reference_cleaner.clean(segments, self.rules, dirty, last_records=last_records, now_ms=now_ms)

    def segments(self) -> list[PlainSegment]:
        return read_segments(self.log.path)

    def checkpoint(self) -> int | None:
        path = Path(self.root, "cleaner-offset-checkpoint")
        if not path.exists():
            return None
        offsets = [line.split() for line in path.read_text().splitlines()[2:]]
        return next((int(offset) for topic, _, offset in offsets if topic == TOPIC), None)

    def clean(self) -> None:
        """Run a pass, and check that the files are what the reference says."""
        before, expected, checkpoint = self.segments(), self.expected(), self.checkpoint()
        statistics = self.log.clean(
            CleanerConfig(dedupe_buffer_size=SLOT_BYTES * self.slots), now_ms=self.clock.now_ms()
        )
        if expected is None:
            self.outcomes["nothing to clean"] += 1
            assert statistics is None
            assert self.segments() == before
            assert self.checkpoint() in {checkpoint, self.log.log_start_offset}
            return
        self.outcomes["passes"] += 1
        assert statistics is not None
        assert_same(self.segments(), expected.segments)
        assert self.checkpoint() == expected.end_offset

    def check_readers(self) -> None:
        """Check that the open log, the log opened again and the log that is only read show the same records."""
        expected = [
            (record.offset, record.key, record.value)
            for segment in self.segments()
            for batch in segment.batches
            if not batch.is_control
            for record in batch.records
        ]
        committed = records_of(self.log, isolation_level="read_committed")
        assert records_of(self.log) == expected
        with LogDirectory.open(self.root, read_only=True) as logs:
            assert records_of(logs.get(TOPIC, 0)) == expected
        self.reopen()
        assert records_of(self.log) == expected
        self.log.update_high_watermark(self.log.log_end_offset)
        assert records_of(self.log, isolation_level="read_committed")[: len(committed)] == committed


def assert_same(found: list[PlainSegment], expected: tuple[PlainSegment, ...]) -> None:
    assert [segment.base_offset for segment in found] == [segment.base_offset for segment in expected]
    for segment, wanted in zip(found, expected, strict=True):
        assert list(segment.batches) == list(wanted.batches)
        for batch, original in zip(segment.batches, wanted.batches, strict=True):
            assert original.raw is None or batch.raw == original.raw, "not the bytes that it had"
        assert segment.aborts == wanted.aborts
        assert segment.modified_ms == wanted.modified_ms


def records_of(log, **options):
    return [
        (record["offset"], record["key"], record["value"])
        for batch in log.read(columns=["offset", "key", "value"], **options)
        for record in batch.to_pylist()
    ]


def latest_values(log) -> dict[bytes, bytes]:
    """Return the last committed value of each key; of a deleted one, none."""
    last = {key: value for _, key, value in records_of(log, isolation_level="read_committed")}
    return {key: value for key, value in last.items() if key is not None and value is not None}


def compare(rounds, configuration, slots) -> Counter[str]:
    """Write and clean, as often as there are rounds."""
    config = LogConfig(cleanup_policy="compact", **configuration)
    with tempfile.TemporaryDirectory(dir=fast_folder(), prefix="segmentlog-clean-") as root:
        compared = Compared(root, config, slots)
        compared.open()
        try:
            for actions, passed_ms, share, is_reopened, is_decided in rounds:
                compared.write(actions, is_decided=is_decided)
                compared.clock.time_ms += passed_ms
                compared.writer.now_ms += passed_ms
                if is_reopened:
                    compared.reopen()
                compared.log.update_high_watermark(round(share * compared.log.log_end_offset))
                values = latest_values(compared.log)
                compared.clean()
                assert latest_values(compared.log) == values
            compared.check_readers()
        finally:
            compared.logs.close()
        return compared.outcomes


def test_every_pass_equals_the_reference(record_property):
    outcomes: Counter[str] = Counter()

    @examples(120)
    @given(ROUNDS, CONFIGURATIONS, SLOTS)
    def run(rounds, configuration, slots):
        outcomes.update(compare(rounds, configuration, slots))

    run()
    record_property(cases("Passes of the cleaner beside a reference"), outcomes["passes"])
    assert outcomes["passes"] > outcomes["nothing to clean"] / 2


@pytest.mark.soak
@settings(max_examples=max(100, round(CAMPAIGN_SECONDS * 5)))
@given(ROUNDS, CONFIGURATIONS, SLOTS)
def test_every_pass_equals_the_reference_for_a_long_time(rounds, configuration, slots):
    for outcome in compare(rounds, configuration, slots):
        event(outcome)
