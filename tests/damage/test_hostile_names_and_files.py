"""Directories arranged by an attacker: names, kinds of files, links and permissions that no broker creates."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

import storage_core
from storage_core.errors import CorruptCheckpointError, CorruptError, LogDirectoryError, UnreadableError
from tests.record.encoding import Batch, Record

MODES = ("FAILFAST", "DROPMALFORMED", "PERMISSIVE")
LOG_NAME = f"{0:020d}.log"


def write_partition(folder, offset=0):
    folder.mkdir(parents=True)
    (folder / f"{offset:020d}.log").write_bytes(Batch((Record(),), offset).encode())
    return folder


def offsets(*paths, **options):
    return storage_core.read_table(*paths, **options)["offset"].to_pylist()


@pytest.fixture
def partition(root):
    """events-0 with one record at offset 0."""
    return write_partition(root / "events-0")


@pytest.fixture
def secret(tmp_path_factory):
    """Return a log outside the directory to read."""
    return write_partition(tmp_path_factory.mktemp("elsewhere") / "secret-0")


# -- Names --------

NAMES = [
    b"-0", b"..-0", b".-0", b"a b-0", b"events-", b"events", b"events-x", b"events-0x1", b"events-1e3",
    b"events-2147483648", b"events-99999999999999999999", b"events-" + b"9" * 200, b"t" * 250 + b"-0",
    b"t" * 253 + b"-0", b"caf\xc3\xa9-0", b"\xff\xfe-0", b"new\nline-0", b"tab\t-0", b"\x1b[31mred-0", b"nul-\x01",
    b"events-0.-delete", b"events-0.x-stray", b"events-\xd9\xa0", b"%2e%2e%2f-0", b"a\\b-0", b"$(id)-0", b"*-0",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_kafka_never_uses_is_no_partition(root, partition, name, caplog):
    write_partition(Path(os.fsdecode(os.path.join(os.fsencode(root), name))))
    table = storage_core.read_table(root)
    assert set(table["topic"].to_pylist()) == {"events"}
    assert table.num_rows == 1
    assert all(message.isprintable() for message in caplog.messages)


@pytest.mark.parametrize("name", NAMES)
def test_such_a_name_alone_is_an_error_in_one_printable_line(root, name):
    path = Path(os.fsdecode(os.path.join(os.fsencode(root), b"outer", name)))
    write_partition(path)
    with pytest.raises(LogDirectoryError) as caught:
        storage_core.read_table(path)
    assert str(caught.value).isprintable()


def test_warnings_of_a_read_are_printable_whatever_the_folders_above_are_named(root, secret, caplog):
    for name in ("first\x1b[2J\n", "second\u202e"):
        write_partition(root / name / "events-0")
        (root / name / "events-1").symlink_to(secret)
    assert offsets(root) == [0]
    for text in ("Left out symbolic links", "is read from"):
        assert [message for message in caplog.messages if text in message and "first\\x1b[2J\\n" in message]
    assert all(message.isprintable() for message in caplog.messages)


@pytest.mark.parametrize(
    ("name", "topic", "number"),
    [
        ("a-b-7", "a-b", 7), ("...-0", "...", 0), ("-" * 3 + "-0", "---", 0), ("t" * 244 + "-2147483647", "t" * 244, 2**31 - 1),
        ("events-007", "events", 7), ("9-9", "9", 9),
    ],
)  # fmt: skip
def test_unusual_names_that_kafka_uses_are_read(root, name, topic, number):
    write_partition(root / name)
    (row,) = storage_core.read_table(root, columns=["topic", "partition"]).to_pylist()
    assert row == {"topic": topic, "partition": number}


FILE_NAMES = [
    b"0.log", b"-0000000000000000001.log", b"00000000000000000000.LOG", b"00000000000000000000.log.bak",
    b"99999999999999999999.log", b"0000000000000000000x.log", b"000000000000000000000.log", b".log",
    b"\xff\xff\xff.log", b"00000000000000000000\n.log", b"00000000000000000001.log.deleted",
    b"00000000000000000001.log.cleaned", b"\xd9\xa0" * 20 + b".log", b"00000000000000000005.snapshot.deleted",
    b"99999999999999999999.index", b"99999999999999999999.snapshot", b".snapshot", b"x" * 255,
]  # fmt: skip


@pytest.mark.parametrize("name", FILE_NAMES)
@pytest.mark.parametrize("isolation_level", ["read_uncommitted", "read_committed"])
def test_other_files_in_a_partition_do_not_matter(root, partition, name, isolation_level):
    Path(os.fsdecode(os.path.join(os.fsencode(partition), name))).write_bytes(b"\xff" * 100)
    assert offsets(root, isolation_level=isolation_level) == [0]


def test_the_highest_offset_that_kafka_has(root):
    write_partition(root / "events-0", 2**63 - 2)
    assert offsets(root) == [2**63 - 2]


@pytest.mark.parametrize("path", [b"\xff\xfe\x80", b"new\nline", b"a,b", b"file:x"])
def test_a_root_with_an_odd_name_is_read(root, path):
    folder = Path(os.fsdecode(os.path.join(os.fsencode(root), path)))
    write_partition(folder / "events-0")
    assert offsets(folder) == [0]
    (folder / "events-0" / LOG_NAME).write_bytes(b"\xff" * 100)
    write_partition(folder / "more-0")
    (folder / "events-0" / f"{9:020d}.log").write_bytes(Batch((Record(),), 9).encode())
    with pytest.raises(CorruptError) as caught:
        storage_core.read_table(folder)
    assert str(caught.value).isprintable()
    assert storage_core.read_table(folder, mode="PERMISSIVE").num_rows == 3


# -- Kinds of files --------


def make_fifo(path):
    os.mkfifo(path)


def make_socket(path):
    # The address of a socket is short, so bind it from inside its folder.
    before = os.getcwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path.name)
    finally:
        os.chdir(before)


def make_device(path):
    try:
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 5))
    except PermissionError:
        pytest.skip("this user may not create devices")


def make_folder(path):
    path.mkdir()


def make_link_to_nothing(path):
    path.symlink_to("/nowhere/at/all")


def make_link_to_itself(path):
    path.symlink_to(path.name)


def make_link_to_endless(path):
    path.symlink_to("/dev/zero")


MAKERS = [make_fifo, make_socket, make_device, make_folder]
LINK_MAKERS = [make_link_to_nothing, make_link_to_itself, make_link_to_endless]
every_maker = pytest.mark.parametrize("make", [*MAKERS, *LINK_MAKERS])
every_mode = pytest.mark.parametrize("mode", MODES)


@pytest.mark.parametrize("make", MAKERS)
@every_mode
def test_a_non_file_in_place_of_a_segment_is_an_error(root, partition, make, mode):
    path = partition / f"{7:020d}.log"
    make(path)
    with pytest.raises(LogDirectoryError, match="regular file") as caught:
        storage_core.read_table(root, mode=mode)
    assert caught.value.path == str(path)


@pytest.mark.parametrize("make", MAKERS)
def test_without_a_segment_it_is_no_partition(root, make):
    (root / "events-0").mkdir()
    make(root / "events-0" / LOG_NAME)
    with pytest.raises(LogDirectoryError):
        storage_core.read_table(root)


@pytest.mark.parametrize("make", LINK_MAKERS)
@every_mode
def test_a_link_in_place_of_a_segment_is_refused(root, partition, make, mode):
    make(partition / f"{7:020d}.log")
    with pytest.raises(LogDirectoryError, match="symbolic link") as caught:
        storage_core.read_table(root, mode=mode)
    assert caught.value.path == str(partition / f"{7:020d}.log")


@every_mode
@pytest.mark.parametrize("follow_symlinks", [False, True])
def test_a_link_to_a_segment_elsewhere_is_refused(root, partition, secret, mode, follow_symlinks):
    (partition / f"{7:020d}.log").symlink_to(secret / LOG_NAME)
    with pytest.raises(LogDirectoryError, match="symbolic link"):
        storage_core.read_table(root, mode=mode, follow_symlinks=follow_symlinks)


@pytest.mark.parametrize("name", [".index", ".timeindex", ".txnindex", ".snapshot"])
@every_maker
@pytest.mark.parametrize("options", [{}, {"isolation_level": "read_committed"}, {"starting_timestamp": 0}])
def test_a_non_file_is_no_index(root, partition, name, make, options):
    make(partition / f"{0:020d}{name}")
    (root / ".kafka_cleanshutdown").write_bytes(b"")
    assert offsets(root, **options) == [0]


@pytest.mark.parametrize("name", ["leader-epoch-checkpoint", "partition.metadata"])
@every_maker
def test_a_non_file_is_no_checkpoint_of_a_partition(root, partition, name, make):
    make(partition / name)
    assert offsets(root) == [0]


@pytest.mark.parametrize(
    "name",
    [
        "recovery-point-offset-checkpoint", "log-start-offset-checkpoint", "cleaner-offset-checkpoint",
        "meta.properties", ".lock", ".kafka_cleanshutdown",
    ],
)  # fmt: skip
@every_maker
def test_a_non_file_is_no_checkpoint_of_a_root(root, partition, name, make):
    make(root / name)
    assert offsets(root, isolation_level="read_committed") == [0]


@every_maker
def test_an_unreadable_high_watermark_is_an_error_if_it_is_needed(root, partition, make):
    path = root / "replication-offset-checkpoint"
    make(path)
    assert offsets(root) == [0]
    with pytest.raises(CorruptCheckpointError) as caught:
        storage_core.read_table(root, ending_at="highWatermark")
    assert caught.value.path == str(path)


# -- Links to directories --------


def test_a_link_to_a_partition_elsewhere_is_followed_only_on_request(root, partition, secret):
    (root / "secret-0").symlink_to(secret)
    assert set(storage_core.read_table(root)["topic"].to_pylist()) == {"events"}
    followed = storage_core.read_table(root, follow_symlinks=True)
    assert set(followed["topic"].to_pylist()) == {"events", "secret"}


@pytest.mark.parametrize("target", [".", "..", "loop-1", "/"])
def test_reads_end_despite_cyclic_links(root, partition, target):
    (root / "loop-0").symlink_to(target)
    (root / "loop-1").symlink_to("loop-0")
    (root / "plain").symlink_to(".")
    assert offsets(root) == [0]


@pytest.mark.parametrize("target", [".", ".."])
def test_reads_end_despite_cyclic_links_that_are_followed(root, partition, target):
    (root / "loop-0").symlink_to(target)
    (root / "plain").symlink_to(".")
    assert offsets(root, follow_symlinks=True) == [0]


def test_a_loop_of_links_is_an_error_where_links_are_followed(root, partition):
    (root / "loop-0").symlink_to("loop-1")
    (root / "loop-1").symlink_to("loop-0")
    with pytest.raises(LogDirectoryError, match="loop-"):
        storage_core.read_table(root, follow_symlinks=True)


# -- Many directories --------


def test_thousands_of_empty_directories(root, partition):
    for number in range(3000):
        (root / f"empty-{number}").mkdir()
        (root / f"other{number}").mkdir()
    assert offsets(root) == [0]


def test_deeply_nested_directories_are_not_descended_into(root, partition):
    folder = root
    for _ in range(300):
        folder /= "deep-0"
        folder.mkdir()
    write_partition(folder / "hidden-0")
    table = storage_core.read_table(root)
    assert set(table["topic"].to_pylist()) == {"events"}


def test_thousands_of_stray_files_in_a_partition(root, partition):
    for number in range(3000):
        (partition / f"{number:020d}.snapshot").write_bytes(b"")
        (partition / f"{number:020d}.txnindex").write_bytes(b"\xff")
    assert offsets(root, isolation_level="read_committed") == [0]


# -- Rights --------


@pytest.fixture
def forbid(monkeypatch):
    """Deny access to a path, even to root."""
    forbidden = set()

    def guarded(function):
        def call(path, *arguments, **named):
            if os.fspath(path) in forbidden:
                raise PermissionError(13, "Permission denied", path)
            return function(path, *arguments, **named)

        return call

    monkeypatch.setattr(os, "open", guarded(os.open))
    monkeypatch.setattr(os, "scandir", guarded(os.scandir))
    monkeypatch.setattr(os, "stat", guarded(os.stat))
    return lambda path: forbidden.add(str(path))


@pytest.mark.parametrize("place", ["", "events-0", f"events-0/{LOG_NAME}"])
@every_mode
def test_an_unreadable_file_is_an_error_and_never_skipped(root, partition, forbid, place, mode):
    write_partition(root / "orders-0")
    path = root / place if place else root
    forbid(path)
    with pytest.raises(UnreadableError, match="may not") as caught:
        storage_core.read_table(root, mode=mode)
    assert caught.value.path == str(path)


@pytest.mark.parametrize("name", [".index", ".timeindex", ".txnindex", ".snapshot"])
def test_an_unreadable_index_is_an_error(root, forbid, name):
    folder = write_partition(root / "events-0")
    batches = [Batch((Record(value=b"x" * 3000),), offset).encode() for offset in range(5)]
    (folder / LOG_NAME).write_bytes(b"".join(batches))
    (folder / f"{5:020d}.log").write_bytes(Batch((Record(),), 5).encode())
    for offset in (0, 5):
        (folder / f"{offset:020d}.index").write_bytes(b"")
    path = folder / f"{5 if name == '.snapshot' else 0:020d}{name}"
    path.write_bytes(b"")
    (root / ".kafka_cleanshutdown").write_bytes(b"")
    forbid(path)
    options = {
        ".index": {"starting_offsets": '{"events":{"0":3}}'},
        ".timeindex": {"starting_timestamp": 0},
    }.get(name, {"isolation_level": "read_committed"})
    with pytest.raises(UnreadableError) as caught:
        storage_core.read_table(root, **options)
    assert caught.value.path == str(path)


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may read everything")
@every_mode
def test_a_directory_without_rights(root, partition, mode):
    write_partition(root / "orders-0")
    partition.chmod(0)
    try:
        with pytest.raises(UnreadableError):
            storage_core.read_table(root, mode=mode)
    finally:
        partition.chmod(0o700)
