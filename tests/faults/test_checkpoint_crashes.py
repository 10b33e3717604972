"""A power cut while a small file is replaced leaves the old or the new content, never anything else."""

from __future__ import annotations

import random

import pytest

from storage_core.checkpoint import (
    delete_clean_shutdown_file,
    has_clean_shutdown_file,
    read_leader_epoch_checkpoint,
    read_offset_checkpoint,
    read_partition_metadata,
    write_clean_shutdown_file,
    write_leader_epoch_checkpoint,
    write_offset_checkpoint,
    write_partition_metadata,
)
from storage_core.checkpoint.partition_files import EpochEntry
from tests.faults.simulated_filesystem import SimulatedFileSystem

PATH = "/disk/file"
TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAQ"
FILES = {
    "offsets": (
        write_offset_checkpoint, read_offset_checkpoint,
        {("orders", number): 1 for number in range(100)}, {("orders", number): 2 for number in range(90)},
    ),
    "epochs": (
        write_leader_epoch_checkpoint, read_leader_epoch_checkpoint,
        tuple(EpochEntry(number, number * 10) for number in range(100)), (EpochEntry(7, 70),),
    ),
}  # fmt: skip


def states_of(filesystem, change, count=25):
    """Return the states after a power cut before each call of a change, and after the last one."""
    during, number = [], 0

    def observe(call):
        nonlocal number
        number += 1
        during.extend(filesystem.crash(random.Random(f"{number} {seed}")) for seed in range(count))

    filesystem.observe = observe
    change()
    filesystem.observe = None
    assert number > 0
    return during, [filesystem.crash(random.Random(seed)) for seed in range(count)]


@pytest.fixture
def filesystem():
    filesystem = SimulatedFileSystem()
    filesystem.put("/disk/other", b"")
    return filesystem


@pytest.mark.parametrize(("write", "read", "old", "new"), FILES.values(), ids=FILES)
def test_a_checkpoint_is_old_or_new(filesystem, write, read, old, new):
    write(filesystem, PATH, old)
    during, after = states_of(filesystem, lambda: write(filesystem, PATH, new))
    found = [read(state, PATH) for state in during]
    assert all(each in (old, new) for each in found)
    assert old in found
    assert new in found
    assert {read(state, PATH) == new for state in after} == {True}


@pytest.mark.parametrize(("write", "read", "old", "new"), FILES.values(), ids=FILES)
def test_leftovers_of_a_crash_do_not_affect_the_next_checkpoint(filesystem, write, read, old, new):
    filesystem.put(f"{PATH}.tmp", b"x" * 5000)
    write(filesystem, PATH, old)
    during, _ = states_of(filesystem, lambda: write(filesystem, PATH, new))
    for state in during[::7]:
        write(state, PATH, new)
        assert read(state.crash(random.Random(1)), PATH) == new


def test_the_metadata_of_a_partition_are_missing_or_whole(filesystem):
    during, after = states_of(filesystem, lambda: write_partition_metadata(filesystem, PATH, TOPIC_ID))
    assert {read_partition_metadata(state, PATH) for state in during} == {None, TOPIC_ID}
    assert {read_partition_metadata(state, PATH) for state in after} == {TOPIC_ID}


def test_the_marker_of_a_clean_shutdown(filesystem):
    during, after = states_of(filesystem, lambda: write_clean_shutdown_file(filesystem, "/disk"))
    assert {has_clean_shutdown_file(state, "/disk") for state in during} == {False, True}
    assert {has_clean_shutdown_file(state, "/disk") for state in after} == {True}
    during, after = states_of(filesystem, lambda: delete_clean_shutdown_file(filesystem, "/disk"))
    assert {has_clean_shutdown_file(state, "/disk") for state in during} == {False, True}
    assert {has_clean_shutdown_file(state, "/disk") for state in after} == {False}
