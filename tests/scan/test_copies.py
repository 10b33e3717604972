"""Copies of one partition, given together: dated backups, the disks of several brokers."""

from __future__ import annotations

import os
import shutil

import pytest

import storage_core
from storage_core.directory import PartitionLog, find_partitions
from storage_core.directory.joined_log import join_copies
from storage_core.errors import CorruptRecordError, DataLossError
from storage_core.filesystem import FileSystem
from storage_core.options import options_of, parse_stream_options
from storage_core.scan.explanation import explain_plan
from storage_core.scan.isolation import aborted_transactions, last_stable_offset
from storage_core.scan.plan import plan_scan
from storage_core.scan.read import read_task
from storage_core.scan.spans import project, record_schema
from storage_core.scan.stream import MicroBatchPlanner
from tests.scan.conftest import PartitionBuilder
from tests.scan.copies import batches, offsets_of, write_copy


def stream_offsets(*paths, **options):
    """Return the offsets that the first micro-batch of a stream returns."""
    filesystem = FileSystem()
    raw = {"path": [*map(str, paths)], "starting_offsets": "earliest", **options}
    stream = MicroBatchPlanner(filesystem, parse_stream_options(raw))
    schema = project(record_schema(), ("offset",))
    plan = stream.plan(stream.initial_offsets(), stream.latest_offsets())
    read = (batch for task in plan.tasks for batch in read_task(filesystem, task, schema))
    return [offset for batch in read for offset in batch["offset"].to_pylist()]


class TestSmallFilesThatCannotBeRead:
    """No row needs them."""

    @pytest.fixture(
        params=[
            ("orders-0/partition.metadata", ""),
            ("orders-0/partition.metadata", "version: 0\n"),
            ("meta.properties", "#\nnode.id=1\nversion=1\nclust"),
            ("meta.properties", ""),
        ]
    )
    def spoil(self, request):
        def write(root):
            file_name, content = request.param
            (root / file_name).write_text(content)

        return write

    @pytest.mark.parametrize("read", [offsets_of, stream_offsets])
    @pytest.mark.parametrize("mode", ["FAILFAST", "PERMISSIVE"])
    @pytest.mark.parametrize("copies", [1, 2])
    def test_all_rows_are_read(self, tmp_path, spoil, read, mode, copies):
        roots = [tmp_path / name for name in "ab"[:copies]]
        for root in roots:
            write_copy(root, {0: batches(0, 100)}, end=100)
        spoil(roots[0])
        assert read(*roots, mode=mode) == list(range(100))

    def test_something_else_with_their_names(self, tmp_path):
        for name in "ab":
            partition = write_copy(tmp_path / name, {0: batches(0, 20)})
            for file_name in ("partition.metadata", "leader-epoch-checkpoint"):
                (partition / file_name).unlink()
                (partition / file_name).mkdir()
        assert offsets_of(tmp_path / "a", tmp_path / "b") == list(range(20))

    def test_a_stream_says_it_once(self, tmp_path, caplog):
        partition = write_copy(tmp_path, {0: batches(0, 10)}, end=10)
        (partition / "partition.metadata").write_text("")
        assert stream_offsets(tmp_path) == stream_offsets(tmp_path) == list(range(10))
        assert caplog.text.count("so that the topic id of") == 1


@pytest.fixture
def backups(tmp_path):
    """Return two dated backups: 0 to 99, and 80 to 199 after another leader was elected at 150."""
    old, new = tmp_path / "backup-1", tmp_path / "backup-2"
    write_copy(old, {0: batches(0, 100)}, end=100)
    epochs = ((0, 80), (1, 150))
    write_copy(new, {80: batches(80, 150), 150: batches(150, 200, epoch=1)}, epochs=epochs, start=80, end=200)
    return old, new


def make_newer(partition, start, end, epoch, segment=None):
    """Append batches to the last segment of a copy, or to a new one."""
    path = partition / f"{start:020d}.log" if segment is None else partition / f"{segment:020d}.log"
    with path.open("ab") as file:
        file.write(b"".join(batches(start, end, epoch=epoch).values()))


class TestUnion:
    @pytest.mark.parametrize("read", [offsets_of, stream_offsets])
    @pytest.mark.parametrize("options", [{}, {"mode": "PERMISSIVE"}, {"isolation_level": "read_committed"}])
    def test_two_dated_backups(self, backups, caplog, read, options):
        old, new = backups
        assert read(old, new, **options) == list(range(200))
        assert f"Offsets 0 to 79 of orders-0 are read from {old}/orders-0" in caplog.text
        assert read(new, old, **options) == list(range(200))

    def test_a_folder_and_a_glob(self, backups, tmp_path):
        assert offsets_of(tmp_path) == offsets_of(f"{tmp_path}/backup-*") == list(range(200))

    def test_the_same_rows_are_said_to_be_elsewhere_only_where_they_are(self, tmp_path, caplog):
        for name in "ab":
            write_copy(tmp_path / name, {0: batches(0, 50), 50: batches(50, 100)})
        assert offsets_of(tmp_path / "a", tmp_path / "b") == list(range(100))
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert "orders-0 is read from" in caplog.text

    @pytest.mark.parametrize("damage", ["missing", "empty", "cut", "torn"])
    @pytest.mark.parametrize("layout", ["same", "other"])
    def test_a_hole_in_the_middle(self, tmp_path, caplog, damage, layout):
        first = write_copy(
            tmp_path / "a",
            {0: batches(0, 30), 30: batches(30, 60), 60: batches(60, 100)},
            epochs=((0, 0), (1, 90)),
        )
        other = {0: batches(0, 30), 30: batches(30, 60), 60: batches(60, 80)}
        write_copy(tmp_path / "b", other if layout == "same" else {0: batches(0, 20), 20: batches(20, 80)})
        log_file = first / f"{30:020d}.log"
        match damage:
            case "missing":
                log_file.unlink()
            case "empty":
                log_file.write_bytes(b"")
            case _:
                size_bytes = len(next(iter(batches(30, 40).values())))
                log_file.write_bytes(log_file.read_bytes()[: size_bytes + 20 * (damage == "torn")])
        assert offsets_of(tmp_path) == list(range(100))
        assert (
            f"Offsets {30 if damage in ('missing', 'empty') else 40} to 59 of orders-0 are read from"
            in caplog.text
        )

    def test_what_no_copy_has_is_named(self, tmp_path, caplog):
        write_copy(tmp_path / "a", {0: batches(0, 30)})
        write_copy(tmp_path / "b", {50: batches(50, 80)})
        assert offsets_of(tmp_path) == [*range(30), *range(50, 80)]
        assert "No copy of orders-0 has offsets 30 to 49." in caplog.text

    def test_a_damaged_end_that_no_copy_makes_up_for_is_damage(self, tmp_path):
        first = write_copy(tmp_path / "a", {10: batches(10, 40), 40: batches(40, 60)})
        write_copy(tmp_path / "b", {0: batches(0, 20)})
        (first / f"{10:020d}.log").write_bytes(b"".join(batches(10, 40).values())[:-5])
        with pytest.raises(CorruptRecordError):
            offsets_of(tmp_path)
        assert offsets_of(tmp_path, mode="DROPMALFORMED") == [*range(30), *range(40, 60)]

    def test_a_compacted_log_has_gaps_that_are_not_filled(self, tmp_path):
        first = write_copy(tmp_path / "a", {0: batches(0, 10), 50: batches(50, 100)}, start=0)
        (tmp_path / "a/cleaner-offset-checkpoint").write_text("0\n1\norders 0 50\n")
        write_copy(tmp_path / "b", {0: batches(0, 50), 50: batches(50, 80)})
        assert offsets_of(tmp_path) == [*range(10), *range(50, 100)]
        assert first.is_dir()

    def test_transactions_that_end_in_another_copy(self, tmp_path):
        log = PartitionBuilder(tmp_path / "whole", "orders", 0)
        log.transactional(7, 3).transactional(8, 3).data(4).roll().transactional(9, 2).abort(7).commit(
            8
        ).data(5)
        log.write(snapshots=False)
        expected = offsets_of(tmp_path / "whole", isolation_level="read_committed")
        assert expected == [3, 4, 5, 6, 7, 8, 9]
        for name, kept in {"a": "00000000000000000000", "b": "00000000000000000010"}.items():
            copy = tmp_path / name / "orders-0"
            copy.mkdir(parents=True)
            for path in log.path.glob(f"{kept}.*"):
                shutil.copy(path, copy)
        both = tmp_path / "a", tmp_path / "b"
        assert offsets_of(*both, isolation_level="read_committed") == expected
        assert offsets_of(*both) == offsets_of(tmp_path / "whole")

    def test_the_plan_names_the_files_of_both(self, backups):
        old, new = backups
        plan = plan_scan(FileSystem(), options_of([*backups], {}))
        (partition,) = explain_plan(plan, FileSystem().statistics).partitions
        assert [span.file for span in partition.spans] == [
            f"{old}/orders-0/{0:020d}.log",
            f"{new}/orders-0/{80:020d}.log",
            f"{new}/orders-0/{150:020d}.log",
        ]
        assert (partition.log_start_offset, partition.log_end_offset) == (0, 200)

    def test_views_walk_the_batches_of_both(self, backups):
        table = storage_core.read_table(*map(str, backups), view="batches")
        assert table["baseOffset"].to_pylist() == list(range(0, 200, 10))

    def test_a_copy_that_is_cleaned_away_while_it_is_read(self, tmp_path):
        old = write_copy(tmp_path / "a", {0: batches(0, 40), 40: batches(40, 100)})
        write_copy(tmp_path / "b", {80: batches(80, 150)})
        filesystem = FileSystem()
        plan = plan_scan(filesystem, options_of([tmp_path], {}))
        (old / f"{0:020d}.log").unlink()
        schema = project(record_schema(), ("offset",))
        with pytest.raises(DataLossError, match="0 to 39"):
            list(read_task(filesystem, plan.tasks[0], schema))

    @pytest.mark.parametrize(
        "options", [{}, {"mode": "DROPMALFORMED"}, {"isolation_level": "read_committed"}]
    )
    @pytest.mark.parametrize("size", [0, 90, 95])
    def test_an_end_that_a_checkpoint_vouches_for_is_in_another_copy(self, tmp_path, options, size):
        first = write_copy(
            tmp_path / "a",
            {0: batches(0, 50), 50: batches(50, 100, epoch=1)},
            epochs=((0, 0), (1, 50)),
            end=100,
        )
        write_copy(
            tmp_path / "b",
            {0: batches(0, 50), 50: batches(50, 100, epoch=1)},
            epochs=((0, 0), (1, 50)),
            end=100,
        )
        content = b"".join(batches(50, 100, epoch=1).values())
        (first / f"{50:020d}.log").write_bytes(content[: len(content) * size // 100])
        assert offsets_of(tmp_path, **options) == list(range(100))

    @pytest.mark.parametrize("options", [{}, {"mode": "DROPMALFORMED"}])
    def test_a_copy_that_has_lost_all_its_segments(self, tmp_path, caplog, options):
        first = write_copy(tmp_path / "a", {0: batches(0, 100)}, end=100)
        write_copy(tmp_path / "b", {0: batches(0, 70)}, end=70)
        (first / f"{0:020d}.log").unlink()
        assert offsets_of(tmp_path, **options) == list(range(70))
        assert "No copy of orders-0 has offsets 70 to 99" in caplog.text

    def test_a_stream_follows_the_copy_that_grows(self, backups):
        old, new = backups
        filesystem = FileSystem()
        raw = {"path": [str(old), str(new)], "starting_offsets": "earliest", "ending_at": "logEnd"}
        stream = MicroBatchPlanner(filesystem, parse_stream_options(raw))
        assert stream.latest_offsets(stream.initial_offsets()) == {("orders", 0): 200}
        make_newer(new / "orders-0", 200, 230, 1, segment=150)
        assert stream.latest_offsets({("orders", 0): 200}) == {("orders", 0): 230}
        make_newer(new / "orders-0", 230, 250, 1)
        assert stream.latest_offsets({("orders", 0): 230}) == {("orders", 0): 250}

    @pytest.mark.parametrize("name", ["a", "b"])
    @pytest.mark.parametrize("base_offset", [0, 30])
    def test_a_segment_that_is_deleted_while_they_are_compared(self, tmp_path, name, base_offset):
        segments = {0: batches(0, 30), 30: batches(30, 60), 60: batches(60, 100)}
        for root in "ab":
            write_copy(tmp_path / root, segments)
        filesystem = FileSystem()
        (directory,) = find_partitions(filesystem, [str(tmp_path)])
        logs = [PartitionLog.load(filesystem, each) for each in (directory, *directory.copies)]
        (tmp_path / name / "orders-0" / f"{base_offset:020d}.log").unlink()
        with pytest.raises(DataLossError, match="Read again"):
            join_copies(filesystem, logs)

    def test_a_copy_that_is_cut_before_its_transactions_are_looked_up(self, tmp_path):
        write_copy(tmp_path / "a", {0: batches(0, 40)})
        cut = write_copy(tmp_path / "b", {30: batches(30, 80)}) / f"{30:020d}.log"
        filesystem = FileSystem()
        (directory,) = find_partitions(filesystem, [str(tmp_path)])
        log = join_copies(
            filesystem, [PartitionLog.load(filesystem, each) for each in (directory, *directory.copies)]
        )
        assert last_stable_offset(log) == 80
        os.truncate(cut, cut.stat().st_size // 5)
        with pytest.raises(DataLossError, match=r"is being truncated. Read again. \[.*/b/orders-0/"):
            aborted_transactions(log, 0, 80)

    def test_a_stream_goes_on_without_a_copy_that_has_gone(self, tmp_path):
        partition = write_copy(tmp_path / "roots" / "a", {0: batches(0, 50)})
        write_copy(tmp_path / "roots" / "b", {0: batches(0, 50)})
        stream = MicroBatchPlanner(
            FileSystem(), parse_stream_options({"path": str(tmp_path / "roots"), "ending_at": "logEnd"})
        )
        assert stream.initial_offsets() == {("orders", 0): 50}
        (tmp_path / "roots" / "b").rename(tmp_path / "away")
        make_newer(partition, 50, 60, 0, segment=0)
        found = [stream.latest_offsets({("orders", 0): 50}) for _ in range(3)]
        assert found[-1] == {("orders", 0): 60}

    @pytest.mark.parametrize("checkpointed", [None, 200])
    def test_a_damaged_end_that_something_vouches_for_is_damage(self, tmp_path, checkpointed):
        write_copy(tmp_path / "a", {0: batches(0, 100)}, end=100)
        newer = write_copy(tmp_path / "b", {80: batches(80, 200)}, start=80, end=checkpointed)
        path = newer / f"{80:020d}.log"
        path.write_bytes(path.read_bytes()[:-9] + bytes(9))
        with pytest.raises(CorruptRecordError) as raised:
            offsets_of(tmp_path)
        assert (raised.value.offset, raised.value.last_offset) == (190, 199)
        table = storage_core.read_table(str(tmp_path), mode="PERMISSIVE")
        assert table["offset"].to_pylist() == [*range(190), None]

    def test_an_end_that_is_cut_off_is_missing(self, tmp_path):
        write_copy(tmp_path / "a", {0: batches(0, 100)}, end=100)
        newer = write_copy(tmp_path / "b", {80: batches(80, 190)}, start=80, end=200)
        with pytest.raises(CorruptRecordError) as raised:
            offsets_of(tmp_path)
        assert (raised.value.offset, raised.value.last_offset) == (190, 199)
        size_bytes = (newer / f"{80:020d}.log").stat().st_size
        assert f"{newer}/{80:020d}.log, byte {size_bytes}, offsets 190 to 199]" in str(raised.value)


class TestContradictions:
    def test_the_batch_of_the_higher_epoch_where_they_overlap(self, tmp_path, caplog):
        write_copy(tmp_path / "a", {0: batches(0, 100, value=b"a")})
        write_copy(tmp_path / "b", {70: batches(70, 150, value=b"b", epoch=1)}, epochs=((1, 70),))
        table = storage_core.read_table(str(tmp_path))
        assert table["offset"].to_pylist() == list(range(150))
        values = [*(b"a%d" % offset for offset in range(70)), *(b"b%d" % offset for offset in range(70, 150))]
        assert table["value"].to_pylist() == values
        assert "contradict each other from offset 70 on, up to 99 at most" in caplog.text

    @pytest.mark.parametrize("fork", [10, 40, 90])
    def test_what_follows_a_contradicted_record_is_left_out(self, tmp_path, caplog, fork):
        shared = batches(0, fork)
        write_copy(
            tmp_path / "a", {0: shared | batches(fork, 200, value=b"a", epoch=1)}, epochs=((0, 0), (1, fork))
        )
        write_copy(
            tmp_path / "b", {0: shared | batches(fork, 100, value=b"b", epoch=2)}, epochs=((0, 0), (2, fork))
        )
        assert storage_core.read_table(str(tmp_path))["value"].to_pylist() == [
            *(b"v%d" % offset for offset in range(fork)),
            *(b"b%d" % offset for offset in range(fork, 100)),
        ]
        assert f"contradict each other from offset {fork} on" in caplog.text
        assert (
            f"Offsets 100 to 199 of orders-0 are only in {tmp_path}/a/orders-0, and are not read"
            in caplog.text
        )

    def test_an_older_epoch_beyond_a_newer_one(self, tmp_path, caplog):
        write_copy(tmp_path / "a", {0: batches(0, 50, epoch=5)}, epochs=((5, 0),))
        write_copy(tmp_path / "b", {80: batches(80, 100, epoch=3)}, epochs=((3, 80),))
        assert offsets_of(tmp_path) == list(range(50))
        assert "Offsets 80 to 99 of orders-0 are only in" in caplog.text

    def test_an_epoch_beyond_the_log_end_does_not_choose(self, tmp_path):
        write_copy(tmp_path / "a", {0: batches(0, 100)}, epochs=((0, 0), (7, 5_000)))
        write_copy(tmp_path / "b", {0: batches(0, 200)})
        assert offsets_of(tmp_path) == list(range(200))
