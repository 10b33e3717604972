"""A tiered topic is recovered as a whole, for a broker without tiered storage."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from storage_core import LogDirectory, read_table
from storage_core.check.verify import plan_verification, verify
from storage_core.filesystem import FileSystem
from storage_core.options import options_of
from storage_core.recover.recover import recover
from tests.recover.recovering import logs_of, run
from tests.scan.halves import EPOCHS, NAME, START_CHECKPOINT, bases_of, cut, make_whole


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return make_whole(tmp_path_factory.mktemp("whole") / "data")


@pytest.fixture(scope="module")
def others(tmp_path_factory):
    """Return the same log, as another broker may have rolled it."""
    return make_whole(tmp_path_factory.mktemp("others") / "data", 1700)


def both(local, remote, target, policy="kafka", **arguments):
    return run(local, target, policy, options={"remote_storage": remote}, **arguments)


@pytest.mark.parametrize("policy", ["kafka", "tail", "salvage"])
@pytest.mark.parametrize("remote_to", [5, 7])
def test_the_target_has_the_whole_topic(whole, tmp_path, policy, remote_to):
    local, remote = cut(whole, tmp_path, 5, remote_to)
    target = tmp_path / "target"
    report = both(local, remote, target, policy)
    assert report.is_complete
    assert report.partitions[0].rebuilt == ()
    assert logs_of(target) == logs_of(whole)
    assert (target / NAME / EPOCHS).read_bytes() == (whole / NAME / EPOCHS).read_bytes()
    for level in ("read_uncommitted", "read_committed"):
        assert read_table(str(target), isolation_level=level) == read_table(str(whole), isolation_level=level)
    checked = options_of([str(target)], {})
    assert not list(verify(FileSystem(), plan_verification(FileSystem(), checked)).findings)
    with LogDirectory.open(target) as logs:
        assert logs.get("orders").log_start_offset == 0


def test_segments_with_other_borders_are_cut(whole, others, tmp_path):
    local, remote = cut(whole, tmp_path, 5, 3, uploaded=others)
    first_local = bases_of(Path(local))[0]
    assert bases_of(others)[2] < first_local < bases_of(others)[3]
    report = both(local, remote, tmp_path / "target")
    assert report.is_complete
    assert report.partitions[0].rebuilt == (f"{bases_of(others)[2]:020d}.log",)
    assert read_table(str(tmp_path / "target")) == read_table(str(whole))


def test_a_log_start_within_the_remote_half_stays(whole, tmp_path):
    local, remote = cut(whole, tmp_path, 5, 5, 9)
    both(local, remote, tmp_path / "target")
    assert (tmp_path / "target" / START_CHECKPOINT).read_text() == "0\n1\norders 0 9\n"
    assert read_table(str(tmp_path / "target"))["offset"].to_pylist()[0] == 9


def test_what_both_halves_lack_is_missing(whole, tmp_path):
    local, remote = cut(whole, tmp_path, 5, 3)
    report = both(local, remote, tmp_path / "target")
    (missing,) = report.partitions[0].left_out
    assert (missing.start_offset, missing.end_offset) == (bases_of(whole)[3], bases_of(whole)[5])


def test_damage_in_the_remote_half_is_left_out(whole, tmp_path):
    local, remote = cut(whole, tmp_path, 5, 5)
    path = sorted((Path(remote) / NAME).glob("*.log"))[2]
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    report = both(local, remote, tmp_path / "target", "salvage")
    assert [each.file for each in report.partitions[0].left_out] == [path.name]


class RemoteFileSystem(FileSystem):
    """Files that are read in pieces, as those of an object store are, and cannot be linked."""

    def open(self, path, version=None):
        return OnlyReadable(super().open(path, version))


class OnlyReadable:
    def __init__(self, opened):
        self._opened = opened

    def __getattr__(self, name):
        return getattr(self._opened, name)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._opened.close()


def test_a_source_that_is_no_local_file_is_copied(whole, tmp_path):
    recover(RemoteFileSystem(), options_of([str(whole)], {}), str(tmp_path / "target"), link=False)
    assert logs_of(tmp_path / "target") == logs_of(whole)


def test_links_are_of_local_files_alone(whole, tmp_path):
    local, remote = cut(whole, tmp_path, 5, 5)
    both(local, remote, tmp_path / "target")
    links = {path.name: path.stat().st_nlink for path in (tmp_path / "target" / NAME).glob("*.log")}
    assert {int(name[:20]) for name, count in links.items() if count > 1} == set(bases_of(Path(local))[:-1])
    assert not [
        path for path in os.listdir(Path(remote) / NAME) if (Path(remote) / NAME / path).stat().st_nlink > 1
    ]
