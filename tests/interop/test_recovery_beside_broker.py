"""Our recovery against a broker's: each recovers its own copy of a killed broker's directory.

Recovery points are reset, except for a few that a case sets, so every segment is read. Some logs are damaged first
(`damaged_logs`), so that recovery must truncate, rebuild, rename or delete. Both close their logs cleanly before the
comparison.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

import storage_core
from storage_core import LogConfig, LogDirectory
from tests.interop.clients import ISOLATION_LEVELS, READ_UNCOMMITTED, assert_same_rows, rows_of
from tests.interop.damaged_logs import DAMAGED_LOGS
from tests.interop.dump_log_segments import complaints_about_indexes
from tests.interop.handed_over import CRASH_SETTINGS, CRASHED, CRASHED_AND_RECOVERED, SECOND, HandedOver
from tests.interop.partition_state import (
    PartitionState,
    leader_epochs_below,
    log_end_offset_of,
    state_of,
)
from tests.interop.placing import read_checkpoint
from tests.interop.produced import PRODUCED, TRANSACTIONS
from tests.interop.writing import config_of
from tests.interop.written_by_log import WRITTEN

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


# A broker keeps these batches although consumers stop there, or get them twice; we truncate (docs/compatibility.md).
CUT_BY_US = {"damaged-flipped-magic", "damaged-repeated-batch"}

# Damage that a crash alone can cause.
TORN = {"damaged-nothing", "damaged-torn", "damaged-torn-in-a-header", "damaged-zeros-after"}

# Without the source topic of DAMAGED_LOGS: its coordinator may end a transaction after the broker's recovery.
TOPICS = (
    *(topic for topic in PRODUCED if topic != TRANSACTIONS),
    *DAMAGED_LOGS,
    *WRITTEN,
    *CRASHED_AND_RECOVERED,
    *CRASHED,
)
SAME = tuple(topic for topic in TOPICS if topic not in CUT_BY_US)

# Recovery truncates nothing, or only bytes that are no batch.
UNTOUCHED = {
    "damaged-nothing",
    "damaged-garbage-after",
    "damaged-zeros-after",
    "damaged-flipped-below-the-recovery-point",
    "damaged-recovery-point-at-a-base",
    "damaged-lost-indexes",
    "damaged-lost-index-below-the-recovery-point",
    "damaged-broken-indexes",
    "damaged-broken-transaction-index",
    "damaged-lost-transaction-index",
    "damaged-broken-snapshots",
    "damaged-broken-snapshot-at-the-recovery-point",
    "damaged-lost-snapshots",
    "damaged-stray-snapshots",
    "damaged-lost-epochs",
    "damaged-epochs-beyond-the-end",
    "damaged-left-over-files",
    "damaged-unfinished-split",
    "damaged-log-start-in-a-batch",
    "damaged-recovery-point-beyond-the-end",
    "damaged-unknown-files",
}


def config_for(topic: str) -> LogConfig:
    if topic in WRITTEN:
        return WRITTEN[topic].config
    if topic in DAMAGED_LOGS:
        return config_of(PRODUCED[TRANSACTIONS])
    return config_of(PRODUCED.get(topic, CRASH_SETTINGS))


@pytest.fixture(scope="module")
def recovered_by_us(handed_over: HandedOver, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("recovered") / "root"
    shutil.copytree(handed_over.killed, root)
    configs = {topic: config_for(topic) for topic in (*TOPICS, TRANSACTIONS)}
    with LogDirectory.open(root, recovery="kafka", broker_directory=True, config=configs):
        pass
    return root


@pytest.fixture(scope="module")
def recovered_by_default(handed_over: HandedOver, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Recover with ``recovery="tail"``, which rejects damage before the end of a log."""
    root = tmp_path_factory.mktemp("tails") / "root"
    refused = [f"{topic}-0" for topic in DAMAGED_LOGS if topic not in TORN]
    shutil.copytree(handed_over.killed, root, ignore=shutil.ignore_patterns(*refused))
    configs = {topic: config_for(topic) for topic in (*TOPICS, TRANSACTIONS)}
    with LogDirectory.open(root, broker_directory=True, config=configs):
        pass
    return root


@pytest.fixture
def states(
    handed_over: HandedOver, recovered_by_us: Path, topic: str
) -> tuple[PartitionState, PartitionState]:
    """Return one topic: our state and the broker's."""
    return state_of(recovered_by_us / f"{topic}-0"), state_of(handed_over.recovered / f"{topic}-0")


@pytest.mark.parametrize("topic", SAME)
def test_same_files(
    handed_over: HandedOver, recovered_by_us: Path, states: tuple[PartitionState, PartitionState], topic: str
) -> None:
    ours, theirs = states
    assert_same_contents(ours.logs, theirs.logs)
    assert_same_contents(ours.indexes, theirs.indexes)
    assert ours.others == theirs.others
    assert ours.snapshots == theirs.snapshots
    end = log_end_offset_of(theirs)
    assert leader_epochs_below(ours, end) == leader_epochs_below(theirs, end)
    assert handed_over.recovery.loaded()[topic, 0].log_end_offset == end
    assert handed_over.consumed[SECOND, READ_UNCOMMITTED][topic].end_offset == end
    assert read_checkpoint(recovered_by_us / "recovery-point-offset-checkpoint")[topic, 0] == end
    starts = (
        read_checkpoint(root / "log-start-offset-checkpoint").get((topic, 0))
        for root in (recovered_by_us, handed_over.recovered)
    )
    assert next(starts) == next(starts)


def assert_same_contents(ours: Mapping[str, bytes], theirs: Mapping[str, bytes]) -> None:
    """Compare files by name; a difference does not print all of their bytes."""
    assert sorted(ours) == sorted(theirs)
    for name, content in theirs.items():
        assert len(ours[name]) == len(content), name
        assert ours[name] == content, name


@pytest.mark.parametrize("isolation_level", ISOLATION_LEVELS)
@pytest.mark.parametrize("topic", [topic for topic in SAME if topic in {**PRODUCED, **DAMAGED_LOGS}])
def test_rows_of_our_recovery_are_those_of_the_brokers_consumer(
    handed_over: HandedOver, recovered_by_us: Path, topic: str, isolation_level: str
) -> None:
    consumed = handed_over.consumed[SECOND, isolation_level][topic]
    if topic == "damaged-flipped-below-the-recovery-point":
        assert consumed.error is not None
        return
    table = storage_core.read_table(
        str(recovered_by_us), subscribe=topic, isolation_level=isolation_level, include_headers=True
    )
    assert consumed.error is None
    assert_same_rows(rows_of(table), consumed.rows)


@pytest.mark.parametrize("topic", [topic for topic in SAME if topic not in DAMAGED_LOGS or topic in TORN])
def test_default_recovery_gives_the_same_after_a_crash(
    handed_over: HandedOver, recovered_by_default: Path, topic: str
) -> None:
    ours, theirs = (state_of(root / f"{topic}-0") for root in (recovered_by_default, handed_over.recovered))
    assert ours.logs == theirs.logs
    assert ours.indexes == theirs.indexes
    assert ours.snapshots == theirs.snapshots


@pytest.mark.parametrize("topic", sorted(CUT_BY_US))
def test_logs_that_only_we_truncate(states: tuple[PartitionState, PartitionState]) -> None:
    """Truncated at a batch boundary, and otherwise equal."""
    ours, theirs = states
    last = max(theirs.logs)
    assert {**ours.logs, last: b""} == {**theirs.logs, last: b""}
    assert theirs.logs[last].startswith(ours.logs[last])
    cut = theirs.logs[last][len(ours.logs[last]) :]
    assert cut
    # Either the magic is invalid, or the offset does not exceed the previous one.
    assert cut[16] > 2 or int.from_bytes(cut[:8], "big") < log_end_offset_of(ours)


@pytest.mark.parametrize("topic", DAMAGED_LOGS)
def test_the_broker_reported_the_damage(handed_over: HandedOver, topic: str) -> None:
    before = {
        path.name: path.read_bytes() for path in (handed_over.killed / f"{TRANSACTIONS}-0").glob("*.log")
    }
    after = state_of(handed_over.recovered / f"{topic}-0").logs
    if topic in UNTOUCHED - {"damaged-flipped-below-the-recovery-point"}:
        assert after == before
    else:
        assert after != before


def test_the_checks_of_good_logs_find_damage(handed_over: HandedOver) -> None:
    """The other tests take silence for success, of a start of the broker and of `DumpLogSegments`."""
    for way in ("torn", "flipped-in-the-middle", "lost-segment"):
        complaints = handed_over.recovery.complaints(f"damaged-{way}")
        assert complaints, way
    complaints = handed_over.recovery.complaints("damaged-nothing")
    assert complaints == []
    complaints = complaints_about_indexes([handed_over.killed / "damaged-broken-indexes-0"])
    assert complaints


def test_root_has_a_clean_shutdown_marker(recovered_by_us: Path) -> None:
    assert (recovered_by_us / ".kafka_cleanshutdown").exists()
