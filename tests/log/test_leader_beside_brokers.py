"""What clients and coordinators had a broker append, appended here as a leader: the same bytes, index entries and producers."""

from __future__ import annotations

import pytest
from conformance.archives import unpack_case

from storage_core import LogConfig
from storage_core.filesystem import FileSystem
from storage_core.record import RecordBatches, parse_batch_header
from storage_core.record.control_records import read_marker
from storage_core.segment import TransactionIndex
from tests.log.logs import Clock, open_directory

CASES = [
    "idempotent",
    "txn",
    "txn-ongoing",
    "v2-foreign",
    "v2-none",
    "v2-gzip",
    "v2-lz4",
    "v2-snappy",
    "v2-zstd",
    "many-partitions",
]
CONTROL = 0x20


@pytest.fixture(scope="module", params=CASES)
def partitions(request, tmp_path_factory):
    """Return the directories of one case that hold batches."""
    logs, _ = unpack_case(request.param, tmp_path_factory.mktemp(request.param) / "case")
    found = sorted({path.parent for path in logs.rglob("*.log") if path.stat().st_size})
    return [path for path in found if not path.name.startswith("__")]


def log_bytes(directory):
    return b"".join(path.read_bytes() for path in sorted(directory.glob("*.log")))


def aborted(directory):
    return [
        entry
        for path in sorted(directory.glob("*.txnindex"))
        for entry in TransactionIndex.read(FileSystem(), str(path), int(path.name[:20])).entries
    ]


def append_again(log, clock, batch):
    """Append a batch as its producer does."""
    header = parse_batch_header(batch, 0, 0, path="")
    clock.time_ms = header.max_timestamp_ms
    if header.attributes & CONTROL:
        marker = read_marker(batch, header, path="")
        log.end_transaction(
            header.producer_id,
            header.producer_epoch,
            is_abort=marker.is_abort,
            coordinator_epoch=marker.coordinator_epoch,
        )
        return True
    info = log.append_as_leader(bytes(8) + batch[8:], leader_epoch=header.leader_epoch)
    assert (info.first_offset, info.last_offset) == (header.base_offset, header.last_offset)
    if header.producer_id >= 0:
        again = log.append_as_leader(bytes(8) + batch[8:], leader_epoch=header.leader_epoch)
        assert (again.is_duplicate, again.first_offset) == (True, header.base_offset)
    return False


@pytest.mark.cases(3, 10)
def test_a_leader_here_writes_what_a_broker_wrote(partitions, tmp_path):
    clock, markers = Clock(), 0
    with open_directory(tmp_path / "data", clock=clock, config=LogConfig()) as logs:
        for number, directory in enumerate(partitions):
            log = logs.create("again", number)
            content = log_bytes(directory)
            batches = RecordBatches.parse(content)
            start = 0
            for size_bytes in batches.sizes_bytes.tolist():
                markers += append_again(log, clock, content[start : start + size_bytes])
                start += size_bytes
            assert log.log_end_offset == batches.next_offset
    compared = 0
    for number, directory in enumerate(partitions):
        written = tmp_path / "data" / f"again-{number}"
        assert log_bytes(written) == log_bytes(directory), directory
        assert aborted(written) == aborted(directory), directory
        snapshot = max(directory.glob("*.snapshot"))
        if int(snapshot.name[:20]) == RecordBatches.parse(log_bytes(directory)).next_offset:
            assert (written / snapshot.name).read_bytes() == snapshot.read_bytes(), directory
            compared += 1
    assert compared == len(partitions) > 0
    assert markers > 0 or not any(aborted(directory) for directory in partitions)
