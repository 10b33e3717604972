"""We read from a broker's directory what a consumer reads from the broker: running, stopped and killed."""

from __future__ import annotations

import pytest

import storage_core
from tests.interop.clients import ISOLATION_LEVELS, READ_COMMITTED, assert_same_rows, file_states, rows_of
from tests.interop.workload import BASE_TIMESTAMP_MS
from tests.interop.written import RUNNING, STATES, STOPPED, TOPICS, Written


@pytest.mark.parametrize("isolation_level", ISOLATION_LEVELS)
@pytest.mark.parametrize("topic", TOPICS)
@pytest.mark.parametrize("state", STATES)
def test_same_rows_as_consumer(written: Written, state: str, topic: str, isolation_level: str) -> None:
    table = storage_core.read_table(
        str(written.directories[state]),
        subscribe=topic,
        isolation_level=isolation_level,
        include_headers=True,
    )
    assert_same_rows(rows_of(table), written.consumed[state, topic, isolation_level])


def test_workload_covers_the_intended_cases(written: Written) -> None:
    def segments(topic: str) -> int:
        return len(list((written.directories[STOPPED] / f"{topic}-0").glob("*.log")))

    for topic in TOPICS:
        assert (segments(topic) > 1) == (topic != "never-written"), topic
    everything = written.consumed[RUNNING, "transactions", "read_uncommitted"]
    committed = written.consumed[RUNNING, "transactions", READ_COMMITTED]
    assert 0 < len(committed) < len(everything)
    timestamp_types = {
        row.timestamp_type for row in written.consumed[RUNNING, "log-append-time", READ_COMMITTED]
    }
    assert timestamp_types == {1}


def test_source_stays_unchanged(written: Written) -> None:
    directory = written.directories[STOPPED]
    before = file_states(directory)
    for isolation_level in ISOLATION_LEVELS:
        for use_indexes in (True, False):
            storage_core.read_table(
                str(directory), isolation_level=isolation_level, include_headers=True, use_indexes=use_indexes
            )
    storage_core.read_table(
        str(directory), starting_timestamp=BASE_TIMESTAMP_MS, starting_offsets_by_timestamp_strategy="latest"
    )
    assert file_states(directory) == before
