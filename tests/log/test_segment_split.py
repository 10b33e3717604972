"""Segments whose offsets do not fit their indexes (222, 223)."""

from __future__ import annotations

import pytest

from storage_core import read_table
from storage_core.filesystem import FileSystem
from storage_core.log.log_loader import split_segment
from storage_core.segment.log_segment import LogSegment
from tests.log.logs import MARKER, append, contents, name, names, offsets, open_directory, small, unclean
from tests.log.producing import ABORT, data, marker, transactional

FAR = 2**31 + 50


def overflowing(root, path):
    """Make a log whose last segment holds offsets that are too far apart for its indexes."""
    with (path / name(30)).open("ab") as file:
        file.write(
            data(FAR, leader_epoch=2) + data(FAR + 1, leader_epoch=2) + data(2 * FAR + 30, leader_epoch=2)
        )
    return [*range(35), FAR, FAR + 1, 2 * FAR + 30]


@pytest.mark.parametrize("recovery", ["tail", "kafka"])
def test_a_segment_whose_offsets_do_not_fit_is_split(root, path, recovery):
    unclean(root)
    expected = overflowing(root, path)
    with open_directory(root, recovery=recovery) as logs:
        log = logs.get("orders")
        assert offsets(log) == expected
        assert log.segment_base_offsets == (0, 10, 20, 30, FAR, 2 * FAR + 30)
        append(log)
    assert not [each for each in names(path) if each.endswith((".swap", ".cleaned", ".deleted"))]


def test_an_older_segment_whose_offsets_do_not_fit_is_split_though_the_log_was_closed(tmp_path):
    with open_directory(tmp_path) as logs:
        log = logs.create("orders")
        log.append_batches(data(0))
        log.append_batches(data(FAR))
        log.append_batches(data(FAR + 1))
        log.roll()
        log.append_batches(data(FAR + 2))
    path = tmp_path / "orders-0"
    far = (path / name(FAR)).read_bytes()
    for each in path.glob(f"{FAR:020d}.*"):
        each.unlink()
    with (path / name(0)).open("ab") as file:
        file.write(far)
    with open_directory(tmp_path) as logs:
        log = logs.get("orders")
        assert offsets(log) == [0, FAR, FAR + 1, FAR + 2]
        assert log.segment_base_offsets == (0, FAR, FAR + 2)


def test_the_parts_know_of_the_transactions_that_were_aborted_in_them(tmp_path):
    """An index that lacks one would show its records."""
    with open_directory(tmp_path) as logs:
        log = logs.create("orders")
        log.append_batches(transactional(0, producer=7) + marker(1, producer=7, kind=ABORT))
        log.roll()
        log.append_batches(transactional(2, producer=7, sequence=1))
        log.append_batches(transactional(FAR, producer=8) + marker(FAR + 1, producer=7, kind=ABORT))
        log.append_batches(marker(FAR + 2, producer=8, kind=ABORT) + data(FAR + 3))
        log.roll()
        log.append_batches(data(FAR + 4))
    path = tmp_path / "orders-0"
    far = path / name(FAR)
    with (path / name(2)).open("ab") as file:
        file.write(far.read_bytes())
    far.with_suffix(".txnindex").rename(path / name(2, "txnindex"))
    for each in path.glob(f"{FAR:020d}.*"):
        each.unlink()
    with open_directory(tmp_path) as logs:
        assert logs.get("orders").segment_base_offsets == (0, 2, FAR, FAR + 4)
    assert (path / name(0, "txnindex")).exists()
    assert not (path / name(2, "txnindex")).exists()
    for use_indexes in (True, False):
        found = read_table(tmp_path, isolation_level="read_committed", use_indexes=use_indexes)
        assert found["offset"].to_pylist() == [FAR + 3, FAR + 4]


class CrashError(Exception):
    pass


class CrashingFileSystem(FileSystem):
    """Crashes in front of a rename."""

    def __init__(self, renames_left):
        super().__init__()
        self.renames_left = renames_left

    def rename(self, source, target):
        if self.renames_left == 0:
            raise CrashError
        self.renames_left -= 1
        super().rename(source, target)


def test_a_crash_anywhere_in_a_split_loses_nothing(root, path):
    unclean(root)
    expected = overflowing(root, path)
    before = contents(path)
    crashes = 0
    while True:
        for each in path.iterdir():
            each.unlink()
        for each, content in before.items():
            (path / each).write_bytes(content)
        filesystem = CrashingFileSystem(crashes)
        segment = LogSegment(filesystem, str(path), 30, small(), now_ms=0)
        try:
            split_segment(filesystem, str(path), segment, small(), 0)
        except CrashError:
            crashes += 1
        else:
            break
        finally:
            segment.close_handlers()
        with open_directory(root) as logs:
            assert offsets(logs.get("orders")) == expected
        (root / MARKER).unlink()
    # Files of four kinds: of three segments to .swap and to their names, of the original to .deleted.
    assert crashes == 28
