"""A tiered topic is read from its true log start, as if its log were in one directory."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core import count_records, explain, read_table
from storage_core.errors import LogDirectoryError, OffsetOutOfRangeError
from storage_core.filesystem import FileSystem
from storage_core.options import options_of, parse_stream_options
from storage_core.scan.plan import plan_scan
from storage_core.scan.read import read_task
from storage_core.scan.spans import project, record_schema
from storage_core.scan.stream import MicroBatchPlanner
from storage_core.tier import TierFileSystem, open_file_system
from storage_core.views.inventory import inventory
from tests.examples import examples
from tests.filesystem.counted_store import CountedStore
from tests.log.logs import name
from tests.scan.halves import EPOCHS, NAME, START_CHECKPOINT, bases_of, cut, make_whole
from tests.tier.uploads import put_aiven, uploads_of


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return make_whole(tmp_path_factory.mktemp("whole") / "data")


@pytest.fixture(scope="module")
def bases(whole):
    return bases_of(whole)


@pytest.fixture(scope="module")
def others(tmp_path_factory):
    """Return the same log, as another broker may have rolled it."""
    return make_whole(tmp_path_factory.mktemp("others") / "data", 1700)


SCHEMA = project(record_schema(), ("offset",))


class OpenedFiles(FileSystem):
    """Notes what is opened."""

    def __init__(self):
        super().__init__()
        self.opened = []

    def open(self, path, version=None):
        self.opened.append(path)
        return super().open(path, version)


OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "isolation_level": st.sampled_from(["read_uncommitted", "read_committed"]),
        "starting_timestamp": st.integers(0, 72_000),
        "ending_timestamp": st.integers(72_000, 80_000),
        "where": st.sampled_from(
            [
                "timestamp >= '1970-01-01T00:00:40Z'",
                "timestamp < '1970-01-01T00:00:40Z' AND offset >= 3",
                "timestamp BETWEEN '1970-01-01T00:00:20Z' AND '1970-01-01T00:00:30Z'",
            ]
        ),
        "max_timestamp_disorder": st.just("5 seconds"),
        "use_indexes": st.booleans(),
        "mode": st.sampled_from(["FAILFAST", "DROPMALFORMED"]),
        "ending_offsets": st.integers(5, 70).map(lambda end: {"orders": {"0": end}}),
        "max_records_per_partition": st.just(7),
    },
)


@examples(40)
@given(data=st.data(), options=OPTIONS)
def test_any_two_halves_are_the_whole(whole, bases, others, data, options):
    options.pop("ending_offsets" if "ending_timestamp" in options else "ending_timestamp", None)
    options["starting_offsets_by_timestamp_strategy"] = "latest"
    if "ending_offsets" in options:
        options.pop("starting_timestamp", None)
    local_from = data.draw(st.integers(1, len(bases) - 1))
    uploaded = data.draw(st.sampled_from([whole, others]))
    ends = [*bases_of(uploaded)[1:], 1 << 60]
    least = next(number for number, end in enumerate(ends, 1) if end >= bases[local_from])
    remote_to = data.draw(st.integers(least, len(ends)))
    with tempfile.TemporaryDirectory() as path:
        local, remote = cut(whole, Path(path), local_from, remote_to, uploaded=uploaded)
        rows = read_table(local, remote_storage=remote, **options)
        assert rows == read_table(str(whole), **options)
        assert count_records(local, remote_storage=remote, **options) == rows.num_rows


@pytest.mark.parametrize("start", [0, 7, 30])
def test_the_log_start_is_the_local_checkpoint(whole, tmp_path, bases, start):
    local, remote = cut(whole, tmp_path, 4, 6, start)
    offsets = read_table(local, remote_storage=remote, columns=["offset"])["offset"].to_pylist()
    assert offsets == [each for each in read_table(str(whole))["offset"].to_pylist() if each >= start]


def test_without_checkpoints_remote_storage_says_where_the_log_starts(whole, tmp_path):
    local, remote = cut(whole, tmp_path, 4, 4, 30)
    read = read_table(local, remote_storage=remote, ignore_checkpoints=True)
    assert read == read_table(str(whole), ignore_checkpoints=True)


def test_without_the_option_one_warning_names_it(whole, tmp_path, bases, caplog):
    local, _ = cut(whole, tmp_path, 4, 4)
    shutil.copytree(Path(local) / NAME, Path(local) / "orders-1")
    (Path(local) / START_CHECKPOINT).write_text("0\n2\norders 0 0\norders 1 0\n")
    assert read_table(local)["offset"].to_pylist()[0] == bases[4]
    (warning,) = [each.getMessage() for each in caplog.records if "remoteStorage" in each.getMessage()]
    assert f"begins at offset 0 by {START_CHECKPOINT}, and its first segment here at {bases[4]}" in warning


def test_offsets_below_the_local_half_are_lost_without_the_option(whole, tmp_path, bases):
    local, _ = cut(whole, tmp_path, 4, 4)
    with pytest.raises(OffsetOutOfRangeError, match="see remoteStorage"):
        read_table(local, starting_offsets={"orders": {"0": 3}})
    read = read_table(local, starting_offsets={"orders": {"0": 3}}, fail_on_data_loss=False)
    assert read["offset"].to_pylist()[0] == bases[4]


def test_a_log_whose_segments_begin_at_its_start_is_no_half(whole, tmp_path, bases, caplog):
    local, _ = cut(whole, tmp_path, 4, 4, bases[4])
    read_table(local)
    assert not caplog.records


def test_planning_opens_few_files(whole, tmp_path):
    local, remote = cut(whole, tmp_path, 4, 6)
    planning = explain(local, remote_storage=remote).planning
    alone = explain(str(whole)).planning
    assert planning.files_opened <= alone.files_opened + 6
    assert planning.bytes_read <= alone.bytes_read + 4096


def test_committed_records_are_told_by_the_transaction_indexes(whole, tmp_path, bases):
    local, remote = cut(whole, tmp_path, 6, 6)
    options = options_of([local], {"remote_storage": remote, "isolation_level": "read_committed"})
    filesystem = OpenedFiles()
    plan_scan(filesystem, options)
    in_remote = [Path(path) for path in filesystem.opened if path.startswith(remote)]
    # Where the remote half ends may be above the first local segment.
    assert [path.name for path in in_remote if path.suffix == ".log"] == [name(bases[5])]
    assert name(bases[3], "txnindex") in {path.name for path in in_remote}


# -- Leader epochs --------


def write_epochs(path, *entries):
    lines = [f"{epoch} {start}" for epoch, start in entries]
    Path(path).write_text("\n".join(["0", str(len(lines)), *lines, ""]))


@pytest.mark.parametrize("fork", [0, 12, 23])
def test_remote_records_of_another_history_are_not_read(whole, tmp_path, caplog, fork):
    local, remote = cut(whole, tmp_path, 5, 6)
    remote_epochs = [(0, 0), (1, 23)] if fork == 23 else [*([(0, 0)] if fork else []), (7, fork)]
    write_epochs(f"{local}/{NAME}/{EPOCHS}", (0, 0), (2, 23), (9, 60))
    write_epochs(f"{remote}/{NAME}/{EPOCHS}", *remote_epochs)
    offsets = read_table(local, remote_storage=remote)["offset"].to_pylist()
    first_local = bases_of(Path(local))[0]
    expected = read_table(str(whole))["offset"].to_pylist()
    assert offsets == [each for each in expected if each < fork or each >= first_local]
    if fork:
        assert f"is not read from offset {fork} of {NAME} on" in caplog.text
        assert f"has offsets {fork} to {first_local - 1}" in caplog.text


def test_an_epoch_that_the_local_half_does_not_reach_back_to(whole, tmp_path):
    local, remote = cut(whole, tmp_path, 5, 5)
    write_epochs(f"{local}/{NAME}/{EPOCHS}", (2, bases_of(Path(local))[0]))
    assert read_table(local, remote_storage=remote) == read_table(str(whole))
    Path(f"{local}/{NAME}/{EPOCHS}").unlink()
    assert read_table(local, remote_storage=remote) == read_table(str(whole))


# -- What is where --------


def test_another_topic_of_the_same_name_is_left_out(whole, tmp_path, bases, caplog):
    local, remote = cut(whole, tmp_path, 4, 4)
    (Path(remote) / NAME / "partition.metadata").write_text("version: 0\ntopic_id: wFqg4oNsJ1B1z71xLHGZAw")
    for _ in range(2):
        assert read_table(local, remote_storage=remote)["offset"].to_pylist()[0] == bases[4]
    assert caplog.text.count("is of a topic with the id wFqg4oNsJ1B1z71xLHGZAw") == 1


def test_topics_that_only_remote_storage_has(whole, tmp_path, bases, caplog):
    local, remote = cut(whole, tmp_path, 4, 4)
    shutil.copytree(Path(remote) / NAME, Path(remote) / "gone-0")
    shutil.copytree(Path(remote) / NAME, Path(remote) / "orders-3")
    read = read_table(local, remote_storage=remote)
    assert sorted(set(zip(read["topic"].to_pylist(), read["partition"].to_pylist(), strict=True))) == [
        ("gone", 0),
        ("orders", 0),
    ]
    of_gone = [
        offset
        for topic, offset in zip(*(read[each].to_pylist() for each in ("topic", "offset")), strict=True)
        if topic == "gone"
    ]
    assert of_gone == [each for each in read_table(str(whole))["offset"].to_pylist() if each < bases[4]]
    assert "Read from remote storage alone, because no local directory has them: gone" in caplog.text
    assert "Left out what only remote storage has, orders-3" in caplog.text


def test_several_places(whole, tmp_path, bases):
    local, first = cut(whole, tmp_path / "a", 5, 5)
    _, second = cut(whole, tmp_path / "b", 5, 5)
    for base in bases[:2]:
        for path in (Path(first) / NAME).glob(name(base, "*")):
            path.unlink()
    for base in bases[3:]:
        for path in (Path(second) / NAME).glob(name(base, "*")):
            path.unlink()
    assert read_table(local, remote_storage=f"{first},{second}") == read_table(str(whole))


def test_a_hole_between_the_halves_is_named(whole, tmp_path, bases, caplog):
    local, remote = cut(whole, tmp_path, 5, 3)
    offsets = read_table(local, remote_storage=remote)["offset"].to_pylist()
    assert not [each for each in offsets if bases[3] <= each < bases[5]]
    assert (
        f"Neither {local}/{NAME} nor remote storage has offsets {bases[3]} to {bases[5] - 1}." in caplog.text
    )


def test_a_place_that_does_not_exist(whole, tmp_path):
    with pytest.raises(LogDirectoryError, match="found nothing"):
        read_table(str(whole), remote_storage=str(tmp_path / "nowhere"))


# -- Streams, and segments that move --------


def move_to_remote(whole, local, remote, base):
    """Let a broker delete a local segment that it has uploaded."""
    for path in (Path(local) / NAME).glob(name(base, "*")):
        path.unlink()
    for suffix in ("log", "index", "timeindex"):
        shutil.copy(whole / NAME / name(base, suffix), f"{remote}/{NAME}")
    shutil.copy(whole / NAME / EPOCHS, f"{remote}/{NAME}")


def offsets_of(plan):
    return [
        each
        for task in plan.tasks
        for batch in read_task(FileSystem(), task, SCHEMA)
        for each in batch["offset"].to_pylist()
    ]


def stream_offsets(planner, start, end):
    return offsets_of(planner.plan({("orders", 0): start}, {("orders", 0): end}))


def test_a_stream_starts_in_the_remote_half_and_goes_on_where_segments_were_moved(whole, tmp_path, bases):
    local, remote = cut(whole, tmp_path, 4, 4)
    raw = {"path": local, "remote_storage": remote, "starting_offsets": "earliest"}
    planner = MicroBatchPlanner(FileSystem(), parse_stream_options(raw))
    end = planner.latest_offsets()["orders", 0]
    assert planner.initial_offsets() == {("orders", 0): 0}
    expected = read_table(str(whole))["offset"].to_pylist()
    middle = bases[3] + 1
    assert stream_offsets(planner, 0, middle) == [each for each in expected if each < middle]
    move_to_remote(whole, local, remote, bases[4])
    assert stream_offsets(planner, middle, end) == [each for each in expected if each >= middle]


def test_a_stream_finds_a_remote_half_that_was_not_there_when_it_began(whole, tmp_path, bases):
    local, remote = cut(whole, tmp_path, 1, 1)
    Path(remote).rename(tmp_path / "later")
    shutil.copytree(tmp_path / "later" / NAME, Path(remote) / "other-0")
    raw = {
        "path": local,
        "remote_storage": remote,
        "starting_offsets": {"orders": {"0": bases[1]}},
        "assign": {"orders": [0]},
    }
    planner = MicroBatchPlanner(FileSystem(), parse_stream_options(raw))
    end = planner.latest_offsets()["orders", 0]
    (Path(remote) / NAME).mkdir()
    move_to_remote(whole, local, remote, bases[1])
    assert stream_offsets(planner, bases[1], end) == [
        each for each in read_table(str(whole))["offset"].to_pylist() if each >= bases[1]
    ]


def test_a_stream_of_a_local_half_lists_a_store_once_an_interval(whole, tmp_path, quick_bucket):
    local, remote = cut(whole, tmp_path, 4, 4)
    raw = {
        "path": local,
        "remote_storage": quick_bucket.put_tree(remote, "tier").replace("s3:", "s3a:"),
        "starting_offsets": "earliest",
        "storage_options": quick_bucket.storage_options,
    }
    options = parse_stream_options(raw)
    planner = MicroBatchPlanner(open_file_system(options.read.storage), options)
    for number in range(4):
        planner.latest_offsets()
        # A broker writes its checkpoints anew every few seconds.
        (Path(local) / f"checkpoint.{number}").touch()
    assert quick_bucket.counts()["LIST"] == 1


def test_a_task_reads_a_segment_that_was_moved_after_planning(whole, tmp_path, bases):
    local, remote = cut(whole, tmp_path, 4, 4)
    plan = plan_scan(FileSystem(), options_of([local], {"remote_storage": remote}))
    for base in bases[4:6]:
        move_to_remote(whole, local, remote, base)
    assert offsets_of(plan) == read_table(str(whole))["offset"].to_pylist()


def test_limits_of_a_batch_count_remote_bytes(whole, tmp_path):
    local, remote = cut(whole, tmp_path, 6, 6)
    raw = {
        "path": local,
        "remote_storage": remote,
        "starting_offsets": "earliest",
        "max_bytes_per_trigger": 500,
    }
    planner = MicroBatchPlanner(FileSystem(), parse_stream_options(raw))
    alone = MicroBatchPlanner(
        FileSystem(), parse_stream_options({**raw, "path": str(whole), "remote_storage": None})
    )
    assert planner.latest_offsets() == alone.latest_offsets()


# -- Plans, views and inventories say what is where --------


def test_a_plan_says_what_is_read_from_where(whole, tmp_path, bases):
    local, remote = cut(whole, tmp_path, 5, 7)
    explained = explain(local, remote_storage=remote)
    (partition,) = explained.partitions
    assert (partition.log_start_offset, partition.remote_segments, partition.local_start_offset) == (
        0,
        5,
        bases[5],
    )
    assert f"  5 segments up to offset {bases[5]} from remote storage" in str(explained)
    assert [Path(span.file).parent.parent.name for span in partition.spans] == ["remote"] * 5 + ["local"] * (
        len(bases) - 5
    )


def test_views_of_files_list_both_halves(whole, tmp_path, bases):
    local, remote = cut(whole, tmp_path, 5, 7)
    both = {"remote_storage": remote}
    assert read_table(local, view="segments", **both)["baseOffset"].to_pylist() == bases
    states = read_table(local, view="partitions", **both).select(
        ["state", "isRead", "logStartOffset", "logEndOffset"]
    )
    end = read_table(str(whole), view="partitions")["logEndOffset"][0].as_py()
    assert [tuple(row.values()) for row in states.to_pylist()] == [
        ("live", True, bases[5], end),
        ("remote", False, 0, bases[7]),
    ]
    files = read_table(local, view="files", **both)
    assert (
        sum(state == "remote" for state in files["state"].to_pylist())
        == len(list((Path(remote) / NAME).iterdir())) + 1
    )


@pytest.mark.parametrize("view", ["batches", "epochs", "producers", "transactions"])
def test_other_views_are_of_the_whole_log(whole, tmp_path, view):
    local, remote = cut(whole, tmp_path, 5, 7)
    columns = read_table(str(whole), view=view)
    columns = columns.select([name for name in columns.column_names if "file" not in name.lower()])
    assert read_table(local, remote_storage=remote, view=view).select(columns.column_names) == columns


def test_an_inventory_says_what_is_where(whole, tmp_path, bases):
    local, remote = cut(whole, tmp_path, 5, 7)
    shutil.copytree(Path(remote) / NAME, Path(remote) / "gone-0")
    options = options_of([local], {"remote_storage": remote})
    found = inventory(FileSystem(), [local], options=options)
    assert [(root.is_remote, root.segment_count) for root in found.roots] == [
        (False, len(bases) - 5),
        (True, 14),
    ]
    gone, orders = found.topics
    assert (gone.segment_count, gone.remote_segment_count, gone.remote_offset_count) == (0, 7, bases[7])
    assert (orders.segment_count, orders.remote_segment_count) == (len(bases) - 5, 7)
    assert orders.remote_log_bytes == sum(path.stat().st_size for path in (Path(remote) / NAME).glob("*.log"))
    assert [each.state for each in found.partitions] == ["remote", "live", "remote"]
    assert not [each for each in found.findings if remote in each.file]


# -- What remote storage lacks --------


class StaleListing(FileSystem):
    """Lists remote storage once, as for an object store, until it is told to look again."""

    def __init__(self, late):
        super().__init__()
        self.late = late
        self.looks = 0

    def walk_directory(self, path):
        entries = super().walk_directory(path)
        return (entry for entry in entries if self.looks or not entry.name.startswith(self.late))

    def forget_listings(self):
        self.looks += 1


def test_segments_that_were_moved_since_remote_storage_was_listed(whole, tmp_path, bases):
    local, remote = cut(whole, tmp_path, 5, 5)
    filesystem = StaleListing(name(bases[4], ""))
    options = options_of([local], {"remote_storage": remote})
    assert offsets_of(plan_scan(filesystem, options)) == read_table(str(whole))["offset"].to_pylist()
    assert filesystem.looks == 1


def test_a_lasting_hole_is_looked_for_once(whole, tmp_path, bases, caplog):
    local, remote = cut(whole, tmp_path, 5, 3)
    for root in (local, remote):
        shutil.copytree(Path(root) / NAME, Path(root) / "orders-1")
    (Path(local) / START_CHECKPOINT).write_text("0\n2\norders 0 0\norders 1 0\n")
    filesystem = StaleListing("none")
    plan_scan(filesystem, options_of([local], {"remote_storage": remote}))
    assert filesystem.looks == 1
    assert caplog.text.count(f"nor remote storage has offsets {bases[3]} to {bases[5] - 1}") == 2


def test_a_partition_that_remote_storage_does_not_have(whole, tmp_path, bases, caplog):
    local, remote = cut(whole, tmp_path, 5, 5)
    (Path(remote) / NAME).rename(Path(remote) / "other-0")
    read_table(local, remote_storage=remote)
    assert (
        f"Neither {local}/{NAME} nor remote storage has offsets 0 to {bases[5] - 1} of {NAME}." in caplog.text
    )


def test_first_segments_that_remote_storage_does_not_have(whole, tmp_path, bases, caplog):
    local, remote = cut(whole, tmp_path, 5, 5)
    for base in bases[:2]:
        for path in (Path(remote) / NAME).glob(name(base, "*")):
            path.unlink()
    assert read_table(local, remote_storage=remote)["offset"].to_pylist()[0] == bases[2]
    assert f"nor remote storage has offsets 0 to {bases[2] - 1} of {NAME}." in caplog.text


def test_a_stream_without_the_option_warns_once(whole, tmp_path, bases, caplog):
    local, _ = cut(whole, tmp_path, 5, 5)
    planner = MicroBatchPlanner(
        FileSystem(), parse_stream_options({"path": local, "starting_offsets": "earliest"})
    )
    assert planner.initial_offsets() == {("orders", 0): bases[5]}
    planner.latest_offsets()
    assert caplog.text.count("Set remoteStorage") == 1


def test_no_log_of_remote_storage_is_asked_for(whole, tmp_path):
    local, _ = cut(whole, tmp_path, 9, 9)
    topic_id = (whole / NAME / "partition.metadata").read_text().split()[-1]
    for each in list(uploads_of(whole / NAME, 1 << 60))[:11]:
        put_aiven(tmp_path / "tier", each, topic_id=topic_id)
    store = CountedStore(tmp_path)
    options = {"remote_storage": str(tmp_path / "tier"), "isolation_level": "read_committed"}
    plan = plan_scan(TierFileSystem(store), options_of([local], options))
    assert plan.partitions[0].start_offset == 0
    requests = [request.path for request in store.gets() if request.path.startswith(str(tmp_path / "tier"))]
    assert store.count("LIST") == 1
    assert sum(path.endswith(".rsm-manifest") for path in requests) == 11
    assert {Path(path).suffix for path in requests} == {".rsm-manifest", ".indexes"}
