"""Where a log ends that a job, or a log directory that is opened, appends to: never where an index alone says."""

from __future__ import annotations

import struct

import pyarrow as pa
import pytest
from crc32c import crc32c

from storage_core import LogDirectory, read_table
from storage_core.checkpoint import read_leader_epoch_checkpoint
from storage_core.commit.partition_state import read_partition_state
from storage_core.filesystem import FileSystem
from storage_core.log.log_root import partitions_to_load
from storage_core.record.control_records import empty_batch
from tests.commit.jobs import CONFIG, JOBS, ROOT, TIME_MS, commit, fill, rows_of
from tests.faults.simulated_filesystem import SimulatedFileSystem
from tests.log.logs import Clock

INDEX = f"{ROOT}/t-0/00000000000000000000.index"
LOG = INDEX.replace(".index", ".log")
# Small records, each a batch; then one whose value holds what looks like a batch.
SMALL = 25
END = SMALL + 1
LARGEST_EPOCH = 2**31 - 1


def batch_in_a_value(last_offset, leader_epoch=0):
    """Return a valid batch without its last byte: the zero after the value, which says that there are no headers."""
    (batch,) = [
        b"".join(empty_batch(last_offset, last_offset, leader_epoch=leader_epoch, max_timestamp_ms=-1).pieces)
    ]
    content = batch[21:] + b"\0"
    return (
        batch[:8]
        + struct.pack(">i", len(batch) + 1 - 12)
        + batch[12:17]
        + struct.pack(">I", crc32c(content))
        + content[:-1]
    )


def log_that_ends_in(value, filesystem=None):
    filesystem = filesystem or SimulatedFileSystem()
    fill(filesystem, ROOT, ("t", 0, SMALL))
    with LogDirectory.open(ROOT, filesystem=filesystem, config=CONFIG, clock=Clock()) as logs:
        logs.get("t").append(
            pa.table({"value": [b"before" + value], "timestamp": pa.array([TIME_MS], pa.int64())})
        )
    return filesystem


def forge(filesystem, offset, position_bytes):
    """Change the last entry of the index."""
    entries = filesystem.files()[INDEX]
    assert len(entries) >= 24
    filesystem.put(INDEX, entries[:-8] + struct.pack(">ii", offset, position_bytes))


def log_whose_index_leads_into_a_value(last_offset, leader_epoch=0):
    value = batch_in_a_value(last_offset, leader_epoch)
    filesystem = log_that_ends_in(value)
    size_bytes = len(filesystem.files()[LOG])
    assert filesystem.files()[LOG].endswith(value + b"\0")
    forge(filesystem, last_offset, size_bytes - len(value) - 1)
    return filesystem


def offsets(filesystem):
    table = read_table(ROOT, filesystem=filesystem, use_indexes=False, subscribe="t")
    return table["offset"].to_pylist()


def epochs(filesystem):
    found = read_leader_epoch_checkpoint(filesystem, f"{ROOT}/t-0/leader-epoch-checkpoint")
    return [(entry.epoch, entry.start_offset) for entry in found]


FORGED_ENDS = [0, 3, END - 2, END, END + 1000, 2**31 - 1]


@pytest.mark.parametrize("flush", [True, False])
@pytest.mark.parametrize("last_offset", FORGED_ENDS)
def test_a_job_appends_at_the_log_end_not_where_an_index_points(last_offset, flush):
    filesystem = log_whose_index_leads_into_a_value(last_offset)
    for number in range(2):
        commit(filesystem, ROOT, JOBS[number], rows_of(("t", 0, 10)), flush=flush)
    assert offsets(filesystem) == list(range(END + 20))


@pytest.mark.parametrize("last_offset", FORGED_ENDS)
def test_a_log_that_is_opened_goes_on_where_it_ends(last_offset):
    filesystem = log_whose_index_leads_into_a_value(last_offset)
    for number in range(2):
        with LogDirectory.open(ROOT, filesystem=filesystem, config=CONFIG, clock=Clock()) as logs:
            log = logs.get("t")
            assert log.log_end_offset == END + number
            log.append(pa.table({"value": [b"more"]}))
            assert [each for batch in log.read() for each in batch["offset"].to_pylist()] == list(
                range(END + number + 1)
            )
    assert offsets(filesystem) == list(range(END + 2))


def test_no_epoch_is_taken_from_where_an_index_points():
    """Even where it leads to the end that the log has."""
    filesystem = log_whose_index_leads_into_a_value(END - 1, LARGEST_EPOCH)
    before = epochs(filesystem)
    commit(filesystem, ROOT, JOBS[0], rows_of(("t", 0, 10)))
    assert offsets(filesystem) == list(range(END + 10))
    assert epochs(filesystem) == before != []


@pytest.mark.parametrize(
    ("offset", "position_bytes"),
    [(20, -1), (20, -(2**31)), (20, 1), (20, 2**31 - 1), (END - 1, 100_000), (-5, 0), (20, 0)],
)
@pytest.mark.parametrize("writer", ["job", "log directory"])
def test_a_garbled_entry_does_not_prevent_a_write(writer, offset, position_bytes):
    filesystem = log_that_ends_in(b"")
    forge(filesystem, offset, position_bytes)
    if writer == "job":
        commit(filesystem, ROOT, JOBS[0], rows_of(("t", 0, 1)))
    else:
        with LogDirectory.open(ROOT, filesystem=filesystem, config=CONFIG, clock=Clock()) as logs:
            logs.get("t").append(pa.table({"value": [b"more"]}))
    assert offsets(filesystem) == list(range(END + 1))


def test_after_unflushed_jobs_no_log_end_is_taken_from_where_an_index_points():
    filesystem = SimulatedFileSystem()
    fill(filesystem, ROOT, ("t", 0, SMALL))
    value = batch_in_a_value(END + 1000)
    rows = {("t", 0): [(None, b"before" + value)]}
    commit(filesystem, ROOT, JOBS[0], rows, flush=False)
    # Where the bytes are is not decided by this test alone.
    assert filesystem.files()[LOG].endswith(value + b"\0")
    forge(filesystem, END + 1000, len(filesystem.files()[LOG]) - len(value) - 1)
    commit(filesystem, ROOT, JOBS[1], rows_of(("t", 0, 3)), flush=False)
    assert offsets(filesystem) == list(range(END + 3))


@pytest.mark.parametrize(
    "missing", [None, "recovery-point-offset-checkpoint", "replication-offset-checkpoint"]
)
def test_a_log_that_was_closed_is_not_walked_over_from_its_beginning(tmp_path, missing):
    """It is known where it ended, and an index that leads there is believed."""
    root, count = tmp_path / "logs", 400
    with LogDirectory.open(root, clock=Clock()) as logs:
        log = logs.create("t")
        for number in range(count):
            log.append(pa.table({"value": [b"%d" % (number % 10) * 10_000]}))
    if missing is not None:
        (root / missing).unlink()
    filesystem = FileSystem()
    (directory,) = partitions_to_load(filesystem, str(root), broker_directory=False)
    state = read_partition_state(filesystem, directory, 0)
    assert (state.log_end_offset, state.tail.is_open) == (count, True)
    # A header is 61 bytes.
    is_walked = filesystem.statistics.bytes_read > count * 61
    assert is_walked == (missing == "recovery-point-offset-checkpoint")
