"""Loading: what a log finds when it is opened, after a close and after a crash."""

from __future__ import annotations

import os
import struct

import pytest

from storage_core.errors import LogDirectoryError, RecoveryWouldDiscardError
from tests.log.logs import (
    BATCH_BYTES,
    Clock,
    append,
    contents,
    flip,
    name,
    offsets,
    open_directory,
    reopened,
    state,
    unclean,
)
from tests.log.producing import data
from tests.record.encoding import CONTROL, TRANSACTIONAL, Batch, Record

# After a clean shutdown (216, 230).


def test_a_closed_log_is_as_it_was(tmp_path):
    with open_directory(tmp_path) as logs:
        log = logs.create("orders")
        append(log, 35, timestamps=range(100, 3600, 100))
        before = state(log)
    assert reopened(tmp_path) == before


def test_opening_and_closing_a_closed_log_changes_no_byte(root):
    before = contents(root)
    with open_directory(root):
        pass
    assert contents(root) == before


def test_the_active_segment_of_a_closed_log_goes_on(root, path):
    with open_directory(root) as logs:
        log = logs.get("orders")
        append(log, 5, timestamps=[3600] * 5)
        assert log.segment_base_offsets == (0, 10, 20, 30)
        assert (path / name(30, "index")).stat().st_size == 10 << 20
        append(log)
        assert log.segment_base_offsets == (0, 10, 20, 30, 40)
        assert offsets(log) == list(range(41))


def test_of_a_closed_log_no_segment_is_recovered(root, path):
    # A recovery would notice, and cut the log here.
    flip(path / name(10), 50)
    (path / name(10, "index")).write_bytes(b"")
    with open_directory(root) as logs:
        assert logs.get("orders").log_end_offset == 35
    assert (path / name(10, "index")).read_bytes() == b""


@pytest.mark.parametrize("recovery", ["tail", "kafka"])
def test_an_empty_directory_is_an_empty_log(tmp_path, recovery):
    (tmp_path / "orders-0").mkdir()
    with open_directory(tmp_path, recovery=recovery) as logs:
        log = logs.get("orders")
        assert (log.log_end_offset, log.segment_base_offsets) == (0, (0,))
        append(log)
        assert offsets(log) == [0]


def test_a_torn_end_under_a_clean_marker_is_cut_all_the_same(root, path):
    with (path / name(30)).open("ab") as file:
        file.write(data(35)[:-1])
    with open_directory(root) as logs:
        log = logs.get("orders")
        append(log, 2)
        assert offsets(log) == list(range(37))


@pytest.mark.parametrize("left", [1, 3, 5])
def test_a_last_file_that_was_cut_under_a_clean_marker_is_recovered(root, path, left):
    # Its indexes name offsets that are gone.
    with (path / name(30)).open("r+b") as file:
        file.truncate(left * BATCH_BYTES)
    with open_directory(root) as logs:
        log = logs.get("orders")
        assert log.log_end_offset == 30 + left
        append(log, 12, timestamps=[9] * 12)
        log.roll()
        assert offsets(log) == list(range(42 + left))


def test_a_time_index_that_names_the_next_offset_is_made_anew_under_a_clean_marker(root, path):
    before = contents(path)
    with (path / name(30, "timeindex")).open("ab") as file:
        file.write(struct.pack(">qi", 3600, 5))
    reopened(root)
    assert contents(path) == before


# After a crash (217, 221, 224-228).


@pytest.mark.parametrize("recovery", ["tail", "kafka"])
def test_after_a_crash_nothing_whole_is_lost(root, recovery):
    before = reopened(root)
    unclean(root)
    assert reopened(root, recovery=recovery) == before


@pytest.mark.parametrize("torn", [b"\0", data(35)[:38], data(35)[:-1], data(35)[:-1] + b"\xff", bytes(5000)])
def test_a_torn_end_is_cut_off(root, path, torn):
    unclean(root)
    with (path / name(30)).open("ab") as file:
        file.write(torn)
    assert reopened(root)[-1] == list(range(35))
    assert (path / name(30)).stat().st_size == 5 * BATCH_BYTES


@pytest.mark.parametrize("recovery", ["tail", "kafka"])
def test_indexes_are_made_anew(root, path, recovery):
    before = contents(path)
    unclean(root)
    for base_offset in (0, 10, 20, 30):
        (path / name(base_offset, "index")).write_bytes(b"garbage")
        (path / name(base_offset, "timeindex")).unlink()
    reopened(root, recovery=recovery)
    assert contents(path) == before


def test_a_missing_offset_index_is_made_anew_under_a_clean_marker(root, path):
    before = contents(path)
    for base_offset in (10, 30):
        (path / name(base_offset, "index")).unlink()
        (path / name(base_offset, "timeindex")).write_bytes(b"")
    reopened(root)
    assert contents(path) == before


def test_a_missing_time_index_under_a_clean_marker_is_empty(root, path):
    (path / name(10, "timeindex")).unlink()
    reopened(root)
    assert (path / name(10, "timeindex")).read_bytes() == b""


def test_only_segments_from_the_recovery_point_on_are_recovered(root, path):
    unclean(root, recovery_point=25)
    for base_offset in (0, 10, 20, 30):
        (path / name(base_offset, "index")).write_bytes(b"")
    reopened(root)
    sizes = [(path / name(base_offset, "index")).stat().st_size for base_offset in (0, 10, 20, 30)]
    assert sizes[:2] == [0, 0]
    assert min(sizes[2:]) > 0


def test_the_recovery_point_stays_where_it_was(root):
    unclean(root, recovery_point=25)
    with open_directory(root) as logs:
        log = logs.get("orders")
        assert log.recovery_point == 25
        log.flush()
        assert log.recovery_point == 35


def test_epochs_after_the_log_end_are_forgotten(root, path):
    (path / "leader-epoch-checkpoint").write_text("0\n3\n0 0\n2 20\n3 36\n")
    assert reopened(root)[3] == [(0, 0), (2, 20)]


def test_an_empty_active_segment_is_kept(root, path):
    with open_directory(root) as logs:
        logs.get("orders").roll()
    unclean(root)
    with open_directory(root) as logs:
        log = logs.get("orders")
        assert log.segment_base_offsets == (0, 10, 20, 30, 35)
        append(log)
        assert log.log_end_offset == 36


def test_a_log_that_ends_before_its_start_starts_anew(root):
    unclean(root)
    (root / "log-start-offset-checkpoint").write_text("0\n1\norders 0 50\n")
    with open_directory(root) as logs:
        log = logs.get("orders")
        assert (log.log_start_offset, log.log_end_offset, log.segment_base_offsets) == (50, 50, (50,))
        assert log.leader_epochs == ()
        append(log)
        assert offsets(log) == [50]


def test_the_log_start_is_the_checkpoint_or_the_first_segment(root, path):
    (root / "log-start-offset-checkpoint").write_text("0\n1\norders 0 13\n")
    assert reopened(root)[0] == 13
    for each in path.glob(f"{0:020d}.*"):
        each.unlink()
    for each in path.glob(f"{10:020d}.*"):
        each.unlink()
    assert reopened(root)[0] == 20


# Snapshots (199, 226).


def test_time_goes_on_where_the_time_index_ends(root):
    with open_directory(root, clock=Clock()) as logs:
        log = logs.get("orders")
        append(log, 2, timestamps=[50, 9000])
        assert log.offset_for_timestamp(-3).offset == 36
        assert log.offset_for_timestamp(3501).offset == 36


MALFORMED_MARKER = Batch(
    (Record(key=b"\0", value=b""),),
    base_offset=35,
    leader_epoch=7,
    attributes=TRANSACTIONAL | CONTROL,
    producer_id=3,
).encode()


@pytest.mark.parametrize("following", [b"", data(36, leader_epoch=8)])
def test_a_malformed_marker_with_a_right_crc_is_damage(root, path, following):
    before = reopened(root)
    unclean(root)
    with (path / name(30)).open("ab") as file:
        file.write(MALFORMED_MARKER + following)
    on_disk = contents(root)
    with pytest.raises(
        RecoveryWouldDiscardError, match=f"bytes 500 to {568 + len(following)}, .* that is rejected"
    ) as caught:
        open_directory(root)
    assert len(caught.value.discarded) == 1
    assert contents(root) == on_disk
    # Its epoch and later ones are removed too.
    assert reopened(root, recovery="kafka") == before
    assert (path / name(30)).stat().st_size == 5 * BATCH_BYTES


@pytest.mark.parametrize("base_offset", [10, 30, 35])
@pytest.mark.parametrize("recovery", ["tail", "kafka"])
@pytest.mark.parametrize("kind", ["link", "fifo", "directory"])
def test_what_is_only_named_like_a_segment_is_refused(root, path, base_offset, recovery, kind):
    # Without it the log would end, and go on, where offsets were given to records already.
    log_file = path / name(base_offset)
    if log_file.exists():
        log_file.rename(root.parent / "elsewhere")
    if kind == "link":
        log_file.symlink_to(root.parent / "elsewhere")
    elif kind == "fifo":
        os.mkfifo(log_file)
    else:
        log_file.mkdir()
    before = os.listdir(path)
    with pytest.raises(LogDirectoryError, match="Expected a regular file with the name of a segment's file"):
        open_directory(root, recovery=recovery)
    assert os.listdir(path) == before


@pytest.mark.parametrize("checkpoint", ["log-start-offset-checkpoint", "recovery-point-offset-checkpoint"])
def test_a_checkpoint_with_a_negative_offset_counts_as_0(root, path, checkpoint):
    for each in path.iterdir():
        each.unlink()
    (root / checkpoint).write_text("0\n1\norders 0 -5\n")
    with open_directory(root) as logs:
        log = logs.get("orders")
        assert (log.log_start_offset, log.recovery_point, log.segment_base_offsets) == (0, 0, (0,))
