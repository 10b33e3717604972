"""`segmentlog verify` on 500 damaged copies of brokers' directories, judged without a broker.

Damage that changes a row of a read, or what this package's own recovery makes of the log, is found.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
from pathlib import Path

import pyarrow.compute as pc
import pytest

from storage_core import LogDirectory, read_table
from storage_core.errors import SegmentLogError
from tests.damage.base_log import write_files
from tests.damage.broker_logs import broker_logs
from tests.damage.campaign import fast_folder
from tests.damage.observation import Observation
from tests.damage.reads import Read
from tests.damage.unprovable import unprovable_kinds
from tests.damage.verified_copies import draw_copy, undamaged_copies, verified

LOGS = broker_logs()
COPIES_PER_LOG = 21
# `make test` checks the first ones.
PARTS = [range(1), pytest.param(range(1, COPIES_PER_LOG), marks=pytest.mark.thorough)]


@pytest.fixture(autouse=True)
def _quiet(caplog):
    # A line for each damaged range.
    caplog.set_level(logging.CRITICAL, "storage_core")


@pytest.fixture
def folder():
    """Return a folder, in memory if possible: thousands of files are written."""
    path = Path(tempfile.mkdtemp(prefix="segmentlog-verify-", dir=fast_folder()))
    yield path
    shutil.rmtree(path)


def rows_of(root):
    """Return the rows of both isolation levels, or the error."""
    found = []
    for isolation_level in ("read_uncommitted", "read_committed"):
        try:
            table = read_table(
                root,
                subscribe_pattern=".*",
                mode="PERMISSIVE",
                include_headers=True,
                isolation_level=isolation_level,
            )
        except SegmentLogError as error:
            found.append(type(error))
        else:
            found.append(table.filter(pc.is_null(table["_corrupt_record"])).to_pylist())
    return found


def recovered_sizes(root):
    """Return the sizes of the log files after a recovery by Kafka's rules; the error if it refuses."""
    try:
        LogDirectory.open(root, recovery="kafka", broker_directory=True).close()
    except SegmentLogError as error:
        return type(error)
    return sizes_of(root)


def sizes_of(root):
    return {str(path.relative_to(root)): path.stat().st_size for path in root.rglob("*.log")}


def is_silent(report):
    return all(finding.severity == "note" for finding in report.findings)


def leaves_no_trace(copy):
    """Return whether batches are gone with all their bytes, in a log that may have gaps: no one can tell."""
    seen = Observation(copy.log, "", list(copy.mutations), copy.files, Read(), None)
    return "gap" in unprovable_kinds(seen)


@pytest.mark.cases(3, 8)
@pytest.mark.parametrize("name", LOGS)
@pytest.mark.parametrize("numbers", PARTS, ids=str)
def test_damage_that_changes_a_row_or_a_recovery_is_found(folder, name, numbers):
    log, root = LOGS[name], folder / "logs"
    write_files(root, log.files, log.modified_ms)
    before = rows_of(root)
    failures = []
    for number in numbers:
        copy = draw_copy(log, number)
        shutil.rmtree(root)
        copy.write(root)
        report, rows, sizes = verified(root), rows_of(root), sizes_of(root)
        is_noticed = rows != before or recovered_sizes(root) != sizes
        if is_noticed and is_silent(report) and not leaves_no_trace(copy):
            failures.append(copy.text())
    assert failures == [], "\n\n".join(failures)


def test_sound_directories_are_not_called_damaged(folder):
    for copy in undamaged_copies():
        root = folder / "logs"
        shutil.rmtree(root, ignore_errors=True)
        copy.write(root)
        # Of that one, the end of the log was cut off below its high watermark.
        expected = {"damage"} if copy.log.name.startswith("torn-tail") else {"sound", "unclean"}
        assert {each.verdict for each in verified(root).partitions} <= expected, copy.text()
