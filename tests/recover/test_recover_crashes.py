"""A recovery that ends at any call, or whose n-th call fails, leaves what it promises.

In copy mode the target does not exist or is complete, and the source does not change. In place, every byte of the source
is in the source or in a copy that is on disk.
"""

from __future__ import annotations

import contextlib
import errno
import random
import shutil
from pathlib import Path

import pytest

from storage_core import LogConfig, LogDirectory
from storage_core.errors import LogDirectoryError, SegmentLogError
from storage_core.filesystem import FileSystem
from storage_core.options import options_of
from storage_core.recover.recover import recover
from storage_core.recover.recover_in_place import recover_in_place
from tests.conformance.archives import fingerprint
from tests.faults.faulty_filesystem import Fault, FaultyCalls
from tests.faults.simulated_filesystem import SimulatedFileSystem
from tests.recover.recovering import (
    EXAMPLES,
    PARTITION_DIRECTORY,
    damaged_root,
    logs_of,
    rows,
    run,
    run_in_place,
)

SOURCE, TARGET, ASIDE = "/disk/source", "/disk/new", "/disk/aside"
POLICIES = ("kafka", "salvage")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Return the files of a damaged root: a flipped byte in the middle of a segment, and a torn end."""
    root = damaged_root(tmp_path_factory.mktemp("damaged") / "source", "damaged-flipped-in-the-middle")
    last = max((root / PARTITION_DIRECTORY).glob("*.log"))
    last.write_bytes(last.read_bytes()[:-10])
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def filesystem_of(files):
    filesystem = SimulatedFileSystem()
    for name, content in files.items():
        filesystem.put(f"{SOURCE}/{name}", content)
    return filesystem


def below(filesystem, folder):
    return {
        path.removeprefix(f"{folder}/"): content
        for path, content in filesystem.files().items()
        if path.startswith(f"{folder}/")
    }


def logs_in(files):
    return {name: content for name, content in files.items() if name.endswith(".log") and content}


def options():
    return options_of([SOURCE], {})


def crashed(filesystem, work, every, seed):
    """States after a crash before every n-th call of the work, and after the last one."""
    found = []

    def observe(call):
        if filesystem.calls % every == 0:
            found.append((str(call), filesystem.crash(random.Random(f"{seed} {filesystem.calls}"))))
            found.append((str(call), filesystem.kill()))

    filesystem.observe = observe
    work()
    filesystem.observe = None
    found.append(("the end", filesystem.crash(random.Random(seed))))
    return found


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    "every", [5, pytest.param(2, marks=pytest.mark.thorough), pytest.param(1, marks=pytest.mark.soak)]
)
def test_after_a_crash_the_target_is_complete_or_absent(files, policy, every):
    filesystem = filesystem_of(files)
    states = crashed(filesystem, lambda: recover(filesystem, options(), TARGET, policy=policy), every, policy)
    complete = below(filesystem, TARGET)
    assert logs_in(complete)
    seen = set()
    for name, state in states:
        assert below(state, SOURCE) == files, name
        found = below(state, TARGET)
        assert found in ({}, complete), name
        seen.add(bool(found))
        if not found:
            # Again, beside what the crash has left.
            recover(state, options(), TARGET, policy=policy)
            assert logs_in(below(state, TARGET)) == logs_in(complete), name
            assert all(path.startswith((SOURCE, TARGET)) for path in state.files()), name
    assert seen == {False, True}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    "every", [5, pytest.param(2, marks=pytest.mark.thorough), pytest.param(1, marks=pytest.mark.soak)]
)
def test_after_a_crash_in_place_nothing_is_lost(files, policy, every):
    filesystem = filesystem_of(files)
    states = crashed(
        filesystem, lambda: recover_in_place(filesystem, options(), ASIDE, policy=policy), every, policy
    )
    expected = logs_in(below(filesystem, SOURCE))
    aside = below(filesystem, ASIDE)
    for name, state in states:
        before = below(state, SOURCE)
        if logs_in(before) != logs_in(files) or "/.kafka_cleanshutdown" in before:
            # Something has changed: the copies are complete.
            assert below(state, ASIDE) == aside, name
        assert_each_byte_is_somewhere(files, state, name)
        recover_in_place(state, options(), f"{ASIDE}-again", policy=policy)
        assert logs_in(below(state, SOURCE)) == expected, name


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    "every", [23, pytest.param(9, marks=pytest.mark.thorough), pytest.param(3, marks=pytest.mark.soak)]
)
def test_what_a_killed_recovery_in_place_has_cut_is_not_forgotten(files, policy, every):
    """Nor by two that are killed."""
    filesystem = filesystem_of(files)
    states = crashed(
        filesystem, lambda: recover_in_place(filesystem, options(), ASIDE, policy=policy), every, policy
    )
    expected = lost_in(recover(filesystem_of(files), options(), None, policy=policy, is_dry_run=True))
    assert len(expected) > 1
    for name, state in states[:-1]:
        if IN_PROGRESS not in below(state, SOURCE) and ".kafka_cleanshutdown" in below(state, SOURCE):
            # It was done.
            continue
        report = recover(state, options(), None, policy=policy, is_dry_run=True)
        assert lost_in(report) >= expected, name
        second = state.kill()
        killed_after_its_notes(second, policy)
        report = recover_in_place(second, options(), f"{ASIDE}-again", policy=policy)
        assert not report.is_complete, name
        assert lost_in(report) >= expected, name
        assert IN_PROGRESS not in below(second, SOURCE)
    assert IN_PROGRESS not in below(states[-1][1], SOURCE)


IN_PROGRESS = ".segmentlog-recovery-in-progress.json"


def lost_in(report):
    return {
        (each.file, each.start_byte, each.end_byte)
        for partition in report.partitions
        for each in partition.left_out
    }


def killed_after_its_notes(filesystem, policy):
    """Run a recovery in place until it begins to change the log directory."""

    class KilledError(Exception):
        pass

    def observe(_call):
        if IN_PROGRESS in below(filesystem, SOURCE) and ".kafka_cleanshutdown" not in below(
            filesystem, SOURCE
        ):
            raise KilledError

    filesystem.observe = observe
    with contextlib.suppress(KilledError):
        recover_in_place(filesystem, options(), f"{ASIDE}-killed", policy=policy)
    filesystem.observe = None


def test_damaged_notes_of_a_killed_recovery_are_an_error(files):
    for content in (
        b"",
        b"{}",
        b"[]",
        b'{"aside": "x", "partitions": [{"topic": "orders"}]}',
        b"[" * 100_000,
    ):
        filesystem = filesystem_of({**files, IN_PROGRESS: content})
        with pytest.raises(LogDirectoryError, match="notes of an interrupted recovery in place are damaged"):
            recover_in_place(filesystem, options(), ASIDE)


def assert_each_byte_is_somewhere(files, state, name):
    """Check that each log file is there as it was, or what is cut from it is among the copies."""
    everything = list(below(state, SOURCE).values())
    copies = {path.rpartition("/")[2]: content for path, content in below(state, ASIDE).items()}
    for path, content in logs_in(files).items():
        if content in everything:
            continue
        log_name = path.rpartition("/")[2]
        found = [each for each in copies if each.startswith(log_name) and each.endswith(".cut")]
        assert found, f"{name}: {path} has changed, and no copy was made"
        for each in found:
            start, _, end = each.removeprefix(f"{log_name}.").removesuffix(".cut").partition("-")
            assert copies[each] == content[int(start) : int(end)], name


def test_a_broker_that_starts_in_between_discards_nothing_that_is_salvaged(files):
    """Whatever is not in the copies survives a recovery by a broker's rules at any moment."""
    filesystem = filesystem_of(files)
    states = crashed(
        filesystem, lambda: recover_in_place(filesystem, options(), ASIDE, policy="salvage"), 4, "kafka"
    )
    expected = logs_in(below(filesystem, SOURCE))
    for name, state in states:
        if below(state, SOURCE).get("recovery-point-offset-checkpoint") is None:
            # Nothing has changed yet.
            continue
        with LogDirectory.open(
            SOURCE,
            filesystem=state,
            recovery="kafka",
            broker_directory=True,
            config=LogConfig(file_delete_delay_ms=0),
        ):
            pass
        found = logs_in(below(state, SOURCE))
        for path, content in expected.items():
            assert found[path] in (content, files[path]), f"{name}: {path}"


def sources(tmp_path):
    source = damaged_root(tmp_path / "source", "damaged-flipped-in-the-middle")
    return source, fingerprint(source)


@pytest.mark.parametrize("error_number", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.soak)])
def test_whichever_call_fails_the_source_stays_and_the_target_is_complete_or_absent(
    tmp_path, error_number, step
):
    source, before = sources(tmp_path)
    run(source, tmp_path / "complete", "salvage")
    complete = logs_of(tmp_path / "complete")
    at = 1
    while True:
        target = tmp_path / "new"
        with FaultyCalls(Fault(error_number, at=at)) as calls:
            try:
                run(source, target, "salvage")
            except SegmentLogError:
                is_complete = False
            else:
                is_complete = True
        assert fingerprint(source) == before
        if target.exists():
            assert logs_of(target) == complete
            assert (target / ".kafka_cleanshutdown").exists()
            shutil.rmtree(target)
        else:
            assert not is_complete
        leftovers = [path.name for path in tmp_path.iterdir() if path.name not in ("source", "complete")]
        # One call fails; those that clean up afterwards succeed.
        assert leftovers == [], f"call {at}, {calls.happened}"
        if calls.happened is None:
            break
        at += step


@pytest.mark.parametrize(
    "step", [19, pytest.param(2, marks=pytest.mark.thorough), pytest.param(1, marks=pytest.mark.soak)]
)
@pytest.mark.parametrize("policy", POLICIES)
def test_whichever_call_fails_in_place_another_recovery_succeeds(tmp_path, policy, step):
    source, _ = sources(tmp_path)
    run(source, tmp_path / "complete", policy, link=False)
    complete = logs_of(tmp_path / "complete")
    at = 1
    while True:
        copied, aside = tmp_path / f"copy-{at}", tmp_path / f"aside-{at}"
        shutil.copytree(source, copied)
        with FaultyCalls(Fault(errno.EIO, at=at)) as calls:
            try:
                run_in_place(copied, aside, policy)
            except SegmentLogError:
                assert not (copied / ".kafka_cleanshutdown").exists() or calls.happened is not None
        run_in_place(copied, tmp_path / f"again-{at}", policy)
        assert logs_of(copied) == complete, f"call {at}, {calls.happened}"
        if calls.happened is None:
            break
        shutil.rmtree(copied)
        at += step


def test_a_file_that_changes_meanwhile_is_noticed(tmp_path, monkeypatch):
    shutil.copytree(EXAMPLES, tmp_path / "source")
    log = tmp_path / "source" / PARTITION_DIRECTORY / "00000000000000007209.log"

    class Changing(FileSystem):
        def sync(self, path):
            raise AssertionError("not reached")

        def set_modified_ms(self, path, modified_ms):
            super().set_modified_ms(path, modified_ms)
            if Path(path).name == log.name:
                with log.open("ab") as file:
                    file.write(b"more")

    with pytest.raises(SegmentLogError, match="A file changed while it was copied"):
        recover(Changing(), options_of([str(tmp_path / "source")], {}), str(tmp_path / "new"))
    assert not (tmp_path / "new").exists()


def test_an_unreadable_log_fails_and_leaves_nothing(tmp_path):
    source = damaged_root(tmp_path / "source", "damaged-nothing")
    path = min((source / PARTITION_DIRECTORY).glob("*.log"))
    path.unlink()
    path.mkdir()
    with pytest.raises(SegmentLogError):
        run(source, tmp_path / "new")
    assert [each.name for each in tmp_path.iterdir()] == ["source"]


def test_rows_are_those_of_the_source_after_many_recoveries(tmp_path):
    """A recovered directory is one that can be recovered."""
    source = damaged_root(tmp_path / "0", "damaged-flipped-in-the-middle")
    for number in range(3):
        run(source, tmp_path / f"{number + 1}", "salvage")
        source = tmp_path / f"{number + 1}"
    assert rows(source).equals(rows(tmp_path / "0", mode="DROPMALFORMED"))
