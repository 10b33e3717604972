"""The n-th call of the operating system fails: an error that says so, a log that takes no more, and nothing lost."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import tempfile
from collections import Counter
from pathlib import Path

import pytest

from storage_core import FileSystem, LogDirectory
from storage_core.errors import LogClosedError, LogFailedError, SegmentLogError, StorageError
from tests.damage.campaign import fast_folder
from tests.descriptors import open_below
from tests.faults.counting import cases
from tests.faults.crash_points import new_filesystem, open_directory
from tests.faults.faulty_filesystem import FAULTS, INVISIBLE, Fault, FaultyCalls
from tests.faults.session import CONFIG, TOPIC, Session, StillClock, records_of, table_of

SIZES = (20, 700, 90, 3, 300)


def appends(session):
    for number in range(8):
        session.append(SIZES[number % 5], 40, acks=(1, -1)[number % 2])
    session.flush()


def rolls(session):
    for _ in range(3):
        session.append(50, acks="all")
        session.roll()


def truncations(session):
    session.truncate_to(9)
    session.append(5, acks="all")
    session.truncate_fully_and_start_at(5)
    session.append(5, acks="all")


def deletions(session):
    session.delete_records(13)
    session.append(5, acks="all")


def closes(session):
    session.append(50)
    session.close()


def opens(session):
    session.close()
    session.open()
    session.append(50, acks="all")


WORKLOADS = [appends, rolls, truncations, deletions, closes, opens]


@contextlib.contextmanager
def prepared():
    """Yield a real log directory with some segments, open."""
    with tempfile.TemporaryDirectory(dir=fast_folder(), prefix="segmentlog-faults-") as root:
        session = Session(FileSystem(), root=root).open()
        for number in range(8):
            session.append(SIZES[number % 5], 200, acks=-1)
        yield session
        with contextlib.suppress(SegmentLogError):
            session.logs.close()


def check_afterwards(session, expectation, name):
    """Check that the log directory can be opened, and holds what was acknowledged."""
    with LogDirectory.open(session.root, config=CONFIG, clock=StillClock()) as logs:
        log = logs.get(TOPIC, 0)
        found = records_of(log)
        assert expectation.problems(found, log.log_start_offset, log.log_end_offset) == [], name
        end_offset = log.log_end_offset
        log.append(table_of([b"999999:new"]), acks="all")
    with LogDirectory.open(session.root, read_only=True) as logs:
        assert records_of(logs.get(TOPIC, 0)) == [*found, (end_offset, b"999999:new")], name


def fail_once(workload, fault) -> str | None:
    """Run a workload with one fault; say what came of it, or None if it was over before."""
    with prepared() as session:
        name = f"{workload.__name__}, {fault}"
        error = None
        with FaultyCalls(fault) as calls:
            try:
                workload(session)
            except SegmentLogError as caught:
                error = caught
        if calls.happened is None:
            assert error is None
            return None
        name = f"{name}: {calls.happened}"
        if error is None:
            outcome = "worked"
        else:
            assert fault.error_number not in INVISIBLE, name
            assert os.strerror(fault.error_number) in str(error), f"{name}: {error}"
            assert session.root in str(error), f"{name}: {error}"
            outcome = refuses_more(session, name)
        expectation = session.model.after_kill()
        # A log that failed can be closed; that it did so cleanly is not said.
        with contextlib.suppress(StorageError):
            session.logs.close()
        if outcome == "failed":
            assert not (Path(session.root) / ".kafka_cleanshutdown").exists(), name
        check_afterwards(session, expectation, name)
        assert open_below(session.root) == [], name
    return outcome


def refuses_more(session, name) -> str:
    """After a failed write nothing more is written; if nothing was begun, the log continues."""
    records = session.model.records
    try:
        session.append(1, acks="all")
    except LogFailedError:
        return "failed"
    except LogClosedError:
        return "closed"
    assert len(session.model.records) == len(records) + 1, name
    return "went on"


@pytest.mark.cases(2, 8)
@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize("kind", FAULTS)
def test_each_call_fails(workload, kind, record_property):
    error_number, is_lasting = FAULTS[kind]
    outcomes: Counter[str] = Counter()
    number = 1
    while outcome := fail_once(workload, Fault(error_number, number, is_lasting)):
        outcomes[outcome] += 1
        number += 1
    record_property(cases("The n-th call fails"), number - 1)
    assert number > 2, "nothing failed"
    if error_number in INVISIBLE:
        assert set(outcomes) == {"worked"}
    else:
        assert outcomes["failed"] + outcomes["closed"] > 0


@pytest.mark.parametrize("seed", range(4))
def test_a_close_that_cannot_flush_leaves_no_marker(seed):
    filesystem = new_filesystem()
    session = Session(filesystem).open()
    session.append(100, acks="all")
    session.append(100)
    expectation = session.model.after_power_cut()
    filesystem.fail = lambda call: OSError(errno.EIO, "I/O error") if call.name == "flush" else None
    with pytest.raises(StorageError):
        session.logs.close()
    filesystem.fail = None
    assert not [path for path in filesystem.files() if path.endswith(".kafka_cleanshutdown")]
    # The lock is given back all the same.
    with open_directory(filesystem) as logs:
        assert records_of(logs.get(TOPIC, 0)) == session.model.records
    with open_directory(filesystem.crash(random.Random(seed))) as logs:
        log = logs.get(TOPIC, 0)
        assert expectation.problems(records_of(log), log.log_start_offset, log.log_end_offset) == []
