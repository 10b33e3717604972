"""A path that holds no log is answered by one line: what is there, and what to do. In Python and on the command line."""

from __future__ import annotations

import pytest

from storage_core import read_table
from storage_core.cli.main import run
from storage_core.directory.mistaken_paths import no_log_error
from storage_core.errors import LogDirectoryError, OptionError, StorageError, UnreadableError
from storage_core.filesystem import FileSystem
from storage_core.views.roots import find_roots

SEGMENT = f"{0:020}.log"
HASH = "0123456789abcdef0123456789abcdef"
COPY_THEM = "Copy the topics into Kafka first."
KINDS = {
    # What is named, the files that are there, where something is found, what the line says.
    "a text file": ("notes.txt", ["notes.txt"], "notes.txt", "a file. Name a log directory"),
    "an archive": ("a-0.tar.gz", ["a-0.tar.gz"], "a-0.tar.gz", "an archive. Unpack it"),
    "a zip": ("backup.ZIP", ["backup.ZIP"], "backup.ZIP", "an archive. Unpack it"),
    "a zstd archive": ("disk.tar.zst", ["disk.tar.zst"], "disk.tar.zst", "an archive. Unpack it"),
    "a segment": (
        f"a-0/{SEGMENT}",
        [f"a-0/{SEGMENT}"],
        f"a-0/{SEGMENT}",
        "one file of a log. Name the directory",
    ),
    "an index": (
        f"a-0/{7:020}.index",
        [f"a-0/{7:020}.index"],
        f"a-0/{7:020}.index",
        "segmentlog dump prints",
    ),
    "nothing": ("nowhere", [], "nowhere", "nothing. Check the path."),
    "a path of Windows": (r"C:\kafka\data", [], r"C:\kafka\data", "nothing. It is a Windows path"),
    "a path of Windows with slashes": ("D:/kafka", [], "D:/kafka", "nothing. It is a Windows path"),
    "an empty directory": (
        "data",
        ["data/"],
        "data",
        "an empty directory. Check that its volume is mounted.",
    ),
    "empty directories": ("data", ["data/a/b/"], "data", "none of their files. Name a log directory"),
    "a data directory of Redpanda": (
        "data",
        ["data/pid.lock", "data/redpanda/kvstore/0_0/0-0-v1.log", "data/kafka/orders/0_12/51-1-v1.log"],
        "data/kafka/orders/0_12",
        f"segments of Redpanda, whose format is another one. {COPY_THEM}",
    ),
    "a partition of Redpanda": (
        "orders/0_12",
        ["orders/0_12/51-1-v1.log", "orders/0_12/51-1-v1.base_index"],
        "orders/0_12",
        "segments of Redpanda",
    ),
    "a segment in Redpanda's tiered storage": (
        "0_24",
        ["0_24/194-257-1055502-1-v1.log.1"],
        "0_24",
        "segments of Redpanda",
    ),
    "ledgers of BookKeeper": (
        "ledgers",
        [
            f"ledgers/current/{name}"
            for name in ("VERSION", "lastMark", "lastId", "1a.log", "locations/CURRENT")
        ],
        "ledgers/current",
        f"files of Apache BookKeeper, where Pulsar keeps its topics. {COPY_THEM}",
    ),
    "a journal of BookKeeper": (
        "journal/current",
        ["journal/current/VERSION", "journal/current/18f2c3d4e5a.txn"],
        "journal/current",
        "files of Apache BookKeeper",
    ),
    "a store of RocketMQ": (
        "store",
        [
            f"store/commitlog/{0:020}",
            f"store/consumequeue/orders/0/{0:020}",
            "store/checkpoint",
            "store/abort",
        ],
        "store/commitlog",
        f"files of Apache RocketMQ. {COPY_THEM}",
    ),
    "ZooKeeper": (
        "zookeeper",
        ["zookeeper/myid", "zookeeper/version-2/log.1", "zookeeper/version-2/snapshot.0"],
        "zookeeper/version-2",
        "files of ZooKeeper, which hold no records.",
    ),
    "a log of ZooKeeper": (
        "version-2/log.1f",
        ["version-2/log.1f"],
        "version-2/log.1f",
        "files of ZooKeeper",
    ),
    "rotated files of any program": ("logs", ["logs/log.1", "logs/log.2"], "logs", "none of their files."),
    "Kafka's programs": (
        "kafka",
        ["kafka/bin/kafka-topics.sh", "kafka/config/server.properties", "kafka/libs/kafka.jar"],
        "kafka",
        "Kafka's programs. Name the directory that log.dirs in config/server.properties names.",
    ),
    **{
        f"a partition in {name!r}": (
            f"backup{below}",
            [f"backup/{name}/{SEGMENT}"],
            f"backup/{name}",
            f"a partition in a directory that is not named <topic>-<partition>. Rename or copy it, for example to {to}.",
        )
        for name, below, to in (
            ("orders-0.bak", "", "orders-0"),
            ("my-orders-12 copy", "/my-orders-12 copy", "my-orders-12"),
            ("orders_3", "/orders_3", "orders-3"),
            ("data", "/data", "orders-0"),
            ("orders-99999999999", "/orders-99999999999", "orders-0"),
        )
    },
    "a copy of checkpoints alone": (
        "orders-0 (1)",
        ["orders-0 (1)/leader-epoch-checkpoint"],
        "orders-0 (1)",
        "for example to orders-0.",
    ),
}
SUFFIXES = {
    "delete": "a partition that a broker was about to delete",
    "stray": "a partition that its cluster did not know",
    "future": "a partition that was being moved to another disk",
}


def make_files(root, files):
    for name in files:
        path = root / name
        (path if name.endswith("/") else path.parent).mkdir(parents=True, exist_ok=True)
        if not name.endswith("/"):
            path.touch()


def error_of(call, error_type=LogDirectoryError):
    with pytest.raises(error_type) as raised:
        call()
    return str(raised.value)


@pytest.mark.parametrize("kind", KINDS)
def test_every_reader_says_what_is_there(tmp_path, kind, monkeypatch):
    named, files, where, text = KINDS[kind]
    make_files(tmp_path, files)
    monkeypatch.chdir(tmp_path)
    found = error_of(lambda: read_table(named))
    assert found.startswith(
        "Expected a Kafka log directory, a folder of log directories or a partition directory, found "
    )
    assert text in found
    assert found.endswith(f" [{tmp_path}/{where}]")
    assert error_of(lambda: read_table(named, view="segments")) == found
    assert error_of(lambda: find_roots(FileSystem(), [named])) == found


@pytest.mark.parametrize("kind", ["an archive", "a data directory of Redpanda", "a path of Windows"])
@pytest.mark.parametrize("command", ["cat", "inventory", "verify"])
def test_commands_say_it_in_one_line(tmp_path, kind, command, monkeypatch, capsys):
    named, files, _, text = KINDS[kind]
    make_files(tmp_path, files)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        run([command, named])
    printed = capsys.readouterr()
    assert (ended.value.code, printed.out, printed.err.count("\n")) == (3, "", 1)
    assert text in printed.err


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("is_named", [True, False])
def test_a_partition_that_is_not_live_is_named_as_what_it_is(tmp_path, suffix, is_named):
    directory = f"{tmp_path}/logs/orders-3.{HASH}-{suffix}"
    make_files(tmp_path, [f"{directory}/{SEGMENT}"])
    found = error_of(lambda: read_table(directory if is_named else f"{tmp_path}/logs"))
    assert f"found {SUFFIXES[suffix]}. To read it, copy it to a directory orders-3. [{directory}]" in found


class Refusing(FileSystem):
    """Fails to look into anything below the path that is named, as a store does that is gone meanwhile."""

    def __init__(self, named, kind):
        super().__init__()
        self.named, self.kind = named, kind

    def walk_directory(self, path):
        if path.startswith(f"{self.named}/a/"):
            raise self.kind("Could not list this path.", path=path)
        return super().walk_directory(path)


@pytest.mark.parametrize("kind", [StorageError, UnreadableError])
def test_what_fails_while_looking_for_a_hint_is_not_the_error(tmp_path, kind):
    make_files(tmp_path, ["a/b-0/c/"])
    found = no_log_error(Refusing(str(tmp_path), kind), [str(tmp_path)])
    assert "found none of their files." in str(found)


def test_a_search_among_many_directories_that_are_named_as_partitions_ends_early(tmp_path):
    make_files(tmp_path, [f"a/backup-{number:03}/" for number in range(100)])
    files = FileSystem()
    no_log_error(files, [str(tmp_path)])
    assert files.statistics.directories_listed < 150


def test_log_directories_that_are_deeper_come_first(tmp_path):
    make_files(tmp_path, ["zookeeper/version-2/log.1", f"a/b/c/orders-0/{SEGMENT}"])
    found = error_of(lambda: read_table(tmp_path))
    assert f"found none. There are some deeper: {tmp_path}/a/b/c. Name them, or a glob. [{tmp_path}]" in found


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("dbfs:/backup", "Databricks shows it as a local directory: below /dbfs, or /Volumes."),
        ("https://host/backup", "Download the directory, or name its bucket."),
        (
            "wasbs://c@a.blob.core.windows.net/b",
            "Write abfss://<container>@<account>.dfs.core.windows.net/<path>.",
        ),
        ("ftp://host/backup", "Copy or mount the directory."),
    ],
)
def test_a_scheme_that_is_not_read_has_advice(path, text):
    assert error_of(lambda: read_table(path), OptionError).endswith(text)
