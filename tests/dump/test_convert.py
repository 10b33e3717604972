"""Records as Parquet files: every row once, in the file of its topic and day, and all files or none."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conformance.archives import unpack_case

from storage_core import read_table
from storage_core.dump.convert import ConvertSettings, convert
from storage_core.errors import CorruptRecordError, OptionError, StorageError
from storage_core.filesystem import FileSystem
from storage_core.options import options_of
from storage_core.scan.plan import plan_scan
from tests.faults.crash_points import crashes
from tests.faults.observed_filesystem import before_each_call
from tests.faults.simulated_filesystem import SimulatedFileSystem
from tests.log.logs import append, flip, name, open_directory, small, table

DAY_MS = 86_400_000


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def converted(source, target, *, filesystem=None, settings=None, threads=None, **options):
    filesystem = filesystem or FileSystem()
    parsed = options_of([source], options)
    plan = plan_scan(filesystem, parsed)
    return convert(filesystem, plan, parsed, str(target), settings, threads=threads)


def read_file(path, columns=None):
    """Read the file from its bytes: a reader of files may keep it open for a while."""
    return pq.read_table(pa.BufferReader(path.read_bytes()), columns=columns)


def files_of(target):
    return sorted(str(path.relative_to(target)) for path in target.rglob("*") if path.is_file())


def rows_of(target):
    """Return all rows, by topic, partition and offset, with the topic that their path tells."""
    parts = []
    for path in sorted(target.rglob("*.parquet")):
        topic = path.parent.parent.name.removeprefix("topic=")
        read = read_file(path)
        parts.append(read.append_column("topic", pa.repeat(pa.scalar(topic), len(read))))
    return pa.concat_tables(parts).sort_by([(each, "ascending") for each in ("topic", "partition", "offset")])


@pytest.fixture
def days(tmp_path):
    """Return two partitions with records of three days, in turn, and two without a timestamp."""
    with open_directory(tmp_path / "data") as logs:
        for partition in range(2):
            log = logs.create("orders", partition)
            for number in range(20):
                append(log, 1, timestamps=[(19_000 + number % 3) * DAY_MS + number])
        append(logs.get("orders", 1), 2, timestamps=(-1, -1))
    return tmp_path / "data"


READ_DATASET = """
import collections, json, sys
import pyarrow as pa, pyarrow.dataset as ds, pyarrow.parquet as pq
hive = ds.partitioning(pa.schema([("topic", pa.string()), ("date", pa.date32())]), flavor="hive")
dates = pq.read_table(sys.argv[1], partitioning=hive)["date"].to_pylist()
print(json.dumps(collections.Counter(map(str, dates))))
"""


class TestRows:
    @pytest.mark.parametrize(
        "case", ["compact-txn", "magic0", "magic1", "v2-zstd", "many-partitions", "v2-foreign"]
    )
    def test_all_records_of_a_read_are_written(self, tmp_path, case):
        logs, _ = unpack_case(case, tmp_path / "case")
        options = {"include_headers": True, "isolation_level": "read_committed"}
        done = converted(logs, tmp_path / "out", **options)
        expected = read_table(logs, **options)
        assert rows_of(tmp_path / "out").select(expected.column_names) == expected
        assert done.rows == expected.num_rows
        assert sum(file.size_bytes for file in done.files) == sum(
            path.stat().st_size for path in (tmp_path / "out").rglob("*.parquet")
        )

    @pytest.mark.parametrize("threads", [2, 3])
    def test_threads_change_no_row(self, tmp_path, monkeypatch, threads):
        monkeypatch.setattr("storage_core.scan.batches._TASK_BYTES", 4096)
        logs, _ = unpack_case("v2-zstd", tmp_path / "case")
        alone, together = (
            converted(logs, tmp_path / f"out{count}", threads=count).files for count in (1, threads)
        )
        assert alone == together
        assert rows_of(tmp_path / f"out{threads}") == rows_of(tmp_path / "out1")

    def test_each_day_has_its_file(self, days, tmp_path):
        converted(days, tmp_path / "out")
        assert files_of(tmp_path / "out") == [
            "_SUCCESS",
            "topic=orders/date=2022-01-08/part-00000.parquet",
            "topic=orders/date=2022-01-09/part-00000.parquet",
            "topic=orders/date=2022-01-10/part-00000.parquet",
            "topic=orders/date=__HIVE_DEFAULT_PARTITION__/part-00000.parquet",
        ]
        for number in range(3):
            day = tmp_path / "out/topic=orders" / f"date=2022-01-{8 + number:02}/part-00000.parquet"
            assert read_file(day, ["partition", "offset"]).to_pylist() == [
                {"partition": partition, "offset": offset}
                for partition in range(2)
                for offset in range(number, 20, 3)
            ]

    def test_files_have_all_columns_but_the_topic(self, days, tmp_path):
        converted(days, tmp_path / "out")
        file = next((tmp_path / "out").rglob("*.parquet"))
        assert read_file(file).schema == read_table(days).schema.remove(2)

    def test_chosen_columns(self, days, tmp_path):
        converted(days, tmp_path / "out", columns=["offset", "topic"])
        assert rows_of_offsets(tmp_path / "out") == sorted([*range(20), *range(22)])
        with pytest.raises(OptionError, match="another column"):
            converted(days, tmp_path / "other", columns=["topic"])

    def test_other_readers_see_a_partitioned_dataset(self, days, tmp_path):
        converted(days, tmp_path / "out")
        # In a process of its own, because a dataset keeps its files open for a while.
        command = [sys.executable, "-c", READ_DATASET, str(tmp_path / "out")]
        found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert json.loads(found) == {"2022-01-08": 14, "2022-01-09": 14, "2022-01-10": 12, "None": 2}

    def test_dates_beyond_the_calendar_are_null(self, tmp_path):
        far_ms = 9_000_000_000_000_000
        with open_directory(
            tmp_path / "data", config=small(message_timestamp_after_max_ms=2**63 - 1)
        ) as logs:
            append(logs.create("t"), 3, timestamps=(far_ms, 253_402_300_799_999, 0))
        done = converted(tmp_path / "data", tmp_path / "out")
        assert sorted(str(file.date) for file in done.files) == ["1970-01-01", "9999-12-31", "None"]

    def test_an_empty_log_gives_only_the_success_file(self, tmp_path):
        with open_directory(tmp_path / "data") as logs:
            logs.create("t")
        done = converted(tmp_path / "data", tmp_path / "out")
        assert (done.rows, done.files) == (0, ())
        assert files_of(tmp_path / "out") == ["_SUCCESS"]

    def test_a_permissive_read_writes_its_row_about_damage(self, days, tmp_path):
        flip(days / "orders-0" / name(0), 450)
        converted(days, tmp_path / "out", mode="PERMISSIVE")
        expected = read_table(days, mode="PERMISSIVE")
        assert expected["_corrupt_record"].null_count == expected.num_rows - 1
        found = rows_of(tmp_path / "out").select(expected.column_names)
        assert sorted(map(str, found.to_pylist())) == sorted(map(str, expected.to_pylist()))


def rows_of_offsets(target):
    return sorted(
        offset for path in target.rglob("*.parquet") for offset in read_file(path)["offset"].to_pylist()
    )


class TestLimits:
    """However little may wait and be open, the rows are the same."""

    @pytest.mark.parametrize(
        "settings",
        [
            ConvertSettings(row_group_bytes=1),
            ConvertSettings(buffered_bytes=1),
            ConvertSettings(buffered_bytes=30_000),
            ConvertSettings(row_group_bytes=1, max_open_files=1),
            ConvertSettings(row_group_bytes=1, file_bytes=1),
            ConvertSettings(compression="none"),
            ConvertSettings(compression="lz4"),
        ],
        ids=repr,
    )
    def test_limits_change_no_row(self, days, tmp_path, settings):
        converted(days, tmp_path / "out", settings=settings)
        expected = read_table(days)
        assert rows_of(tmp_path / "out").select(expected.column_names) == expected

    def test_one_open_file_makes_a_new_one_for_each_change_of_day(self, days, tmp_path):
        settings = ConvertSettings(row_group_bytes=1, max_open_files=1)
        done = converted(days, tmp_path / "out", settings=settings)
        # Each of four segments has records of three days.
        assert len(done.files) == 4 * 3 + 1
        assert done.files[3].path == "topic=orders/date=2022-01-08/part-00001.parquet"

    def test_open_files_are_few(self, days, tmp_path, monkeypatch):
        most = 0

        class Counting(FileSystem):
            def open_for_writing(self, path, **options):
                nonlocal most
                file = super().open_for_writing(path, **options)
                opened.append(file)
                most = max(most, sum(each._descriptor >= 0 for each in opened))
                return file

        opened = []
        converted(
            days,
            tmp_path / "out",
            filesystem=Counting(),
            settings=ConvertSettings(row_group_bytes=1, max_open_files=2),
        )
        assert most == 2

    def test_too_many_files(self, days, tmp_path):
        with pytest.raises(StorageError, match=r"at most 3 files.*milliseconds"):
            converted(days, tmp_path / "out", settings=ConvertSettings(max_files=3))
        assert not (tmp_path / "out").exists()


class TestTarget:
    def test_a_target_with_foreign_files_is_refused(self, days, tmp_path):
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "mine").write_text("x")
        with pytest.raises(OptionError, match="found 'mine'"):
            converted(days, tmp_path / "out")
        with pytest.raises(OptionError, match=r"Only what a conversion wrote is replaced, found .*mine"):
            converted(days, tmp_path / "out", settings=ConvertSettings(is_overwriting=True))
        assert files_of(tmp_path / "out") == ["mine"]

    def test_a_foreign_file_deep_in_an_earlier_conversion(self, days, tmp_path):
        converted(days, tmp_path / "out")
        foreign = tmp_path / "out/topic=orders/date=2022-01-08/notes.txt"
        foreign.write_text("x")
        before = files_of(tmp_path / "out")
        with pytest.raises(OptionError, match=r"notes\.txt"):
            converted(days, tmp_path / "out", settings=ConvertSettings(is_overwriting=True))
        assert files_of(tmp_path / "out") == before

    def test_an_earlier_conversion_is_overwritten(self, days, tmp_path):
        converted(days, tmp_path / "out")
        converted(days, tmp_path / "out", where="offset = 0", settings=ConvertSettings(is_overwriting=True))
        assert files_of(tmp_path / "out") == ["_SUCCESS", "topic=orders/date=2022-01-08/part-00000.parquet"]

    def test_an_empty_directory_is_written_to(self, days, tmp_path):
        (tmp_path / "out").mkdir()
        assert converted(days, tmp_path / "out").rows == 42

    @pytest.mark.parametrize("below", ["", "out", "orders-0/out"])
    def test_a_target_inside_the_source_is_refused(self, days, below):
        with pytest.raises(OptionError, match="which is read"):
            converted(days, days / below)

    def test_a_target_behind_a_link_into_the_source_is_refused(self, days, tmp_path):
        (tmp_path / "link").symlink_to(days / "orders-0")
        with pytest.raises(OptionError, match="which is read"):
            converted(days, tmp_path / "link" / "out")

    def test_a_target_beside_a_partition_of_a_log_directory_is_refused(self, days, tmp_path):
        with pytest.raises(OptionError, match="which is read"):
            converted(days / "orders-0", days / "out")
        (days / "orders-0").rename(tmp_path / "orders-0")
        assert converted(tmp_path / "orders-0", tmp_path / "out").rows == 20

    def test_a_target_that_is_a_file_is_refused(self, days, tmp_path):
        (tmp_path / "out").write_text("x")
        with pytest.raises(OptionError, match="found a file"):
            converted(days, tmp_path / "out")


def failing(calls):
    """Refuses all calls that write but the first ones."""
    made = itertools.count()

    def refuse(call, path):
        if (
            call in {"open_for_writing", "rename", "make_directory", "flush_directory"}
            and next(made) >= calls
        ):
            raise StorageError("refused")

    return before_each_call(refuse)


class TestFailures:
    def test_a_failure_at_any_call_leaves_only_whole_files(self, days, tmp_path):
        expected = read_table(days)
        for calls in range(1_000):
            target = tmp_path / f"out-{calls}"
            try:
                converted(days, target, filesystem=failing(calls))
            except StorageError:
                assert not (target / "_SUCCESS").exists() or calls > 15
                for path in target.glob("topic=*/**/*.parquet"):
                    assert read_file(path).num_rows > 0
                # What a failed conversion left is replaced.
                converted(days, target, settings=ConvertSettings(is_overwriting=True))
            else:
                assert calls > 15
                break
            assert rows_of(target).select(expected.column_names) == expected

    @pytest.mark.parametrize("is_new", [True, False])
    def test_damage_leaves_no_file(self, days, tmp_path, is_new):
        flip(days / "orders-1" / name(10), 450)
        target = tmp_path / "out"
        if not is_new:
            target.mkdir()
        with pytest.raises(CorruptRecordError):
            converted(days, target, settings=ConvertSettings(row_group_bytes=1))
        assert target.exists() is not is_new
        assert is_new or os.listdir(target) == []

    def test_a_failed_conversion_keeps_the_earlier_one(self, days, tmp_path):
        converted(days, tmp_path / "out")
        before = files_of(tmp_path / "out")
        flip(days / "orders-1" / name(10), 450)
        with pytest.raises(CorruptRecordError):
            converted(days, tmp_path / "out", settings=ConvertSettings(is_overwriting=True))
        assert files_of(tmp_path / "out") == before

    @pytest.mark.parametrize("is_overwriting", [False, True])
    def test_with_a_success_file_a_power_cut_leaves_a_whole_dataset(self, days, is_overwriting):
        def dataset(filesystem):
            files = filesystem.files().items()
            return {
                path.removeprefix("/out/"): content
                for path, content in files
                if path.startswith(("/out/topic=", "/out/_SUCCESS"))
            }

        filesystem = SimulatedFileSystem()
        for path in days.rglob("*.log"):
            filesystem.put(f"/data/{path.relative_to(days)}", path.read_bytes())
        settings = ConvertSettings(is_overwriting=is_overwriting)
        if is_overwriting:
            converted("/data", "/out", filesystem=filesystem, include_headers=True)
        before = dataset(filesystem)
        left = crashes(
            filesystem,
            lambda: converted("/data", "/out", filesystem=filesystem, settings=settings),
            variants=3,
        )
        after = dataset(filesystem)
        for crash in left:
            found = dataset(crash.filesystem)
            assert "_SUCCESS" not in found or found in (before, after), crash.name
        assert dataset(left[-1].filesystem) == after != before


def test_a_refused_write_raises_its_error(days, tmp_path, monkeypatch):
    def refuse(*_):
        raise StorageError("no space left")

    monkeypatch.setattr("storage_core.filesystem.files.WritableFile.write_at", refuse)
    with pytest.raises(StorageError, match="no space left"):
        converted(days, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_values_of_many_megabytes(tmp_path):
    with open_directory(tmp_path / "data", config=None) as logs:
        log = logs.create("t")
        for number in range(6):
            log.append(table(bytes([number]) * 900_000))
    settings = ConvertSettings(row_group_bytes=1_000_000, buffered_bytes=2_000_000)
    converted(tmp_path / "data", tmp_path / "out", settings=settings)
    assert rows_of(tmp_path / "out")["value"].to_pylist() == [
        bytes([number]) * 900_000 for number in range(6)
    ]
