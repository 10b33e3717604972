"""Anything, in any order: a log does what a list would do, and survives crashes in between."""

from __future__ import annotations

import contextlib
import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from storage_core.errors import OffsetOutOfRangeError, RecordBatchTooLargeError, RecoveryWouldDiscardError
from tests.faults.counting import cases
from tests.faults.crash_points import new_filesystem
from tests.faults.session import Session, records_of, timestamp_of
from tests.faults.soak import SOAK_SECONDS
from tests.faults.valid_batches import loses_valid_batches

EXAMPLES = 200
STEPS = 40
SIZES = st.lists(st.sampled_from([0, 5, 60, 300, 700]), min_size=1, max_size=3)


class LogMachine(RuleBasedStateMachine):
    """A log on a simulated file system beside its model."""

    # Of all machines.
    steps = 0

    @initialize()
    def create(self):
        self.session = Session(new_filesystem()).open()

    # -- What a program does --------

    @rule(batches=st.lists(SIZES, min_size=1, max_size=8), acks=st.sampled_from([1, 1, -1]))
    def append(self, batches, acks):
        for sizes in batches:
            # Records of one append are one batch here, which has to fit a segment.
            is_large = sum(sizes) > 1_300
            with contextlib.suppress(RecordBatchTooLargeError) if is_large else contextlib.nullcontext():
                self.session.append(*sizes, acks=acks)

    @rule()
    def flush(self):
        self.session.flush()

    @rule()
    def roll(self):
        self.session.roll()

    @rule(share=st.floats(0, 1))
    def truncate_to(self, share):
        model = self.session.model
        # Rather a little than nearly all, so that logs grow.
        kept = 1 - share * share
        self.session.truncate_to(model.start_offset + round(kept * (model.end_offset - model.start_offset)))

    @precondition(lambda self: len(self.session.model.records) > 15)
    @rule(offset=st.integers(0, 200))
    def truncate_fully_and_start_at(self, offset):
        self.session.truncate_fully_and_start_at(offset)

    @rule(share=st.floats(0, 1))
    def delete_records(self, share):
        model = self.session.model
        self.session.delete_records(
            model.start_offset + round(share * (model.end_offset - model.start_offset))
        )

    @rule(beyond=st.integers(1, 3))
    def delete_records_behind_the_end(self, beyond):
        with pytest.raises(OffsetOutOfRangeError):
            self.session.log.delete_records(self.session.model.end_offset + beyond)

    @rule()
    def reopen(self):
        self.session.reopen()

    # -- What may happen to it --------

    @rule(seed=st.integers(0, 2**32), recovery=st.sampled_from(["tail", "kafka"]))
    def lose_power(self, seed, recovery):
        model, filesystem = self.session.model, self.session.filesystem
        self.recover(
            filesystem.crash(random.Random(seed)), model.after_power_cut(), recovery, is_on_disk=True
        )

    @rule(recovery=st.sampled_from(["tail", "kafka"]))
    def be_killed(self, recovery):
        model, filesystem = self.session.model, self.session.filesystem
        self.recover(filesystem.kill(), model.after_kill(), recovery, is_on_disk=False)

    def recover(self, filesystem, expectation, recovery, *, is_on_disk):
        on_disk = self.session.model.after_power_cut()
        session = Session(
            filesystem, model=self.session.model, recovery=recovery, first_number=self.session.number
        )
        before = filesystem.files()
        try:
            session.open()
        except RecoveryWouldDiscardError:
            assert recovery == "tail"
            assert loses_valid_batches(before)
            session.recovery = "kafka"
            session.open()
        session.recovery = "tail"
        log = session.log
        found = records_of(log)
        problems = expectation.problems(found, log.log_start_offset, log.log_end_offset)
        assert problems == [], "; ".join(problems)
        session.model.adopt(found, log.log_start_offset, log.log_end_offset, on_disk, is_on_disk=is_on_disk)
        self.session = session

    # -- What a reader sees --------

    @rule(share=st.floats(0, 1), length=st.integers(0, 5))
    def read(self, share, length):
        model, log = self.session.model, self.session.log
        start = model.start_offset + round(share * (model.end_offset - model.start_offset))
        end = min(start + length, model.end_offset)
        expected = [pair for pair in model.records if start <= pair[0] < end]
        assert records_of(log, start_offset=start, end_offset=end) == expected

    @precondition(lambda self: self.session.model.records)
    @rule(share=st.floats(0, 1), less_ms=st.integers(0, 10))
    def look_up_a_timestamp(self, share, less_ms):
        records = self.session.model.records
        _, value = records[round(share * (len(records) - 1))]
        timestamp_ms = timestamp_of(value) - less_ms
        expected = next(
            (timestamp_of(each), offset) for offset, each in records if timestamp_of(each) >= timestamp_ms
        )
        answer = self.session.log.offset_for_timestamp(timestamp_ms)
        if answer is None and self.has_empty_segment():
            # It counts with the time when its file was changed, as in a broker, and hides those after it.
            return
        assert (answer.timestamp_ms, answer.offset) == expected

    def has_empty_segment(self):
        files = self.session.filesystem.files()
        return any(path.endswith(".log") and not content for path, content in files.items())

    @rule()
    def look_up_a_timestamp_in_the_future(self):
        assert self.session.log.offset_for_timestamp(timestamp_of(b"9999999:")) is None

    @rule()
    def read_what_the_files_say(self):
        """Another reader sees the same."""
        self.session.check()

    @invariant()
    def ends_agree(self):
        if hasattr(self, "session"):
            LogMachine.steps += 1
            log, model = self.session.log, self.session.model
            assert (log.log_start_offset, log.log_end_offset) == (model.start_offset, model.end_offset)
            assert log.log_start_offset <= log.high_watermark <= log.log_end_offset
            assert log.recovery_point <= log.log_end_offset


def test_log_machine(record_property):
    LogMachine.steps = 0
    run_state_machine_as_test(
        LogMachine,
        settings=settings(max_examples=EXAMPLES, stateful_step_count=STEPS),
    )
    record_property(
        cases("Steps of random programs beside a model, with crashes in between"), LogMachine.steps
    )
    assert LogMachine.steps > 1_000


@pytest.mark.soak
def test_log_machine_for_a_long_time():
    examples = max(100, round(SOAK_SECONDS * 2))
    run_state_machine_as_test(LogMachine, settings=settings(max_examples=examples, stateful_step_count=60))
