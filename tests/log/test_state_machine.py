"""Anything that happens to a log in its life: producers, transactions, retention, compaction, crashes in between.

The clock goes on, the same keys come again, producers repeat themselves, and transactions are committed, aborted, or
left open.
"""

from __future__ import annotations

import contextlib
import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from storage_core import LogConfig, LogDirectory
from storage_core.errors import RecoveryWouldDiscardError
from storage_core.log import CleanerConfig
from tests.compaction.plain_batches import PlainBatch, batches_of
from tests.faults.counting import cases
from tests.faults.crash_points import new_filesystem
from tests.faults.life_model import LifeModel
from tests.faults.producers_machine import SHARES, ProducersMachine
from tests.faults.session import ROOT, TOPIC, StillClock
from tests.faults.simulated_filesystem import SimulatedCrash
from tests.faults.soak import CAMPAIGN_SECONDS
from tests.faults.valid_batches import loses_valid_batches

EXAMPLES = 150
STEPS = 50
PARTITION_PATH = f"{ROOT}/{TOPIC}-0"
DELETE_RETENTION_MS = 5_000
CONFIG = LogConfig(
    internal_segment_bytes=1_500,
    segment_index_bytes=240,
    index_interval_bytes=200,
    delete_retention_ms=DELETE_RETENTION_MS,
    segment_ms=10**12,
)
POLICIES = {
    "compact": {"cleanup_policy": "compact"},
    "delete": {"cleanup_policy": "delete", "retention_bytes": 5_000, "retention_ms": 60_000},
    "both": {"cleanup_policy": "compact,delete", "retention_ms": 30_000},
}
# Otherwise there would be little but the end of processes.
has_grown = precondition(lambda self: self.model.end_offset > self.model.remembered_from + 2)


class LifeMachine(ProducersMachine):
    """A log on a simulated file system beside its model."""

    @initialize(policy=st.sampled_from(sorted(POLICIES)))
    def create(self, policy):
        self.config = CONFIG.replace(**POLICIES[policy])
        self.clock, self.model, self.number = StillClock(), LifeModel(), 0
        self.filesystem = new_filesystem()
        self.open()

    def open(self, recovery="tail"):
        self.logs = LogDirectory.open(
            ROOT, filesystem=self.filesystem, recovery=recovery, config=self.config, clock=self.clock
        )
        self.log = self.logs.get_or_create(TOPIC)

    # -- What time takes --------

    @rule(seconds=st.sampled_from([1, 40]))
    def time_passes(self, seconds):
        self.clock.time_ms += 1_000 * seconds

    @rule(seconds=st.sampled_from([0, 70]))
    def wait_and_retain(self, seconds):
        self.time_passes(seconds)
        self.retain()

    def retain(self):
        expected = self.deletable()
        bases = self.log.segment_base_offsets
        assert self.log.apply_retention() == tuple(bases[:expected])
        if expected:
            start = (*bases[1:], self.model.end_offset)[expected - 1]
            self.model.start_offset = max(self.model.start_offset, start)
            self.done["segments deleted"] += expected

    def deletable(self):
        """Return how many of the oldest segments go, from what the files say."""
        config, files, end = self.config, self.filesystem.files(), self.model.end_offset
        bases = self.log.segment_base_offsets
        contents = [files[f"{PARTITION_PATH}/{base:020d}.log"] for base in bases]
        uppers = [*bases[1:], end]
        possible = sum(upper <= self.log.high_watermark for upper in uppers)
        if possible == len(bases) and not contents[-1]:
            possible -= 1
        count = min(possible, sum(base <= self.model.start_offset for base in bases[1:]))
        if "delete" not in config.cleanup_policy:
            return count
        if config.retention_bytes >= 0:
            excess = sum(map(len, contents)) - sum(map(len, contents[:count])) - config.retention_bytes
            while count < possible and excess >= len(contents[count]):
                excess -= len(contents[count])
                count += 1
        oldest_ms = self.clock.now_ms() - config.retention_ms
        while count < possible and self.largest_ms(bases[count], contents[count]) < oldest_ms:
            count += 1
        return count

    def largest_ms(self, base, content):
        largest = max((batch.max_timestamp_ms for batch in batches_of(content)), default=-1)
        return (
            largest
            if largest >= 0
            else self.filesystem.status(f"{PARTITION_PATH}/{base:020d}.log").modified_ms
        )

    @precondition(lambda self: self.config.is_compacted)
    @rule(is_rolled=st.booleans(), seconds=st.sampled_from([0, 6]))
    def clean(self, is_rolled, seconds):
        self.time_passes(seconds)
        if is_rolled:
            self.roll()
        self.retain()
        before = self.seen()
        statistics = self.log.clean(CleanerConfig(dedupe_buffer_size=2_400))
        if self.config.cleanup_policy != ("compact",):
            # What is left may be older than what was there.
            assert self.deletable() == 0
            assert self.log.log_start_offset in {self.model.start_offset, *self.log.segment_base_offsets}
            self.model.start_offset = self.log.log_start_offset
        found = self.seen()
        if statistics is None:
            assert found == before
            return
        problems = self.model.take_cleaned(
            dict(found), self.cleaned_end(), self.clock.now_ms(), DELETE_RETENTION_MS
        )
        assert problems == []
        self.done["passes"] += 1

    @precondition(lambda self: self.config.cleanup_policy == ("compact",))
    @rule(calls=st.integers(1, 60), seed=st.integers(0, 2**32), is_power_cut=st.booleans())
    def die_while_cleaning(self, calls, seed, is_power_cut):
        """Check that only some of what should have gone is gone."""
        self.roll()
        bound = min(self.log.last_stable_offset, self.log.segment_base_offsets[-1])
        self.filesystem.stop_at = self.filesystem.calls + calls
        with contextlib.suppress(SimulatedCrash):
            self.log.clean(CleanerConfig(dedupe_buffer_size=2_400))
        self.filesystem = (
            self.filesystem.crash(random.Random(seed)) if is_power_cut else self.filesystem.kill()
        )
        self.recover("tail", self.model.flushed_end)
        problems = self.model.take_cleaned(
            dict(self.seen()), bound, self.clock.now_ms(), DELETE_RETENTION_MS, is_complete=False
        )
        assert problems == []
        self.done["cleanings interrupted"] += 1

    def cleaned_end(self):
        text = self.filesystem.files()[f"{ROOT}/cleaner-offset-checkpoint"].decode()
        return int(text.splitlines()[2].split()[2])

    # -- What a program does --------

    @rule()
    def flush(self):
        self.log.flush()
        self.model.written(flushed=True)

    @rule()
    def roll(self):
        self.log.roll()
        self.model.written(flushed=True)

    @rule(share=SHARES)
    def delete_records(self, share):
        model = self.model
        offset = model.start_offset + round(share * share * (self.log.high_watermark - model.start_offset))
        self.log.delete_records(offset)
        model.start_offset = offset

    @rule(share=SHARES)
    def truncate(self, share):
        """Never below what was cleaned: who takes that back knows less of its producers than the log did."""
        model = self.model
        lowest = max(model.start_offset, model.cleaned_end)
        offset = model.end_offset - round(share * share * (model.end_offset - lowest))
        if offset < model.end_offset:
            self.log.truncate_to(offset)
            model.truncate_to(offset)
            self.distrust()

    @precondition(lambda self: len(self.model.entries) > 15)
    @rule(offset=st.integers(0, 200))
    def truncate_fully(self, offset):
        self.log.truncate_fully_and_start_at(offset)
        self.model.truncate_fully(offset)
        self.done["restarts"] += 1

    @has_grown
    @rule()
    def reopen(self):
        self.logs.close()
        self.model.written(flushed=True)
        self.open()
        self.take_over()

    # -- What may happen to it --------

    @has_grown
    @rule(seed=st.integers(0, 2**32), recovery=st.sampled_from(["tail", "kafka"]))
    def lose_power(self, seed, recovery):
        self.filesystem = self.filesystem.crash(random.Random(seed))
        self.recover(recovery, self.model.flushed_end)
        self.model.flushed_end = self.model.end_offset

    @has_grown
    @rule(recovery=st.sampled_from(["tail", "kafka"]))
    def be_killed(self, recovery):
        self.filesystem = self.filesystem.kill()
        self.recover(recovery, self.model.written_end)

    def recover(self, recovery, required_end):
        before = self.filesystem.files()
        try:
            self.open(recovery)
        except RecoveryWouldDiscardError:
            assert recovery == "tail"
            assert loses_valid_batches(before)
            self.open("kafka")
        assert self.model.end_problems(self.log.log_end_offset, required_end) == []
        self.take_over()
        self.done["crashes"] += 1

    def take_over(self):
        assert self.log.log_start_offset == self.model.start_offset
        self.model.taken_over(self.log.log_end_offset)
        # Also after a clean shutdown: a snapshot as of the log start is not believed, as in a broker.
        self.distrust()

    def distrust(self):
        """Allow that what no file tells of a producer is forgotten."""
        batches = [
            batch
            for path, content in self.filesystem.files().items()
            if path.endswith(".log") and path.startswith(PARTITION_PATH)
            for batch in batches_of(content)
            if batch.last_offset >= self.model.start_offset
        ]
        for number, known in self.model.producers().items():
            if not any(tells(batch, number, known) for batch in batches):
                self.model.uncertain.add(number)

    # -- What a reader sees --------

    def seen(self, **options):
        return [
            (row["offset"], (row["key"], row["value"]))
            for batch in self.log.read(columns=["offset", "key", "value"], **options)
            for row in batch.to_pylist()
        ]

    @rule()
    def read_everything(self):
        assert self.seen() == self.model.records()

    @rule()
    def read_what_is_committed(self):
        assert self.seen(isolation_level="read_committed") == self.model.committed(
            self.log.last_stable_offset
        )

    @invariant()
    def ends_agree(self):
        if not hasattr(self, "log"):
            return
        self.done["steps"] += 1
        log, model = self.log, self.model
        assert (log.log_start_offset, log.log_end_offset) == (model.start_offset, model.end_offset)
        found = {each.producer_id: each.first_offset for each in log.open_transactions()}
        assert model.check_open_transactions(found) == []
        assert log.last_stable_offset in model.last_stable_offsets(log.high_watermark)


def tells(batch: PlainBatch, number, known):
    """Return whether a batch says how far a producer is."""
    if (batch.producer_id, batch.producer_epoch) != (number, known.epoch):
        return False
    if known.recent:
        return not batch.is_control and batch.last_offset == known.recent[-1][3]
    return batch.is_control and bool(batch.records)


def test_a_crash_brings_back_a_transaction_that_a_truncation_made_the_log_forget():
    """A life that chance has found once."""
    life = LifeMachine()
    life.create(policy="compact")
    life.produce(
        number=3, drawn=[[(b"a", 0)], [(b"b", 0)]], acks=-1, is_transactional=True, is_restarted=False
    )
    life.delete_records(share=0.7)
    life.truncate(share=1.0)
    life.ends_agree()
    assert life.log.open_transactions() == ()
    life.append(drawn=[[(b"c", 30)]], acks=1)
    life.produce(number=3, drawn=[[(b"d", 0)]], acks=1, is_transactional=True, is_restarted=False)
    life.be_killed(recovery="tail")
    assert [each.first_offset for each in life.log.open_transactions()] == [0]
    life.ends_agree()
    life.read_what_is_committed()
    life.abort_a_hanging_transaction(share=0.0)
    life.ends_agree()
    life.read_what_is_committed()


def test_life_machine(record_property):
    LifeMachine.done.clear()
    run_state_machine_as_test(
        LifeMachine,
        settings=settings(max_examples=EXAMPLES, stateful_step_count=STEPS),
    )
    record_property(
        cases("Steps of random lives beside a model: producers, transactions, retention, cleaning, crashes"),
        LifeMachine.done["steps"],
    )
    expected = (
        "idempotent",
        "transactional",
        "duplicates",
        "gaps",
        "fenced",
        "commits",
        "aborts",
        "given up",
    )
    expected += ("passes", "segments deleted", "crashes", "cleanings interrupted", "restarts")
    assert min(LifeMachine.done[what] for what in expected) > 0, LifeMachine.done


@pytest.mark.soak
def test_life_machine_for_a_long_time():
    examples = max(100, round(CAMPAIGN_SECONDS * 2))
    run_state_machine_as_test(LifeMachine, settings=settings(max_examples=examples, stateful_step_count=80))
