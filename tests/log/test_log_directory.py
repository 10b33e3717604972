"""Opening and closing a log directory: lock, marker, checkpoints, and what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

from storage_core.errors import (
    CorruptCheckpointError,
    LogClosedError,
    LogDirectoryError,
    LogDirectoryLockedError,
    LogFailedError,
    LogReadOnlyError,
    OptionError,
    RecoveryWouldDiscardError,
    StorageError,
)
from storage_core.filesystem import FileSystem
from tests.log.logs import (
    MARKER,
    append,
    contents,
    crash,
    fingerprint,
    names,
    offsets,
    open_directory,
    write,
)


def test_a_directory_is_made_with_those_above_it(tmp_path):
    with open_directory(tmp_path / "a" / "b" / "c"):
        pass
    assert names(tmp_path / "a/b/c") == [
        MARKER,
        ".lock",
        "log-start-offset-checkpoint",
        "recovery-point-offset-checkpoint",
        "replication-offset-checkpoint",
    ]


# The lock (215).


def test_a_second_open_in_one_process_is_refused(tmp_path):
    with open_directory(tmp_path) as logs:
        log = logs.create("orders")
        with pytest.raises(LogDirectoryLockedError, match="another object in this process"):
            open_directory(tmp_path)
        append(log)
        open_directory(tmp_path, read_only=True).close()
    open_directory(tmp_path).close()


OPEN = """
    import sys
    from storage_core import LogDirectory
    from storage_core.errors import LogDirectoryLockedError
    try:
        LogDirectory.open(sys.argv[1]).close()
    except LogDirectoryLockedError as error:
        print("locked", error)
    else:
        print("opened")
"""


HOLD = """
    import fcntl, sys
    with open(sys.argv[1], "r+") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)
        print("locked", flush=True)
        sys.stdin.read()
"""


def open_in_another_process(path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(OPEN), str(path)], capture_output=True, text=True, check=True
    )
    return done.stdout


def test_a_reader_warns_once_of_what_it_leaves_out(tmp_path, caplog):
    write(tmp_path)
    (tmp_path / "orders-0").rename(tmp_path / "orders-0.bak")
    with open_directory(tmp_path, read_only=True) as logs:
        assert [logs.logs(), logs.logs()] == [(), ()]
    assert len([each for each in caplog.messages if "orders-0.bak" in each]) == 1


def test_a_second_process_is_refused(tmp_path):
    with open_directory(tmp_path) as logs:
        append(logs.create("orders"))
        assert open_in_another_process(tmp_path).startswith("locked")
    assert open_in_another_process(tmp_path) == "opened\n"


def test_a_directory_that_somebody_else_has_locked_is_refused(tmp_path):
    write(tmp_path)
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            textwrap.dedent(HOLD),
            str(tmp_path / ".lock"),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert holder.stdout.readline() == b"locked\n"
        with pytest.raises(LogDirectoryLockedError, match="another process"):
            open_directory(tmp_path)
        with open_directory(tmp_path, read_only=True) as logs:
            assert offsets(logs.get("orders")) == list(range(12))
    finally:
        holder.communicate()
    open_directory(tmp_path).close()


def test_the_lock_is_given_back_whatever_happens(tmp_path):
    write(tmp_path)
    (tmp_path / "orders-0/leader-epoch-checkpoint").write_text("garbage")
    with pytest.raises(CorruptCheckpointError):
        open_directory(tmp_path)
    (tmp_path / "orders-0/leader-epoch-checkpoint").unlink()
    open_directory(tmp_path).close()


# The marker of a clean shutdown (231).


@pytest.mark.parametrize("marker", [b"", b'{"version":0,"brokerEpoch":42}', b"anything"])
def test_the_marker_of_a_broker_comes_back_as_it_was(tmp_path, marker):
    write(tmp_path)
    (tmp_path / MARKER).write_bytes(marker)
    with open_directory(tmp_path) as logs:
        append(logs.get("orders"))
    assert (tmp_path / MARKER).read_bytes() == marker


class RecordingFileSystem(FileSystem):
    """Notes what is changed, in order."""

    def __init__(self):
        super().__init__()
        self.changes = []

    def open_for_writing(self, path, *, create=False, **options):
        self.changes.append(("open", os.path.basename(path)))
        return super().open_for_writing(path, create=create, **options)

    def rename(self, source, target):
        self.changes.append(("rename", os.path.basename(target)))
        super().rename(source, target)

    def delete(self, path):
        self.changes.append(("delete", os.path.basename(path)))
        return super().delete(path)

    def flush_directory(self, path):
        self.changes.append(("flush", os.path.basename(path)))
        super().flush_directory(path)


def test_the_marker_goes_before_the_first_change_and_comes_after_the_last(tmp_path):
    write(tmp_path / "root")
    filesystem = RecordingFileSystem()
    with open_directory(tmp_path / "root", filesystem=filesystem) as logs:
        assert filesystem.changes == [
            ("delete", ".segmentlog-unflushed"),
            ("delete", MARKER),
            ("flush", "root"),
        ]
        append(logs.get("orders"))
    assert filesystem.changes[-2:] == [("open", MARKER), ("flush", "root")]
    assert filesystem.changes.count(("open", MARKER)) == 1


class FullFileSystem(FileSystem):
    """Has no room for more, once it is said to be full."""

    is_full = False

    def open_for_writing(self, path, *, create=False, **options):
        opened = super().open_for_writing(path, create=create, **options)
        write_at = opened.write_at

        def write(pieces, position_bytes):
            if self.is_full and path.endswith(".log"):
                raise StorageError("No space left on device.", path=path)
            write_at(pieces, position_bytes)

        opened.write_at = write
        return opened


def test_a_directory_with_a_log_that_failed_gets_no_marker(tmp_path):
    filesystem = FullFileSystem()
    with open_directory(tmp_path, filesystem=filesystem) as logs:
        failing, other = logs.create("failing"), logs.create("other")
        append(failing, 3)
        filesystem.is_full = True
        with pytest.raises(StorageError, match="No space left"):
            append(failing)
        filesystem.is_full = False
        with pytest.raises(LogFailedError, match=r"failed before.*No space left"):
            append(failing)
        # What was acknowledged is still read, and other logs go on.
        assert offsets(failing) == [0, 1, 2]
        append(other, 2)
    assert not (tmp_path / MARKER).exists()
    with open_directory(tmp_path) as logs:
        assert offsets(logs.get("failing")) == [0, 1, 2]
        assert offsets(logs.get("other")) == [0, 1]
    assert (tmp_path / MARKER).exists()


# What is refused.


def test_unknown_kinds_of_recovery_are_refused(tmp_path):
    with pytest.raises(OptionError, match="'tail' or 'kafka', found 'all'"):
        open_directory(tmp_path / "data", recovery="all")
    assert not (tmp_path / "data").exists()


def test_all_partitions_are_looked_at_before_any_is_recovered(tmp_path):
    logs = open_directory(tmp_path)
    for partition in range(4):
        append(logs.create("orders", partition), 12)
    crash(logs)
    for partition in (1, 3):
        path = tmp_path / f"orders-{partition}/00000000000000000000.log"
        content = bytearray(path.read_bytes())
        content[50] ^= 1
        path.write_bytes(content)
    with (tmp_path / "orders-0/00000000000000000010.log").open("ab") as file:
        file.write(b"torn")
    before = contents(tmp_path)
    with pytest.raises(RecoveryWouldDiscardError) as caught:
        open_directory(tmp_path)
    assert contents(tmp_path) == before
    # Bytes after the damage, and the whole next segment.
    assert len(caught.value.discarded) == 4
    assert all(f"orders-{partition}" in str(caught.value) for partition in (1, 3))
    with open_directory(tmp_path, recovery="kafka") as logs:
        assert [log.log_end_offset for log in logs.logs()] == [12, 0, 12, 0]


# Read-only.


def test_reading_changes_nothing(tmp_path):
    logs = open_directory(tmp_path)
    log = logs.create("orders")
    append(log, 25)
    crash(logs)
    with (tmp_path / "orders-0/00000000000000000020.log").open("ab") as file:
        file.write(b"torn")
    (tmp_path / "orders-0/00000000000000000020.index").unlink()
    before = fingerprint(tmp_path)
    with open_directory(tmp_path, read_only=True) as logs:
        log = logs.get("orders")
        assert logs.read_only
        assert offsets(log) == list(range(25))
        assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (0, 25, 25)
        assert (log.last_stable_offset, log.recovery_point) == (25, 0)
        assert log.segment_base_offsets == (0, 10, 20)
        assert log.offset_for_timestamp(-1).offset == 25
        assert log.offset_for_timestamp(-1).leader_epoch == 0
        assert offsets(log, isolation_level="read_committed") == list(range(25))
        assert log.end_offset_for_epoch(0) == (0, 25)
        for change in (logs.checkpoint, lambda: logs.create("clicks")):
            with pytest.raises(LogReadOnlyError, match="read-only"):
                change()
    assert fingerprint(tmp_path) == before


def test_a_directory_that_is_not_there_is_not_made_to_be_read(tmp_path):
    with pytest.raises(LogDirectoryError):
        open_directory(tmp_path / "nothing", read_only=True)
    assert names(tmp_path) == []


def test_a_reader_sees_what_another_process_appends_and_makes(tmp_path):
    with open_directory(tmp_path) as logs, open_directory(tmp_path, read_only=True) as seen:
        log = logs.create("orders")
        append(log, 12)
        reader = seen.get("orders")
        assert offsets(reader) == list(range(12))
        append(log, 12)
        assert reader.log_end_offset == 24
        assert offsets(reader) == list(range(24))
        logs.create("clicks")
        assert [each.topic for each in seen.logs()] == ["clicks", "orders"]
        assert ("clicks", 0) in seen


# Closed directories, and many segments.


def test_a_closed_directory_gives_nothing(tmp_path):
    logs = open_directory(tmp_path)
    logs.close()
    for ask in (lambda: logs.create("orders"), lambda: logs.get("orders"), logs.logs, logs.checkpoint):
        with pytest.raises(LogClosedError, match="closed"):
            ask()


def test_an_error_inside_a_with_block_still_closes(tmp_path):
    def fail():
        with open_directory(tmp_path) as logs:
            append(logs.create("orders"))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert (tmp_path / MARKER).exists()


def test_opening_closed_segments_opens_none_of_their_files(tmp_path):
    def opened_and_listed(count):
        write(tmp_path / str(count), count)
        filesystem = FileSystem()
        with open_directory(tmp_path / str(count), filesystem=filesystem):
            return filesystem.statistics.files_opened, filesystem.statistics.directories_listed

    assert opened_and_listed(105) == opened_and_listed(15)


def test_a_log_whose_making_was_interrupted_is_an_empty_one(tmp_path):
    with open_directory(tmp_path) as logs:
        topic_id = logs.create("orders", 1).topic_id
    (tmp_path / MARKER).unlink()
    (tmp_path / "orders-0").mkdir()
    with open_directory(tmp_path) as logs:
        log = logs.get("orders", 0)
        assert log.topic_id == topic_id
        append(log, 3)
        assert offsets(log) == [0, 1, 2]


@pytest.mark.parametrize("is_clean", [True, False])
def test_logs_that_a_broker_was_moving_here_are_not_said_to_be_closed(tmp_path, is_clean):
    write(tmp_path)
    (tmp_path / f"orders-0.{'a' * 32}-future").mkdir()
    if not is_clean:
        (tmp_path / MARKER).unlink()
    with open_directory(tmp_path):
        pass
    # An earlier close has written the marker.
    assert (tmp_path / MARKER).exists() == is_clean


def test_a_log_that_was_half_made_is_completed_by_the_next_open(tmp_path, monkeypatch):
    """What has been made of it can be removed no more than it can be completed."""
    with open_directory(tmp_path) as logs:
        with monkeypatch.context() as patch:
            patch.setattr(FileSystem, "rename", refuse)
            patch.setattr(FileSystem, "delete", refuse)
            with pytest.raises(StorageError, match="No space"):
                logs.create("orders")
        append(logs.create("clicks"), 3)
    assert MARKER not in names(tmp_path)
    with open_directory(tmp_path) as logs:
        assert logs.get("orders").topic_id is not None
        assert offsets(logs.get("clicks")) == [0, 1, 2]
    assert MARKER in names(tmp_path)


def test_no_log_is_written_to_without_the_lock(tmp_path, monkeypatch):
    logs = open_directory(tmp_path)
    log = logs.create("orders")
    append(log)

    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("storage_core.log.log_directory.close_logs", interrupted)
    with pytest.raises(KeyboardInterrupt):
        logs.close()
    with pytest.raises(LogClosedError):
        append(log)
    crash(logs)


def refuse(filesystem, source, *_):
    raise StorageError("No space is left on the device.", path=source)
