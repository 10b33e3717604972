"""SIGKILL of real processes that commit, at random calls and moments: each version's rows are there once, in order."""

from __future__ import annotations

import contextlib
import random
import signal
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage_core import FileSystem, LogDirectory, read_table
from storage_core.commit_files.commits_file import read_commits_file
from storage_core.commit_files.stage_names import job_of
from storage_core.directory.visibility import read_visible_commits
from storage_core.errors import LogDirectoryError
from tests.commit.committer import job_of_version
from tests.commit.jobs import CONFIG
from tests.damage.campaign import fast_folder
from tests.faults.counting import cases
from tests.faults.killed_process import KilledProcess, warm_processes

KILLS = 20
SOAK_KILLS = 3_000
# So that logs roll, and reading all of them stays quick.
KILLS_PER_ROOT = 10


def run(process: KilledProcess, root: Path, version: int, how: str, number: int = 0) -> str:
    """Have a process commit; say what it has printed, or that it was killed."""
    process.begin(str(root), f"{version} {how} {number}")
    if how == "wait":
        time.sleep(number / 1e6)
    else:
        process.listen(300)
    code = process.end()
    assert code in (0, -signal.SIGKILL), f"{root}: {code}"
    return "killed" if code else process.said.decode().strip()


def expected_rows(versions: int):
    """Values by partition after this many versions."""
    found = defaultdict(list)
    for version in range(1, versions + 1):
        for rows in job_of_version(version).tasks:
            for key, added in rows.items():
                found[key] += [value for _, value in added]
    return {key: list(enumerate(values)) for key, values in found.items() if values}


def rows_in(root):
    found = defaultdict(list)
    if (root / ".segmentlog-commits").exists():
        table = read_table(root, columns=["topic", "partition", "offset", "value"])
        for row in table.to_pylist():
            found[row["topic"], row["partition"]].append((row["offset"], row["value"]))
        return dict(found)
    # Without any commit, readers see nothing in the directory.
    with contextlib.suppress(LogDirectoryError):
        assert read_table(root).num_rows == 0
    return {}


def staged(root):
    return {job for path in root.iterdir() if (job := job_of(path.name)) is not None}


def kill_many(count: int, seed: int) -> Counter[str]:
    """Kill committing processes, and count what they left."""
    rng = random.Random(seed)
    outcomes: Counter[str] = Counter()
    with (
        warm_processes("tests.commit.committer") as committers,
        tempfile.TemporaryDirectory(dir=fast_folder()) as folder,
    ):
        while outcomes["killed"] < count:
            root = Path(folder) / str(outcomes["killed"])
            outcomes += live(committers, root, rng, min(KILLS_PER_ROOT, count - outcomes["killed"]))
    return outcomes


def live(committers: Iterator[KilledProcess], root: Path, rng: random.Random, kills: int) -> Counter[str]:
    """Repeat the versions of one log directory until they are there, in processes of which many are killed."""
    outcomes: Counter[str] = Counter()
    version, calls = 1, 150
    while outcomes["killed"] < kills:
        name = f"{root.name}: version {version}, {outcomes}"
        how = rng.choice(["call", "call", "half", "wait", "never"])
        number = rng.randint(1, calls) if how in {"call", "half"} else int(rng.random() * 60_000)
        said = run(next(committers), root, version, how, number)
        found = rows_in(root)
        is_there = found == expected_rows(version)
        assert is_there or found == expected_rows(version - 1), name
        if said == "killed":
            outcomes["killed"] += 1
            # A journal of an earlier version may be there, too, if its process was killed right after the commit.
            has_journal = read_visible_commits(FileSystem(), str(root)).journal_data is not None
            outcomes["with a journal" if has_journal else "after it" if is_there else "before it"] += 1
            if rng.random() < 0.2:
                is_there = finish(root, version, has_journal=has_journal, is_there=is_there)
        else:
            assert is_there, name
            assert not staged(root) & committed(root), name
            calls = int(said.split()[1]) if said.startswith("done") else calls
        if is_there and (said != "killed" or rng.random() < 0.5):
            version += 1
    assert run(next(committers), root, version, "never") == "again" or rows_in(root) == expected_rows(version)
    return outcomes


def committed(root):
    return {entry.job_id for entry in read_commits_file(FileSystem(), str(root)).entries}


def finish(root: Path, version: int, *, has_journal: bool, is_there: bool) -> bool:
    """Opening the logs completes it, too."""
    with LogDirectory.open(root, config=CONFIG) as logs:
        for log in logs.logs():
            assert log.log_start_offset == 0
    is_there = is_there or has_journal
    assert rows_in(root) == expected_rows(version if is_there else version - 1)
    return is_there


def test_processes_that_commit_are_killed(record_property):
    outcomes = kill_many(KILLS, seed=1)
    record_property(cases("SIGKILL of a committing process, and the job repeated"), outcomes["killed"])
    assert outcomes["killed"] == KILLS
    assert outcomes["with a journal"] > 0
    assert outcomes["before it"] > 0


@pytest.mark.soak
def test_processes_that_commit_are_killed_many_times(capsys):
    outcomes = kill_many(SOAK_KILLS, seed=int(time.time()))
    with capsys.disabled():
        print(f"\n{dict(outcomes)}")
