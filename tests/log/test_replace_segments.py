"""One segment in the place of others: what is on disk, what readers see, what becomes of the old files."""

from __future__ import annotations

import pytest

from storage_core.log.local_log import rename_files, replace_segments
from storage_core.segment.file_names import CLEANED_SUFFIX
from storage_core.segment.log_segment import LogSegment
from tests.log.logs import NOW_MS, append, crash, name, names, offsets, open_directory, values

KINDS = ("log", "index", "timeindex")


@pytest.fixture
def log(logs):
    """Segments of ten records; the last one, from 40 on, is active."""
    log = logs.create("orders")
    append(log, 45, timestamps=range(100, 4600, 100))
    return log


def state_of(log):
    return log._state


def cleaned(log, base_offset, *sources):
    """Return a segment with everything that these segments hold."""
    state = state_of(log)
    segment = LogSegment.create(
        state.filesystem, state.path, base_offset, state.config, now_ms=NOW_MS, suffix=CLEANED_SUFFIX
    )
    for source in sources:
        segment.append_from_file(state.segments.floor(source))
    segment.seal()
    segment.flush()
    return segment


def replace(log, bases, kept):
    """Put what the ``kept`` segments hold in the place of all ``bases``."""
    state = state_of(log)
    segment = cleaned(log, bases[0], *kept)
    with state.writing():
        replace_segments(state, segment, [state.segments.floor(base) for base in bases])


def test_the_new_segment_replaces_the_old_ones(log):
    replace(log, [10, 20], [10, 20])
    assert log.segment_base_offsets == (0, 10, 30, 40)
    assert offsets(log) == list(range(45))
    assert append(log, 10).last_offset == 54
    assert offsets(log) == list(range(55))


def test_readers_see_what_is_left(log):
    replace(log, [0, 10, 20], [10])
    assert log.segment_base_offsets == (0, 30, 40)
    assert offsets(log) == [*range(10, 20), *range(30, 45)]
    assert log.log_start_offset == 0
    assert log.log_end_offset == 45


def test_the_old_files_wait_for_their_removal(log, logs, clock, tmp_path):
    replace(log, [10, 20], [10, 20])
    path = tmp_path / "data" / "orders-0"
    deleted = {each for each in names(path) if each.endswith(".deleted")}
    assert deleted == {name(base, f"{kind}.deleted") for base in (10, 20) for kind in KINDS} | {
        name(20, "snapshot.deleted")
    }
    clock.time_ms += 59_999
    log.flush()
    assert deleted <= set(names(path))
    clock.time_ms += 1
    log.flush()
    assert not deleted & set(names(path))


def test_the_snapshot_of_the_base_offset_stays_and_those_between_go(log, tmp_path):
    replace(log, [10, 20, 30], [10])
    snapshots = [each for each in names(tmp_path / "data" / "orders-0") if each.endswith(".snapshot")]
    assert snapshots == [name(10, "snapshot"), name(40, "snapshot")]


def test_an_empty_segment_takes_the_place_of_others(log, logs, tmp_path):
    replace(log, [10, 20, 30], [])
    assert log.segment_base_offsets == (0, 10, 40)
    assert offsets(log) == [*range(10), *range(40, 45)]
    logs.close()
    with open_directory(tmp_path / "data") as reopened:
        assert offsets(reopened.get("orders")) == [*range(10), *range(40, 45)]


@pytest.mark.parametrize("is_clean", [True, False], ids=["closed", "killed"])
def test_the_log_is_the_same_when_it_is_opened_again(log, logs, tmp_path, is_clean):
    replace(log, [0, 10], [0, 10])
    replace(log, [20, 30], [20])
    expected = values(log)
    if is_clean:
        logs.close()
    else:
        crash(logs)
    with open_directory(tmp_path / "data") as reopened:
        log = reopened.get("orders")
        assert values(log) == expected
        assert log.segment_base_offsets == (0, 20, 40)
        assert not [each for each in names(log.path) if each.endswith((".deleted", ".swap", ".cleaned"))]


class Recorder:
    """Notes each rename and each flush of the directory, in order."""

    def __init__(self, filesystem):
        self.calls = []
        self._filesystem = filesystem

    def __getattr__(self, attribute):
        real = getattr(self._filesystem, attribute)
        if attribute not in ("rename", "flush_directory"):
            return real

        def call(*paths):
            self.calls.append((attribute, *(path.rpartition("/")[2] for path in paths)))
            return real(*paths)

        return call


def test_the_order_of_renames_is_kafkas_and_each_step_is_on_disk_before_the_next(log):
    """Lowest base offset last to ``.swap``; all old ones ``.deleted``; only then plain names."""
    state = state_of(log)
    new = [cleaned(log, 10, 10), cleaned(log, 20, 20)]
    recorder = Recorder(state.filesystem)
    for segment in (*new, *state.segments.values(10, 40)):
        segment._log._filesystem = recorder
    rename_files(recorder, state.path, new, state.segments.values(10, 40))
    logs_renamed = [what[2] for what in recorder.calls if what[0] == "rename"]
    assert logs_renamed == [
        name(20, "log.swap"),
        name(10, "log.swap"),
        name(10, "log.deleted"),
        name(20, "log.deleted"),
        name(30, "log.deleted"),
        name(10),
        name(20),
    ]
    kinds = [what[0].removesuffix("_directory") for what in recorder.calls]
    assert kinds == [
        "flush", "rename", "flush", "rename", "flush", "rename", "rename", "rename", "flush", "rename", "rename", "flush",
    ]  # fmt: skip


def test_segments_after_the_end_of_what_is_left_go_one_by_one_in_order(log):
    """A recovery completes a replacement up to the end of the new segment alone."""
    state = state_of(log)
    recorder = Recorder(state.filesystem)
    segment = cleaned(log, 0, 0)
    old = state.segments.values(0, 40)
    for each in (segment, *old):
        each._log._filesystem = recorder
    state.filesystem = recorder
    with state.writing():
        replace_segments(state, segment, old)
    assert recorder.calls[-7:] == [
        ("flush_directory", "orders-0"),
        ("rename", name(10), name(10, "log.deleted")),
        ("flush_directory", "orders-0"),
        ("rename", name(20), name(20, "log.deleted")),
        ("flush_directory", "orders-0"),
        ("rename", name(30), name(30, "log.deleted")),
        ("flush_directory", "orders-0"),
    ]
    assert log.segment_base_offsets == (0, 40)
