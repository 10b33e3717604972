"""Records that a log numbers by offset and a producer by sequence: appended, repeated, refused, forgotten."""

from __future__ import annotations

import itertools

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core import LogDirectory, ProducerSequence, read_table
from storage_core.errors import (
    AppendError,
    InvalidProducerEpochError,
    InvalidTxnStateError,
    OutOfOrderSequenceError,
)
from tests.examples import examples
from tests.log.logs import crash, open_directory, small, table
from tests.log.producing import data, marker

LARGEST = 2147483647
DAY_MS = 86_400_000


@pytest.fixture
def root_path(tmp_path):
    """Return the directory of `logs`."""
    return tmp_path / "data"


def append(log, count=1, *, sequence=0, producer=7, epoch=0, **options):
    """Append records told by their numbers."""
    rows = [b"%d" % (sequence + number) for number in range(count)]
    return log.append(table(*rows), producer=ProducerSequence(producer, epoch, sequence), **options)


def test_what_a_batch_says_of_its_producer(log):
    append(log, 3, sequence=41, producer=4000, epoch=7)
    batch = log.fetch(0, 1 << 20).data
    # Attributes, last offset delta, two timestamps; producer id, epoch, sequence, count.
    assert batch[21:27].hex() == "000000000002"
    assert batch[43:61].hex() == "0000000000000fa000070000002900000003"


def test_a_large_table_is_numbered_from_batch_to_batch(logs):
    log = logs.create("many", 0, small(1 << 20, batch_size=0))
    info = append(log, 300, sequence=LARGEST - 99)
    assert (info.batch_count, info.first_offset, info.last_offset) == (300, 0, 299)
    metadata = [each for batch in log.read(include_metadata=True) for each in batch["_metadata"].to_pylist()]
    assert [each["sequence"] for each in metadata] == [
        *range(LARGEST - 99, LARGEST + 1), *range(200)
    ]  # fmt: skip
    # The first of them is not remembered any more.
    with pytest.raises(OutOfOrderSequenceError) as caught:
        append(log, 300, sequence=LARGEST - 99)
    assert caught.value.expected_sequence == 200
    assert append(log, 5, sequence=195).is_duplicate
    assert append(log, 2, sequence=200).first_offset == 300


@pytest.mark.parametrize("acks", [1, "all"])
@pytest.mark.parametrize("is_clean", [False, True])
def test_after_a_reopen_the_last_batch_is_known(log, logs, root_path, is_clean, acks):
    for sequence in range(3):
        append(log, 1, sequence=sequence, acks=acks)
    if is_clean:
        logs.close()
    else:
        crash(logs)
    with open_directory(root_path) as opened:
        log = opened.get("orders")
        again = append(log, 1, sequence=2)
        assert (again.is_duplicate, again.first_offset) == (True, 2)
        if is_clean:
            # The snapshot holds no more than the last one; a replay of the log finds all.
            with pytest.raises(OutOfOrderSequenceError) as caught:
                append(log, 1, sequence=1)
            assert caught.value.expected_sequence == 3
        assert append(log, 1, sequence=3).first_offset == 3


def test_who_was_silent_for_a_day_is_forgotten(log, clock):
    append(log, 3, sequence=0, epoch=5)
    clock.time_ms += DAY_MS - 1
    with pytest.raises(OutOfOrderSequenceError):
        append(log, 1, sequence=99, epoch=5)
    # What is due is looked at every ten minutes.
    clock.time_ms += 600_000
    assert append(log, 1, sequence=99, epoch=2).first_offset == 3


def test_what_a_leader_has_is_believed_and_gone_on_with(log):
    log.append_batches(data(0, 3, producer=7, sequence=10) + data(3, 2, producer=7, sequence=90))
    assert append(log, 2, sequence=90).is_duplicate
    assert append(log, 3, sequence=10).is_duplicate
    assert append(log, 1, sequence=92).first_offset == 5
    log.append_batches(marker(6, producer=7, epoch=3))
    with pytest.raises(InvalidProducerEpochError):
        append(log, 1, sequence=93)
    assert append(log, 1, sequence=0, epoch=3).first_offset == 7


# -- Beside a model --------


class Model:
    """What the rules say, in dictionaries."""

    def __init__(self, batch_records):
        self.batch_records = batch_records
        self.end_offset = 0
        self.epochs = {}
        self.last_sequences = {}
        self.batches = {}
        self.in_transaction = set()

    def append(self, producer, epoch, first, count, is_transactional):
        """Return the first offset, and whether the records were there; or the error."""
        numbers = [(first + number) % (LARGEST + 1) for number in range(count)]
        offset = self.place_of(producer, epoch, numbers)
        if offset is not None:
            return offset, True
        if producer in self.epochs:
            if epoch < self.epochs[producer]:
                return InvalidProducerEpochError
            last = self.last_sequences[producer] if epoch == self.epochs[producer] else None
            if first != (0 if last is None else (last + 1) % (LARGEST + 1)):
                return OutOfOrderSequenceError
        if producer in self.in_transaction and not is_transactional:
            return InvalidTxnStateError
        if self.epochs.get(producer) != epoch:
            self.batches[producer] = []
        self.epochs[producer], self.last_sequences[producer] = epoch, numbers[-1]
        offset = self.end_offset
        for start in range(0, count, self.batch_records):
            batch = numbers[start : start + self.batch_records]
            self.batches[producer] = [*self.batches[producer], (batch, offset + start)][-5:]
        if is_transactional:
            self.in_transaction.add(producer)
        self.end_offset += count
        return offset, False

    def place_of(self, producer, epoch, numbers):
        """Return the position of consecutive batches that hold exactly these."""
        kept = self.batches[producer] if self.epochs.get(producer) == epoch else []
        for start, end in itertools.combinations_with_replacement(range(len(kept)), 2):
            run = kept[start : end + 1]
            ends = [offset + len(batch) for batch, offset in run[:-1]]
            if [number for batch, _ in run for number in batch] == numbers and ends == [
                offset for _, offset in run[1:]
            ]:
                return run[0][1]
        return None

    def end(self, producer, epoch):
        if epoch < self.epochs.get(producer, 0):
            return InvalidProducerEpochError
        if self.epochs.get(producer) != epoch:
            self.batches[producer], self.last_sequences[producer] = [], None
        self.epochs[producer] = epoch
        self.in_transaction.discard(producer)
        self.end_offset += 1
        return self.end_offset - 1, False

    def close_cleanly(self):
        self.batches = {producer: kept[-1:] for producer, kept in self.batches.items()}


def outcome(act, *arguments, **options):
    try:
        info = act(*arguments, **options)
    except AppendError as error:
        return type(error)
    return info.first_offset, info.is_duplicate


STEPS = st.one_of(
    st.tuples(
        st.just("append"),
        st.integers(0, 2),
        st.sampled_from([0, 0, 0, 0, 0, 1, -1]),
        st.sampled_from(["next", "next", "next", "again", "again", "zero", "gap"]),
        st.integers(1, 7),
        st.sampled_from([False, False, True]),
    ),
    st.tuples(st.just("end"), st.integers(0, 2), st.sampled_from([0, 1, 1, -1])),
    st.tuples(st.just("roll")),
    st.tuples(st.just("reopen")),
)


@pytest.mark.parametrize("batch_records", [10, 1], ids=["one batch an append", "one record a batch"])
@examples(60)
@given(steps=st.lists(STEPS, max_size=40), first=st.sampled_from([0, LARGEST - 5]), data=st.data())
def test_any_order_of_producers_is_as_the_rules_say(tmp_path_factory, batch_records, steps, first, data):
    root = tmp_path_factory.mktemp("logs") / "data"
    config = small(2000, batch_size=0 if batch_records == 1 else 16384)
    model, history = Model(batch_records), {}
    logs = open_directory(root, config=config)
    log = logs.create("orders")
    for kind, *step in steps:
        if kind == "roll":
            log.roll()
            continue
        if kind == "reopen":
            logs.close()
            model.close_cleanly()
            logs = open_directory(root, config=config)
            log = logs.get("orders")
            continue
        producer, more = step[0], step[1]
        epoch = max(model.epochs.get(producer, 0) + more, 0)
        if kind == "end":
            expected = model.end(producer, epoch)
            found = outcome(log.end_transaction, producer, epoch, is_abort=False)
        else:
            which, count, is_transactional = step[2:]
            past = history.setdefault(producer, [])
            if which == "again" and past:
                sequence, count = data.draw(st.sampled_from(past[-7:]))
            else:
                last = model.last_sequences.get(producer, first - 1)
                following = 0 if last is None else (last + 1) % (LARGEST + 1)
                sequence = {"zero": 0, "gap": (following + 2) % (LARGEST + 1)}.get(which, following)
            past.append((sequence, count))
            options = {"epoch": epoch, "is_transactional": is_transactional}
            expected = model.append(producer, first=sequence, count=count, **options)
            found = outcome(append, log, count, producer=producer, sequence=sequence, **options)
        assert found == expected, (kind, step)
        assert log.log_end_offset == model.end_offset
        assert {each.producer_id for each in log.open_transactions()} == model.in_transaction
    logs.close()


@pytest.mark.cases(2, 5)
@pytest.mark.parametrize(
    "kind", [pa.binary_view(), pa.string_view(), pa.large_binary(), pa.large_string(), pa.binary()], ids=str
)
@pytest.mark.parametrize("name", ["key", "value"])
def test_large_columns_of_every_type_of_bytes(tmp_path, kind, name):
    """Above 64 MiB, lengths are looked at before anything is written."""
    column = pa.array(["x" * 1_000_000] * 70, pa.string()).cast(kind)
    columns = {"value": pa.nulls(70, pa.binary()), name: column}
    with LogDirectory.open(tmp_path / "logs") as logs:
        logs.create("t").append(pa.table(columns))
    found = read_table(tmp_path / "logs", columns=[name])[name]
    assert found.cast(pa.large_binary()).equals(pa.chunked_array([column]).cast(pa.large_binary()))
