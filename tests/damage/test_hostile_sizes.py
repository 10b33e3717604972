"""Files larger than any memory: sparse logs, indexes and checkpoints, and well-formed ones of excessive length."""

from __future__ import annotations

import json
import os
import struct

import numpy as np
import pytest
from crc32c import crc32c

from tests.damage.measured import can_measure_memory
from tests.record.encoding import Batch, Record

MODES = ("FAILFAST", "DROPMALFORMED", "PERMISSIVE")
MOST_BYTES = 256 << 20
# No read here needs more bytes of its files than this, however large they are.
MOST_BYTES_READ = 512 << 20

LARGEST = 2**63 - 1
READ_COMMITTED = {"isolation_level": "read_committed"}


def batch(offset, value=b"v"):
    return Batch((Record(value=value),), offset).encode()


def enlarge(path, size):
    path.touch()
    try:
        os.truncate(path, size)
    except OSError:
        pytest.skip(f"this file system has no files of {size} bytes")


@pytest.fixture
def partition(root):
    folder = root / "events-0"
    folder.mkdir()
    return folder


@pytest.fixture
def read(root, measuring_process):
    """Read the root, within the limits that all of these tests share."""

    def read_root(most_bytes_read=MOST_BYTES_READ, **options):
        measured = measuring_process.read(root, **options)
        if can_measure_memory():
            assert measured.resident_bytes < MOST_BYTES
        assert measured.allocated_bytes < MOST_BYTES
        assert measured.bytes_read < most_bytes_read
        return measured

    return read_root


def write_log(partition, offset, *batches):
    path = partition / f"{offset:020d}.log"
    path.write_bytes(b"".join(batches))
    return path


@pytest.mark.cases(2, 8)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("isolation_level", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize("size", [2**31 - 1, 3 << 30, LARGEST])
def test_an_active_segment_with_only_zeros_after_its_batches(partition, read, size, mode, isolation_level):
    enlarge(write_log(partition, 0, batch(0), batch(1)), size)
    measured = read(mode=mode, isolation_level=isolation_level)
    assert (measured.error, measured.offsets) == (None, [0, 1])
    assert measured.bytes_read < 1 << 20


@pytest.mark.parametrize("isolation_level", ["read_uncommitted", "read_committed"])
def test_a_closed_segment_with_zeros_after_its_batches(partition, read, isolation_level):
    enlarge(write_log(partition, 0, batch(0), batch(1)), 100 << 20)
    write_log(partition, 2, batch(2))
    measured = read(isolation_level=isolation_level)
    assert (measured.error, measured.offsets) == (None, [0, 1, 2])


@pytest.mark.parametrize("size", [2**31 + 1, LARGEST])
def test_a_closed_segment_larger_than_kafka_makes_them(partition, read, size):
    """Kafka's positions have 31 bits."""
    enlarge(write_log(partition, 0, batch(0), batch(1)), size)
    write_log(partition, 2, batch(2))
    measured = read()
    assert measured.error in {None, "CorruptRecordError"}
    assert measured.offsets in ([], [0, 1, 2])


@pytest.mark.parametrize("mode", MODES[1:])
@pytest.mark.parametrize("size", [2**31 + 1, LARGEST])
def test_the_other_modes_read_what_a_larger_segment_holds(partition, read, size, mode):
    enlarge(write_log(partition, 0, batch(0), batch(1)), size)
    write_log(partition, 2, batch(2))
    measured = read(mode=mode)
    assert measured.error is None
    assert [offset for offset in measured.offsets if offset is not None] == [0, 1, 2]


@pytest.mark.cases(2, 8)
@pytest.mark.parametrize("declared", [2**31 - 1, 2**31 - 13, 2**27])
@pytest.mark.parametrize("is_closed", [True, False], ids=["closed", "active"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("size", [3 << 30, LARGEST])
def test_a_real_batch_of_two_gigabytes(partition, read, declared, is_closed, mode, size):
    lying = batch(1)
    lying = lying[:8] + struct.pack(">i", declared) + lying[12:]
    enlarge(write_log(partition, 0, batch(0), lying), size)
    if is_closed:
        write_log(partition, 2, batch(2))
    # Its CRC may be checked once: if it were valid, this would be no torn append. The search behind it begins with a window.
    measured = read(mode=mode, most_bytes_read=MOST_BYTES_READ + declared + (32 << 20))
    if mode == "FAILFAST" and (is_closed or measured.error is not None):
        assert measured.error in {"BatchTooLargeError", "CorruptRecordError"}
    else:
        assert measured.error is None
        assert [offset for offset in measured.offsets if offset is not None] == [0, 2][: 1 + is_closed]


INDEX_READS = {
    ".index": {"starting_offsets": json.dumps({"events": {"0": 5}})},
    ".timeindex": {"starting_timestamp": 0},
    ".txnindex": READ_COMMITTED,
    ".snapshot": READ_COMMITTED,
}
ENTRY_SIZES = {".index": 8, ".timeindex": 12, ".txnindex": 34, ".snapshot": 46}


@pytest.fixture
def indexed(root, partition):
    """Offsets 0 to 9 in two segments, the first of more than a page; cleanly stopped, so that indexes count."""
    write_log(partition, 0, *(batch(offset, b"x" * 900) for offset in range(9)))
    write_log(partition, 9, batch(9))
    for offset in (0, 9):
        (partition / f"{offset:020d}.index").write_bytes(b"")
    (root / ".kafka_cleanshutdown").write_bytes(b"")
    return partition


@pytest.mark.parametrize("suffix", INDEX_READS)
@pytest.mark.parametrize("size", [60 << 20, 200 << 20, 10 << 30, LARGEST])
def test_an_index_of_zeros(indexed, read, suffix, size):
    size -= size % ENTRY_SIZES[suffix]
    enlarge(indexed / f"{9 if suffix == '.snapshot' else 0:020d}{suffix}", size)
    measured = read(**INDEX_READS[suffix])
    assert measured.error is None
    assert measured.offsets == list(range(5 if suffix == ".index" else 0, 10))


def test_an_offset_index_that_is_full(indexed, read):
    entries = np.zeros((5_000_000, 2), ">i4")
    entries[:, 0] = entries[:, 1] = np.arange(1, 5_000_001)
    (indexed / f"{0:020d}.index").write_bytes(entries.tobytes())
    assert read(**INDEX_READS[".index"]).offsets == list(range(5, 10))


def test_a_time_index_that_is_full(indexed, read):
    entries = np.zeros(4_000_000, [("time", ">i8"), ("offset", ">i4")])
    entries["time"] = entries["offset"] = np.arange(4_000_000)
    (indexed / f"{0:020d}.timeindex").write_bytes(entries.tobytes())
    assert read(**INDEX_READS[".timeindex"]).offsets == list(range(10))


def test_a_transaction_index_with_a_million_entries(root, read):
    folder = root / "events-0"
    folder.mkdir()
    far = 2**40
    write_log(folder, 0, *(batch(offset) for offset in range(9)), batch(far))
    write_log(folder, far + 1, batch(far + 1))
    (folder / f"{0:020d}.index").write_bytes(b"")
    (root / ".kafka_cleanshutdown").write_bytes(b"")
    count = 1_000_000
    entries = np.zeros(
        count, [("version", ">i2"), *((name, ">i8") for name in ("producer", "first", "last", "stable"))]
    )
    entries["producer"] = entries["first"] = np.arange(count)
    entries["last"] = np.arange(count) + 2
    (folder / f"{0:020d}.txnindex").write_bytes(entries.tobytes())
    measured = read(**READ_COMMITTED)
    assert measured.error in {None, "CorruptIndexError"}
    assert measured.offsets in ([], [*range(9), far, far + 1])


def test_a_producer_snapshot_with_a_million_entries(indexed, read):
    fields = (">i8", ">i2", ">i4", ">i8", ">i4", ">i8", ">i4", ">i8")
    entries = np.zeros(1_000_000, [(f"field {number}", kind) for number, kind in enumerate(fields)])
    entries["field 0"] = np.arange(len(entries))
    entries["field 7"] = -1
    covered = struct.pack(">i", len(entries)) + entries.tobytes()
    content = struct.pack(">hI", 1, crc32c(covered)) + covered
    (indexed / f"{9:020d}.snapshot").write_bytes(content)
    assert read(**READ_COMMITTED).offsets == list(range(10))


ROOT_FILES = (
    "recovery-point-offset-checkpoint",
    "log-start-offset-checkpoint",
    "replication-offset-checkpoint",
    "meta.properties",
)


@pytest.mark.parametrize("name", ROOT_FILES)
@pytest.mark.parametrize("size", [1 << 30, LARGEST])
def test_a_checkpoint_of_zeros(root, indexed, read, name, size):
    enlarge(root / name, size)
    assert read(**READ_COMMITTED).offsets == list(range(10))
    if name == "replication-offset-checkpoint":
        assert read(ending_at="highWatermark").error == "CorruptCheckpointError"


@pytest.mark.parametrize(
    "content",
    [b"\n" * (30 << 20), b"0\n1\n" + b" " * (30 << 20), b"0\n1\n" + b"a " * (6 << 20), b"0" * (30 << 20), b"\xff" * (30 << 20),
     b"0\n2147483647\n" + b"t 0 5\n" * (5 << 20), b"0\n1\nevents 0 " + b"9" * (30 << 20) + b"\n"],
    ids=["line ends", "blanks", "fields", "digits", "no text", "lines", "a number"],
)  # fmt: skip
def test_a_long_checkpoint_without_entries(root, indexed, read, content):
    (root / "log-start-offset-checkpoint").write_bytes(content)
    assert read(**READ_COMMITTED).offsets == list(range(10))


@pytest.mark.parametrize("name", ["leader-epoch-checkpoint", "partition.metadata"])
def test_the_files_that_identify_copies(root, measuring_process, name):
    for copy in ("first", "second"):
        folder = root / copy / "events-0"
        folder.mkdir(parents=True)
        write_log(folder, 0, batch(0))
        enlarge(folder / name, 10 << 30)
    measured = measuring_process.read(root / "first", root / "second")
    assert measured.error in {None, "CorruptCheckpointError"}
    assert measured.offsets in ([], [0])
    assert measured.bytes_read < MOST_BYTES_READ
