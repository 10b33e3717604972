"""The view partitions: what brokers say of the same directories, and the directories that no read takes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from conformance.archives import case_names, unpack_case

from storage_core import read_table
from storage_core.errors import LogDirectoryError
from storage_core.filesystem import FileSystem
from tests.faults.observed_filesystem import refusing
from tests.record.encoding import Batch, Record
from tests.views.uncommitted import begin_commit

DATA = Path(__file__).parent.parent.parent / "examples" / "data"
QUICK_CASES = ("delete-records", "txn-ongoing", "unclean", "internal")


@pytest.fixture
def logs(tmp_path):
    """Return a copy of the example data that a test may change."""
    return Path(shutil.copytree(DATA, tmp_path / "logs"))


def partitions(*paths, filesystem=None, **options):
    return read_table(*paths, view="partitions", filesystem=filesystem, **options).to_pylist()


def one(*paths, **options):
    (row,) = partitions(*paths, **options)
    return row


@pytest.mark.parametrize(
    "case",
    [pytest.param(name, marks=() if name in QUICK_CASES else pytest.mark.thorough) for name in case_names()],
)
def test_offsets_and_counts_are_those_that_the_broker_told(case, tmp_path):
    logs, expected = unpack_case(case, tmp_path / case)
    rows = {
        (row["topic"], row["partition"]): row
        for row in partitions(logs, exact=True)
        if row["state"] == "live"
    }
    told = expected["partitions"]
    for partition in told.values() if isinstance(told, dict) else told:
        row = rows[partition["topic"], partition["partition"]]
        assert row["logStartOffset"] == partition["log_start_offset"]
        assert row["logEndOffset"] == partition["end_offset"]
        assert row["highWatermark"] == partition.get("high_watermark", row["highWatermark"])
        assert row["lastStableOffset"] == partition.get("last_stable_offset", row["lastStableOffset"])
        if case != "corrupt-middle":
            assert row["recordCount"] in (None, len(partition["records"]))
        if partition.get("max_timestamp"):
            timestamp_ms, _ = partition["max_timestamp"]
            found = row["maxTimestamp"]
            assert (-1 if found is None else round(found.timestamp() * 1000)) == timestamp_ms


def test_the_example_data():
    rows = partitions(DATA)
    names = (
        "topic",
        "partition",
        "logEndOffset",
        "segmentCount",
        "logBytes",
        "codecs",
        "magics",
        "recoveryPoint",
    )
    assert [tuple(row[name] for name in names) for row in rows] == [
        ("clicks", 0, 1200, 1, 31969, ["none"], [2], 1200),
        ("inventory", 0, 4000, 5, 14538, ["gzip"], [2], 4000),
        ("orders", 0, 8234, 5, 438786, ["zstd"], [2], 8234),
        ("orders", 1, 8632, 5, 457986, ["zstd"], [2], 8632),
        ("orders", 2, 7134, 4, 386024, ["zstd"], [2], 7134),
        ("payments", 0, 1683, 2, 118158, ["none", "lz4"], [2], 1683),
        ("payments", 1, 1584, 2, 112645, ["none", "lz4"], [2], 1584),
    ]
    row = rows[0]
    assert (row["topicId"], row["leaderEpoch"], row["isClean"], row["isRead"], row["isDamaged"]) == (
        "WjYws3-tQ663tTLKy1FbMw",
        0,
        True,
        True,
        False,
    )
    assert (row["batchCount"], row["recordCount"]) == (None, None)
    assert row["sizeBytes"] == sum(path.stat().st_size for path in (DATA / "clicks-0").iterdir())
    assert row["replicas"] == [str(DATA / "clicks-0")]
    assert row["root"] == str(DATA)


def test_with_exact_every_header_counts():
    row = one(DATA, subscribe="inventory", exact=True)
    assert (row["batchCount"], row["recordCount"], row["codecs"]) == (41, 626, ["gzip"])


@pytest.mark.parametrize("codec", [0, 1])
@pytest.mark.parametrize(
    ("log_start", "count"), [(10, 4), (11, 3), (12, 3), (13, 2), (19, 2), (20, 1), (21, 0)]
)
def test_records_of_a_compacted_batch_around_the_log_start_are_counted_one_by_one(
    tmp_path, codec, log_start, count
):
    compacted = tuple(Record(delta, 5, b"k", b"v") for delta in (0, 2, 9))
    folder = tmp_path / "compacted-0"
    folder.mkdir()
    batches = [Batch(compacted, 10, codec, last_offset_delta=9), Batch((Record(0, 5, b"k", b"v"),), 20)]
    (folder / f"{10:020d}.log").write_bytes(b"".join(each.encode() for each in batches))
    (tmp_path / "log-start-offset-checkpoint").write_text(f"0\n1\ncompacted 0 {log_start}\n")
    row = one(tmp_path, exact=True)
    assert (row["logStartOffset"], row["recordCount"], row["isDamaged"]) == (log_start, count, False)


def test_directories_that_no_read_takes(tmp_path):
    logs, _ = unpack_case("deleted-topic", tmp_path / "case")
    rows = partitions(logs)
    names = ("topic", "partition", "state", "isRead", "logEndOffset", "highWatermark", "preallocatedBytes")
    assert [tuple(row[name] for name in names) for row in rows] == [
        ("gone", 0, "live", True, 16, 16, 0),
        ("gone", 0, "delete", False, 34, None, 8188),
        ("gone", 1, "delete", False, 21, None, 8188),
        ("gone-not", 0, "live", True, 22, 22, 0),
    ]
    assert rows[0]["topicId"] != rows[1]["topicId"]
    assert rows[1]["replicas"] == [str(logs / "gone-0")]


@pytest.mark.parametrize("state", ["stray", "future"])
def test_strays_and_future_replicas(logs, state):
    (logs / "clicks-0").rename(logs / f"clicks-0.{'0f' * 16}-{state}")
    row = one(logs, where="topic = 'clicks'")
    assert (row["state"], row["isRead"], row["logEndOffset"], row["recoveryPoint"]) == (
        state,
        False,
        1200,
        None,
    )


def test_preallocated_files(tmp_path):
    logs, _ = unpack_case("unclean", tmp_path / "case")
    # The log file of 9,000 bytes has batches up to byte 4,741; its two indexes have 4,096 and 4,092 bytes.
    row = one(logs, subscribe="u-prealloc")
    assert row["preallocatedBytes"] == 9000 - 4741 + 8128
    assert (row["isClean"], row["isDamaged"]) == (False, False)


def test_replicas_of_several_brokers(logs, tmp_path):
    other = Path(shutil.copytree(logs, tmp_path / "other"))
    for name in ("leader-epoch-checkpoint",):
        (other / "clicks-0" / name).write_text("0\n1\n3 0\n")
    shutil.rmtree(other / "orders-0")
    rows = partitions(logs, other)
    both = [
        (row["topic"], row["partition"], row["root"], row["isRead"])
        for row in rows
        if len(row["replicas"]) == 2
    ]
    assert both[:4] == [
        ("clicks", 0, str(logs), False),
        ("clicks", 0, str(other), True),
        ("inventory", 0, str(logs), True),
        ("inventory", 0, str(other), False),
    ]
    (alone,) = [row for row in rows if (row["topic"], row["partition"]) == ("orders", 0)]
    assert (alone["isRead"], alone["replicas"]) == (True, [str(logs / "orders-0")])


def test_replicas_that_do_not_belong_together_are_rows_not_an_error(logs, tmp_path):
    other = Path(shutil.copytree(logs, tmp_path / "other"))
    (other / "meta.properties").write_text("version=1\nnode.id=2\ncluster.id=anothercluster\n")
    rows = partitions(logs, other, subscribe="clicks")
    assert [(row["isRead"], row["logEndOffset"]) for row in rows] == [(False, 1200), (False, 1200)]
    assert "different values of cluster.id" in rows[0]["replicaConflict"]


def test_damage_at_the_end_does_not_hide_the_end(logs):
    log = logs / "clicks-0" / f"{0:020d}.log"
    positions = [row["position"] for row in read_table(DATA, view="batches", subscribe="clicks").to_pylist()]
    data = bytearray(log.read_bytes())
    data[positions[5] + 16] = 9
    log.write_bytes(data)
    # From the last index entry on, nothing is wrong.
    assert not one(logs, subscribe="clicks")["isDamaged"]
    assert one(logs, subscribe="clicks", exact=True)["isDamaged"]
    log.with_suffix(".index").unlink()
    row = one(logs, subscribe="clicks")
    assert (row["logEndOffset"], row["isDamaged"]) == (1200, True)
    assert "magic byte of a record batch to be 0, 1 or 2, found 9" in row["damage"]


def test_damaged_small_files_do_not_hide_the_log(logs):
    (logs / "clicks-0" / "partition.metadata").write_text("version: 0\ntopic_id: short")
    (logs / "clicks-0" / "leader-epoch-checkpoint").write_text("0\n7\n0 0\n")
    row = one(logs, subscribe="clicks")
    assert (row["topicId"], row["leaderEpoch"], row["logEndOffset"], row["isDamaged"]) == (
        None,
        None,
        1200,
        True,
    )
    assert "topic_id" in row["damage"]
    assert "Expected 7 entries" in row["damage"]


def test_a_partition_directory_that_was_copied_alone(logs, tmp_path):
    alone = Path(shutil.copytree(logs / "clicks-0", tmp_path / "copy" / "clicks-0"))
    row = one(alone)
    assert (row["logEndOffset"], row["highWatermark"], row["isClean"]) == (1200, None, False)
    assert row["root"] == str(alone.parent)


def test_a_partition_that_may_not_be_read_is_an_error_that_names_it(logs):
    with pytest.raises(LogDirectoryError, match=r"may not read.*clicks-0"):
        partitions(logs, filesystem=refusing("clicks-0"))


def test_the_last_stable_offset_is_found_only_if_it_is_asked_for(tmp_path):
    logs, _ = unpack_case("unclean", tmp_path / "case")
    with_it, without = FileSystem(), FileSystem()
    partitions(logs, filesystem=with_it, columns=["topic", "lastStableOffset"])
    partitions(logs, filesystem=without, columns=["topic", "logEndOffset"])
    assert without.statistics.files_opened < with_it.statistics.files_opened


def test_no_more_files_are_opened_for_more_segments(make_segments, tmp_path):
    opened = []
    for count in (10, 300):
        make_segments(tmp_path / str(count) / "many-0", count)
        filesystem = FileSystem()
        columns = ["segmentCount", "logEndOffset"]
        row = one(tmp_path / str(count), filesystem=filesystem, columns=columns)
        assert (row["segmentCount"], row["logEndOffset"]) == (count, count)
        opened.append((filesystem.statistics.files_opened, filesystem.statistics.directories_listed))
    assert opened[0] == opened[1]


@pytest.fixture
def make_segments():
    """Writes segments of one record each."""
    import struct

    from crc32c import crc32c

    def make(directory, count):
        record = bytes([12, 0, 0, 0, 1, 0, 0])
        covered = struct.pack(">hiqqqhii", 0, 0, 1000, 1000, -1, -1, -1, 1) + record
        tail = struct.pack(">iibI", 9 + len(covered), 0, 2, crc32c(covered)) + covered
        directory.mkdir(parents=True)
        for offset in range(count):
            (directory / f"{offset:020d}.log").write_bytes(struct.pack(">q", offset) + tail)
            (directory / f"{offset:020d}.index").touch()

    return make


def test_a_job_that_has_not_committed_yet(logs):
    begin_commit(logs, {("clicks", 0): 1100}, new=(("payments", 1),))
    rows = {(row["topic"], row["partition"]): row for row in partitions(logs)}
    assert (rows["clicks", 0]["state"], rows["clicks", 0]["logEndOffset"]) == ("live", 1100)
    assert (rows["payments", 1]["state"], rows["payments", 1]["isRead"]) == ("uncommitted", False)
