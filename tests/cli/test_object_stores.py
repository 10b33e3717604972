"""Every command that does not write to what it reads, on a bucket: it prints what it prints of the same files on a disk."""

from __future__ import annotations

import json

import pytest

from tests.conformance.archives import unpack_case

COMMANDS = [
    ["verify", "--deep"],
    ["verify", "--output", "json"],
    ["dump", "--print-data-log"],
    ["dump", "--output", "jsonl"],
    ["cat", "--json"],
    ["cat", "--last", "3"],
    ["offsets", "--output", "jsonl"],
    ["transactions", "--all", "--now", "2026-01-01T00:00:00Z"],
    ["plan", "--pieces"],
]
# A store does not know how much room there is, and has no blocks.
OF_A_DISK = {"freeBytes", "allocatedBytes"}


@pytest.fixture
def bucket(quick_bucket):
    """Return the quicker store: what is tested is above it."""
    return quick_bucket


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return unpack_case("txn-ongoing", tmp_path_factory.mktemp("case"))[0]


@pytest.fixture
def flags(bucket):
    return [f"--storage-option={name}={value}" for name, value in bucket.storage_options.items()]


@pytest.mark.cases(4, len(COMMANDS))
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_bucket_is_a_directory(segmentlog, directory, bucket, flags, command):
    uri = bucket.put_tree(directory, "backups/logs-0")
    here = segmentlog(*command, directory)
    there = segmentlog(*command, uri.replace("s3://", "s3a://"), *flags)
    assert there.status == here.status
    assert _comparable(there.stdout, uri) == _comparable(here.stdout, str(directory))
    assert set(bucket.counts()) <= {"LIST", "GET", "HEAD"}


def _comparable(printed, path):
    # The end of a plan says what it took.
    lines = printed.replace(path, "DIR").splitlines()
    return [line for line in lines if not line.startswith("Planning")]


def test_an_inventory_has_all_but_what_only_a_disk_has(segmentlog, directory, bucket, flags):
    uri = bucket.put_tree(directory, "logs")
    here, there = (
        json.loads(
            segmentlog("inventory", "--exact", "--output", "json", *arguments).stdout.replace(path, "DIR")
        )
        for path, arguments in ((str(directory), [directory]), (uri, [uri, *flags]))
    )
    assert there["roots"][0]["freeBytes"] is None
    assert _without_disk(there) == _without_disk(here)


def _without_disk(value):
    if isinstance(value, list):
        return sorted(map(_without_disk, value), key=json.dumps)
    if isinstance(value, dict):
        return {name: _without_disk(each) for name, each in value.items() if name not in OF_A_DISK}
    return value


def test_what_is_read_of_a_bucket_is_written_to_a_disk(segmentlog, directory, bucket, flags, tmp_path):
    uri = bucket.put_tree(directory, "logs")
    assert segmentlog("report", uri, *flags, "--quiet", "--output", tmp_path / "page.html").status == 0
    assert uri in (tmp_path / "page.html").read_text()
    for source, name in ((directory, "here"), (uri, "there")):
        assert segmentlog("convert", source, *flags, "--quiet", "--to", tmp_path / name).status == 0
    here, there = (
        {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*.parquet")}
        for folder in (tmp_path / "here", tmp_path / "there")
    )
    assert here == there != {}


def test_schemas_of_a_bucket(segmentlog, typed_logs, bucket, flags, tmp_path):
    uri = bucket.put_tree(typed_logs, "typed")
    assert segmentlog("schemas", uri, *flags).stdout == segmentlog("schemas", typed_logs).stdout
    assert segmentlog("schemas", uri, *flags, "--export", tmp_path / "schemas").status == 0
    folder = bucket.put_tree(tmp_path / "schemas", "folder of schemas")
    assert segmentlog("schemas", folder, *flags).stdout
    read = ["cat", "--json", "--value-format", "registry", "--subscribe", "avro-evolved"]
    from_folder = segmentlog(*read, typed_logs, "--schemas-path", folder, *flags)
    assert from_folder.status == 0
    assert from_folder.stdout == segmentlog(*read, uri, *flags).stdout != ""


@pytest.mark.parametrize("name", ["00000000000000000000.log", "leader-epoch-checkpoint", "x.log"])
def test_one_file_of_a_bucket(segmentlog, directory, bucket, flags, name):
    uri = bucket.put_tree(directory, "logs")
    here = segmentlog("dump", f"{directory}/ongoing-rd-0/{name}", "--print-data-log")
    there = segmentlog("dump", f"{uri}/ongoing-rd-0/{name}", "--print-data-log", *flags)
    assert there.stdout.replace(uri, str(directory)) == here.stdout
    assert there.status == here.status


def test_storage_options_are_checked_without_a_word_on_their_values(segmentlog):
    def refused(*options):
        ended = segmentlog("cat", "s3://bucket/logs", *(f"--storage-option={each}" for each in options))
        assert ended.refused(2)
        assert "planted" not in ended.stderr
        return ended.stderr

    assert "found no '='" in refused("planted-secret")
    assert "s3.secret-access-key has two values" in refused(
        "s3.secret-access-key=planted", "s3.secret-access-key=planted-too"
    )
    assert "Set s3.access-key-id" in refused("fs.s3a.access.key=planted")
    assert "Did you mean s3.endpoint?" in refused("s3.endpont=planted")
