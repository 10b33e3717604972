"""A state machine of producers: they append, retry, leave gaps, and run transactions, next to a model.

`test_state_machine` extends it to the whole life of a log.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import ClassVar

import pyarrow as pa
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from storage_core import Log, LogConfig, ProducerSequence
from storage_core.errors import InvalidProducerEpochError, InvalidTxnStateError, OutOfOrderSequenceError
from tests.faults.life_model import LifeModel
from tests.faults.session import StillClock

PRODUCERS = st.integers(1, 3)
PAIRS = st.lists(
    st.tuples(st.sampled_from([b"a", b"b", b"c", b"d", b"e"]), st.sampled_from([0, 0, 30, 250, None])),
    min_size=1,
    max_size=3,
)
ACKS = st.sampled_from([1, 1, -1])
SHARES = st.floats(0, 1)

has_producers = precondition(lambda self: self.model.producers())


class ProducersMachine(RuleBasedStateMachine):
    """Rules for producers.

    Attributes:
        done: How often each outcome happened, over all machines.
    """

    done: ClassVar[Counter[str]] = Counter()

    config: LogConfig
    clock: StillClock
    log: Log
    model: LifeModel
    number: int

    # -- Records --------

    def pairs(self, drawn):
        """Keys and values; values are unique."""
        made = []
        for key, size in drawn:
            made.append((key, None if size is None else b"%d:%s" % (self.number, b"v" * size)))
            self.number += 1
        return made

    def table(self, pairs):
        keys, values = zip(*pairs, strict=True)
        times = pa.array([self.clock.now_ms()] * len(pairs), pa.timestamp("ms"))
        return pa.table(
            {"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary()), "timestamp": times}
        )

    def append_of(self, number, epoch, sequence, pairs, **options):
        return self.log.append(
            self.table(pairs), producer=ProducerSequence(number, epoch, sequence), **options
        )

    def acknowledged(self, acks=1):
        self.model.written(flushed=acks == -1)

    @rule(drawn=st.lists(PAIRS, min_size=1, max_size=6), acks=ACKS)
    def append(self, drawn, acks):
        for each in drawn:
            pairs = self.pairs(each)
            entry = self.model.append(pairs)
            info = self.log.append(self.table(pairs), acks=acks)
            assert (info.first_offset, info.last_offset) == (entry.first, entry.last)
        self.acknowledged(acks)

    # -- Producers --------

    def state_of(self, number):
        """Return the epoch and the next sequence of a producer; a new epoch if the old one may be forgotten."""
        known = self.model.producers().get(number)
        if known is None:
            return 0, 0
        if number in self.model.uncertain:
            return known.epoch + 1, 0
        return known.epoch, known.next_sequence

    def is_known(self, number):
        return number in self.model.producers() and number not in self.model.uncertain

    @rule(
        number=PRODUCERS,
        drawn=st.lists(PAIRS, min_size=1, max_size=7),
        acks=ACKS,
        is_transactional=st.booleans(),
        is_restarted=st.booleans(),
    )
    def produce(self, number, drawn, acks, is_transactional, is_restarted):
        for index, each in enumerate(drawn):
            self.produce_one(number, each, acks, is_transactional, is_restarted and not index)

    def produce_one(self, number, drawn, acks, is_transactional, is_restarted):
        epoch, sequence = self.state_of(number)
        is_open = number in self.model.open_transactions()
        if is_restarted and not is_open:
            epoch, sequence = epoch + 1, 0
        is_transactional |= is_open
        pairs = self.pairs(drawn)
        info = self.append_of(number, epoch, sequence, pairs, acks=acks, is_transactional=is_transactional)
        entry = self.model.append(
            pairs, producer=number, epoch=epoch, first_sequence=sequence, is_transactional=is_transactional
        )
        assert (info.first_offset, info.last_offset) == (entry.first, entry.last)
        assert not info.is_duplicate
        self.model.uncertain.discard(number)
        self.acknowledged(acks)
        self.done["transactional" if is_transactional else "idempotent"] += 1

    @has_producers
    @rule(number=PRODUCERS, back=st.integers(1, 5))
    def repeat(self, number, back):
        """Repeat a batch: one that a producer retries is stored once."""
        if not self.is_known(number):
            return
        known = self.model.producers()[number]
        back = min(back, len(known.recent))
        if not back:
            return
        first_sequence, last_sequence, first, last = known.recent[-back]
        pairs = [(b"again", b"again")] * (last_sequence - first_sequence + 1)
        is_remembered = back == 1 or first >= self.model.remembered_from
        try:
            info = self.append_of(
                number, known.epoch, first_sequence, pairs, is_transactional=known.open_from is not None
            )
        except OutOfOrderSequenceError:
            assert not is_remembered
        else:
            assert info.is_duplicate
            assert (info.first_offset, info.last_offset) == (first, last)
            self.done["duplicates"] += 1

    @has_producers
    @rule(number=PRODUCERS, ahead=st.integers(1, 3), is_next_epoch=st.booleans())
    def leave_a_gap(self, number, ahead, is_next_epoch):
        if not self.is_known(number):
            return
        epoch, sequence = self.state_of(number)
        with pytest.raises(OutOfOrderSequenceError):
            self.append_of(
                number,
                epoch + is_next_epoch,
                ahead if is_next_epoch else sequence + ahead,
                [(b"a", b"gap")],
                is_transactional=number in self.model.open_transactions(),
            )
        self.done["gaps"] += 1

    @has_producers
    @rule(number=PRODUCERS)
    def be_fenced(self, number):
        epoch, sequence = self.state_of(number)
        if not self.is_known(number) or epoch == 0:
            return
        with pytest.raises(InvalidProducerEpochError):
            self.append_of(number, epoch - 1, sequence, [(b"a", b"fenced")], is_transactional=True)
        if number in self.model.open_transactions():
            with pytest.raises(InvalidProducerEpochError):
                self.log.end_transaction(number, epoch - 1, is_abort=False)
        self.done["fenced"] += 1

    # -- Transactions --------

    @precondition(lambda self: self.model.open_transactions())
    @rule(is_abort=st.booleans(), share=SHARES, flush=st.booleans())
    def end(self, is_abort, share, flush):
        open_ones = sorted(self.model.open_transactions())
        number = open_ones[round(share * (len(open_ones) - 1))]
        epoch = self.model.producers()[number].epoch
        self.log.end_transaction(number, epoch, is_abort=is_abort, flush=flush)
        self.model.end_transaction(number, epoch, is_abort=is_abort)
        self.acknowledged(-1 if flush else 1)
        self.done["aborts" if is_abort else "commits"] += 1

    @precondition(lambda self: self.model.open_transactions())
    @rule(share=SHARES)
    def write_outside_of_a_transaction(self, share):
        open_ones = sorted(self.model.open_transactions())
        number = open_ones[round(share * (len(open_ones) - 1))]
        if number in self.model.uncertain:
            return
        with pytest.raises(InvalidTxnStateError):
            self.append_of(number, *self.state_of(number), [(b"a", b"outside")])

    @precondition(lambda self: self.model.open_transactions())
    @rule(share=SHARES)
    def abort_a_hanging_transaction(self, share):
        open_ones = sorted(self.model.open_transactions())
        number = open_ones[round(share * (len(open_ones) - 1))]
        self.log.abort_transaction(number)
        # The marker fences any producer that returns with this id.
        self.model.end_transaction(number, self.model.producers()[number].epoch + 1, is_abort=True)
        self.acknowledged()
        self.done["given up"] += 1

    @rule(drawn=st.lists(PAIRS, min_size=0, max_size=3), fails=st.booleans(), flush=st.booleans())
    def run_a_transaction(self, drawn, fails, flush):
        """Run a transaction as a program does that manages nothing but its records."""
        entries = []
        with contextlib.suppress(KeyError), self.log.transaction(7, flush=flush) as transaction:
            if 7 in self.model.open_transactions():
                # A power cut removed the marker of the previous transaction.
                self.model.end_transaction(7, self.model.producers()[7].epoch + 1, is_abort=True)
            known = self.model.producers().get(7)
            for each in drawn:
                pairs, sequence = self.pairs(each), sum(len(entry.records) for entry in entries)
                transaction.append(self.table(pairs))
                entry = self.model.append(
                    pairs, producer=7, epoch=transaction.producer_epoch, first_sequence=sequence, is_transactional=True
                )  # fmt: skip
                entries.append(entry)
            # A program that fails aborts.
            {}[None] if fails else None
        if entries:
            epoch = transaction.producer_epoch
            assert known is None or 7 in self.model.uncertain or epoch >= known.epoch
            self.model.end_transaction(7, epoch + 1, is_abort=fails)
            self.model.uncertain.discard(7)
            self.acknowledged(-1 if flush else 1)
