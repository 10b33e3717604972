"""A recovery is careful with the one copy of the data: nothing that it does not own is written, moved or removed."""

from __future__ import annotations

import json
import os
import shutil
import stat
import struct

import crc32c
import pytest

from storage_core.check.index_rebuild import rebuild_indexes
from storage_core.commit_files.commits_file import CommitEntry, commit_line
from storage_core.errors import LogDirectoryError, OptionError
from storage_core.filesystem import FileSystem
from storage_core.options import options_of
from storage_core.record.batch_header import parse_batch_header
from storage_core.recover import recover_in_place as in_place
from tests.conformance.archives import fingerprint, unpack_case
from tests.recover.recovering import EXAMPLES, PARTITION_DIRECTORY, TOPIC, flip, rows, run, run_in_place

FIRST = "00000000000000000000.log"
SECOND = "00000000000000001787.log"
LAST = "00000000000000007209.log"
COMMIT = CommitEntry(1, "0" * 32, 0, "app", 1)


@pytest.fixture
def source(tmp_path):
    """Return a broker's directory, stopped cleanly."""
    shutil.copytree(EXAMPLES, tmp_path / "source", ignore=shutil.ignore_patterns("README.md", ".git*"))
    (tmp_path / "source" / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":77}')
    return tmp_path / "source"


@pytest.fixture
def partition(source):
    return source / PARTITION_DIRECTORY


def marker(root):
    return json.loads((root / ".kafka_cleanshutdown").read_text())


@pytest.mark.parametrize("where", ["a file of the source", "an existing file", "a missing folder"])
def test_a_manifest_replaces_no_file(source, partition, tmp_path, where: str):
    (tmp_path / "existing").write_text("mine")
    path = {
        "a file of the source": partition / FIRST,
        "an existing file": tmp_path / "existing",
        "a missing folder": tmp_path / "missing" / "manifest.json",
    }[where]
    before = fingerprint(source)
    with pytest.raises((LogDirectoryError, OptionError)):
        run(source, tmp_path / "target", manifest=str(path))
    assert fingerprint(source) == before
    assert (tmp_path / "existing").read_text() == "mine"
    assert not (tmp_path / "target").exists()


def test_the_source_may_be_what_an_interrupted_recovery_left(source, tmp_path):
    left = tmp_path / ".target.segmentlog-recovery"
    source.rename(left)
    before = fingerprint(left)
    with pytest.raises(OptionError, match="is inside of"):
        run(left, tmp_path / "target")
    assert fingerprint(left) == before


def test_a_link_in_the_place_of_an_interrupted_recovery_is_not_followed(source, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("mine")
    (tmp_path / ".target.segmentlog-recovery").symlink_to(tmp_path / "mine")
    with pytest.raises(LogDirectoryError, match="no interrupted recovery of this user left"):
        run(source, tmp_path / "target")
    assert (tmp_path / "mine" / "file").read_text() == "mine"


def test_what_a_broker_discarded_is_put_aside_in_place(source, partition, tmp_path):
    """A broker's own recovery renames the segments that it discards, and deletes them a minute later."""
    discarded = (partition / LAST).read_bytes()
    (partition / LAST).rename(partition / f"{LAST}.deleted")
    run_in_place(source, tmp_path / "aside", "salvage")
    assert (tmp_path / "aside" / PARTITION_DIRECTORY / f"{LAST}.deleted").read_bytes() == discarded


def test_an_unclean_directory_with_a_log_that_is_being_moved_gets_no_marker(source, partition, tmp_path):
    (source / ".kafka_cleanshutdown").unlink()
    shutil.copytree(partition, source / f"{TOPIC}-7.3b2d4c5e6f708192a3b4c5d6e7f80912-future")
    run_in_place(source, tmp_path / "aside")
    assert not (source / ".kafka_cleanshutdown").exists()


@pytest.mark.parametrize("is_in_place", [False, True])
def test_a_partition_that_is_a_link_is_refused(source, partition, tmp_path, is_in_place: bool):
    partition.rename(tmp_path / "elsewhere")
    partition.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(LogDirectoryError, match="symbolic link"):
        run_in_place(source, tmp_path / "aside") if is_in_place else run(source, tmp_path / "target")


def test_a_start_in_the_middle_of_a_recovery_in_place_cuts_nothing(source, partition, tmp_path, monkeypatch):
    """The marker is gone by then, so a start reads from the recovery points on."""
    flip(partition / SECOND, 5_000)
    (source / "recovery-point-offset-checkpoint").unlink()

    def stop(*_arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(in_place, "load_recovered", stop)
    with pytest.raises(KeyboardInterrupt):
        run_in_place(source, tmp_path / "aside")
    points = (source / "recovery-point-offset-checkpoint").read_text().splitlines()
    assert f"{TOPIC} {PARTITION_DIRECTORY.rpartition('-')[2]} 7209" in points


@pytest.mark.parametrize("is_in_place", [False, True])
def test_a_partition_whose_number_has_zeros_before_it(source, partition, tmp_path, is_in_place: bool):
    """Kafka reads it as a number."""
    flip(partition / SECOND, 5_000)
    expected = rows(source, mode="DROPMALFORMED")
    partition.rename(source / f"{TOPIC}-00")
    if is_in_place:
        run_in_place(source, tmp_path / "aside", "salvage")
    else:
        run(source, tmp_path / "target", "salvage")
    assert rows(source if is_in_place else tmp_path / "target").equals(expected)


def test_an_index_without_a_log_is_evidence_in_place(source, partition, tmp_path):
    (source / "cleaner-offset-checkpoint").write_text(f"0\n1\n{TOPIC} 0 8234\n")
    for path in partition.glob("00000000000000003614.*"):
        if path.suffix != ".index":
            path.unlink()
    assert not run_in_place(source, tmp_path / "aside").is_complete


def test_the_directory_is_examined_under_the_lock(source, partition, tmp_path):
    """Another process may change it before."""

    class Racing(FileSystem):
        def lock(self, path):
            flip(partition / LAST, 5_000)
            return super().lock(path)

    options = options_of([str(source)], {})
    report = in_place.recover_in_place(Racing(), options, str(tmp_path / "aside"))
    assert not report.is_complete


def test_a_directory_that_is_made_before_the_lock_is_recovered(source, tmp_path):
    class Racing(FileSystem):
        def lock(self, path):
            shutil.copytree(source / "clicks-0", source / "clicks-1")
            return super().lock(path)

    report = in_place.recover_in_place(Racing(), options_of([str(source)], {}), str(tmp_path / "aside"))
    assert ("clicks", 1) in {(each.topic, each.partition) for each in report.partitions}


def test_damage_that_stays_in_the_last_segment_is_put_aside(source, partition, tmp_path):
    flip(partition / LAST, 5_000)
    before = (partition / LAST).read_bytes()
    report = run_in_place(source, tmp_path / "aside")
    assert not report.is_complete
    assert (tmp_path / "aside" / PARTITION_DIRECTORY / LAST).read_bytes() == before


def test_logs_are_flushed_before_recovery_points_say_so(source, partition, tmp_path, monkeypatch):
    (source / ".kafka_cleanshutdown").unlink()
    flip(partition / SECOND, 5_000)
    flushed = []

    class Watched(FileSystem):
        def open_for_writing(self, path, *, create=False, **options):
            flushed.append(os.path.basename(path))
            return super().open_for_writing(path, create=create, **options)

    points = []
    write = in_place.write_offset_checkpoint

    def note(filesystem, path, offsets):
        if path.endswith("recovery-point-offset-checkpoint") and not points:
            points.append(set(flushed))
        write(filesystem, path, offsets)

    monkeypatch.setattr(in_place, "write_offset_checkpoint", note)
    in_place.recover_in_place(
        Watched(), options_of([str(source)], {}), str(tmp_path / "aside"), policy="salvage"
    )
    assert {path.name for path in partition.glob("*.log")} <= points[0]


@pytest.mark.parametrize("is_in_place", [False, True])
def test_the_marker_keeps_the_brokers_epoch_only_if_nothing_was_lost(
    source, partition, tmp_path, is_in_place: bool
):
    def recovered(name, policy):
        if is_in_place:
            run_in_place(source, tmp_path / f"aside-{name}", policy)
            return source
        run(source, tmp_path / name, policy)
        return tmp_path / name

    assert marker(recovered("sound", "kafka"))["brokerEpoch"] == 77
    flip(partition / SECOND, 5_000)
    assert marker(recovered("damaged", "salvage")).get("brokerEpoch", -1) == -1


def test_a_damaged_epoch_of_a_batch_does_not_replace_the_checkpoint(source, partition, tmp_path):
    """No CRC covers the leader epoch of a batch."""
    flip(partition / SECOND, 12)
    checkpoint = (partition / "leader-epoch-checkpoint").read_bytes()
    run(source, tmp_path / "target")
    assert (tmp_path / "target" / PARTITION_DIRECTORY / "leader-epoch-checkpoint").read_bytes() == checkpoint


def test_an_end_that_only_the_checkpoints_remember_is_reported(source, partition, tmp_path):
    for path in partition.glob("00000000000000007209.*"):
        path.unlink()
    report = run(source, tmp_path / "target")
    assert not report.is_complete
    (found,) = (each for each in report.partitions if f"{each.topic}-{each.partition}" == PARTITION_DIRECTORY)
    assert [(each.start_offset, each.end_offset) for each in found.left_out] == [(7209, 8234)]


def test_salvage_leaves_out_zeros_within_a_log(source, partition, tmp_path):
    with open(partition / SECOND, "ab") as log:
        log.write(bytes(5_000))
    expected = rows(source, mode="DROPMALFORMED")
    run(source, tmp_path / "target", "salvage")
    assert not (tmp_path / "target" / PARTITION_DIRECTORY / SECOND).read_bytes().endswith(bytes(100))
    assert rows(tmp_path / "target").equals(expected)


def test_salvage_takes_a_damaged_swap_without_an_index(source, partition, tmp_path):
    (partition / SECOND).rename(partition / f"{SECOND}.swap")
    for suffix in ("index", "timeindex"):
        (partition / SECOND).with_suffix(f".{suffix}").unlink()
    flip(partition / f"{SECOND}.swap", 5_000)
    report = run(source, tmp_path / "target", "salvage")
    assert rows(tmp_path / "target").num_rows > 0
    assert not report.is_complete


@pytest.mark.parametrize("is_in_place", [False, True])
@pytest.mark.parametrize("is_torn", [False, True])
def test_salvage_prefers_intact_originals_to_a_damaged_swap(
    source, partition, tmp_path, is_in_place: bool, is_torn: bool
):
    """A crash came while a compaction was about to replace the first three segments."""
    expected = rows(source)
    swap = partition / f"{FIRST}.swap"
    swap.write_bytes(b"".join(path.read_bytes() for path in sorted(partition.glob("*.log"))[:3]))
    flip(swap, 5_000)
    if is_torn:
        (source / ".kafka_cleanshutdown").unlink()
        with open(partition / LAST, "ab") as log:
            log.write(b"torn")
    if is_in_place:
        report = run_in_place(source, tmp_path / "aside", "salvage")
        assert (tmp_path / "aside" / PARTITION_DIRECTORY / swap.name).exists()
    else:
        report = run(source, tmp_path / "target", "salvage")
        assert swap.name in {os.path.basename(each.path) for each in report.left_out_files}
    assert report.is_complete != is_torn
    assert rows(source if is_in_place else tmp_path / "target").equals(expected)


def test_salvage_takes_a_damaged_swap_if_an_original_is_damaged_too(source, partition, tmp_path):
    swap = partition / f"{FIRST}.swap"
    swap.write_bytes((partition / FIRST).read_bytes())
    flip(swap, 5_000)
    flip(partition / FIRST, 9_000)
    report = run(source, tmp_path / "target", "salvage")
    (found,) = (each for each in report.partitions if f"{each.topic}-{each.partition}" == PARTITION_DIRECTORY)
    assert [each.file for each in found.left_out] == [swap.name]


@pytest.mark.parametrize("what", ["marker", "damage"])
def test_salvage_names_the_producer_whose_transaction_stays_open(tmp_path, what: str):
    logs, _ = unpack_case("txn", tmp_path / "case")
    partition = logs / "txn-long-0"
    path = max(partition.glob("*.log"))
    content = bytearray(path.read_bytes())
    markers = [(start, header) for start, header in _batches(content) if header.attributes & 0x20]
    start, header = markers[-1]
    if what == "marker":
        # Its version is one that nobody knows, and its CRC is right.
        content[start + 61 + 5 : start + 61 + 9] = b"\xff" * 4
        crc = crc32c.crc32c(content[start + 21 : header.end_position_bytes])
        struct.pack_into(">I", content, start + 17, crc)
    else:
        content[start + 30] ^= 1
    path.write_bytes(content)
    report = run(logs, tmp_path / "target", "salvage", options={"subscribe": "txn-long"})
    (found,) = report.partitions
    assert any(f"producer {header.producer_id}" in each.reason for each in found.left_out)


def _batches(content):
    start = 0
    while start < len(content):
        header = parse_batch_header(content, start, start, path="")
        yield start, header
        start = header.end_position_bytes


def modes_of(root):
    return {
        str(path.relative_to(root)): stat.S_IMODE(path.lstat().st_mode) for path in (root, *root.rglob("*"))
    }


@pytest.mark.parametrize("is_in_place", [False, True])
@pytest.mark.parametrize("policy", ["kafka", "salvage"])
def test_copies_of_private_files_are_as_private(source, partition, tmp_path, is_in_place, policy):
    flip(partition / SECOND, 5_000)
    shutil.copytree(source / "clicks-0", source / "clicks-1")
    for path in (partition, *partition.iterdir()):
        path.chmod(0o700 if path.is_dir() else 0o600)
    for path in (source / "clicks-1").glob("*.log"):
        path.chmod(0o600)
    if is_in_place:
        run_in_place(source, tmp_path / "aside", policy)
    else:
        run(source, tmp_path / "target", policy, link=False)
    made = [tmp_path / "aside", source] if is_in_place else [tmp_path / "target"]
    for root in made:
        found = modes_of(root)
        if (root / PARTITION_DIRECTORY).exists():
            assert found[PARTITION_DIRECTORY] == 0o700
        private = {name: mode for name, mode in found.items() if name.startswith(f"{PARTITION_DIRECTORY}/")}
        assert set(private.values()) <= {0o600}
        for name, mode in found.items():
            if name.startswith("clicks-1/") and name.endswith((".log", ".cut")):
                assert mode == 0o600, name


@pytest.mark.parametrize("is_in_place", [False, True])
def test_copies_of_a_private_directory_are_as_private(source, partition, tmp_path, is_in_place):
    flip(partition / SECOND, 5_000)
    source.chmod(0o700)
    if is_in_place:
        run_in_place(source, tmp_path / "aside", "salvage")
    else:
        # A link has the permissions of its file, and is in a directory that is private.
        run(source, tmp_path / "target", "salvage", link=False)
    found = modes_of(tmp_path / ("aside" if is_in_place else "target"))
    assert {name: mode for name, mode in found.items() if mode & 0o077} == {}


@pytest.mark.parametrize("policy", ["kafka", "salvage"])
@pytest.mark.parametrize("is_clean", [False, True])
def test_a_backup_by_links_does_not_change_in_place(source, partition, tmp_path, policy, is_clean):
    """As `cp -al` makes it."""
    flip(partition / SECOND, 5_000)
    (partition / "00000000000000003614.index").unlink()
    with open(partition / LAST, "ab") as log:
        log.write(bytes(10) + b"torn")
    if not is_clean:
        (source / ".kafka_cleanshutdown").unlink()
        (source / "recovery-point-offset-checkpoint").unlink()
        for name in ("index", "timeindex"):
            # As a broker that was killed leaves them.
            os.truncate((partition / LAST).with_suffix(f".{name}"), 10_000)
    shutil.copytree(source, tmp_path / "backup", copy_function=os.link)
    before = fingerprint(tmp_path / "backup")
    run_in_place(source, tmp_path / "aside", policy)
    assert fingerprint(tmp_path / "backup") == before


@pytest.mark.parametrize("mode", [0o777, 0o775])
def test_a_directory_to_which_others_may_write_is_not_taken_for_an_interrupted_recovery(
    source, tmp_path, mode
):
    (tmp_path / ".target.segmentlog-recovery").mkdir()
    (tmp_path / ".target.segmentlog-recovery").chmod(mode)
    with pytest.raises(LogDirectoryError, match="no interrupted recovery of this user left"):
        run(source, tmp_path / "target")


# -- The target and files of the root --------


def test_a_target_that_is_a_link_is_refused_at_once(source, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "target").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(LogDirectoryError, match="symbolic link"):
        run(source, tmp_path / "target")
    assert not [path.name for path in tmp_path.iterdir() if "recovery" in path.name]


def test_a_target_in_a_partition_that_a_link_leads_to_is_refused(source, partition, tmp_path):
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / PARTITION_DIRECTORY).symlink_to(partition)
    with pytest.raises(OptionError, match="is inside of"):
        run(tmp_path / "linked" / PARTITION_DIRECTORY, partition / "target")


@pytest.mark.parametrize("is_in_place", [False, True])
@pytest.mark.parametrize("is_damaged", [False, True])
def test_commits_are_kept_only_if_their_rows_are(source, partition, tmp_path, is_in_place, is_damaged):
    """A job that is repeated must not take rows for written that were cut."""
    (source / ".segmentlog-commits").write_bytes(b"")
    if is_damaged:
        flip(partition / LAST, 5_000)
    if is_in_place:
        report = run_in_place(source, tmp_path / "aside", "salvage")
        assert (tmp_path / "aside" / ".segmentlog-commits").exists()
    else:
        report = run(source, tmp_path / "target", "salvage")
    root = source if is_in_place else tmp_path / "target"
    assert (root / ".segmentlog-commits").exists() != is_damaged
    names = {os.path.basename(each.path) for each in report.left_out_files}
    assert (".segmentlog-commits" in names) == is_damaged


@pytest.mark.parametrize("is_in_place", [False, True])
@pytest.mark.parametrize(
    ("data", "word"), [(b"x\n" + commit_line(COMMIT), "damaged"), (commit_line(COMMIT)[:-9], "no whole line")]
)
def test_a_damaged_list_of_commits_is_kept_with_a_warning(source, tmp_path, caplog, is_in_place, data, word):
    """Without it, jobs would write rows again that are here."""
    (source / ".segmentlog-commits").write_bytes(data)
    if is_in_place:
        run_in_place(source, tmp_path / "aside", "salvage")
    else:
        run(source, tmp_path / "target", "salvage")
    root = source if is_in_place else tmp_path / "target"
    assert (root / ".segmentlog-commits").read_bytes() == data
    (warning,) = [each.getMessage() for each in caplog.records if ".segmentlog-commits" in each.getMessage()]
    assert word in warning


def test_the_truncations_before_a_commit_are_kept_with_it(source, tmp_path):
    """Its rows would count as truncated. One that was under way is over in the copy."""
    (source / ".segmentlog-commits").write_bytes(b"")
    (source / ".segmentlog-truncations").write_bytes(b"begin t 0 5\n")
    run(source, tmp_path / "target")
    assert (tmp_path / "target" / ".segmentlog-truncations").read_bytes() == b"begin t 0 5\nend t 0 5\n"


# -- Indexes --------


def test_indexes_are_not_built_inside_a_log_directory(source):
    before = fingerprint(source)
    with pytest.raises(OptionError, match="is inside of"):
        rebuild_indexes(FileSystem(), options_of([str(source)], {}), target=str(source / "new"))
    assert fingerprint(source) == before


def test_a_transaction_index_after_damage_is_not_guessed(tmp_path):
    """The marker that ended a transaction may be in the damage, and then the next one seems to begin with it."""
    logs, _ = unpack_case("txn", tmp_path / "case")
    partition = logs / "txn-long-0"
    index = max(partition.glob("*.txnindex"), key=lambda path: path.stat().st_size)
    earlier = sorted(path for path in partition.glob("*.log") if path.stem < index.stem)
    content = bytearray(earlier[-1].read_bytes())
    (size,) = struct.unpack_from(">i", content, 8)
    content[size // 2] ^= 0x10
    assert crc32c.crc32c(content[21 : size + 12]) != struct.unpack_from(">I", content, 17)[0]
    earlier[-1].write_bytes(content)
    before = index.read_bytes()
    (index.with_suffix(".index")).unlink()
    report = rebuild_indexes(FileSystem(), options_of([str(logs)], {"subscribe": "txn-long"}))
    assert index.read_bytes() == before
    assert any(
        "an earlier segment is damaged" in text for each in report.partitions for text in each.not_rebuilt
    )
