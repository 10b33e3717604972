"""A configuration that is altered while the log is open: at once, as a whole, and for as long as it is open."""

from __future__ import annotations

import threading

import pytest

from storage_core import CleanerConfig, LogConfig, LogDirectory
from storage_core.errors import (
    InvalidRecordError,
    LogClosedError,
    LogFailedError,
    LogReadOnlyError,
    OptionError,
    OutOfOrderSequenceError,
    RecordTooLargeError,
    StorageError,
)
from storage_core.log import append as leader_append
from storage_core.log import log_cleaner
from storage_core.record.record_batches import ProducerSequence
from tests.log.logs import (
    BATCH_BYTES,
    append,
    contents,
    offsets,
    open_directory,
    small,
    table,
    value,
    values,
)
from tests.log.producing import data

GZIP, LZ4 = 1, 3


def attributes(log) -> list[int]:
    """Return the attributes of each batch."""
    found, offset = [], log.log_start_offset
    while offset < log.log_end_offset:
        batch = log.fetch(offset, 0).data
        found.append(int.from_bytes(batch[21:23]))
        offset = int.from_bytes(batch[:8]) + int.from_bytes(batch[23:27]) + 1
    return found


def codecs(log) -> list[int]:
    return [each & 7 for each in attributes(log)]


# -- What it is given --------


def test_keys_that_change_by_any_of_their_names(log):
    before = log.config
    assert log.alter_config({"retention.ms": "1000", "flush_messages": 7}) == before.replace(
        retention_ms=1000, flush_messages=7
    )
    assert (log.config.retention_ms, log.config.flush_messages) == (1000, 7)
    assert log.config.internal_segment_bytes == before.internal_segment_bytes


def test_a_whole_configuration(log):
    log.alter_config({"retention.ms": 1000})
    config = LogConfig(segment_bytes=1 << 20)
    assert log.alter_config(config) == config
    assert log.config == config


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"retention.ns": 1}, "Did you mean 'retention.ms'"),
        ({"retention.ms": "soon"}, "retention.ms"),
        ({"segment.bytes": 5}, "segment.bytes"),
        ({"min.compaction.lag.ms": 5, "max.compaction.lag.ms": 4}, r"min\.compaction\.lag\.ms to be at most"),
        ({"retention.ms": 1, "retention_ms": 2}, "found it twice"),
        ({1: 2}, "Unknown configuration key '1'"),
        ([("retention.ms", 1)], "Expected the keys that change, or a LogConfig, found list"),
        (None, "found NoneType"),
    ],
)
def test_what_is_wrong_changes_nothing(logs, log, changes, message):
    before = log.config
    with pytest.raises(OptionError, match=message):
        log.alter_config(changes)
    with pytest.raises(OptionError, match=message):
        logs.alter_config("orders", changes)
    assert log.config is before
    assert logs.create("orders", 1).config == before
    append(log)


def test_a_log_that_takes_no_changes(root):
    with LogDirectory.open(root, read_only=True) as reading:
        with pytest.raises(LogReadOnlyError):
            reading.get("orders").alter_config({"retention.ms": 1})
        with pytest.raises(LogReadOnlyError):
            reading.alter_config("orders", {"retention.ms": 1})
    with open_directory(root) as logs:
        log = logs.get("orders")
        log._state.fail(StorageError("No space left on device."))
        with pytest.raises(LogFailedError):
            log.alter_config({"retention.ms": 1})
    with pytest.raises(LogClosedError):
        log.alter_config({"retention.ms": 1})


def test_it_is_in_no_file(root):
    before = contents(root)
    with open_directory(root, read_only=False) as logs:
        opened = logs.get("orders").config
        opening = contents(root)
        logs.alter_config("orders", {"retention.ms": 1})
        assert contents(root) == opening
    assert contents(root).keys() == before.keys()
    with open_directory(root) as logs:
        assert logs.get("orders").config == opened


# -- What it changes --------


def test_the_size_of_segments(log):
    append(log, 4)
    log.alter_config({"internal.segment.bytes": 5 * BATCH_BYTES})
    append(log, 8)
    assert log.segment_base_offsets == (0, 5, 10)
    log.alter_config({"internal.segment.bytes": 20 * BATCH_BYTES})
    append(log, 18)
    assert log.segment_base_offsets == (0, 5, 10)
    append(log)
    assert log.segment_base_offsets == (0, 5, 10, 30)


def test_the_largest_message(log):
    large = table(b"x" * 2000)
    log.alter_config({"max.message.bytes": 1000, "internal.segment.bytes": 1 << 20})
    with pytest.raises(RecordTooLargeError):
        log.append(large)
    log.alter_config({"max.message.bytes": 3000})
    log.append(large)
    log.alter_config({"max.message.bytes": 1000})
    with pytest.raises(RecordTooLargeError):
        log.append_as_leader(data(0, 300))
    assert values(log) == [b"x" * 2000]


def test_what_was_written_when_larger_batches_were_taken_is_read_on(log):
    log.alter_config({"max.message.bytes": 400 << 20})
    limit, segment = log._queries.max_batch_bytes, log._state.segments.active
    assert limit >= 400 << 20
    assert segment._max_batch_bytes > 400 << 20
    log.alter_config({"max.message.bytes": 1000})
    assert log._queries.max_batch_bytes == limit
    assert segment._max_batch_bytes > 400 << 20


def test_compression(log):
    append(log)
    log.alter_config({"compression.type": "gzip"})
    append(log)
    log.append_as_leader(data(0))
    log.alter_config({"compression.type": "lz4", "compression.lz4.level": 3})
    with log.transaction() as transaction:
        transaction.append(table(value(2)))
        log.alter_config({"compression.type": "uncompressed"})
        transaction.append(table(value(3)))
    # The marker comes last.
    assert codecs(log) == [0, GZIP, GZIP, LZ4, 0, 0]


def test_the_size_of_batches(log):
    log.alter_config({"batch.size": 200})
    assert log.append(table(*map(value, range(6)))).batch_count == 2
    log.alter_config({"batch.size": 16_384})
    assert log.append(table(*map(value, range(6)))).batch_count == 1


def flushing() -> int:
    return len([each for each in threading.enumerate() if each.name == "segmentlog-flush"])


def test_who_flushes_by_time(logs, log, clock):
    append(log)
    clock.time_ms += 1 << 41
    logs._periodic_flush.flush_due()
    assert (flushing(), log.recovery_point) == (0, 0)
    log.alter_config({"flush.ms": 1 << 40})
    assert flushing() == 1
    logs._periodic_flush.flush_due()
    assert log.recovery_point == 1
    # A flush that its thread has begun must not count below.
    logs._periodic_flush.stop()
    log.alter_config({"flush.ms": 2**63 - 1})
    append(log)
    clock.time_ms += 1 << 41
    logs._periodic_flush.flush_due()
    assert log.recovery_point == 1
    logs.close()
    assert flushing() == 0


def test_a_thread_that_waits_for_long_hears_of_a_shorter_time(logs, log, clock):
    log.alter_config({"flush.ms": 1 << 40})
    append(log)
    clock.time_ms += 50
    log.alter_config({"flush.ms": 10})
    # Its thread would have slept for a minute.
    for _ in range(12_000):
        if log.recovery_point == 1:
            break
        threading.Event().wait(0.005)
    assert log.recovery_point == 1


def test_the_distance_of_index_entries_counts_from_the_next_segment_on(log):
    append(log, 5)
    log.alter_config({"index.interval.bytes": 0, "segment.index.bytes": 400})
    append(log, 15)
    first, second = log._state.segments.values()
    assert (len(first.offset_index), len(second.offset_index)) == (3, 9)
    assert second.offset_index.room == 400 // 8 - 9


def test_room_is_taken_in_advance_from_the_next_segment_on(log):
    append(log, 2)
    log.alter_config({"preallocate": "true"})
    append(log)
    assert (log._state.segments.active._filesystem.status(log._state.segments.active.path).size_bytes) == 300
    log.roll()
    append(log)
    active = log._state.segments.active
    assert active._filesystem.status(active.path).size_bytes == 10 * BATCH_BYTES


def test_how_long_a_silent_producer_is_remembered(log, clock):
    log.append(table(value(0)), producer=ProducerSequence(7, 0, 0))
    clock.time_ms += 700_000
    with pytest.raises(OutOfOrderSequenceError):
        log.append(table(value(1)), producer=ProducerSequence(7, 0, 5))
    log.alter_config({"producer.id.expiration.ms": 1000})
    clock.time_ms += 700_000
    assert log.append(table(value(1)), producer=ProducerSequence(7, 0, 5)).first_offset == 1


# -- Compaction --------


def keyed(log, count):
    for number in range(count):
        log.append(table(value(number), keys=[b"k"]))
    log.roll()


def test_a_log_that_is_compacted_from_now_on(logs, log):
    keyed(log, 5)
    with pytest.raises(OptionError, match="alter the configuration first"):
        log.clean()
    log.alter_config({"cleanup.policy": "compact"})
    with pytest.raises(InvalidRecordError):
        append(log)
    assert log.clean() is not None
    assert offsets(log) == [4]
    keyed(log, 3)
    assert logs.clean(CleanerConfig()) != []
    assert offsets(log) == [7]


def test_a_log_that_is_not_compacted_any_more(logs, log):
    log.alter_config({"cleanup.policy": "compact"})
    keyed(log, 5)
    log.alter_config({"cleanup.policy": "delete"})
    assert logs.clean(CleanerConfig()) == []
    append(log)
    assert offsets(log) == list(range(6))


@pytest.mark.parametrize("at", ["before it looks", "while it reads"])
def test_a_cleaning_that_has_begun_gives_up(logs, log, monkeypatch, at):
    """Whatever is not compacted when this returns, no cleaning touches afterwards; unless it is compacted again."""
    log.alter_config({"cleanup.policy": "compact"})
    keyed(log, 5)
    state = log._state
    altering = threading.Thread(target=log.alter_config, args=({"cleanup.policy": "delete"},))
    if at == "before it looks":
        under_way = type(state.cleaning).under_way

        def begun(self, *, wait):
            altering.start()
            altering.join()
            return under_way(self, wait=wait)

        monkeypatch.setattr(type(state.cleaning), "under_way", begun)
    else:
        clean = log_cleaner.clean_log

        def cleaned(*arguments):
            altering.start()
            while not state.cleaning.is_stopped:
                threading.Event().wait(0.001)
            return clean(*arguments)

        monkeypatch.setattr(log_cleaner, "clean_log", cleaned)
    assert log.clean() is None
    altering.join()
    monkeypatch.undo()
    assert offsets(log) == list(range(5))
    assert not state.cleaning.is_stopped
    log.alter_config({"cleanup.policy": "compact"})
    assert log.clean() is not None
    assert offsets(log) == [4]


# -- A whole topic --------


def test_all_logs_of_a_topic_and_those_that_follow(logs):
    first, second = logs.create("orders", 0), logs.create("orders", 1, small(retention_ms=5))
    other = logs.create("other")
    logs.alter_config("orders", {"segment.ms": 99})
    assert [log.config.segment_ms for log in (first, second)] == [99, 99]
    # What is its own stays so.
    assert second.config.retention_ms == 5
    third = logs.create("orders", 2)
    assert (third.config.segment_ms, third.config.retention_ms) == (99, first.config.retention_ms)
    assert other.config.segment_ms == logs.create("other", 1).config.segment_ms != 99
    logs.alter_config("orders", {"retention.ms": 7})
    assert {(log.config.segment_ms, log.config.retention_ms) for log in (first, second, third)} == {(99, 7)}
    logs.alter_config("orders", small())
    assert {log.config for log in (first, second, third)} == {small()}


@pytest.mark.parametrize("config", [None, small(), {"orders": small(segment_ms=5)}])
def test_a_topic_that_has_no_log_yet(tmp_path, config):
    with open_directory(tmp_path, config=config) as logs:
        logs.alter_config("orders", {"retention.ms": 7})
        expected = config["orders"] if isinstance(config, dict) else config or LogConfig()
        assert logs.create("orders").config == expected.replace(retention_ms=7)
        # Also after it was deleted.
        logs.delete("orders")
        assert logs.create("orders").config.retention_ms == 7
        with pytest.raises(OptionError, match="name of a topic"):
            logs.alter_config("a/b", {"retention.ms": 7})


def test_logs_that_take_no_changes_keep_none_from_them(logs):
    closed, failed, log = (logs.create("orders", number) for number in range(3))
    closed.close()
    failed._state.fail(StorageError("No space left on device."))
    logs.alter_config("orders", {"segment.ms": 99})
    assert [each.config.segment_ms == 99 for each in (closed, failed, log)] == [False, False, True]


# -- Threads --------


@pytest.mark.parametrize("append_one", ["records", "client batches"])
def test_an_append_that_was_being_prepared_is_made_by_the_new_one(log, monkeypatch, append_one):
    made_by = "_batches_of_records" if append_one == "records" else "accept_client_batches"
    real, changes = getattr(leader_append, made_by), [{"compression.type": "gzip"}, {"batch.size": 1}]

    def prepared(*arguments, **options):
        made = real(*arguments, **options)
        if changes:
            log.alter_config(changes.pop(0))
        return made

    monkeypatch.setattr(leader_append, made_by, prepared)
    info = log.append(table(value(0))) if append_one == "records" else log.append_as_leader(data(0))
    assert info.first_offset == 0
    assert changes == []
    assert codecs(log) == [GZIP]
    assert len(offsets(log)) == log.log_end_offset


def test_what_the_new_one_does_not_take_is_refused(log, monkeypatch):
    real = leader_append._batches_of_records

    def prepared(*arguments, **options):
        made = real(*arguments, **options)
        log.alter_config({"cleanup.policy": "compact"})
        return made

    monkeypatch.setattr(leader_append, "_batches_of_records", prepared)
    with pytest.raises(InvalidRecordError):
        append(log)
    assert log.log_end_offset == 0
