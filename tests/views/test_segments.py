"""The view segments: offsets, states and indexes from names, sizes and both ends; with exact, what all headers say."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from pathlib import Path

import pytest
from conformance.archives import case_names, unpack_case

from storage_core import read_table
from storage_core.filesystem import FileSystem
from storage_core.options import options_of
from storage_core.views import plan_view, read_view_task, view_schema
from storage_core.views.inventory import inventory
from tests.faults.observed_filesystem import before_each_call
from tests.views.uncommitted import begin_commit

DATA = Path(__file__).parent.parent.parent / "examples" / "data"
EXACT_COLUMNS = ("batchCount", "recordCount", "controlBatchCount", "codecs", "magics")
QUICK_CASES = ("compact-txn", "magic1", "unclean")


@pytest.fixture
def logs(tmp_path):
    """Return a copy of the example data that a test may change."""
    return Path(shutil.copytree(DATA, tmp_path / "logs"))


def segments(*paths, filesystem=None, **options):
    return read_table(*paths, view="segments", filesystem=filesystem, **options).to_pylist()


def bases(rows):
    return [(row["topic"], row["partition"], row["baseOffset"]) for row in rows]


def test_names_sizes_and_both_ends_of_a_segment_fill_a_row():
    rows = segments(DATA, subscribe="inventory")
    names = (
        "baseOffset",
        "lastOffset",
        "nextOffset",
        "state",
        "isActive",
        "sizeBytes",
        "batchBytes",
        "damage",
    )
    assert [tuple(row[name] for name in names) for row in rows] == [
        (0, None, 0, "closed", False, 0, 0, None),
        (880, 1079, 1080, "closed", False, 121, 121, None),
        (1760, 2639, 2640, "closed", False, 1109, 1109, None),
        (2640, 3519, 3520, "closed", False, 4427, 4427, None),
        (3520, 3999, 4000, "active", True, 8881, 8881, None),
    ]
    assert rows[0]["minTimestamp"] is None
    assert rows[0]["maxTimestamp"] is None
    assert rows[4]["minTimestamp"].isoformat() == "2026-03-08T10:46:16.515000+00:00"
    assert rows[4]["maxTimestamp"].isoformat() == "2026-03-08T23:55:42.088000+00:00"
    assert {row[name] for row in rows for name in EXACT_COLUMNS} == {None}
    assert {row["isDamaged"] for row in rows} == {False}


def test_with_exact_all_headers_fill_a_row():
    rows = segments(DATA, subscribe="inventory,payments", exact=True)
    assert [
        tuple(row[name] for name in ("topic", "partition", "baseOffset", *EXACT_COLUMNS)) for row in rows
    ] == [
        ("inventory", 0, 0, 0, 0, 0, [], []),
        ("inventory", 0, 880, 1, 1, 0, ["gzip"], [2]),
        ("inventory", 0, 1760, 9, 10, 0, ["gzip"], [2]),
        ("inventory", 0, 2640, 19, 135, 0, ["gzip"], [2]),
        ("inventory", 0, 3520, 12, 480, 0, ["gzip"], [2]),
        ("payments", 0, 0, 132, 866, 66, ["none", "lz4"], [2]),
        ("payments", 0, 932, 110, 696, 55, ["none", "lz4"], [2]),
        ("payments", 1, 0, 142, 842, 71, ["none", "lz4"], [2]),
        ("payments", 1, 913, 100, 621, 50, ["none", "lz4"], [2]),
    ]


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(name, marks=() if name in QUICK_CASES else pytest.mark.thorough)
        for name in case_names()
        if name not in {"corrupt-middle", "torn-tail"}
    ],
)
def test_counts_are_those_of_the_batches(case, tmp_path):
    logs, _ = unpack_case(case, tmp_path / case)
    rows = [row for row in segments(logs, exact=True) if row["state"] != "deleted"]
    topics = ",".join(sorted({row["topic"] for row in rows}))
    batches = read_table(logs, view="batches", subscribe=topics, starting_offsets="earliest")
    counts = Counter()
    for batch in batches.to_pylist():
        key = batch["topic"], batch["partition"], batch["segment"]
        counts[key, "batches"] += 1
        counts[key, "bytes"] += batch["sizeBytes"]
        counts[key, "control"] += batch["isControl"]
        counts[key, "records"] += 0 if batch["isControl"] else batch["recordCount"]
        counts[key, "end"] = batch["lastOffset"] + 1
    starts = {(row["topic"], row["partition"]): row["logStartOffset"] for row in partitions_of(logs)}
    for row in rows:
        if row["baseOffset"] < starts[row["topic"], row["partition"]]:
            # The view batches does not have what is below the log start.
            continue
        key = row["topic"], row["partition"], f"{row['baseOffset']:020d}.log"
        assert row["batchCount"] == counts[key, "batches"]
        assert row["controlBatchCount"] == counts[key, "control"]
        assert row["recordCount"] in (None, counts[key, "records"])
        assert row["nextOffset"] == (counts[key, "end"] or row["baseOffset"])
        assert not row["isDamaged"]


def partitions_of(logs):
    return [row for row in read_table(logs, view="partitions").to_pylist() if row["state"] == "live"]


def test_compressed_messages_of_old_formats_do_not_tell_their_records(tmp_path):
    logs, _ = unpack_case("magic1", tmp_path / "magic1")
    rows = segments(logs, exact=True, subscribe="m1-none,m1-gzip")
    assert {row["topic"] for row in rows if row["recordCount"] is None} == {"m1-gzip"}
    assert {tuple(row["magics"]) for row in rows} <= {(), (1,)}


def test_segments_that_a_cleaner_replaced(logs):
    partition = logs / "orders-0"
    for suffix in (".log", ".index", ".timeindex"):
        shutil.copy(partition / f"{1787:020d}{suffix}", partition / f"{1787:020d}{suffix}.deleted")
    shutil.copy(partition / f"{1787:020d}.log", partition / f"{1787:020d}.log.cleaned")
    rows = segments(logs, subscribe="orders", where="partition = 0", exact=True)
    assert [(row["baseOffset"], row["state"], row["recordCount"], row["offsetIndex"]) for row in rows] == [
        (0, "closed", 1787, "ok"),
        (1787, "closed", 1827, "ok"),
        (3614, "closed", 1789, "ok"),
        (5403, "closed", 1806, "ok"),
        (7209, "active", 1025, "ok"),
        (1787, "deleted", 1827, "ok"),
        (1787, "cleaned", 1827, "missing"),
    ]


def test_a_segment_that_a_cleaner_is_about_to_rename(logs):
    log = logs / "orders-0" / f"{1787:020d}.log"
    log.rename(f"{log}.swap")
    rows = segments(logs, subscribe="orders", where="partition = 0")
    assert [row["state"] for row in rows] == ["closed", "swap", "closed", "closed", "active"]
    assert (rows[1]["lastOffset"], rows[1]["file"]) == (3613, f"{log}.swap")


def test_index_states(logs):
    partition = logs / "orders-0"
    index, times = partition / f"{1787:020d}.index", partition / f"{1787:020d}.timeindex"
    (partition / f"{0:020d}.index").unlink()
    index.write_bytes(index.read_bytes() + bytes(8 * 100))
    times.write_bytes(times.read_bytes()[::-1])
    (partition / f"{3614:020d}.timeindex").write_bytes(b"torn!")
    (partition / f"{3614:020d}.txnindex").write_bytes(b"torn!")
    (partition / f"{5403:020d}.timeindex").write_bytes(b"")
    names = ("offsetIndex", "timeIndex", "transactionIndex")
    rows = segments(logs, subscribe="orders", where="partition = 0")
    assert [tuple(row[name] for name in names) for row in rows] == [
        ("missing", "ok", "missing"),
        ("preallocated", "corrupt", "missing"),
        ("ok", "corrupt", "corrupt"),
        ("ok", "ok", "missing"),
        ("ok", "ok", "missing"),
    ]
    # None of them keeps the view from telling offsets and times.
    assert [row["nextOffset"] for row in rows] == [1787, 3614, 5403, 7209, 8234]
    assert [row["maxTimestamp"] for row in rows] == [
        row["maxTimestamp"] for row in segments(DATA, subscribe="orders", where="partition = 0")
    ]


def test_a_preallocated_segment(logs):
    log = logs / "clicks-0" / f"{0:020d}.log"
    with log.open("ab") as file:
        file.truncate(1 << 20)
    (logs / ".kafka_cleanshutdown").unlink()
    (row,) = segments(logs, subscribe="clicks")
    assert (row["sizeBytes"], row["batchBytes"], row["nextOffset"], row["isDamaged"]) == (
        1 << 20,
        31969,
        1200,
        False,
    )


def test_damage_in_the_middle_is_found_where_lengths_lead_nowhere(logs):
    log = logs / "orders-1" / f"{1856:020d}.log"
    data = bytearray(log.read_bytes())
    positions = [
        row["position"]
        for row in read_table(DATA, view="batches", subscribe="orders", where="partition = 1").to_pylist()
        if row["segment"] == log.name
    ]
    data[positions[5] + 8 : positions[5] + 12] = b"\xff\xff\xff\xff"
    log.write_bytes(data)
    rows = segments(logs, subscribe="orders", where="partition = 1", exact=True)
    damaged = [row for row in rows if row["isDamaged"]]
    assert bases(damaged) == [("orders", 1, 1856)]
    assert damaged[0]["batchCount"] == 28
    assert damaged[0]["damage"].startswith("Expected a batch length of at least 49 bytes, found -1.")
    assert f"bytes {positions[5]} to {positions[6] - 1}" in damaged[0]["damage"]


def test_a_closed_segment_that_was_cut_off(logs):
    log = logs / "orders-1" / f"{1856:020d}.log"
    log.write_bytes(log.read_bytes()[:-10])
    for exact in (False, True):
        rows = segments(logs, subscribe="orders", where="partition = 1", exact=exact)
        assert bases(row for row in rows if row["isDamaged"]) == [("orders", 1, 1856)]
        assert "found only its first" in rows[1]["damage"]


def test_a_torn_append_is_no_damage(logs):
    log = logs / "clicks-0" / f"{0:020d}.log"
    log.write_bytes(log.read_bytes()[:-10])
    (logs / ".kafka_cleanshutdown").unlink()
    (row,) = segments(logs, subscribe="clicks", exact=True)
    assert (row["nextOffset"], row["batchCount"], row["isDamaged"]) == (1100, 11, False)


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (
            {"starting_offsets": {"orders": {"0": 3700}}, "ending_offsets": {"orders": {"0": 5404}}},
            [3614, 5403],
        ),
        (
            {"starting_offsets": {"orders": {"0": 3613}}, "ending_offsets": {"orders": {"0": 5403}}},
            [1787, 3614],
        ),
        ({"starting_timestamp": "2026-03-06T17:20:00Z"}, [5403, 7209]),
        ({"ending_timestamp": "2026-03-02T00:00:13Z"}, [0]),
        ({"where": "offset >= 1787 AND offset < 5403"}, [1787, 3614]),
        ({"where": "timestamp >= '2026-03-08'"}, [5403, 7209]),
    ],
)
def test_bounds_and_conditions(options, found):
    rows = segments(DATA, assign={"orders": [0]}, **options)
    assert [row["baseOffset"] for row in rows] == found


@pytest.mark.parametrize("kind", ["fifo", "link", "directory"])
def test_what_is_no_file_is_named_and_other_partitions_are_shown(logs, kind):
    odd = logs / "orders-1" / "00000000000000000077.log"
    if kind == "fifo":
        os.mkfifo(odd)
    elif kind == "link":
        odd.symlink_to(logs / "orders-0" / "00000000000000000000.log")
    else:
        odd.mkdir()
    expected = [row for row in segments(DATA) if (row["topic"], row["partition"]) != ("orders", 1)]
    rows = segments(logs)
    (named,) = (row for row in rows if (row["topic"], row["partition"]) == ("orders", 1))
    assert (named["baseOffset"], named["isDamaged"], named["state"]) == (77, True, None)
    assert named["damage"].startswith("Expected a regular file as log segment, found a")
    assert named["file"] == str(odd)
    assert bases(row for row in rows if row is not named) == bases(expected)


class Deleting(FileSystem):
    """A broker deletes a partition's directory once the log directory has been listed."""

    def __init__(self, root, name):
        super().__init__()
        self.root, self.name = root, name

    def walk_directory(self, path):
        entries = list(super().walk_directory(path))
        if path == str(self.root / self.name):
            shutil.rmtree(path)
        return iter(entries)


@pytest.mark.parametrize("name", ["inventory-0", "orders-1"])
def test_a_partition_that_is_deleted_meanwhile_is_left_out(logs, name):
    before = bases(segments(logs))
    filesystem = Deleting(logs, name)
    left = [each for each in before if f"{each[0]}-{each[1]}" != name]
    assert bases(segments(logs, filesystem=filesystem)) == left


def test_a_segment_that_retention_deletes_meanwhile(logs):
    filesystem = FileSystem()
    options = options_of((logs,), {"view": "segments", "subscribe": "orders"})
    tasks = plan_view(filesystem, options)
    (logs / "orders-2" / f"{0:020d}.log").unlink()
    rows = [
        row
        for task in tasks
        for batch in read_view_task(filesystem, task, view_schema(options))
        for row in batch.to_pylist()
    ]
    assert [base for _, partition, base in bases(rows) if partition == 2] == [1783, 3576, 5358]


def merge_first_segments(directory):
    """Put the first two segments into one, as a cleaner does."""
    first, second, *_ = sorted(directory.glob("*.log"))
    for log in (first, second):
        log.with_suffix(".index").unlink()
        log.with_suffix(".timeindex").unlink()
    merged = directory / "merged"
    merged.write_bytes(first.read_bytes() + second.read_bytes())
    second.unlink()
    merged.rename(first)


@pytest.mark.parametrize("exact", [False, True])
def test_segments_that_a_cleaner_merges_meanwhile_are_not_damaged(logs, exact):
    filesystem = FileSystem()
    options = options_of((logs,), {"view": "segments", "assign": {"orders": [2]}, "exact": exact})
    tasks = plan_view(filesystem, options)
    merge_first_segments(logs / "orders-2")
    rows = [
        row
        for task in tasks
        for batch in read_view_task(filesystem, task, view_schema(options))
        for row in batch.to_pylist()
    ]
    found = [(row["baseOffset"], row["nextOffset"], row["isDamaged"]) for row in rows]
    assert found[:2] == [(0, 3576, False), (3576, 5358, False)]


def test_an_inventory_beside_a_cleaner_that_merges_segments_finds_no_damage(logs):
    class Merging(FileSystem):
        def examine_directory(self, path):
            yield from list(super().examine_directory(path))
            if path.endswith("orders-2") and (Path(path) / f"{1783:020d}.log").exists():
                merge_first_segments(Path(path))

    expected = inventory(FileSystem(), [str(DATA)], exact=True)
    found = inventory(Merging(), [str(logs)], exact=True)
    assert not found.has_damage
    assert [each.record_count for each in found.topics] == [each.record_count for each in expected.topics]


def test_values_are_not_read(make_large_batches, tmp_path):
    make_large_batches(tmp_path / "logs" / "large-0", count=200, size_bytes=64 * 1024)
    filesystem = FileSystem()
    (row,) = segments(tmp_path / "logs", filesystem=filesystem, exact=True)
    assert (row["batchCount"], row["sizeBytes"]) == (200, 200 * 64 * 1024)
    assert filesystem.statistics.bytes_read < row["sizeBytes"] / 20


@pytest.fixture
def make_large_batches():
    """Writes one segment of uncompressed batches of one large record, and the offset index that a broker would write."""
    import struct

    from crc32c import crc32c

    def make(directory, count, size_bytes):
        covered = struct.pack(">hiqqqhii", 0, 0, 1000, 1000, -1, -1, -1, 1) + bytes([1]) * (size_bytes - 61)
        tail = struct.pack(">iibI", size_bytes - 12, 0, 2, crc32c(covered)) + covered
        directory.mkdir(parents=True)
        log = b"".join(struct.pack(">q", offset) + tail for offset in range(count))
        index = b"".join(struct.pack(">ii", offset, offset * size_bytes) for offset in range(1, count))
        (directory / f"{0:020d}.log").write_bytes(log)
        (directory / f"{0:020d}.index").write_bytes(index)

    return make


@pytest.mark.parametrize(
    ("suffix", "found"), [(".swap", [0, 1787, 3614, 5403, 7209]), (".deleted", [0, 3614, 5403, 7209])]
)
def test_a_segment_that_a_cleaner_replaces_meanwhile(logs, suffix, found):
    log = logs / "orders-0" / f"{1787:020d}.log"

    def replace(call, path):
        if call == "status" and path == str(log) and log.exists():
            log.rename(f"{log}{suffix}")

    rows = segments(logs, filesystem=before_each_call(replace), assign={"orders": [0]})
    assert [row["baseOffset"] for row in rows] == found


@pytest.mark.parametrize("suffix", ["", ".deleted"])
def test_a_segment_whose_files_are_deleted_at_any_time_is_in_the_view_or_left_out(logs, suffix):
    files = sorted((logs / "orders-0").glob(f"{1787:020d}.*"))
    contents = {Path(f"{file}{suffix}"): file.read_bytes() for file in files}
    found = []
    calls = countdown = 0

    def delete(call, path):
        nonlocal countdown
        countdown -= path.startswith(str(logs / "orders-0" / f"{1787:020d}."))
        if countdown == 0:
            for file in contents:
                file.unlink(missing_ok=True)

    while countdown <= 0:
        calls = countdown = calls + 1
        for file, content in contents.items():
            file.write_bytes(content)
        rows = segments(logs, filesystem=before_each_call(delete), assign={"orders": [0]}, exact=True)
        found.append([row["baseOffset"] for row in rows].count(1787))
    others = 1 if suffix else 0
    assert set(found) == {others, others + 1}
    assert found[-1] == others + 1
    assert calls > 10


def test_rows_of_a_job_that_has_not_committed_yet_are_not_there(logs):
    begin_commit(logs, {("clicks", 0): 1100})
    (row,) = segments(logs, subscribe="clicks", exact=True)
    assert (row["nextOffset"], row["batchCount"], row["sizeBytes"]) == (1100, 11, 31969)
