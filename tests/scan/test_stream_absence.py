"""Streams whose directories go away and come back: nothing is lost, nothing comes twice, and the query goes on."""

from __future__ import annotations

import logging
import shutil

import pytest

from storage_core.errors import DataLossError, LogDirectoryError, OptionError
from storage_core.scan.read import read_task
from tests.log.logs import append, open_directory
from tests.scan.test_stream import SCHEMA, Query

DISKS = ("disk1", "disk2")


@pytest.fixture
def disks(tmp_path):
    """Return two log directories in a folder: disk1 has orders-1, and disk2 has orders-2."""
    for number, name in enumerate(DISKS, 1):
        grow(tmp_path / "disks" / name, number, 3)
    return tmp_path / "disks"


def grow(disk, number, count):
    with open_directory(disk) as logs:
        append(logs.get_or_create("orders", number), count)


def rows(number, *offsets):
    return [("orders", number, offset) for offset in offsets]


def paths_of(disks, how):
    """Return the same directories, named in one of three ways."""
    return {"list": [disks / name for name in DISKS], "folder": [disks], "glob": [disks / "disk*"]}[how]


@pytest.fixture(params=["list", "folder", "glob"])
def how(request):
    return request.param


@pytest.fixture(params=[True, False], ids=["vanishes", "is an empty mount point"])
def absence(request, disks):
    """Takes disk2 away; called again, brings it back."""
    disk, away = disks / "disk2", disks.parent / "away"

    def switch():
        if away.exists():
            if disk.exists():
                disk.rmdir()
            away.rename(disk)
        else:
            disk.rename(away)
            if not request.param:
                disk.mkdir()

    return switch


def search_now(running):
    """Look for directories that match a glob, which a stream does every thirty seconds."""
    running.stream._monitor._searched_s = -float("inf")


class TestAVolumeThatIsNotMounted:
    @pytest.mark.parametrize("is_restarted", [True, False], ids=["at a restart", "while it runs"])
    def test_stops_the_query_which_goes_on_when_it_is_back(self, disks, how, absence, is_restarted):
        running = Query(*paths_of(disks, how))
        running.run()
        absence()
        grow(disks / "disk1", 1, 2)
        before = list(running.ends)
        if is_restarted:
            running.start()
        with pytest.raises(DataLossError, match=r"\[orders-2\] have been deleted, or are away.*\"2\": 3"):
            running.run()
        assert running.ends == before
        absence()
        grow(disks / "disk2", 2, 2)
        running.start()
        assert sorted(running.new_rows()) == [*rows(1, 3, 4), *rows(2, 3, 4)]

    @pytest.mark.parametrize("is_restarted", [True, False], ids=["at a restart", "while it runs"])
    def test_is_waited_for_if_data_loss_does_not_fail(self, disks, how, absence, is_restarted, caplog):
        running = Query(*paths_of(disks, how), fail_on_data_loss=False)
        running.run()
        absence()
        grow(disks / "disk1", 1, 2)
        if is_restarted:
            running.start()
        assert running.new_rows() == rows(1, 3, 4)
        grow(disks / "disk1", 1, 1)
        assert running.new_rows() == rows(1, 5)
        warnings = [each.getMessage() for each in caplog.records if "PARTITIONS_DELETED" in each.getMessage()]
        assert len(warnings) == 1
        assert '{"orders": {"2": 3}}' in warnings[0]
        absence()
        grow(disks / "disk2", 2, 2)
        search_now(running)
        assert running.new_rows() == rows(2, 3, 4)

    def test_is_named_if_its_mount_point_is_empty(self, disks, how):
        running = Query(*paths_of(disks, how))
        running.run()
        shutil.rmtree(disks / "disk2")
        (disks / "disk2").mkdir()
        with pytest.raises(DataLossError, match=r"Nothing is in .*/disk2: is a volume not mounted"):
            running.run()

    @pytest.mark.parametrize("fail_on_data_loss", [True, False])
    def test_that_is_all_there_is(self, tmp_path, fail_on_data_loss):
        grow(tmp_path / "disk", 0, 3)
        running = Query(tmp_path / "disk", fail_on_data_loss=fail_on_data_loss)
        running.run()
        (tmp_path / "disk").rename(tmp_path / "away")
        (tmp_path / "disk").mkdir()
        for _ in range(2):
            with pytest.raises(LogDirectoryError, match="The log directory that this stream reads is gone"):
                running.run()
            running.start()
        (tmp_path / "disk").rmdir()
        (tmp_path / "away").rename(tmp_path / "disk")
        grow(tmp_path / "disk", 0, 1)
        assert running.start().new_rows() == rows(0, 3)

    def test_that_is_all_that_a_glob_matches(self, tmp_path):
        grow(tmp_path / "disk1", 1, 3)
        running = Query(tmp_path / "disk*")
        running.run()
        (tmp_path / "disk1").rename(tmp_path / "away")
        running.start()
        with pytest.raises(OptionError, match="matches no directory"):
            running.run()
        (tmp_path / "away").rename(tmp_path / "disk1")
        assert running.start().new_rows() == []

    def test_before_a_batch_that_is_planned_is_read(self, disks, absence):
        """Without failOnDataLoss, the batch would skip rows that are only away."""
        running = Query(*paths_of(disks, "list"), fail_on_data_loss=False)
        running.run()
        grow(disks / "disk2", 2, 2)
        assert running.plan_batch()
        absence()
        for _ in range(2):
            with pytest.raises(
                DataLossError, match="Mount it and start the query again, which repeats this batch"
            ):
                running.run_batch()
            with pytest.raises(DataLossError, match="remove the empty directories"):
                running.start()
        absence()
        running.start()
        assert running.rows[-2:] == rows(2, 3, 4)

    def test_while_a_batch_is_read(self, disks):
        running = Query(*paths_of(disks, "list"), fail_on_data_loss=False)
        running.plan_batch()
        plan = running.stream.plan(running.stream.initial_offsets(), running.last_end())
        (disks / "disk2").rename(disks.parent / "away")
        batches = (each for task in plan.tasks for each in read_task(running.filesystem, task, SCHEMA))
        with pytest.raises(DataLossError, match="Its log directory is gone, too: mount or restore it"):
            list(batches)

    def test_with_another_incarnation_of_the_topic_in_its_place(self, disks):
        running = Query(*paths_of(disks, "list"))
        running.run()
        (disks / "disk2").rename(disks.parent / "away")
        grow(disks / "disk2", 2, 9)
        before = list(running.ends)
        with pytest.raises(LogDirectoryError, match="another volume is mounted here"):
            running.run()
        assert running.ends == before
        shutil.rmtree(disks / "disk2")
        (disks.parent / "away").rename(disks / "disk2")
        assert running.start().new_rows() == []


class TestAnOlderCopy:
    @pytest.mark.parametrize("is_restarted", [True, False], ids=["at a restart", "while it runs"])
    def test_stops_the_query_which_goes_on_with_the_newer_one(self, disks, is_restarted):
        running = Query(disks)
        running.run()
        shutil.copytree(disks / "disk2", disks.parent / "older")
        grow(disks / "disk2", 2, 4)
        assert running.new_rows() == rows(2, 3, 4, 5, 6)
        (disks / "disk2").rename(disks.parent / "newer")
        (disks.parent / "older").rename(disks / "disk2")
        before = list(running.ends)
        if is_restarted:
            running.start()
        with pytest.raises(
            DataLossError, match="orders-2's offset was changed from 7 to 3: this is an older copy"
        ):
            running.run()
        assert running.ends == before
        shutil.rmtree(disks / "disk2")
        (disks.parent / "newer").rename(disks / "disk2")
        grow(disks / "disk2", 2, 1)
        assert running.start().new_rows() == rows(2, 7)

    def test_is_not_read_again_if_data_loss_does_not_fail(self, disks, caplog):
        running = Query(disks, fail_on_data_loss=False)
        running.run()
        shutil.copytree(disks / "disk2", disks.parent / "older")
        grow(disks / "disk2", 2, 4)
        running.run()
        (disks / "disk2").rename(disks.parent / "newer")
        (disks.parent / "older").rename(disks / "disk2")
        grow(disks / "disk1", 1, 1)
        assert running.new_rows() == rows(1, 3)
        running.run()
        (warning,) = (each for each in caplog.records if "changed from 7 to 3" in each.getMessage())
        assert warning.levelno == logging.WARNING
        (disks / "disk2").rename(disks.parent / "older")
        (disks.parent / "newer").rename(disks / "disk2")
        grow(disks / "disk2", 2, 1)
        assert running.new_rows() == rows(2, 7)

    def test_with_a_shorter_list_of_truncations_is_no_truncation(self, disks):
        shutil.copytree(disks / "disk2", disks.parent / "older")
        with open_directory(disks / "disk2") as logs:
            logs.get("orders", 2).truncate_to(2)
            append(logs.get("orders", 2), 4)
        running = Query(disks, fail_on_data_loss=False)
        running.run()
        running.run()
        (disks / "disk2").rename(disks.parent / "newer")
        (disks.parent / "older").rename(disks / "disk2")
        assert running.new_rows() == []
        (disks / "disk2").rename(disks.parent / "older")
        (disks.parent / "newer").rename(disks / "disk2")
        assert running.new_rows() == []


def test_a_topic_that_was_deleted_and_comes_back_anew_is_read_from_its_start(disks):
    running = Query(disks, fail_on_data_loss=False)
    running.run()
    with open_directory(disks / "disk2") as logs:
        logs.delete("orders", 2)
        append(logs.create("clicks"), 1)
    assert running.new_rows() == [("clicks", 0, 0)]
    grow(disks / "disk2", 2, 5)
    assert running.new_rows() == rows(2, *range(5))
