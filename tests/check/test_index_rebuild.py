"""What is wrong with index files is found and named; rebuilt ones are those that a recovery writes."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from storage_core import LogDirectory
from storage_core.check.index_rebuild import rebuild_indexes
from storage_core.check.verify import plan_verification, verify
from storage_core.errors import LogDirectoryError, LogDirectoryLockedError
from storage_core.filesystem import FileSystem
from storage_core.options import options_of
from tests.conformance.archives import fingerprint, unpack_case

EXAMPLES = Path(__file__).parent.parent.parent / "examples" / "data"


@pytest.fixture
def root(tmp_path):
    """Return a broker's directory, stopped, with transactions."""
    shutil.copytree(EXAMPLES, tmp_path / "data")
    return tmp_path / "data"


def faults(path):
    """Return what `verify --indexes-only` finds: partition, file and reason."""
    filesystem = FileSystem()
    plan = plan_verification(filesystem, options_of([str(path)], {}))
    return [
        (f"{each.topic}-{each.partition}", os.path.basename(finding.file), finding.reason)
        for each in verify(filesystem, plan, indexes_only=True).partitions
        for finding in each.findings
    ]


def rebuild(path, **arguments):
    return rebuild_indexes(FileSystem(), options_of([str(path)], {}), **arguments)


def index_files(root):
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.name[20:] in (".index", ".timeindex", ".txnindex")
    }


def test_a_broker_that_lost_its_indexes(tmp_path):
    logs, _ = unpack_case("missing-index", tmp_path / "case")
    assert "The file is missing." in {reason for *_, reason in faults(logs)}
    report = rebuild(logs)
    assert sum(len(each.rebuilt) for each in report.partitions) > 10
    assert faults(logs) == []


def test_a_file_cut_inside_an_entry_is_corrupt(root):
    path = root / "orders-0" / "00000000000000001787.index"
    os.truncate(path, path.stat().st_size - 3)
    ((partition, file, reason),) = faults(root)
    assert (partition, file) == ("orders-0", path.name)
    assert reason.startswith("The file has ")


def test_an_index_of_another_segment_is_contradicted(root):
    source = root / "orders-0" / "00000000000000001787.index"
    target = root / "orders-0" / "00000000000000003614.index"
    assert source.read_bytes() != target.read_bytes()
    shutil.copy(source, target)
    assert any(file == target.name and "the log" in reason for _, file, reason in faults(root))


def test_an_emptied_index_of_a_large_log_is_incomplete(tmp_path):
    with LogDirectory.open(tmp_path / "data") as logs:
        log = logs.create("large")
        for _ in range(12):
            log.append(pa.table({"value": pa.array([b"v" * 900_000])}))
    path = tmp_path / "data" / "large-0" / "00000000000000000000.index"
    assert faults(tmp_path / "data") == []
    os.truncate(path, 0)
    ((_, file, reason),) = faults(tmp_path / "data")
    assert file == path.name
    assert reason.startswith("No entry for ")


def test_rebuilt_indexes_are_those_of_a_recovery(root, tmp_path):
    """The same bytes as after the recovery of every segment by an open without checkpoints and marker."""
    recovered = tmp_path / "recovered"
    shutil.copytree(root, recovered)
    for path in (recovered / "recovery-point-offset-checkpoint", recovered / ".kafka_cleanshutdown"):
        path.unlink(missing_ok=True)
    with LogDirectory.open(recovered, broker_directory=True, recovery="kafka"):
        pass
    expected = index_files(recovered)
    for path in root.rglob("*index"):
        path.write_bytes(b"garbage")
    before = {name: content for name, content in fingerprint(root).items() if not name.endswith("index")}
    report = rebuild(root)
    assert index_files(root) == expected
    assert faults(root) == []
    assert all(each.not_rebuilt == () for each in report.partitions)
    after = {name: content for name, content in fingerprint(root).items() if not name.endswith("index")}
    assert {name: content for name, content in after.items() if name != ".lock"} == before


def test_rebuilt_indexes_can_go_elsewhere(root, tmp_path):
    (root / "payments-0" / "00000000000000000000.txnindex").unlink()
    before = fingerprint(root)
    rebuild(root, target=str(tmp_path / "indexes"))
    assert fingerprint(root) == before
    assert sorted(index_files(tmp_path / "indexes")) == [
        f"payments-0/00000000000000000000.{suffix}" for suffix in ("index", "timeindex", "txnindex")
    ]
    original = EXAMPLES / "payments-0" / "00000000000000000000.txnindex"
    assert (tmp_path / "indexes/payments-0" / original.name).read_bytes() == original.read_bytes()


def test_a_transaction_index_that_should_be_empty_is_emptied(root):
    wrong = root / "orders-0" / "00000000000000001787.txnindex"
    wrong.write_bytes(bytes(34))
    rebuild(root)
    assert wrong.read_bytes() == b""
    assert faults(root) == []


def test_a_segment_with_a_damaged_log_is_left_alone(root):
    log = root / "orders-0" / "00000000000000001787.log"
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 1
    log.write_bytes(data)
    index = log.with_suffix(".index")
    index.write_bytes(b"garbage")
    report = rebuild(root)
    (text,) = (text for each in report.partitions for text in each.not_rebuilt)
    assert text.startswith(f"{log.name}: Expected a record batch with CRC")
    assert index.read_bytes() == b"garbage"


def test_a_directory_that_is_open_is_not_written_to(root):
    (root / "orders-0" / "00000000000000001787.index").unlink()
    with LogDirectory.open(root, broker_directory=True):
        before = fingerprint(root)
        with pytest.raises(LogDirectoryLockedError):
            rebuild(root)
        assert fingerprint(root) == before


def test_a_target_with_files_in_it_is_refused(root, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    with pytest.raises(LogDirectoryError, match="is not empty"):
        rebuild(root, target=str(tmp_path / "full"))
