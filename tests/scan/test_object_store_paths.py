"""Paths in object stores wherever a read takes paths: aliases, globs, lists, beside local ones, buckets themselves."""

from __future__ import annotations

import pickle

import pytest

from storage_core import FileSystem, explain, read_table
from storage_core.errors import LogDirectoryError, OptionError
from storage_core.options import parse_read_options
from storage_core.scan.plan import plan_scan
from storage_core.scan.read import read_tasks
from storage_core.scan.resolve import split_paths
from storage_core.scan.spans import record_schema
from storage_core.tier import open_file_system
from tests.conformance.archives import unpack_case


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return unpack_case("txn-ongoing", tmp_path_factory.mktemp("case"))[0]


@pytest.fixture
def uri(bucket, directory):
    return bucket.put_tree(directory, "backups/a/logs")


def read(bucket, *paths, **options):
    return read_table(*paths, storage_options=bucket.storage_options, **options)


def partitions(table):
    return set(zip(table["topic"].to_pylist(), table["partition"].to_pylist(), strict=True))


@pytest.mark.cases(2, 6)
@pytest.mark.parametrize(
    "path",
    [
        "s3://{bucket}/backups/a/logs",
        "S3A://{bucket}/backups/a/logs/",
        "s3n://{bucket}/backups/a",
        "s3://{bucket}/backups/*",
        "s3a://{bucket}/{{backups,others}}/?/lo[a-z]s",
        "s3://{bucket}/*/a/logs",
    ],
)
def test_ways_to_name_a_log_directory(bucket, directory, uri, path):
    assert read(bucket, path.format(bucket=bucket.name)).equals(read_table(directory))


def test_a_bucket_is_a_log_directory(bucket, directory):
    bucket.put_tree(directory)
    assert read(bucket, bucket.uri()).equals(read_table(directory))
    assert read(bucket, f"{bucket.uri()}/").num_rows


def test_a_bucket_named_like_a_partition_is_a_log_directory(moto_server, directory):
    bucket = moto_server.create_bucket("backup-0")
    try:
        bucket.put_tree(directory)
        assert read(bucket, "s3://backup-0").equals(read_table(directory))
        assert read(bucket, "s3://backup-0", view="segments").num_rows
    finally:
        moto_server.delete_bucket("backup-0")


def test_partitions_of_stores_and_disks_are_read_together(bucket, directory, uri):
    here, there = f"{directory}/ongoing-rd-0", f"{uri}/ongoing-rd-1"
    both = {("ongoing-rd", 0), ("ongoing-rd", 1)}
    assert partitions(read(bucket, here, there)) == both
    assert partitions(read(bucket, f"{there.replace('s3:', 's3a:')}, {here}")) == both
    assert partitions(read(bucket, here, there, view="batches")) == both


def test_a_copy_on_a_disk_and_one_in_a_store_are_one_log(bucket, directory, uri):
    assert read(bucket, directory, uri).equals(read_table(directory))


def test_one_place_named_twice_is_read_once(bucket, directory, uri):
    assert read(bucket, uri, uri.replace("s3:", "s3a:")).equals(read_table(directory))


def test_what_does_not_exist(bucket, uri):
    with pytest.raises(LogDirectoryError, match=r"found nothing. Check the path. \[s3://.*/nothing\]"):
        read(bucket, bucket.uri("nothing"))
    with pytest.raises(OptionError, match="matches no directory"):
        read(bucket, bucket.uri("backups/x*"))
    with pytest.raises(LogDirectoryError, match="No such bucket"):
        read(bucket, "s3://no-such-bucket/logs")


def test_a_schema_file_in_a_store(bucket, typed_logs):
    bucket.put("schemas/text.avsc", b'"string"')
    schema = f"s3a://{bucket.name}/schemas/text.avsc"
    options = {
        "value_format": "avro",
        "value_schema": schema,
        "subscribe": "avro-evolved",
        "mode": "DROPMALFORMED",
    }
    with pytest.raises(OptionError, match="which does not exist"):
        read(bucket, typed_logs, **{**options, "value_schema": schema.replace("text", "other")})
    assert read(bucket, typed_logs, **options).schema.field("value").type == "string"


def test_a_plan_for_other_processes_reads_by_what_it_carries(bucket, directory, uri):
    options = parse_read_options({"path": uri, "storage_options": bucket.storage_options})
    tasks = plan_scan(open_file_system(options.storage), options).tasks
    tasks = pickle.loads(pickle.dumps(tasks))
    filesystem = open_file_system(tasks[0].settings.storage)
    rows = sum(batch.num_rows for batch in read_tasks(filesystem, tasks, record_schema()))
    assert rows == read_table(directory).num_rows


def test_statistics_of_a_file_system_count_both_kinds(bucket, directory, uri):
    filesystem = FileSystem()
    read(bucket, uri, filesystem=filesystem)
    there = filesystem.statistics.bytes_read
    assert there > 0
    read(bucket, directory, filesystem=filesystem)
    assert filesystem.statistics.bytes_read > there
    assert explain(uri, **bucket.storage_options).planning.bytes_read > 0


def test_local_paths_open_nothing_else(directory, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "storage_core.filesystem.object_store", None)
    monkeypatch.setitem(__import__("sys").modules, "obstore", None)
    assert read_table(directory).num_rows
    assert split_paths(FileSystem(), [str(directory)]) == [str(directory)]


def test_through_a_file_system_of_another_library(bucket, directory, uri, tmp_path):
    fs = pytest.importorskip("pyarrow.fs")
    (tmp_path / bucket.name).symlink_to(directory.parent)
    through = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())
    found = read_table(f"s3a://{bucket.name}/logs", f"{directory}/ongoing-rd-0", filesystem=through)
    assert found.equals(read_table(directory))
    assert explain(f"s3://{bucket.name}/logs", filesystem=through).totals.partitions
    with pytest.raises(OptionError, match=r"Expected a file system of pyarrow\.fs or fsspec, found dict"):
        read_table(uri, filesystem={})
