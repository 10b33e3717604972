"""Both tiers of a broker are one log for reads, and recoveries of them serve brokers with and without tiered storage."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

import storage_core
from storage_core.options import options_of
from storage_core.recover.recover import recover
from storage_core.tier import open_file_system
from tests.interop.broker import KafkaBroker
from tests.interop.clients import (
    ISOLATION_LEVELS,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    assert_same_rows,
    consume,
    create_topics,
    log_offsets,
    rows_of,
    wait_until,
)
from tests.interop.placing import place
from tests.interop.produced import BROKER_SETTINGS
from tests.interop.tiered import DELETED, KEPT, OVERLAPPING, TIERED, tiered_settings

if TYPE_CHECKING:
    from pathlib import Path

    from storage_core.recover.recover import RecoveryReport
    from tests.interop.clients import Row
    from tests.interop.tiered import Tiered

_OF_TIERS = ("local_retention_bytes", "retention_bytes")
_PLACES = [(topic, 0) for topic in TIERED]


def expected(tiered: Tiered, isolation_level: str) -> list[Row]:
    return sorted(row for rows in tiered.rows[isolation_level].values() for row in rows)


def recovered(tiered: Tiered, target: Path, **options: object) -> RecoveryReport:
    parsed = options_of([str(tiered.log_directory)], options)
    return recover(open_file_system(parsed.storage), parsed, str(target), link=False)


@pytest.mark.parametrize("isolation_level", ISOLATION_LEVELS)
def test_a_read_of_both_halves_is_what_a_consumer_got(tiered, isolation_level):
    table = storage_core.read_table(
        tiered.log_directory,
        remote_storage=str(tiered.tier),
        subscribe=sorted(TIERED),
        isolation_level=isolation_level,
        include_headers=True,
    )
    assert_same_rows(sorted(rows_of(table)), expected(tiered, isolation_level))


def test_log_starts_are_the_brokers(tiered):
    explained = storage_core.explain(
        tiered.log_directory, remote_storage=str(tiered.tier), subscribe=sorted(TIERED)
    )
    found = {
        (each.topic, each.partition): (each.log_start_offset, each.log_end_offset)
        for each in explained.partitions
        if each.topic in TIERED
    }
    assert found == dict(tiered.offsets)
    remote = {each.topic: each.remote_segments for each in explained.partitions}
    assert (remote[KEPT], remote[OVERLAPPING] > 0, remote[DELETED] > 0) == (0, True, True)


def test_a_broker_without_tiered_storage_serves_what_was_recovered_of_both(tiered, tmp_path):
    target = tmp_path / "recovered"
    report = recovered(tiered, target, remote_storage=str(tiered.tier), subscribe=sorted(TIERED))
    assert [each.left_out for each in report.partitions if each.left_out] == []
    broker = KafkaBroker(tmp_path / "broker", BROKER_SETTINGS)
    settings = {
        topic: {name: value for name, value in given.items() if name not in _OF_TIERS}
        for topic, given in TIERED.items()
    }
    with broker:
        create_topics(broker, settings)
    for topic in TIERED:
        place(target, broker.log_directory, topic)
    with broker:
        for isolation_level in (READ_COMMITTED, READ_UNCOMMITTED):
            rows = consume(broker, TIERED, isolation_level)
            assert_same_rows(sorted(rows), expected(tiered, isolation_level))
        assert log_offsets(broker, _PLACES) == dict(tiered.offsets)


def knows_its_tier(broker: KafkaBroker) -> bool:
    """Return whether a broker has read where its remote segments are; until then, fetches of them fail."""
    log = broker.log_path.read_text(encoding="utf-8", errors="replace")
    return all(f":{topic}-0] Found the highest copiedRemoteOffset" in log for topic in TIERED)


def test_a_broker_with_tiered_storage_serves_both_after_a_recovery_of_the_local_half(tiered, tmp_path):
    target, tier = tmp_path / "recovered", tmp_path / "tier" / tiered.tier.name
    recovered(tiered, target)
    for name in ("log-start-offset-checkpoint", *(f"{topic}-0/leader-epoch-checkpoint" for topic in TIERED)):
        assert sorted((target / name).read_text().splitlines()) == sorted(
            (tiered.log_directory / name).read_text().splitlines()
        )
    shutil.copytree(tiered.tier, tier)
    segments = {path.name for path in tier.glob("*/*.log")}
    settings = {**BROKER_SETTINGS, **tiered_settings(tier.parent)}
    with KafkaBroker(tmp_path / "broker", settings, log_directory=target) as broker:
        wait_until(lambda: knows_its_tier(broker), "The broker did not learn where its remote segments are.")
        rows = consume(broker, TIERED, READ_UNCOMMITTED)
        assert_same_rows(sorted(rows), expected(tiered, READ_UNCOMMITTED))
        assert log_offsets(broker, _PLACES) == dict(tiered.offsets)
    assert segments <= {path.name for path in tier.glob("*/*.log")}
