"""What `segmentlog verify` finds in a log, and what it says a broker would do, for each kind of damage."""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass

import pytest
from crc32c import crc32c

import storage_core.check.verify as verify_module
from storage_core.check.verify import plan_verification, verify
from storage_core.commit_files.commits_file import CommitEntry, commit_line, shorten_commits_file
from storage_core.errors import OptionError
from storage_core.filesystem import FileSystem
from storage_core.options import options_of
from tests.conformance.archives import unpack_case
from tests.faults.observed_filesystem import refusing
from tests.log.logs import MARKER, append, flip, name, open_directory, small, unclean, write
from tests.log.producing import ABORT, COMMIT, data, marker, transactional

EPOCHS, METADATA = "leader-epoch-checkpoint", "partition.metadata"


def report_of(root, *, is_deep=False, jobs=1, **options):
    filesystem = FileSystem()
    plan = plan_verification(filesystem, options_of([str(root)], options), is_deep=is_deep)
    return verify(filesystem, plan, jobs=jobs)


@dataclass(frozen=True)
class Found:
    """A finding without its words."""

    severity: str
    kind: str
    file: str
    action: str


def found(report):
    return [
        Found(each.severity, each.kind, os.path.basename(each.file), each.action)
        for each in report.findings
        if each.severity != "note"
    ]


def only(report):
    (finding,) = [each for each in report.findings if each.severity != "note"]
    return finding


@pytest.fixture
def root(tmp_path):
    """Partition 0 of the topic orders: offsets 0 to 34, ten batches of 100 bytes in each segment; closed cleanly."""
    write(tmp_path / "logs", 35)
    return tmp_path / "logs"


@pytest.fixture
def orders(root):
    return root / "orders-0"


def logs_of(root, batches, *, topic="orders", **config):
    """Return a log of these batches, appended as a replica does, and closed cleanly."""
    with open_directory(root, config=small(**config)) as logs:
        log = logs.create(topic)
        for batch in batches:
            log.append_batches(batch)
    return root / f"{topic}-0"


def test_a_sound_log(root):
    report = report_of(root, is_deep=True)
    (partition,) = report.partitions
    assert (report.verdict, found(report)) == ("sound", [])
    assert (partition.segment_count, partition.batch_count, partition.record_count) == (4, 35, 35)
    assert (partition.log_start_offset, partition.log_end_offset, partition.size_bytes) == (0, 35, 3500)
    assert partition.start.refusal is None
    assert (dict(partition.start.cuts), partition.start.removed, partition.start.recovered) == (
        {},
        set(),
        set(),
    )


def test_nothing_is_written(root):
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    unclean(root)
    del before[root / MARKER], before[root / "recovery-point-offset-checkpoint"]
    flip(root / "orders-0" / name(10), 350)
    report_of(root, is_deep=True)
    after = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    assert {path for path in after if path.is_file()} == {path for path in before if path.is_file()}
    assert all(after[path] == before[path] for path in before if path.is_file() and path.name != name(10))


# Batches.


def test_a_broker_does_not_notice_a_torn_batch_after_a_clean_stop(root, orders):
    flip(orders / name(10), 350)
    finding = only(report_of(root))
    assert (finding.severity, finding.kind, finding.action) == ("damage", "batch", "unnoticed")
    assert finding.file == str(orders / name(10))
    assert (finding.start_byte, finding.end_byte) == (300, 400)
    assert (finding.start_offset, finding.end_offset) == (13, 14)


def test_after_a_crash_a_broker_truncates_at_a_torn_batch_and_removes_later_segments(root, orders):
    flip(orders / name(10), 350)
    unclean(root)
    report = report_of(root)
    finding = only(report)
    assert (finding.action, finding.action_offset) == ("truncate", 13)
    start = report.partitions[0].start
    assert (dict(start.cuts), start.removed, start.log_end_offset) == ({10: 300}, {20, 30}, 13)


def test_a_broker_does_not_look_below_the_recovery_point(root, orders):
    flip(orders / name(10), 350)
    unclean(root, recovery_point=25)
    report = report_of(root)
    assert only(report).action == "unnoticed"
    assert report.partitions[0].start.recovered == {20, 30}


def test_damage_in_a_segment_that_a_broker_removes(root, orders):
    flip(orders / name(10), 350)
    flip(orders / name(20), 350)
    unclean(root)
    assert [each.action for each in found(report_of(root))] == ["truncate", "remove"]


def test_records_that_contradict_a_right_checksum_are_found_by_decoding_them(root, orders):
    file = orders / name(10)
    content = bytearray(file.read_bytes())
    # The record's length, one more than it is.
    content[100 + 61] += 2
    content[117:121] = struct.pack(">I", crc32c(bytes(content[121:200])))
    file.write_bytes(content)
    assert found(report_of(root)) == []
    finding = only(report_of(root, is_deep=True))
    assert (finding.severity, finding.kind, finding.start_byte, finding.start_offset) == (
        "damage",
        "record",
        100,
        11,
    )


@pytest.mark.parametrize("claim", ["-1", "0", "smaller", "larger"])
def test_headers_that_claim_another_max_timestamp_are_found_by_decoding_records(root, orders, claim):
    file = orders / name(10)
    content = bytearray(file.read_bytes())
    for start in (400, 700):
        (largest_ms,) = struct.unpack_from(">q", content, start + 35)
        claimed_ms = {"smaller": largest_ms - 1, "larger": largest_ms + 1}.get(claim) or int(claim)
        struct.pack_into(">q", content, start + 35, claimed_ms)
        content[start + 17 : start + 21] = struct.pack(">I", crc32c(bytes(content[start + 21 : start + 100])))
        if start == 400:
            first = claimed_ms, largest_ms
    file.write_bytes(content)
    assert "record" not in {each.kind for each in report_of(root).findings}
    (finding,) = [each for each in report_of(root, is_deep=True).findings if each.kind == "record"]
    assert (finding.severity, finding.start_byte, finding.end_byte) == ("suspect", 400, 500)
    assert (finding.start_offset, finding.end_offset) == (14, 15)
    assert "found 2 batches" in finding.reason
    assert f"says {first[0]} ms, its records {first[1]} ms" in finding.reason


def test_no_batch_follows_the_largest_offset(root, orders):
    """No CRC covers a batch's offset."""
    file = orders / name(30)
    content = bytearray(file.read_bytes())
    content[100:108] = struct.pack(">q", 2**63 - 1)
    file.write_bytes(content)
    finding = report_of(root).findings
    assert [(each.kind, each.start_byte, each.start_offset, each.end_offset) for each in finding] == [
        ("batch", 100, 31, 32)
    ]


# The end of the log.


def test_a_torn_tail_after_a_crash_is_no_damage(root, orders):
    unclean(root)
    (orders / name(30)).write_bytes((orders / name(30)).read_bytes()[:-1])
    (root / "replication-offset-checkpoint").unlink()
    report = report_of(root)
    assert report.verdict == "unclean"
    assert Found("unclean", "tail", name(30), "truncate") in found(report)
    assert report.partitions[0].start.log_end_offset == 34


@pytest.mark.parametrize(
    ("evidence", "offset"), [("recovery-point-offset-checkpoint", 35), ("replication-offset-checkpoint", 35)]
)
def test_a_torn_tail_is_damage_if_a_checkpoint_says_that_the_log_was_longer(root, orders, evidence, offset):
    unclean(root, recovery_point=30)
    (root / "replication-offset-checkpoint").unlink(missing_ok=True)
    (root / evidence).write_text(f"0\n1\norders 0 {offset}\n")
    (orders / name(30)).write_bytes((orders / name(30)).read_bytes()[:-1])
    report = report_of(root)
    assert report.verdict == "damage"
    assert Found("damage", "tail", name(30), "truncate") in found(report)
    assert Found("damage", "checkpoint", evidence, "reset") in found(report)


def test_a_torn_tail_after_a_clean_stop_is_damage(root, orders):
    (orders / name(30)).write_bytes((orders / name(30)).read_bytes()[:-1])
    assert Found("damage", "tail", name(30), "unnoticed") in found(report_of(root))


def test_zeros_after_a_crash_are_preallocated_space(root, orders):
    unclean(root)
    with (orders / name(30)).open("ab") as file:
        file.write(bytes(1000))
    finding = only(report_of(root))
    assert (finding.severity, finding.kind, finding.start_byte, finding.action_offset) == (
        "unclean",
        "tail",
        500,
        35,
    )


def test_zeros_after_a_clean_stop_keep_a_broker_from_loading_the_log(root, orders):
    with (orders / name(30)).open("ab") as file:
        file.write(bytes(1000))
    report = report_of(root)
    assert only(report).action == "refuse"
    assert f"{name(30)}, which has no batch at byte 500" in report.partitions[0].start.refusal


# Gaps.


def test_a_gap_is_suspect_and_no_damage(root, orders):
    file = orders / name(10)
    content = file.read_bytes()
    file.write_bytes(content[:300] + content[500:])
    for suffix in ("index", "timeindex"):
        (orders / name(10, suffix)).write_bytes(b"")
    report = report_of(root)
    gap = next(each for each in report.findings if each.kind == "gap")
    assert (gap.severity, gap.action, gap.start_offset, gap.end_offset, gap.start_byte) == (
        "suspect",
        "unnoticed",
        13,
        15,
        300,
    )


def test_a_lost_segment_is_a_gap(root, orders):
    for suffix in ("log", "index", "timeindex"):
        (orders / name(20, suffix)).unlink()
    report = report_of(root)
    assert report.verdict == "suspect"
    assert (only(report).start_offset, only(report).end_offset, only(report).start_byte) == (20, 30, None)


def test_a_compacted_log_has_gaps(tmp_path):
    """One of its batches has fewer records than offsets."""
    kept = data(0, 1)
    holed = kept[:23] + struct.pack(">i", 4) + kept[27:]
    holed = holed[:17] + struct.pack(">I", crc32c(holed[21:])) + holed[21:]
    logs_of(tmp_path, [holed, data(9)])
    assert found(report_of(tmp_path)) == []


# Indexes.


@pytest.mark.parametrize("suffix", ["index", "timeindex"])
def test_a_missing_index(root, orders, suffix):
    (orders / name(10, suffix)).unlink()
    kind = {"index": "offset index", "timeindex": "time index"}[suffix]
    # Without an offset index, a segment is recovered; a missing time index is only created, empty.
    action = {"index": "rebuild index", "timeindex": "unnoticed"}[suffix]
    report = report_of(root)
    assert found(report) == [Found("damage", kind, name(10, suffix), action)]
    assert report.partitions[0].start.recovered == ({10} if suffix == "index" else set())


def test_an_index_entry_that_the_log_contradicts(root, orders):
    index = orders / name(10, "index")
    content = bytearray(index.read_bytes())
    content[4:8] = struct.pack(">i", 333)
    index.write_bytes(content)
    finding = next(iter(report_of(root).findings))
    assert (finding.severity, finding.kind, finding.action) == ("damage", "offset index", "unnoticed")
    assert (finding.start_byte, finding.end_byte) == (0, 8)
    unclean(root)
    assert {each.action for each in found(report_of(root))} == {"rebuild index"}


def test_a_time_index_without_the_largest_timestamp(root, orders):
    """Look-ups by time would pass over the segment."""
    index = orders / name(10, "timeindex")
    index.write_bytes(b"")
    assert found(report_of(root)) == [Found("damage", "time index", name(10, "timeindex"), "unnoticed")]


def test_an_index_without_its_log(root, orders):
    (orders / name(0)).unlink()
    expected = [Found("damage", "file", name(0, suffix), "remove") for suffix in ("index", "timeindex")]
    assert found(report_of(root)) == expected


def test_an_abort_that_the_transaction_index_omits(tmp_path):
    batches = [transactional(0, 2, producer=7), marker(2, producer=7, kind=ABORT), data(3)]
    orders = logs_of(tmp_path, batches)
    assert found(report_of(tmp_path)) == []
    (orders / name(0, "txnindex")).unlink()
    finding = only(report_of(tmp_path))
    assert (finding.severity, finding.kind, finding.action) == ("damage", "transaction index", "unnoticed")
    assert (finding.start_offset, finding.end_offset) == (0, 3)


def test_an_abort_in_a_later_segment_than_the_data(tmp_path):
    batches = [transactional(0, 9, producer=7), *(data(offset, 9) for offset in range(9, 45, 9))]
    batches += [
        marker(45, producer=7, kind=ABORT),
        transactional(46, producer=7, sequence=9),
        marker(47, producer=7),
    ]
    orders = logs_of(tmp_path, batches, segment_bytes=200)
    (index,) = orders.glob("*.txnindex")
    assert index.name != name(0, "txnindex")
    assert found(report_of(tmp_path)) == []
    content = index.read_bytes()
    # It begins later than the data.
    index.write_bytes(content[:10] + struct.pack(">q", 5) + content[18:])
    finding = only(report_of(tmp_path))
    assert (finding.kind, finding.file, finding.start_offset, finding.end_offset) == (
        "transaction index",
        str(index),
        0,
        46,
    )
    assert "producer 7 that begins at 0 and is aborted at 45, found one that begins at 5" in finding.reason


@pytest.mark.parametrize(
    ("version", "action"),
    [
        (b"\1\0", "refuse"),
        # Of the two bytes, Kafka reads the first.
        (b"\0\1", "unnoticed"),
    ],
)
def test_a_transaction_index_of_another_version(tmp_path, version: bytes, action: str):
    batches = [transactional(0, producer=7), marker(1, producer=7, kind=ABORT)]
    orders = logs_of(tmp_path, batches)
    index = orders / name(0, "txnindex")
    index.write_bytes(version + index.read_bytes()[2:])
    report = report_of(tmp_path)
    assert [each.action for each in found(report)] == [action]
    refusal = f"{name(0, 'txnindex')} has entries of an unknown version"
    assert report.partitions[0].start.refusal == (refusal if action == "refuse" else None)


@pytest.mark.parametrize("first_offset", [0, 78])
def test_an_aborted_transaction_that_begins_in_an_earlier_segment(tmp_path, first_offset: int):
    """Rows change if the index says that it begins later, or that it reaches over an earlier one."""
    logs, _ = unpack_case("txn", tmp_path / "case")
    index = logs / "txn-long-0" / name(78, "txnindex")
    content = bytearray(index.read_bytes())
    # The second of its entries, of 34 bytes each.
    assert struct.unpack_from(">q", content, 34 + 10) == (53,)
    struct.pack_into(">q", content, 34 + 10, first_offset)
    index.write_bytes(content)
    assert {(each.severity, each.file) for each in found(report_of(logs))} == {("damage", index.name)}


def test_epochs_that_were_cut_at_a_raised_log_start_are_sound(tmp_path):
    """A running broker cuts the epochs at once, and writes the log start a minute later."""
    logs, _ = unpack_case("v2-none", tmp_path / "case")
    (logs / ".kafka_cleanshutdown").unlink()
    (logs / "none-java-0" / "leader-epoch-checkpoint").write_text("0\n1\n0 25\n")
    assert [each for each in report_of(logs).findings if each.severity == "damage"] == []


def test_the_metadata_log_is_recovered_at_each_start(tmp_path):
    """Kafka's Raft log takes no clean-shutdown marker for an answer."""
    logs, _ = unpack_case("internal", tmp_path / "case")
    log = logs / "__cluster_metadata-0" / name(0)
    content = bytearray(log.read_bytes())
    content[len(content) // 2] ^= 0x10
    log.write_bytes(content)
    actions = [each.action for each in found(report_of(logs)) if each.kind == "batch"]
    assert actions
    assert "unnoticed" not in actions


# Leader epochs.


def test_epochs_that_fall(tmp_path):
    orders = logs_of(tmp_path, [data(0, leader_epoch=3), data(1, leader_epoch=4), data(2, leader_epoch=4)])
    assert found(report_of(tmp_path)) == []
    log = orders / name(0)
    content = bytearray(log.read_bytes())
    # No CRC covers it.
    content[-len(data(2)) + 12 : -len(data(2)) + 16] = struct.pack(">i", 1)
    log.write_bytes(content)
    kinds = [(each.kind, each.start_offset) for each in report_of(tmp_path).findings]
    assert kinds == [("leader epoch", 2), ("leader epoch", 2)]


def test_epochs_that_the_checkpoint_does_not_confirm(tmp_path):
    orders = logs_of(tmp_path, [data(0, leader_epoch=3), data(1, leader_epoch=4)])
    (orders / EPOCHS).write_text("0\n2\n3 0\n5 1\n")
    assert found(report_of(tmp_path)) == [Found("damage", "leader epoch", EPOCHS, "unnoticed")]


def test_a_malformed_epoch_file_keeps_a_broker_from_starting(root, orders):
    (orders / EPOCHS).write_text("nonsense")
    report = report_of(root)
    assert found(report) == [Found("damage", "leader epoch", EPOCHS, "refuse")]
    assert report.partitions[0].start.refusal == "leader-epoch-checkpoint is malformed"


# Producers.


def test_sequences_that_do_not_continue_are_suspect(tmp_path):
    batches = [data(0, 2, producer=7, sequence=0), data(2, producer=7, sequence=5)]
    logs_of(tmp_path, batches)
    finding = only(report_of(tmp_path))
    assert (finding.severity, finding.kind, finding.start_offset) == ("suspect", "sequence", 2)
    assert (
        "producer 7 to continue with epoch 0 and sequence 2, found epoch 0 and sequence 5" in finding.reason
    )


def test_sequences_continue_over_segments_and_epochs(tmp_path):
    batches = [data(offset, producer=7, sequence=offset) for offset in range(30)]
    batches += [data(30, producer=7, epoch=1, sequence=0), data(31, producer=7, epoch=1, sequence=1)]
    logs_of(tmp_path, batches, segment_bytes=500)
    report = report_of(tmp_path)
    assert report.partitions[0].segment_count > 3
    assert found(report) == []


def test_sequences_wrap(tmp_path):
    largest = 2**31 - 1
    logs_of(tmp_path, [data(0, producer=7, sequence=largest), data(1, producer=7, sequence=0)])
    assert found(report_of(tmp_path)) == []


# Checkpoints.


@pytest.mark.parametrize(
    ("checkpoint", "action"),
    [
        ("recovery-point-offset-checkpoint", "reset"),
        ("replication-offset-checkpoint", "reset"),
        ("log-start-offset-checkpoint", "remove"),
    ],
)
def test_a_checkpoint_beyond_the_log_end(root, checkpoint, action):
    (root / checkpoint).write_text("0\n1\norders 0 99\n")
    finding = only(report_of(root))
    assert (finding.severity, finding.kind, finding.action) == ("damage", "checkpoint", action)
    assert finding.file == str(root / checkpoint)
    assert (finding.start_offset, finding.end_offset) == (35, 99)


def test_a_log_start_beyond_the_log_end_empties_the_log(root):
    (root / "log-start-offset-checkpoint").write_text("0\n1\norders 0 99\n")
    start = report_of(root).partitions[0].start
    assert (start.removed, start.log_start_offset, start.log_end_offset) == ({0, 10, 20, 30}, 99, 99)


@pytest.mark.parametrize(
    ("checkpoint", "action"),
    [
        ("recovery-point-offset-checkpoint", "refuse"),
        ("log-start-offset-checkpoint", "refuse"),
        ("replication-offset-checkpoint", "refuse"),
        ("cleaner-offset-checkpoint", "refuse"),
        ("meta.properties", "refuse"),
    ],
)
def test_a_malformed_file_of_the_log_directory(root, checkpoint, action):
    (root / checkpoint).write_text("version=7\n")
    report = report_of(root)
    assert [each.action for each in report.roots[0].findings] == [action]
    assert report.verdict == "damage"


def commits(count):
    return b"".join(commit_line(CommitEntry(number, f"{number:032x}", 5)) for number in range(1, count + 1))


@pytest.mark.parametrize(
    ("data", "severity", "start_byte"),
    [
        (commits(3).replace(b'"time_ms":5', b'"time_ms":6', 2), "damage", 0),
        (commits(1) + commits(2).replace(b"time", b"tyme", 1) + commits(1), "damage", len(commits(1))),
        (commits(2) + commits(1).replace(b"time", b"tyme"), "damage", len(commits(2))),
        (b"nonsense\n", "damage", 0),
        (commits(2) + commits(1)[:40], "unclean", len(commits(2))),
        (commits(2) + bytes(99), "unclean", len(commits(2))),
        (b'%08x {"generation":"1"}\n' % crc32c(b'{"generation":"1"}'), "damage", None),
    ],
)
def test_a_damaged_list_of_commits(root, data, severity, start_byte):
    path = root / ".segmentlog-commits"
    path.write_bytes(data)
    report = report_of(root)
    finding = only(report)
    assert (finding.severity, finding.kind, finding.file) == (severity, "file", str(path))
    assert (finding.start_byte, report.verdict) == (start_byte, severity)
    path.write_bytes(commits(300))
    shorten_commits_file(FileSystem(), str(root), 0)
    assert found(report_of(root)) == []


def test_a_damaged_journal_of_a_commit(root):
    (root / ".segmentlog-journal").write_bytes(b"{}\n00000000\n")
    finding = only(report_of(root))
    assert (finding.severity, finding.file) == ("damage", str(root / ".segmentlog-journal"))


@pytest.mark.parametrize(
    "text", ["0\n1\norders zero 5\n", "0\n-1\n", "0\n1\norders 0 99999999999999999999\n"]
)
@pytest.mark.parametrize("checkpoint", ["recovery-point-offset-checkpoint", "cleaner-offset-checkpoint"])
def test_a_broker_survives_a_checkpoint_with_a_text_in_place_of_a_number(root, checkpoint, text):
    (root / checkpoint).write_text(text)
    assert [each.action for each in report_of(root).roots[0].findings] == ["reset"]


@pytest.mark.parametrize("content", [b"0\n2\norders 0 5\n", b"0\n1\norders 0\n", b"1\n0\n", b"\xff\xfe\n"])
def test_a_broker_refuses_a_checkpoint_that_it_cannot_read(root, content):
    (root / "recovery-point-offset-checkpoint").write_bytes(content)
    assert [each.action for each in report_of(root).roots[0].findings] == ["refuse"]


# Other files.


def test_a_malformed_snapshot(root, orders):
    (orders / name(30, "snapshot")).write_bytes(b"nonsense")
    assert found(report_of(root))[0] == Found("damage", "snapshot", name(30, "snapshot"), "remove")


def test_a_snapshot_that_the_log_contradicts(tmp_path):
    batches = [data(offset, producer=7, sequence=offset) for offset in range(12)]
    orders = logs_of(tmp_path, batches, segment_bytes=500)
    assert found(report_of(tmp_path)) == []
    snapshot = max(orders.glob("*.snapshot"))
    content = bytearray(snapshot.read_bytes())
    content[20:24] = struct.pack(">i", 3)
    content[2:6] = struct.pack(">I", crc32c(bytes(content[6:])))
    snapshot.write_bytes(content)
    finding = only(report_of(tmp_path))
    assert (finding.severity, finding.kind) == ("suspect", "snapshot")
    assert "sequence 11 at offset 11, as the log says, found sequence 3" in finding.reason


def test_malformed_metadata_keeps_a_broker_from_starting(root, orders):
    (orders / METADATA).write_text("nonsense")
    report = report_of(root)
    assert found(report) == [Found("damage", "metadata", METADATA, "refuse")]


def test_a_partition_with_another_topic_id_would_be_set_aside_as_a_stray(root):
    for partition in (1, 2):
        write(root, 1, partition=partition)
    ids = ["AAAAAAAAAAAAAAAAAAAAAQ", "AAAAAAAAAAAAAAAAAAAAAg", "AAAAAAAAAAAAAAAAAAAAAQ"]
    for partition, topic_id in enumerate(ids):
        (root / f"orders-{partition}" / METADATA).write_text(f"version: 0\ntopic_id: {topic_id}")
    finding = only(report_of(root))
    assert (finding.severity, finding.action) == ("suspect", "set aside")
    assert finding.file == str(root / "orders-1" / METADATA)


def test_a_name_that_a_broker_takes_for_a_segments(root, orders):
    (orders / "copy.log").write_bytes(b"")
    assert found(report_of(root)) == [Found("damage", "file", "copy.log", "refuse")]


def test_leftovers_and_foreign_files_are_notes(root, orders):
    for leftover in (name(0) + ".deleted", name(3) + ".cleaned", "notes.txt"):
        (orders / leftover).write_bytes(b"")
    report = report_of(root)
    assert (report.verdict, report.counts["note"]) == ("sound", 3)
    assert {each.action for each in report.findings} == {"remove", "unnoticed"}


def test_a_directory_that_lost_all_its_logs(root):
    (root / "payments-0").mkdir()
    (root / "payments-0" / name(0, "index")).write_bytes(b"")
    finding = only(report_of(root))
    assert (finding.severity, finding.file) == ("suspect", str(root / "payments-0"))


# What is asked for.


def test_only_the_topics_that_are_named(root):
    write(root, 1, topic="clicks")
    assert [each.topic for each in report_of(root).partitions] == ["clicks", "orders"]
    assert [each.topic for each in report_of(root, subscribe="clicks").partitions] == ["clicks"]
    with pytest.raises(OptionError, match="'nosuch', which does not exist"):
        report_of(root, subscribe="nosuch")


def test_every_replica_is_verified(root, tmp_path):
    write(tmp_path / "other", 3)
    flip(tmp_path / "other" / "orders-0" / name(0), 150)
    report = report_of(f"{root},{tmp_path / 'other'}")
    assert [each.verdict for each in report.partitions] == ["sound", "damage"]


def test_one_partition_alone(root, orders):
    flip(orders / name(10), 350)
    report = report_of(orders)
    assert (len(report.partitions), only(report).start_byte) == (1, 300)


def test_progress_counts_all_bytes(root):
    filesystem = FileSystem()
    plan = plan_verification(filesystem, options_of([str(root)], {}))
    counts: list[int] = []
    verify(filesystem, plan, advance=counts.append)
    assert (plan.size_bytes, sum(counts)) == (3500, 3500)


@pytest.mark.thorough
def test_several_processes_find_the_same(root, orders, monkeypatch):
    flip(orders / name(10), 350)
    flip(orders / name(20), 350)
    monkeypatch.setattr(verify_module, "_MIN_BYTES_PER_PROCESS", 1)
    assert report_of(root, jobs=2) == report_of(root)


def refused_report(root, *refused):
    filesystem = refusing(*refused)
    return verify(filesystem, plan_verification(filesystem, options_of([str(root)], {})))


@pytest.mark.parametrize("file", ["", name(10), name(20).replace(".log", ".index"), EPOCHS, METADATA])
def test_what_may_not_be_read_is_a_finding_beside_the_others(root, orders, file):
    with open_directory(root) as logs:
        append(logs.create("clicks"), 3)
    flip(root / "clicks-0" / name(0), 70)
    refused = orders / file if file else orders
    report = refused_report(root, refused)
    damaged, unreadable = report.partitions
    assert (damaged.topic, damaged.verdict) == ("clicks", "damage")
    assert (unreadable.topic, unreadable.verdict, unreadable.batch_count) == ("orders", "unreadable", 0)
    (finding,) = unreadable.findings
    assert (finding.severity, finding.file) == ("unreadable", str(refused))
    assert finding.reason == "User kim may not read this path."
    assert (report.verdict, report.counts["unreadable"], report.counts["damage"]) == ("damage", 1, 1)


@pytest.mark.parametrize(
    "file", ["recovery-point-offset-checkpoint", "replication-offset-checkpoint", "meta.properties"]
)
def test_a_checkpoint_that_may_not_be_read_is_a_finding_of_the_log_directory(root, file):
    report = refused_report(root, root / file)
    assert [(each.severity, each.file) for each in report.roots[0].findings] == [
        ("unreadable", str(root / file))
    ]
    assert report.partitions[0].batch_count == 35


def test_a_log_directory_that_may_not_be_listed_is_a_finding(root, tmp_path):
    write(tmp_path / "other", 5)
    filesystem = refusing(root)
    report = verify(
        filesystem, plan_verification(filesystem, options_of([str(root), str(tmp_path / "other")], {}))
    )
    (finding,) = report.findings
    assert (finding.severity, finding.file) == ("unreadable", str(root))
    assert finding.reason == "User kim may not read this path."
    assert [each.verdict for each in report.partitions] == ["sound"]


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.thorough)])
def test_a_fifo_with_the_name_of_a_segment_is_named(root, orders, monkeypatch, jobs):
    monkeypatch.setattr(verify_module, "_MIN_BYTES_PER_PROCESS", 1)
    with open_directory(root) as logs:
        append(logs.create("clicks"), 3)
    os.mkfifo(orders / name(99))
    report = report_of(root, jobs=jobs)
    assert [each.verdict for each in report.partitions] == ["sound", "unreadable"]
    assert report.partitions[1].findings[0].file == str(orders / name(99))


def test_committed_transactions_need_no_index(tmp_path):
    logs_of(tmp_path, [transactional(0, producer=7), marker(1, producer=7, kind=COMMIT)])
    assert found(report_of(tmp_path)) == []


def test_appended_records_are_sound(tmp_path):
    with open_directory(tmp_path) as logs:
        append(logs.create("orders"), 3)
    assert report_of(tmp_path, is_deep=True).verdict == "sound"
