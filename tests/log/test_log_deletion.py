"""Deleting a log: at once for everybody who asks, later on disk, and nothing of it is left for the next of its name."""

from __future__ import annotations

import os
import re
import threading

import pytest

from storage_core import LogConfig, LogDirectory, read_table
from storage_core.checkpoint.truncations_file import TRUNCATIONS_FILE
from storage_core.errors import (
    LogClosedError,
    LogDirectoryError,
    LogFailedError,
    LogReadOnlyError,
    LogTruncationError,
    SegmentLogError,
    StorageError,
)
from storage_core.filesystem import FileSystem
from storage_core.log.log_deletion import delete_directory_name
from storage_core.record.record_batches import ProducerSequence
from tests.faults.observed_filesystem import ObservedSimulation
from tests.log.logs import (
    MARKER,
    append,
    contents,
    crash,
    names,
    offsets,
    open_directory,
    small,
    table,
    value,
    values,
)

CHECKPOINTS = (
    "recovery-point-offset-checkpoint",
    "log-start-offset-checkpoint",
    "replication-offset-checkpoint",
    "cleaner-offset-checkpoint",
)
DELETED = re.compile(r"(.+)-([0-9]+)\.[0-9a-f]{32}-delete")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "data"


def deleted(path) -> list[str]:
    return [name for name in names(path) if name.endswith("-delete")]


def checkpointed(path, topic="orders") -> list[str]:
    """Return the checkpoints that tell of a topic."""
    return [
        name
        for name in CHECKPOINTS
        if (path / name).exists() and re.search(rf"^{topic} ", (path / name).read_text(), re.MULTILINE)
    ]


# -- The name --------


def test_the_directory_is_named_as_a_broker_names_it(logs, path):
    append(logs.create("orders", 7))
    logs.delete("orders", 7)
    (name,) = deleted(path)
    match = DELETED.fullmatch(name)
    assert match is not None
    assert match.groups() == ("orders", "7")
    assert "orders-7" not in names(path)


def test_each_name_is_another():
    made = {delete_directory_name("orders", 0) for _ in range(100)}
    assert len(made) == 100
    # A broker's are random UUIDs, with a 4 in this place.
    assert {name[len("orders-0.") + 12] for name in made} == {"8"}


@pytest.mark.parametrize(
    ("topic", "partition", "kept"),
    [("x" * 249, 0, 213), ("x" * 249, 2**31 - 1, 204), ("x" * 213, 0, 213), (".hidden", 3, 7)],
)
def test_no_name_is_too_long_for_a_file_system(topic, partition, kept):
    name = delete_directory_name(topic, partition)
    assert len(name) <= 255
    match = DELETED.fullmatch(name)
    assert match is not None
    assert match.groups() == (topic[:kept], str(partition))


# -- What is left --------


def fill(logs, path):
    """Fill a log of which every checkpoint tells, with a producer, and a transaction that is open."""
    log = logs.create("orders", config=small(cleanup_policy="compact"))
    log.append(table(*[value(number) for number in range(20)], keys=[b"k"] * 20))
    log.roll()
    log.clean()
    log.delete_records(3)
    log.append(table(value(20), keys=[b"k"]), producer=ProducerSequence(7, 3, 5))
    log.transaction(8).append(table(value(21), keys=[b"k"]))
    logs.checkpoint()
    assert checkpointed(path) == list(CHECKPOINTS)
    return log


def test_no_checkpoint_tells_of_it_any_more(logs, path):
    fill(logs, path)
    append(logs.create("orders-2"))
    logs.delete("orders")
    assert checkpointed(path) == []
    assert CHECKPOINTS[0] in checkpointed(path, "orders-2")
    assert ("orders", 0) not in logs
    assert [log.topic for log in logs.logs()] == ["orders-2"]


def test_the_next_of_its_name_has_nothing_of_it(logs, path):
    fill(logs, path)
    topic_id = logs.get("orders").topic_id
    logs.delete("orders")
    log = logs.create("orders", config=small(cleanup_policy="compact"))
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark, log.recovery_point) == (0, 0, 0, 0)
    assert log.open_transactions() == ()
    assert log.leader_epochs == ()
    assert log.topic_id != topic_id
    assert log.append(table(value(0), keys=[b"k"]), producer=ProducerSequence(7, 0, 0)).first_offset == 0
    assert values(log) == [value(0)]
    logs.close()
    with open_directory(path) as again:
        assert values(again.get("orders")) == [value(0)]


def test_the_topic_keeps_its_id_while_it_has_partitions(logs):
    topic_id = logs.create("orders", 0).topic_id
    logs.create("orders", 1)
    logs.delete("orders", 0)
    assert logs.create("orders", 0).topic_id == topic_id


def test_checkpoints_that_could_not_be_written_count_for_no_other_log(logs, path, monkeypatch):
    """The log is gone, and its name is free; what the files say of it is put right before there is another one."""
    fill(logs, path)
    with monkeypatch.context() as patch:
        patch.setattr(logs._checkpoints, "write", refuse)
        with pytest.raises(StorageError):
            logs.delete("orders")
    assert ("orders", 0) not in logs
    assert len(checkpointed(path)) == 3
    append(logs.create("orders"), 1)
    crash(logs)
    with open_directory(path) as again:
        assert offsets(again.get("orders")) == [0]


def refuse(*arguments, **options):
    raise StorageError("No space left on device.")


# -- When the files go --------


def test_the_files_go_after_a_while(logs, path, clock):
    log = logs.create("orders", config=small(file_delete_delay_ms=5_000))
    append(log, 25)
    logs.delete("orders")
    (name,) = deleted(path)
    assert len([each for each in names(path / name) if each.endswith(".log")]) == 3
    clock.time_ms += 4_999
    logs.checkpoint()
    assert deleted(path) == [name]
    clock.time_ms += 1
    logs.checkpoint()
    assert deleted(path) == []


@pytest.mark.parametrize("occasion", ["checkpoint", "create", "delete", "housekeeping"])
def test_they_go_on_many_an_occasion(logs, path, clock, occasion):
    for topic in ("orders", "other"):
        append(logs.create(topic, config=small(file_delete_delay_ms=5_000)))
    logs.delete("orders")
    clock.time_ms += 5_000
    {
        "checkpoint": logs.checkpoint,
        "create": lambda: logs.create("third"),
        "delete": lambda: logs.delete("other"),
        "housekeeping": logs._deleted_logs.remove_due,
    }[occasion]()
    assert [name for name in deleted(path) if name.startswith("orders")] == []


def test_what_a_crash_leaves_goes_at_the_next_start(logs, path):
    append(logs.create("orders"), 25)
    append(logs.create("other"), 3)
    logs.delete("orders")
    crash(logs)
    assert len(deleted(path)) == 1
    with open_directory(path) as again:
        assert deleted(path) == []
        assert [log.topic for log in again.logs()] == ["other"]
        assert offsets(again.get("other")) == [0, 1, 2]


def test_what_a_broker_is_deleting_is_left_to_it(path):
    open_directory(path).close()
    theirs = path / "gone-0.0123456789ab4def0123456789abcdef-delete"
    theirs.mkdir()
    (theirs / "00000000000000000000.log").write_bytes(b"theirs")
    open_directory(path).close()
    assert contents(theirs) == {"00000000000000000000.log": b"theirs"}


def test_what_cannot_be_removed_is_tried_again(logs, path, clock, monkeypatch, caplog):
    append(logs.create("orders", config=small(file_delete_delay_ms=5_000)))
    logs.delete("orders")
    clock.time_ms += 5_000
    with monkeypatch.context() as patch:
        patch.setattr(FileSystem, "delete_directory", refuse)
        logs._deleted_logs.remove_due()
    assert "could not be removed yet" in caplog.text
    assert len(deleted(path)) == 1
    logs._deleted_logs.remove_due()
    assert len(deleted(path)) == 1
    clock.time_ms += 60_000
    logs._deleted_logs.remove_due()
    assert deleted(path) == []


def test_a_failed_removal_does_not_prevent_closing_and_opening(logs, path, monkeypatch):
    append(logs.create("orders"))
    logs.delete("orders")
    with monkeypatch.context() as patch:
        patch.setattr(FileSystem, "delete_directory", refuse)
        logs.close()
        assert MARKER in names(path)
        open_directory(path).close()
    assert len(deleted(path)) == 1
    open_directory(path).close()
    assert deleted(path) == []


# -- The log that is gone --------


USES = {
    "append": append,
    "read": lambda log: list(log.read()),
    "fetch": lambda log: log.fetch(0, 100),
    "by time": lambda log: log.offset_for_timestamp(0),
    "roll": lambda log: log.roll(),
    "flush": lambda log: log.flush(),
    "truncate": lambda log: log.truncate_to(1),
    "delete records": lambda log: log.delete_records(1),
    "retention": lambda log: log.apply_retention(),
    "transaction": lambda log: log.transaction(),
    "high watermark": lambda log: log.update_high_watermark(0),
    "epoch": lambda log: log.assign_epoch_start_offset(9),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("is_made_again", [False, True])
def test_nothing_can_be_done_with_it(logs, path, use, is_made_again):
    log = logs.create("orders")
    append(log, 3)
    logs.delete("orders")
    if is_made_again:
        append(logs.create("orders"), 5)
    before = contents(path)
    with pytest.raises(LogClosedError, match=r"was deleted\. Get its replacement with get\(\), or make one"):
        USES[use](log)
    assert contents(path) == before
    log.close()


def test_its_transactions_are_gone(logs):
    log = logs.create("orders")
    transaction = log.transaction()
    transaction.append(table(value(0)))
    logs.delete("orders")
    with pytest.raises(LogClosedError, match="was deleted"):
        transaction.append(table(value(1)))
    with pytest.raises(LogClosedError, match="was deleted"):
        transaction.commit()


def test_there_is_none_to_delete(logs):
    logs.create("other")
    with pytest.raises(
        LogDirectoryError, match=r"Expected a log of orders-1, found other-0\. There is nothing to"
    ):
        logs.delete("orders", 1)
    logs.delete("other")
    with pytest.raises(LogDirectoryError, match="found no log at all"):
        logs.delete("other")


def test_a_log_that_was_closed_is_deleted_too(logs, path):
    log = logs.create("orders")
    append(log, 3)
    log.close()
    logs.delete("orders")
    assert "orders-0" not in names(path)
    assert offsets(logs.create("orders")) == []


def test_a_log_that_has_failed_is_deleted_too_and_then_all_is_well(logs, path):
    log = logs.create("orders")
    append(log, 3)
    log._state.fail(StorageError("No space left on device."))
    logs.delete("orders")
    logs.close()
    assert MARKER in names(path)


def test_a_directory_that_is_only_read_or_closed_deletes_nothing(root):
    before = contents(root)
    with LogDirectory.open(root, read_only=True) as reading, pytest.raises(LogReadOnlyError):
        reading.delete("orders")
    assert contents(root) == before
    logs = open_directory(root)
    logs.close()
    with pytest.raises(LogClosedError):
        logs.delete("orders")


def test_no_background_task_uses_it(logs, clock):
    log = logs.create("orders", config=small(1 << 20, flush_ms=1 << 40))
    append(log)
    logs.delete("orders")
    clock.time_ms += 1 << 41
    logs._periodic_flush.flush_due()
    assert logs.apply_retention() == {}
    assert logs.clean() == []


def test_a_cleaning_gives_up_first(logs, path):
    log = logs.create("orders", config=small(cleanup_policy="compact"))
    log.append(table(*[value(number) for number in range(20)], keys=[b"k"] * 20))
    log.roll()
    is_held, cleaning = threading.Event(), log._state.cleaning

    def clean():
        with cleaning.under_way(wait=True):
            is_held.set()
            while not cleaning.is_stopped:
                os.sched_yield()
            # So far nothing was renamed.
            assert "orders-0" in names(path)

    thread = threading.Thread(target=clean)
    thread.start()
    is_held.wait()
    logs.delete("orders")
    thread.join()
    assert "orders-0" not in names(path)


# -- The file system refuses --------


class Refusing(FileSystem):
    """Does not rename a log's directory, or does not flush the root once that was done."""

    refused: str | None = None

    def rename(self, source, target):
        if self.refused == "rename" and target.endswith("-delete"):
            refuse()
        super().rename(source, target)

    def flush_directory(self, path):
        if self.refused == "flush" and deleted(path):
            refuse()
        super().flush_directory(path)

    def open_for_writing(self, path, *, create=False, **options):
        if self.refused == "note" and path.endswith(TRUNCATIONS_FILE):
            refuse()
        return super().open_for_writing(path, create=create, **options)


@pytest.mark.parametrize("refused", ["rename", "flush", "note"])
def test_a_log_that_cannot_be_deleted_stays(path, refused):
    filesystem = Refusing()
    logs = open_directory(path, filesystem=filesystem)
    log = logs.create("orders")
    append(log, 25)
    filesystem.refused = refused
    with pytest.raises(StorageError, match="No space left"):
        logs.delete("orders")
    filesystem.refused = None
    assert deleted(path) == []
    # It has failed, as after any change that was not completed, and reads.
    assert offsets(log) == list(range(25))
    with pytest.raises(LogFailedError):
        append(log)
    logs.close()
    assert MARKER not in names(path)
    with open_directory(path) as again:
        assert offsets(again.get("orders")) == list(range(25))
        again.delete("orders")


def test_a_deletion_that_failed_may_be_tried_again(path):
    filesystem = Refusing()
    with open_directory(path, filesystem=filesystem) as logs:
        append(logs.create("orders"), 25)
        filesystem.refused = "flush"
        with pytest.raises(StorageError):
            logs.delete("orders")
        filesystem.refused = None
        logs.delete("orders")
        assert ("orders", 0) not in logs
    assert MARKER in names(path)


# -- Readers --------


class Readers:
    """A log of 24 records in four segments, and a reader."""

    def __init__(self, kind) -> None:
        self.writing = ObservedSimulation()
        self.writing.make_directory("/data")
        self.logs = open_directory("/data", filesystem=self.writing, config=small(600))
        self.fill()
        self.filesystem = self.writing if kind == "in process" else ObservedSimulation(self.writing._root)
        self.kind = kind

    def fill(self) -> None:
        self.log = self.logs.create("orders", config=small(600, file_delete_delay_ms=0))
        append(self.log, 24)
        self.logs.checkpoint()

    def read(self, found, **options) -> None:
        if self.kind == "table":
            batches = read_table("/data", filesystem=self.filesystem, **options).to_batches()
        elif self.kind == "in process":
            batches = self.log.read(**options)
        else:
            reading = open_directory("/data", read_only=True, filesystem=self.filesystem)
            batches = reading.get("orders").read(**options)
        for batch in batches:
            found += zip(batch["offset"].to_pylist(), batch["value"].to_pylist(), strict=True)


OLD = [(number, value(number)) for number in range(24)]
NEW = [(number, value(1000 + number)) for number in range(24)]
ISOLATION_LEVELS = ("read_uncommitted", "read_committed")


def make_again(readers) -> None:
    """Make a log of the same name, with batches where the old one's were."""
    log = readers.logs.create("orders", config=small(600, file_delete_delay_ms=0))
    for number in range(24):
        log.append(table(value(1000 + number)))
    readers.logs.checkpoint()


@pytest.mark.cases(1, 6)
@pytest.mark.thorough
@pytest.mark.cases(2, 6)
@pytest.mark.parametrize("isolation_level", ISOLATION_LEVELS)
@pytest.mark.parametrize("is_made_again", [False, True], ids=["deleted", "made again"])
@pytest.mark.parametrize("kind", ["in process", "read-only", "table"])
def test_before_every_call_of_a_read(kind, is_made_again, isolation_level):
    """The old log to its end, the new one, none, or an error that says so. Never both, or a part."""
    at, seen = 1, set()
    while True:
        readers = Readers(kind)
        calls, found, error = [], [], None

        def observe(call, readers=readers, calls=calls, at=at):
            calls.append(call)
            if len(calls) == at:
                readers.filesystem.tell = None
                readers.logs.delete("orders")
                if is_made_again:
                    make_again(readers)
                readers.filesystem.tell = observe

        readers.filesystem.tell = observe
        try:
            readers.read(found, isolation_level=isolation_level)
        except SegmentLogError as caught:
            error = caught
        readers.filesystem.tell = None
        where = f"in front of {calls[at - 1] if len(calls) >= at else 'nothing more'}: {error!r}"
        if error is None:
            assert found in (OLD, NEW if is_made_again else []), where
            seen.add("old" if found == OLD else "new")
        else:
            assert isinstance(error, (LogTruncationError, LogClosedError, LogDirectoryError)), where
            assert found in (OLD[: len(found)], NEW[: len(found)] if is_made_again else []), where
            seen.add(type(error).__name__)
        readers.logs.close()
        if len(calls) < at:
            break
        at += 1
    assert at > 5
    assert {"old", "LogTruncationError"} <= seen, seen


def test_others_see_that_it_is_gone_and_that_another_has_come(logs, path):
    append(logs.create("orders"), 25)
    append(logs.create("other"), 2)
    with LogDirectory.open(path, read_only=True, config=LogConfig()) as reading:
        assert len(reading.logs()) == 2
        logs.delete("orders")
        assert [log.topic for log in reading.logs()] == ["other"]
        assert read_table(path)["topic"].to_pylist() == ["other"] * 2
        append(logs.create("orders"), 1)
        assert offsets(reading.get("orders")) == [0]
