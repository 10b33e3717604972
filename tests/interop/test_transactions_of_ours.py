"""Transactions and idempotent appends of `storage_core`, as a broker and its clients see them."""

from __future__ import annotations

import re

import pytest

import storage_core
from storage_core import LogDirectory
from tests.interop.clients import (
    ISOLATION_LEVELS,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    Row,
    assert_same_rows,
    rows_of,
)
from tests.interop.partition_state import log_end_offset_of, state_of
from tests.interop.raw_produce import OUT_OF_ORDER, Answer
from tests.interop.transaction_cases import HANGING, IDEMPOTENT, OUR_PRODUCER, TOPICS
from tests.interop.transactions_of_ours import CONTINUED_BY_US, KEPT_PRODUCER, OPEN_OF_A_PRODUCER, Transacted

WRITTEN = (*TOPICS, CONTINUED_BY_US, KEPT_PRODUCER, OPEN_OF_A_PRODUCER)


def expected_rows(transacted: Transacted, topic: str, isolation_level: str) -> list[Row]:
    written = transacted.written[topic]
    if isolation_level == READ_UNCOMMITTED:
        return written.rows
    # Nothing is stable from the first record of an open transaction on.
    end = 7 if topic == HANGING else written.rows[-1].offset + 1
    return [row for row in written.rows if row.offset not in written.hidden and row.offset < end]


def test_broker_loads_them_without_a_warning(transacted: Transacted) -> None:
    assert transacted.start.skipped_recovery
    assert {topic for topic, _ in transacted.start.loaded()} >= set(WRITTEN)
    assert not transacted.start.unusual()
    assert not [line for topic in WRITTEN for line in transacted.start.complaints(topic)]


@pytest.mark.parametrize("isolation_level", ISOLATION_LEVELS)
@pytest.mark.parametrize("topic", WRITTEN)
def test_consumer_reads_the_records(transacted: Transacted, topic: str, isolation_level: str) -> None:
    consumed = transacted.consumed[isolation_level][topic]
    assert consumed.error is None
    assert_same_rows(consumed.rows, expected_rows(transacted, topic, isolation_level))


@pytest.mark.parametrize("topic", TOPICS)
def test_transactions_hide_something(transacted: Transacted, topic: str) -> None:
    written = transacted.written[topic]
    has_hidden = topic not in {"ours-empty-transaction", IDEMPOTENT}
    assert bool(written.hidden) == has_hidden
    assert len(expected_rows(transacted, topic, READ_COMMITTED)) > 0


@pytest.mark.parametrize("isolation_level", ISOLATION_LEVELS)
@pytest.mark.parametrize("topic", WRITTEN)
def test_we_read_the_same(transacted: Transacted, topic: str, isolation_level: str) -> None:
    table = storage_core.read_table(
        str(transacted.closed), subscribe=topic, isolation_level=isolation_level, include_headers=True
    )
    assert_same_rows(rows_of(table), transacted.consumed[isolation_level][topic].rows)


@pytest.mark.parametrize("topic", [IDEMPOTENT, CONTINUED_BY_US])
def test_idempotent_producer_continues(transacted: Transacted, topic: str) -> None:
    answers = {key: answer for key, answer in transacted.answers.items() if key[0] == topic}
    assert len(answers) == (3 if topic == IDEMPOTENT else 1)
    for answer in answers.values():
        entry = answer.entry
        assert answer.repeated == Answer(0, entry.last_offset - entry.offset_delta)
        assert answer.gap.error == OUT_OF_ORDER
        assert answer.next == Answer(0, answer.log_end_offset)


def test_producer_that_stayed_alive_continues(transacted: Transacted) -> None:
    assert transacted.kept_offsets == list(range(40, 60))


def test_kafkas_tool_finds_the_hanging_transaction(transacted: Transacted) -> None:
    found = re.findall(r"^(\S+)\s+(\d+)\s+(\d+)\s", transacted.found_hanging, re.MULTILINE)
    assert found == [(HANGING, "0", str(OUR_PRODUCER))]


def test_hanging_transaction_aborted_by_kafkas_tool_hides_only_its_records(
    transacted: Transacted,
) -> None:
    written = transacted.written[HANGING]
    stable = [row for row in written.rows if row.offset not in written.hidden]
    assert len(stable) > len(expected_rows(transacted, HANGING, READ_COMMITTED))
    assert_same_rows(transacted.consumed_after_abort[READ_COMMITTED].rows, stable)
    assert_same_rows(transacted.consumed_after_abort[READ_UNCOMMITTED].rows, written.rows)


def test_we_read_it_as_aborted(transacted: Transacted) -> None:
    consumed = transacted.consumed_after_abort[READ_COMMITTED]
    table = storage_core.read_table(
        str(transacted.used), subscribe=HANGING, isolation_level=READ_COMMITTED, include_headers=True
    )
    assert_same_rows(rows_of(table), consumed.rows)
    with LogDirectory.open(transacted.used, broker_directory=True) as logs:
        assert not logs.get(HANGING, 0).open_transactions()


@pytest.mark.parametrize("topic", WRITTEN)
def test_broker_rebuilds_our_state_files_from_every_batch(transacted: Transacted, topic: str) -> None:
    ours, theirs = (state_of(root / f"{topic}-0") for root in (transacted.closed, transacted.recovered))
    assert ours.logs == theirs.logs
    newest = f"{log_end_offset_of(ours):020d}.snapshot"
    assert ours.snapshots[newest] == theirs.snapshots[newest]
    assert {name: each for name, each in ours.indexes.items() if each and name.endswith(".txnindex")} == {
        name: each for name, each in theirs.indexes.items() if each and name.endswith(".txnindex")
    }
