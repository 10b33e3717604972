from __future__ import annotations

import time

import pytest

from storage_core.directory import segment_listing
from storage_core.directory.segment_listing import FileNames, list_segments
from storage_core.errors import DataLossError, LogDirectoryError
from storage_core.filesystem import DirectoryEntry, FileSystem


def names(*descriptions):
    """'0.log' means 00000000000000000000.log."""
    padded = []
    for description in descriptions:
        base, _, suffix = description.partition(".")
        padded.append(f"{base:>020}.{suffix}" if base.isdigit() else description)
    return sorted(padded)


class Listings(FileSystem):
    """Each listing returns the next list of names; the last one repeats."""

    def __init__(self, *listings):
        super().__init__()
        self.listings = [names(*listing) for listing in listings]

    def walk_directory(self, path):
        self.statistics.directories_listed += 1
        listing = self.listings.pop(0) if len(self.listings) > 1 else self.listings[0]
        return (DirectoryEntry(name, False, True, False) for name in reversed(listing))


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """Return a clock that advances only through sleep."""

    class Clock:
        now = 0.0

        def monotonic(self):
            return self.now

        def sleep(self, seconds):
            self.now += seconds

    fake = Clock()
    monkeypatch.setattr(segment_listing, "time", fake)
    return fake


def listed(filesystem, *, is_clean=True, ends=None):
    return list_segments(filesystem, "orders-0", is_clean=is_clean, swap_end_offset=(ends or {}).__getitem__)


def test_segments_are_recognised_by_their_names():
    listing = listed(
        Listings(
            [
                "100.log",
                "0.log",
                "0.index",
                "0.timeindex",
                "20.log.deleted",
                "30.log.cleaned",
                "0.snapshot",
                "leader-epoch-checkpoint",
                "partition.metadata",
                "notes.log",
                "99999999999999999999.log",
                "000000000000000000040.log",
                "9223372036854775807.log",
            ]
        )
    )
    assert tuple(listing.base_offsets) == (0, 100, 2**63 - 1)
    assert listing.swapped == frozenset()
    assert "leader-epoch-checkpoint" in listing.file_names
    assert "00000000000000000000.index" in listing.file_names


def test_an_empty_directory():
    assert tuple(listed(Listings([])).base_offsets) == ()


def test_a_clean_directory_is_listed_once():
    filesystem = Listings(["0.log"], ["0.log", "5.log"])
    assert tuple(listed(filesystem).base_offsets) == (0,)
    assert filesystem.statistics.directories_listed == 1


def test_while_a_broker_runs_two_listings_must_agree():
    filesystem = Listings(["0.log", "5.log"], ["0.log"], ["0.log", "5.log", "9.log"])
    assert tuple(listed(filesystem, is_clean=False).base_offsets) == (0, 5, 9)
    assert filesystem.statistics.directories_listed == 3


def test_listing_ends_even_if_no_two_listings_agree():
    filesystem = Listings(*[[f"{number}.log"] for number in range(100)])
    assert len(listed(filesystem, is_clean=False).base_offsets) == 1
    assert filesystem.statistics.directories_listed < 10


def test_a_cleaner_at_work_is_waited_for(clock):
    before = ["0.log", "5.log", "9.log"]
    at_work = ["0.log.swap", "0.log", "5.log.deleted", "9.log"]
    after = ["0.log", "0.log.deleted", "5.log.deleted", "9.log"]
    filesystem = Listings(before, at_work, at_work, at_work, after)
    assert tuple(listed(filesystem, is_clean=False).base_offsets) == (0, 9)
    assert 0 < clock.now < 0.5


def test_a_swap_that_stays_is_from_a_crash(clock):
    filesystem = Listings(["0.log.swap", "0.index.swap", "0.log", "5.log", "5.index", "9.log"])
    listing = listed(filesystem, is_clean=False, ends={0: 9})
    assert tuple(listing.base_offsets) == (0, 9)
    assert listing.swapped == {0}
    assert set(listing.file_names) == set(names("0.log.swap", "0.index.swap", "9.log"))
    assert 1.0 <= clock.now < 1.2


def test_a_clean_directory_is_not_waited_for(clock):
    assert tuple(listed(Listings(["0.log.swap", "0.log"]), ends={0: 9}).base_offsets) == (0,)
    assert clock.now == 0


@pytest.mark.parametrize(
    ("files", "ends", "base_offsets", "swapped"),
    [
        # Either all old segments are renamed already, or none is.
        (["0.log.swap", "0.log.deleted", "5.log.deleted", "9.log"], {0: 9}, (0, 9), {0}),
        (["0.log.swap", "0.log", "5.log", "9.log"], {0: 9}, (0, 9), {0}),
        # A segment that begins at the end of the new one is kept.
        (["0.log.swap", "0.log", "5.log", "9.log"], {0: 5}, (0, 5, 9), {0}),
        # The first of two new segments has its final name.
        (["0.log", "5.log.swap", "5.log", "7.log", "9.log"], {5: 9}, (0, 5, 9), {5}),
        # Two new segments replace everything from the base of the first to the end of the last.
        (["0.log.swap", "3.log", "5.log.swap", "7.log", "9.log"], {0: 3, 5: 9}, (0, 5, 9), {0, 5}),
        # An empty one replaces the segment with the same base offset.
        (["5.log.swap", "5.log", "9.log"], {5: 5}, (5, 9), {5}),
        # Incomplete output: segments renamed from there on do not count.
        (["0.log", "0.log.cleaned", "5.log.swap", "9.log"], {}, (0, 9), set()),
        (["0.log", "5.log.cleaned", "5.log.swap", "9.log"], {}, (0, 9), set()),
        (["0.log.swap", "0.log", "5.log.cleaned", "7.log.swap", "9.log"], {0: 5}, (0, 9), {0}),
        # An index without its log is ignored.
        (["0.log", "0.index.swap", "9.log"], {}, (0, 9), set()),
        (["0.log", "notes.swap"], {}, (0,), set()),
    ],
)
def test_swaps_left_from_a_crash(files, ends, base_offsets, swapped):
    listing = listed(Listings(files), ends=ends)
    assert tuple(listing.base_offsets) == base_offsets
    assert listing.swapped == swapped


def test_a_swap_that_is_renamed_at_last(clock):
    def end_of(_base_offset):
        raise FileNotFoundError

    filesystem = Listings(*[["0.log.swap", "0.log", "5.log"]] * 22, ["0.log"])
    listing = list_segments(filesystem, "orders-0", is_clean=False, swap_end_offset=end_of)
    assert tuple(listing.base_offsets) == (0,)
    assert clock.now >= 1


def test_snapshots_within_a_swap_are_replaced_too():
    listing = listed(Listings(["0.log.swap", "5.log", "5.snapshot", "9.log", "9.snapshot"]), ends={0: 9})
    assert set(listing.file_names) == set(names("0.log.swap", "9.log", "9.snapshot"))


def test_a_linked_log_file_is_an_error(tmp_path):
    (tmp_path / "data").touch()
    (tmp_path / "00000000000000000000.log").symlink_to("data")
    with pytest.raises(LogDirectoryError, match=r"symbolic link.*/00000000000000000000\.log"):
        list_segments(FileSystem(), str(tmp_path), is_clean=True, swap_end_offset=int)


def test_directories_and_links_are_no_files_of_the_log(tmp_path):
    (tmp_path / "00000000000000000000").mkdir()
    (tmp_path / "00000000000000000000.log.deleted").mkdir()
    (tmp_path / "00000000000000000005.index").symlink_to("nowhere")
    (tmp_path / "00000000000000000005.log").touch()
    listing = list_segments(FileSystem(), str(tmp_path), is_clean=True, swap_end_offset=int)
    assert tuple(listing.base_offsets) == (5,)
    assert set(listing.file_names) == {"00000000000000000005.log"}


def test_a_hundred_thousand_names_take_less_than_half_a_second():
    filesystem = Listings([f"{number}.log" for number in range(100_000)])
    start = time.process_time()
    assert len(listed(filesystem).base_offsets) == 100_000
    # A generous limit: the listing takes a tenth of a second of processor time.
    assert time.process_time() - start < 2


def bases_listed(*listings):
    shown = ([f"{base}.log" for base in bases] for bases in listings)
    return tuple(list_segments(Listings(*shown), "/t-0", is_clean=False, swap_end_offset=None).base_offsets)


def test_rolls_and_retention_do_not_keep_a_listing_from_settling():
    assert bases_listed([1, 2, 3], [1, 2, 3, 4]) == (1, 2, 3, 4)
    assert bases_listed([1, 2, 3], [2, 3, 4], [3, 4, 5]) == (3, 4, 5)


def test_a_segment_that_a_rename_hides_is_never_left_out():
    rolling = ([1, 2, 3, 4], [1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6])
    assert bases_listed([1, 3, 4], [1, 2, 3, 4]) == (1, 2, 3, 4)
    assert bases_listed([1, 2, 3, 4], [1, 3, 4, 5], *rolling[2:]) == (1, 2, 3, 4, 5, 6)


def test_a_segment_that_is_hidden_at_the_front_comes_back():
    assert bases_listed([1, 2, 3], [2, 3], [1, 2, 3]) == (1, 2, 3)


def test_a_directory_that_takes_long_to_list_is_listed(clock):
    """Nothing changes in it, so the duration does not matter."""

    class Slow(Listings):
        def walk_directory(self, path):
            clock.now += 20
            return super().walk_directory(path)

    assert tuple(listed(Slow(["1.log", "2.log"]), is_clean=False).base_offsets) == (1, 2)
    # A segment that a rename hid from the first listing is found by the second.
    filesystem = Slow(["1.log", "3.log"], ["1.log", "2.log", "3.log"])
    assert tuple(listed(filesystem, is_clean=False).base_offsets) == (1, 2, 3)
    # A swap that is gone in the second listing was not left by a crash.
    filesystem = Slow(["0.log.swap", "9.log"], ["0.log", "9.log"])
    listing = listed(filesystem, is_clean=False)
    assert (tuple(listing.base_offsets), listing.swapped) == ((0, 9), frozenset())


def test_a_directory_that_was_opened_while_it_was_listed_settles():
    """The clean-shutdown marker exists before the listing, and is gone or replaced after it."""
    filesystem = Listings(["1.log", "3.log"], ["1.log", "2.log", "3.log"])
    listing = list_segments(
        filesystem, "/t-0", is_clean=True, is_still_clean=lambda: False, swap_end_offset=None
    )
    assert tuple(listing.base_offsets) == (1, 2, 3)


def test_file_names():
    given = names("9.log", "0.log", "0.index", "100.snapshot", "0.index.swap", "partition.metadata")
    found = FileNames([*given, "00000000000000000001", "99999999999999999999.log"])
    assert [name in found for name in given] == [True] * len(given)
    assert sorted(found) == sorted([*given, "00000000000000000001", "99999999999999999999.log"])
    assert len(found) == len(given) + 2
    for name in ("", "0.log", *names("1.log", "0.timeindex", "0.log.swap"), "99999999999999999999.index"):
        assert name not in found
    assert 5 not in found
    assert list(found.base_offsets(".log")) == [0, 9]
    assert list(found.base_offsets(".txnindex")) == []
    assert set(found.suffixes) == {".log", ".index", ".snapshot", ".index.swap"}


def test_a_directory_that_never_settles_is_reported(clock):
    class Flickering(Listings):
        def walk_directory(self, path):
            clock.now += 0.1
            return super().walk_directory(path)

    filesystem = Flickering(*[["1.log", "2.log", "3.log"], ["1.log", "3.log"]] * 1000)
    with pytest.raises(DataLossError):
        listed(filesystem, is_clean=False)
