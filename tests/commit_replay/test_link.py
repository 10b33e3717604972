"""A staged segment becomes one of a log: links, once and again, and what else may be in its place."""

from __future__ import annotations

import itertools

import pytest

from storage_core.commit_files.journal import LinkOperation
from storage_core.commit_replay.publish import PartitionPublisher
from storage_core.commit_replay.staged_batches import StagedFiles, batch_heads, fingerprint
from storage_core.errors import CorruptError
from tests.commit.jobs import CONFIG, JOBS, ROOT
from tests.commit_replay.test_append import batch, journalled
from tests.faults.simulated_filesystem import SimulatedFileSystem

DIRECTORY = f"{ROOT}/orders-0"
STAGED = f".segmentlog-stage-{JOBS[0]}-0-0-0"
TARGET = f"{DIRECTORY}/00000000000000000020"
SUFFIXES = (".timeindex", ".index", ".log")
LOG = batch() + batch(timestamp_ms=7)
CONTENT = {".log": LOG, ".index": b"i" * 8, ".timeindex": b"t" * 12}


@pytest.fixture
def filesystem():
    filesystem = SimulatedFileSystem()
    for suffix, content in CONTENT.items():
        filesystem.put(f"{ROOT}/{STAGED}{suffix}", content)
    filesystem.make_directory(DIRECTORY)
    return filesystem


def operation(filesystem):
    with filesystem.open(f"{ROOT}/{STAGED}.log") as file:
        return LinkOperation(STAGED, 20, len(LOG), fingerprint(batch_heads(file, 0, len(LOG))))


def link(filesystem, planned=None):
    planned = planned or operation(filesystem)
    files = StagedFiles(filesystem, ROOT)
    PartitionPublisher(filesystem, ROOT, journalled(planned), CONFIG, files).link(planned)


def published(filesystem):
    return {
        path.removeprefix(TARGET): content
        for path, content in filesystem.files().items()
        if path.startswith(DIRECTORY)
    }


def test_all_files_are_linked_the_log_last(filesystem):
    calls = []
    filesystem.observe = lambda call: calls.append((call.name, call.path.removeprefix(TARGET)))
    link(filesystem)
    assert calls == [("link", suffix) for suffix in SUFFIXES]
    assert published(filesystem) == CONTENT
    link(filesystem)
    assert len(calls) == 3


@pytest.mark.parametrize("there", [each for n in range(4) for each in itertools.combinations(SUFFIXES, n)])
def test_an_empty_segment_makes_room(filesystem, there):
    for suffix in there:
        filesystem.put(TARGET + suffix, b"")
    link(filesystem)
    assert published(filesystem) == CONTENT
    assert filesystem.status(f"{TARGET}.log").version == filesystem.status(f"{ROOT}/{STAGED}.log").version


def test_the_leftover_of_an_interrupted_replacement_is_no_obstacle(filesystem):
    filesystem.put(f"{TARGET}.log", b"")
    filesystem.put(f"{TARGET}.log.tmp", b"old")
    link(filesystem)
    assert published(filesystem) == CONTENT


def test_a_copy_is_told_by_its_fingerprint(filesystem):
    """Links do not survive every copy of a directory; batches may have been appended since."""
    planned = operation(filesystem)
    for suffix, content in CONTENT.items():
        filesystem.put(TARGET + suffix, content + (batch() if suffix == ".log" else b""))
    before = filesystem.files()
    link(filesystem, planned)
    assert filesystem.files() == before


@pytest.mark.parametrize("other", [LOG[:-1], batch() + batch(timestamp_ms=8), b"x" * 1000, b"x"])
def test_another_segment_is_reported(filesystem, other):
    planned = operation(filesystem)
    filesystem.put(f"{TARGET}.log", other)
    before = filesystem.files()
    with pytest.raises(CorruptError, match="found another one: another program has written it"):
        link(filesystem, planned)
    assert filesystem.files() == before


def test_aborted_transactions_of_an_older_segment_go(filesystem):
    filesystem.put(f"{TARGET}.txnindex", b"\x00" * 34)
    link(filesystem)
    assert published(filesystem) == CONTENT
