"""What retention deletes: by log start offset, by size and by time, from the oldest segment on, without a hole."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core import LogConfig, LogDirectory
from storage_core.errors import LogFailedError, LogReadOnlyError, StorageError
from tests.examples import examples
from tests.faults.crash_points import new_filesystem
from tests.faults.observed_filesystem import before_each_call
from tests.faults.session import ROOT
from tests.log.logs import (
    BATCH_BYTES,
    NOW_MS,
    Clock,
    append,
    crash,
    name,
    names,
    offsets,
    open_directory,
    small,
    table,
    value,
)
from tests.log.producing import data

DAY_MS = 86_400_000


def forever(**config):
    """Ten records to a segment, and nothing that limits the log but what is given."""
    return small(**{"retention_ms": -1, "retention_bytes": -1, **config})


def create(logs, topic="orders", **config):
    """35 records in segments 0, 10, 20 and 30; the record of offset n has the timestamp 100 n + 100."""
    log = logs.create(topic, config=forever(**config))
    append(log, 35, timestamps=range(100, 3600, 100))
    assert log.segment_base_offsets == (0, 10, 20, 30)
    return log


@pytest.fixture
def path(logs):
    """Return the log directory of `logs`."""
    return Path(logs.path)


# -- By time --------


@pytest.mark.parametrize(
    ("now_ms", "removed"),
    [
        (0, ()),
        # The youngest record of the first segment has the timestamp 1000.
        (1000 + DAY_MS, ()),
        (1001 + DAY_MS, (0,)),
        (2000 + DAY_MS, (0,)),
        (2001 + DAY_MS, (0, 10)),
        (3001 + DAY_MS, (0, 10, 20)),
        (3500 + DAY_MS, (0, 10, 20)),
    ],
)
def test_a_segment_goes_when_its_youngest_record_is_older_than_retention_ms(logs, now_ms, removed):
    log = create(logs, retention_ms=DAY_MS)
    assert log.apply_retention(now_ms) == removed
    assert log.segment_base_offsets == (0, 10, 20, 30)[len(removed) :]
    assert log.log_start_offset == 10 * len(removed)
    assert offsets(log) == list(range(10 * len(removed), 35))


def test_the_time_is_that_of_the_clock(logs, clock):
    log = logs.create("orders", config=forever(retention_ms=DAY_MS))
    append(log, 25, timestamps=[NOW_MS] * 25)
    clock.time_ms = NOW_MS + DAY_MS
    assert log.apply_retention() == ()
    clock.time_ms += 1
    assert log.apply_retention() == (0, 10, 20)


def test_a_record_of_the_future_keeps_its_segment(logs):
    log = logs.create("orders", config=forever(retention_ms=DAY_MS))
    append(log, 15, timestamps=[NOW_MS + 3_600_000] + [0] * 14)
    assert log.apply_retention(NOW_MS) == ()


@pytest.mark.parametrize(("age_ms", "removed"), [(DAY_MS, ()), (DAY_MS + 1, (0,))])
def test_without_a_timestamp_the_time_counts_when_the_file_was_written(logs, path, age_ms, removed):
    log = logs.create("payments", config=forever(retention_ms=DAY_MS))
    log.append_batches(data(0, timestamp_ms=-1))
    log.update_high_watermark(1)
    log.roll()
    os.utime(path / "payments-0" / name(0), ns=(0, 5_000 * 1_000_000))
    assert log.apply_retention(5_000 + age_ms) == removed


@pytest.mark.parametrize("recovery", ["tail", "kafka"])
@pytest.mark.parametrize("is_clean", [True, False])
def test_a_log_that_was_opened_knows_its_timestamps(tmp_path, is_clean, recovery):
    logs = open_directory(tmp_path / "data")
    create(logs)
    logs.close() if is_clean else crash(logs)
    config = forever(retention_ms=DAY_MS)
    with open_directory(tmp_path / "data", config=config, recovery=recovery) as again:
        log = again.get("orders")
        assert log.apply_retention(2001 + DAY_MS) == (0, 10)
        assert log.apply_retention(3500 + DAY_MS) == (20,)
        assert log.apply_retention(3501 + DAY_MS) == (30,)


# -- By size --------


@pytest.mark.parametrize(
    ("retention_bytes", "removed"),
    [
        (3500, ()),
        (2501, ()),
        # What stays is never smaller than what is to be kept.
        (2500, (0,)),
        (1501, (0,)),
        (1500, (0, 10)),
        (500, (0, 10, 20)),
        (1, (0, 10, 20)),
        (0, (0, 10, 20, 30)),
    ],
)
def test_segments_go_while_enough_is_left(logs, retention_bytes, removed):
    log = create(logs, retention_bytes=retention_bytes)
    assert log.apply_retention() == removed
    assert offsets(log) == list(range(35))[10 * len(removed) :]


def test_a_smaller_log_keeps_its_empty_segment(logs):
    log = logs.create("orders", config=forever(retention_bytes=0))
    assert log.apply_retention() == ()
    append(log)
    log.roll()
    assert log.segment_base_offsets == (0, 1)
    assert log.apply_retention() == (0,)
    assert log.apply_retention() == ()
    assert log.segment_base_offsets == (1,)


# -- The active segment --------


def test_when_everything_is_old_an_empty_segment_is_left_at_the_log_end(logs, path):
    log = create(logs, "payments", retention_ms=DAY_MS)
    assert log.apply_retention(NOW_MS) == (0, 10, 20, 30)
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (35, 35, 35)
    assert log.segment_base_offsets == (35,)
    assert offsets(log) == []
    assert (path / "payments-0" / name(35)).stat().st_size == 0
    # Again and again.
    assert log.apply_retention(NOW_MS) == ()
    assert log.segment_base_offsets == (35,)
    append(log, 2)
    assert offsets(log) == [35, 36]


def test_an_empty_log_stays_as_it_is(logs):
    log = logs.create("orders", config=forever(retention_ms=0, retention_bytes=0))
    assert log.apply_retention(2**62) == ()
    assert log.segment_base_offsets == (0,)


# -- The high watermark --------


@pytest.mark.parametrize(
    ("high_watermark", "removed"),
    [(0, ()), (9, ()), (10, (0,)), (19, (0,)), (34, (0, 10, 20)), (35, (0, 10, 20, 30))],
)
def test_what_not_every_replica_has_stays(logs, high_watermark, removed):
    log = create(logs, retention_ms=DAY_MS, retention_bytes=0)
    log.update_high_watermark(high_watermark)
    assert log.apply_retention(NOW_MS) == removed
    assert log.log_start_offset <= log.high_watermark


# -- cleanup.policy --------


@pytest.mark.parametrize(
    ("policy", "removed"),
    [("delete", (0, 10, 20)), ("compact,delete", (0, 10, 20)), ("compact", (0, 10)), ("", (0, 10))],
)
def test_only_the_word_delete_deletes_by_size_and_time(root, policy, removed):
    # As a broker leaves it: log starts are raised long before the files go.
    (root / "log-start-offset-checkpoint").write_text("0\n1\norders 0 25\n")
    config = forever(cleanup_policy=policy, retention_bytes=1, retention_ms=DAY_MS)
    with open_directory(root, config=config) as logs:
        log = logs.get("orders")
        assert (log.log_start_offset, log.segment_base_offsets) == (25, (0, 10, 20, 30))
        assert log.apply_retention(3000 + DAY_MS) == removed
        assert log.log_start_offset == max(25, 10 * len(removed))


# -- What goes along --------


def test_a_producer_is_known_though_its_records_are_gone(logs):
    log = logs.create("orders", config=forever(retention_ms=DAY_MS))
    log.append_batches(data(0, producer=7, sequence=0, timestamp_ms=NOW_MS))
    log.update_high_watermark(1)
    assert log.apply_retention(NOW_MS + DAY_MS + 1) == (0,)
    assert list(log._state.producers.producers) == [7]


def test_the_log_start_is_on_disk_before_a_file_is_renamed(logs, path, monkeypatch):
    log = create(logs, retention_ms=DAY_MS)

    def fail():
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(log._state, "checkpoint", fail)
    with pytest.raises(OSError, match="No space"):
        log.apply_retention(2001 + DAY_MS)
    assert [each for each in names(path / "orders-0") if each.endswith(".deleted")] == []


def test_no_log_file_is_opened(root):
    opened = []
    filesystem = before_each_call(lambda call, path: call.startswith("open") and opened.append(path))
    config = forever(retention_ms=DAY_MS, retention_bytes=2500)
    with open_directory(root, config=config, filesystem=filesystem) as logs:
        opened.clear()
        assert logs.get("orders").apply_retention(2001 + DAY_MS) == (0, 10)
        assert [path for path in opened if path.endswith(".log")] == []
        # One time index each, up to the first that is young enough.
        assert [os.path.basename(path) for path in opened if path.endswith(".timeindex")] == [
            name(10, "timeindex"),
            name(20, "timeindex"),
        ]


def test_who_only_reads_deletes_nothing(root):
    with open_directory(root, read_only=True, config=forever(retention_ms=0)) as logs:
        with pytest.raises(LogReadOnlyError):
            logs.get("orders").apply_retention()
        with pytest.raises(LogReadOnlyError):
            logs.apply_retention()
        assert logs.get("orders").segment_base_offsets == (0, 10, 20, 30)


# -- All logs of a directory --------


def test_each_log_goes_by_its_own_configuration(logs, clock):
    create(logs, "timed", retention_ms=DAY_MS)
    create(logs, "sized", retention_bytes=2500)
    create(logs, "kept")
    create(logs, "both", retention_ms=DAY_MS, retention_bytes=1500)
    clock.time_ms = 1001 + DAY_MS
    assert logs.apply_retention() == {("timed", 0): (0,), ("sized", 0): (0,), ("both", 0): (0, 10)}
    assert logs.apply_retention() == {}
    assert logs.apply_retention(2001 + DAY_MS) == {("timed", 0): (10,)}


def test_the_log_starts_of_all_logs_are_on_disk_before_a_file_is_renamed(logs, path, monkeypatch):
    # The log directory's checkpoint is one file: written once for all logs, not once for each.
    for number in range(3):
        create(logs, f"topic-{number}", retention_ms=DAY_MS)
    seen, replaced = [], os.replace

    def look(source, target):
        if target.endswith("log-start-offset-checkpoint"):
            seen.append("checkpoint")
        elif target.endswith(".log.deleted"):
            seen.append((path / "log-start-offset-checkpoint").read_text())
        replaced(source, target)

    monkeypatch.setattr(os, "replace", look)
    logs.apply_retention(1001 + DAY_MS)
    text = "0\n3\ntopic-0 0 10\ntopic-1 0 10\ntopic-2 0 10\n"
    assert seen == ["checkpoint", text, text, text]


def test_a_log_that_fails_keeps_no_other_from_it(logs, path, monkeypatch, caplog):
    for topic in ("a", "b", "c"):
        create(logs, topic, retention_ms=DAY_MS)
    replaced = os.replace

    def fail(source, target):
        if "/b-0/" in target and target.endswith(".log.deleted"):
            raise OSError(errno.EIO, "Input/output error")
        replaced(source, target)

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(StorageError, match="Input/output error"), caplog.at_level(logging.WARNING):
        logs.apply_retention(2001 + DAY_MS)
    assert [logs.get(topic).segment_base_offsets[0] for topic in ("a", "c")] == [20, 20]
    assert "b-0" in caplog.text
    with pytest.raises(LogFailedError):
        append(logs.get("b"))
    assert offsets(logs.get("b")) == list(range(20, 35))
    # It is told once. The others go on.
    monkeypatch.undo()
    logs.get("a").close()
    assert logs.apply_retention(3001 + DAY_MS) == {("c", 0): (20,)}
    crash(logs)
    with open_directory(path) as again:
        assert offsets(again.get("b")) == list(range(20, 35))
    logs._checkpoints.states.clear()


def test_a_log_that_is_truncated_meanwhile_keeps_what_it_is_to_hold(logs, monkeypatch):
    log, other = create(logs, retention_ms=DAY_MS), create(logs, "other", retention_ms=DAY_MS)
    write = logs._checkpoints.write

    def truncate():
        monkeypatch.setattr(logs._checkpoints, "write", write)
        log.truncate_to(15)
        append(log, timestamps=[2 * DAY_MS])
        write()

    monkeypatch.setattr(logs._checkpoints, "write", truncate)
    assert logs.apply_retention(3001 + DAY_MS) == {("orders", 0): (0,), ("other", 0): (0, 10, 20)}
    assert (log.log_start_offset, offsets(log)) == (15, [15])
    assert log.segment_base_offsets == (10,)
    assert offsets(other) == list(range(30, 35))


def test_a_checkpoint_that_cannot_be_written_keeps_all_files(logs, path, monkeypatch):
    log = create(logs, "payments", retention_ms=DAY_MS)

    def fail():
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(logs._checkpoints, "write", fail)
        with pytest.raises(OSError, match="No space"):
            logs.apply_retention(2001 + DAY_MS)
    assert [each for each in names(path / "payments-0") if each.endswith(".deleted")] == []
    # What could not be noted then is noted now.
    assert logs.apply_retention(2001 + DAY_MS) == {("payments", 0): (0, 10)}
    assert log.segment_base_offsets == (20, 30)


# -- Anything --------


def expected(segments, high_watermark, log_start, policy, retention_bytes, retention_ms, now_ms):
    """Base offsets of what is to go: a list of (base offset, end offset, bytes, largest timestamp), oldest first."""

    def take(left, is_due):
        taken = []
        while left and high_watermark >= left[0][1] and (len(left) > 1 or left[0][2]) and is_due(left):
            taken.append(left[0])
            left = left[1:]
        return taken

    gone = take(segments, lambda left: len(left) > 1 and left[1][0] <= log_start)
    if "delete" in policy:
        if retention_bytes >= 0:
            rest = segments[len(gone) :]
            gone += take(rest, lambda left: sum(each[2] for each in left[1:]) >= retention_bytes)
        if retention_ms >= 0:
            gone += take(segments[len(gone) :], lambda left: now_ms - left[0][3] > retention_ms)
    return tuple(each[0] for each in gone)


TIMES = st.integers(0, 20)


@examples(300)
@given(
    contents=st.lists(st.lists(TIMES, min_size=1, max_size=3), min_size=1, max_size=6),
    is_rolled=st.booleans(),
    shares=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    policy=st.sampled_from(["delete", "compact,delete", "compact", ""]),
    retention_bytes=st.sampled_from([-1, *range(0, 1300, 50)]),
    retention_ms=st.sampled_from([-1, 0, 5, 15]),
    now_ms=st.integers(0, 40),
)
def test_any_log_loses_what_the_model_says(
    contents, is_rolled, shares, policy, retention_bytes, retention_ms, now_ms
):
    config = LogConfig(
        internal_segment_bytes=1 << 20,
        segment_index_bytes=240,
        cleanup_policy=policy,
        retention_bytes=retention_bytes,
        retention_ms=retention_ms,
    )
    with LogDirectory.open(ROOT, filesystem=new_filesystem(), clock=Clock(), config=config) as logs:
        log = logs.create("orders")
        segments = []
        for times in contents:
            if segments:
                log.roll()
            start = log.log_end_offset
            for time_ms in times:
                log.append(table(value(0), timestamps=[time_ms], keys=[b""]))
            segments.append((start, log.log_end_offset, BATCH_BYTES * len(times), max(times)))
        if is_rolled:
            log.roll()
            segments.append((log.log_end_offset, log.log_end_offset, 0, -1))
        end = log.log_end_offset
        high_watermark = log.update_high_watermark(round(shares[0] * end))
        log_start = round(shares[1] * high_watermark)
        # As if a checkpoint had told so: `delete_records` would delete segments by itself.
        state = log._state
        state.publish(state.offsets.with_log_start(log_start))
        gone = expected(segments, high_watermark, log_start, policy, retention_bytes, retention_ms, now_ms)
        assert log.apply_retention(now_ms) == gone
        left = [each[0] for each in segments if each[0] not in gone]
        assert log.segment_base_offsets == tuple(left or [end])
        assert log.log_start_offset == max(log_start, log.segment_base_offsets[0])
        assert offsets(log) == list(range(log.log_start_offset, end))
