from __future__ import annotations

import dataclasses
import json

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from storage_core.checkpoint.partition_files import EpochEntry
from storage_core.commit_files.commits_file import CommitEntry
from storage_core.commit_files.journal import (
    AppendOperation,
    CommitJournal,
    JournalledPartition,
    LinkOperation,
    StagedFileRange,
    commit_journal_bytes,
    parse_commit_journal,
    read_commit_journal,
    write_commit_journal,
)
from storage_core.errors import CorruptCheckpointError, OptionError
from storage_core.filesystem import FileSystem

JOB = "0123456789abcdef0123456789abcdef"
STAGED = f".segmentlog-stage-{JOB}-0-12"

PARTITION = JournalledPartition(
    topic="t",
    partition=3,
    is_new=False,
    topic_id="AAAAAAAAQACAAAAAAAAAAQ",
    leader_epoch=2,
    log_start_before=0,
    log_start_after=900,
    log_end_before=900,
    log_end_after=4960,
    epochs_after=(EpochEntry(0, 0), EpochEntry(2, 700)),
    snapshot_from=900,
    operations=(
        AppendOperation(
            (StagedFileRange(STAGED, 17, 7300), StagedFileRange(STAGED, 0, 17)), 900, 0, 18440, 16, 24
        ),
        LinkOperation(f"{STAGED}-1", 960, 486332, 0x00ABCDEF),
    ),
)
JOURNAL = CommitJournal(
    entry=CommitEntry(generation=8, job_id=JOB, time_ms=1_772_500_003_999),
    clean_shutdown=b'{"version":0,"brokerEpoch":9}',
    manifests=(f"{STAGED}.manifest",),
    partitions=(PARTITION,),
)
# As docs/decisions/0008-commit.md shows it.
TEXT = (
    '{"clean_shutdown":"eyJ2ZXJzaW9uIjowLCJicm9rZXJFcG9jaCI6OX0=","flushed":true,"generation":8,'
    f'"job":"{JOB}","manifests":["{STAGED}.manifest"],'
    '"partitions":[{"epochs_after":[[0,0],[2,700]],"is_new":false,"keep_offsets":false,"leader_epoch":2,'
    '"log_end_after":4960,"log_end_before":900,"log_start_after":900,"log_start_before":0,"operations":['
    f'{{"append":[{{"file":"{STAGED}","position":17,"size":7300}},{{"file":"{STAGED}","position":0,"size":17}}],'
    '"base_offset":900,"index_size_before":16,"segment":0,"size_before":18440,"time_index_size_before":24},'
    f'{{"base_offset":960,"fingerprint":"00abcdef","link":"{STAGED}-1","size":486332}}],'
    '"partition":3,"snapshot_from":900,"topic":"t","topic_id":"AAAAAAAAQACAAAAAAAAAAQ"}],'
    '"time_ms":1772500003999,"txn_app_id":null,"txn_version":null,"version":1}'
)


def test_a_journal_without_the_field_was_flushed():
    older = TEXT.replace('"flushed":true,', "")
    assert len(older) < len(TEXT)
    assert parse_commit_journal(with_crc(older), "journal") == JOURNAL


def test_a_journal_says_that_it_is_not_flushed():
    unflushed = dataclasses.replace(JOURNAL, is_flushed=False)
    data = commit_journal_bytes(unflushed)
    assert data == with_crc(TEXT.replace('"flushed":true', '"flushed":false'))
    assert parse_commit_journal(data, "journal") == unflushed


def with_crc(text: str) -> bytes:
    return f"{text}\n{crc32c(text.encode()):08x}\n".encode()


def changed(change) -> bytes:
    """Return the journal with one thing changed, and a right CRC."""
    values = json.loads(TEXT)
    change(values)
    return with_crc(json.dumps(values))


def test_a_journal_is_a_line_of_json_and_one_of_its_crc():
    assert commit_journal_bytes(JOURNAL) == with_crc(TEXT)
    assert parse_commit_journal(with_crc(TEXT), "journal") == JOURNAL


def test_a_journal_is_in_the_root(tmp_path):
    filesystem = FileSystem()
    assert read_commit_journal(filesystem, str(tmp_path)) is None
    write_commit_journal(filesystem, str(tmp_path), JOURNAL)
    assert [path.name for path in tmp_path.iterdir()] == [".segmentlog-journal"]
    assert read_commit_journal(filesystem, str(tmp_path)) == JOURNAL
    # The file, and the root.
    assert filesystem.statistics.flushes == 2


def test_a_journal_that_readers_would_refuse_is_not_written(tmp_path, monkeypatch):
    monkeypatch.setattr("storage_core.commit_files.journal.MAX_JOURNAL_BYTES", 500)
    with pytest.raises(OptionError, match="at most 500 bytes, found"):
        write_commit_journal(FileSystem(), str(tmp_path), JOURNAL)
    assert list(tmp_path.iterdir()) == []


def test_a_journal_that_is_too_long_is_not_read(tmp_path, monkeypatch):
    write_commit_journal(FileSystem(), str(tmp_path), JOURNAL)
    monkeypatch.setattr("storage_core.commit_files.journal.MAX_JOURNAL_BYTES", 500)
    with pytest.raises(CorruptCheckpointError, match="at most 500 bytes"):
        read_commit_journal(FileSystem(), str(tmp_path))


offsets = st.integers(0, 2**63 - 1)
sizes = st.integers(0, 2**31 - 1)
names = st.from_regex(r"\.segmentlog-stage-[a-z0-9-]{1,60}", fullmatch=True)
appends = st.builds(
    AppendOperation,
    st.lists(st.builds(StagedFileRange, names, offsets, st.integers(1, 2**31 - 1)), max_size=3).map(tuple),
    offsets,
    offsets,
    sizes,
    sizes,
    sizes,
)
links = st.builds(LinkOperation, names, offsets, sizes, st.integers(0, 2**32 - 1))


@st.composite
def partitions(draw):
    starts, ends = sorted(draw(st.tuples(offsets, offsets))), sorted(draw(st.tuples(offsets, offsets)))
    return JournalledPartition(
        topic=draw(st.from_regex(r"[A-Za-z0-9._-]{1,249}", fullmatch=True)),
        partition=draw(sizes),
        is_new=draw(st.booleans()),
        topic_id=draw(st.none() | st.from_regex(r"[A-Za-z0-9_-]{22}", fullmatch=True)),
        leader_epoch=draw(sizes),
        log_start_before=starts[0],
        log_end_before=starts[1],
        log_start_after=ends[0],
        log_end_after=ends[1],
        epochs_after=tuple(draw(st.lists(st.builds(EpochEntry, sizes, offsets), max_size=3))),
        snapshot_from=draw(st.none() | st.just("empty") | offsets),
        operations=tuple(draw(st.lists(appends | links, max_size=3))),
        keep_offsets=draw(st.booleans()),
    )


journals = st.builds(
    CommitJournal,
    entry=st.builds(
        CommitEntry,
        generation=st.integers(1, 2**63 - 1),
        job_id=st.from_regex(r"[0-9a-f]{32}", fullmatch=True),
        time_ms=st.integers(-(2**62), 2**62),
        txn_app_id=st.none(),
        txn_version=st.none(),
    ),
    clean_shutdown=st.binary(max_size=100),
    manifests=st.lists(names, max_size=3).map(tuple),
    partitions=st.lists(partitions(), max_size=3, unique_by=lambda each: each.topic_partition).map(tuple),
)


@given(journals, st.none() | st.tuples(st.text(min_size=1), st.integers(-(2**63), 2**63 - 1)))
def test_a_journal_is_read_as_it_was_written(journal, txn):
    if txn is not None:
        entry = dataclasses.replace(journal.entry, txn_app_id=txn[0], txn_version=txn[1])
        journal = dataclasses.replace(journal, entry=entry)
    assert parse_commit_journal(commit_journal_bytes(journal), "journal") == journal


@pytest.mark.parametrize("end", [0, 1, 9, 10, 11, 500, -2, -1])
def test_a_truncated_journal_is_refused(end):
    with pytest.raises(CorruptCheckpointError, match="CRC-32C"):
        parse_commit_journal(with_crc(TEXT)[:end], "journal")


@given(st.integers(0, 8 * len(with_crc(TEXT)) - 1))
def test_every_changed_bit_is_noticed(bit):
    data = bytearray(with_crc(TEXT))
    data[bit // 8] ^= 1 << bit % 8
    with pytest.raises(CorruptCheckpointError):
        parse_commit_journal(bytes(data), "journal")


def test_another_version_is_refused_and_says_so():
    with pytest.raises(CorruptCheckpointError, match="Expected version 1 in this file, found 2"):
        parse_commit_journal(changed(lambda values: values.update(version=2)), "journal")


def test_unknown_keys_are_passed_over():
    def add(values):
        values["new"] = {}
        values["partitions"][0]["new"] = 1
        values["partitions"][0]["operations"][1]["new"] = []

    assert parse_commit_journal(changed(add), "journal") == JOURNAL


def test_without_its_key_offsets_are_not_kept():
    data = changed(lambda values: values["partitions"][0].pop("keep_offsets"))
    assert not parse_commit_journal(data, "journal").partitions[0].keep_offsets


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("job", "0123"),
        ("job", JOB.upper()),
        ("generation", 0),
        ("generation", True),
        ("generation", 2**63),
        ("time_ms", "now"),
        ("txn_app_id", ""),
        ("clean_shutdown", "?"),
        ("clean_shutdown", "AAA"),
        ("clean_shutdown", None),
        ("manifests", {}),
        ("manifests", [1]),
        ("manifests", ["../other"]),
        ("partitions", [1]),
        ("partitions", None),
    ],
)
def test_wrong_fields_are_named(field, value):
    with pytest.raises(CorruptCheckpointError, match=field):
        parse_commit_journal(changed(lambda values: values.update({field: value})), "journal")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("topic", "../t"),
        ("topic", ""),
        ("topic", "a" * 250),
        ("partition", -1),
        ("partition", 2**31),
        ("partition", 1.0),
        ("is_new", 0),
        ("keep_offsets", 1),
        ("topic_id", "short"),
        ("leader_epoch", -1),
        ("log_start_before", -1),
        ("log_end_before", None),
        ("log_end_after", 899),
        ("epochs_after", [[0]]),
        ("epochs_after", [[0, -1]]),
        ("epochs_after", [[2**31, 0]]),
        ("snapshot_from", "full"),
        ("snapshot_from", -1),
        ("snapshot_from", True),
        ("operations", {}),
        ("operations", [[]]),
    ],
)
def test_wrong_fields_of_a_partition_are_named(field, value):
    def change(values):
        values["partitions"][0][field] = value

    with pytest.raises(CorruptCheckpointError, match=field):
        parse_commit_journal(changed(change), "journal")


@pytest.mark.parametrize(
    ("number", "field", "value"),
    [
        (0, "append", None),
        (0, "append", [{"file": STAGED, "position": 0, "size": 0}]),
        (0, "append", [{"file": "t-0/x", "position": 0, "size": 1}]),
        (0, "base_offset", -1),
        (0, "segment", None),
        (0, "size_before", 2**31),
        (0, "index_size_before", -1),
        (0, "time_index_size_before", "0"),
        (1, "link", "/etc/passwd"),
        (1, "link", f"{STAGED}/../../x"),
        (1, "fingerprint", "xyz"),
        (1, "fingerprint", 1),
        (1, "size", -1),
    ],
)
def test_wrong_fields_of_an_operation_are_refused(number, field, value):
    def change(values):
        values["partitions"][0]["operations"][number][field] = value

    with pytest.raises(CorruptCheckpointError):
        parse_commit_journal(changed(change), "journal")


def test_a_partition_occurs_once():
    with pytest.raises(CorruptCheckpointError, match="each partition once"):
        parse_commit_journal(
            changed(lambda values: values["partitions"].append(values["partitions"][0])), "journal"
        )


@pytest.mark.parametrize("text", ["[]", "1", "nonsense", "", "[" * 100_000, '{"version":1'])
def test_json_that_is_no_object_is_refused(text):
    with pytest.raises(CorruptCheckpointError):
        parse_commit_journal(with_crc(text), "journal")
