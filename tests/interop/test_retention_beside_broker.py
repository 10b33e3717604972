"""Our retention against a broker's: given the same closed directory, both delete the same segments."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from storage_core import LogDirectory
from tests.interop.aged import Aged, copy_root
from tests.interop.cleaner_log import Retained
from tests.interop.partition_state import leader_epochs_below, log_end_offset_of, state_of
from tests.interop.placing import read_checkpoint
from tests.interop.retained import EXACTLY, LOSING, ONE_MORE, RETAINED

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def retained_by_us(first_aged: Aged, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Our retention runs somewhat later than the broker's: every age is hours away from its limit."""
    root = tmp_path_factory.mktemp("retained") / "root"
    copy_root(first_aged.before, root)
    now_ms = first_aged.events[-1].began_ms
    with LogDirectory.open(root, broker_directory=True, config=first_aged.configs) as logs:
        removed = logs.apply_retention(now_ms)
        assert {topic for (topic, _), bases in removed.items() if bases} & RETAINED.keys() == LOSING
        again = logs.apply_retention(now_ms)
        assert not any(again.values())
    yield root
    shutil.rmtree(root)


def names_of_deleted(partition: Path) -> set[str]:
    return {path.name for path in partition.glob("*.deleted")}


def test_broker_deletes_the_expected_segments(first_aged: Aged) -> None:
    retained = {event.log[0] for event in first_aged.events if isinstance(event, Retained)}
    assert retained & RETAINED.keys() == LOSING
    kept = {
        topic: len(list((first_aged.by_broker / f"{topic}-0").glob("*.log")))
        - len(list((first_aged.before / f"{topic}-0").glob("*.log")))
        for topic in (EXACTLY, ONE_MORE)
    }
    assert kept == {EXACTLY: -1, ONE_MORE: 0}


@pytest.mark.parametrize("topic", RETAINED)
def test_same_files(first_aged: Aged, retained_by_us: Path, topic: str) -> None:
    roots = (retained_by_us, first_aged.by_broker)
    ours, theirs = (state_of(root / f"{topic}-0") for root in roots)
    assert ours.logs == theirs.logs
    assert ours.indexes == theirs.indexes
    assert ours.snapshots == theirs.snapshots
    assert ours.others == theirs.others
    end = log_end_offset_of(theirs) if topic != "retained-without-timestamps" else 0
    assert leader_epochs_below(ours, end) == leader_epochs_below(theirs, end)
    deleted = [names_of_deleted(root / f"{topic}-0") for root in roots]
    assert deleted[0] == deleted[1]


def test_same_log_starts(first_aged: Aged, retained_by_us: Path) -> None:
    ours, theirs = (
        {
            topic: offset
            for (topic, _), offset in read_checkpoint(root / "log-start-offset-checkpoint").items()
            if topic in RETAINED
        }
        for root in (retained_by_us, first_aged.by_broker)
    )
    assert ours == theirs
