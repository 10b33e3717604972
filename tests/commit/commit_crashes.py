"""A crash at every call of a commit, and what has to be true afterwards.

A job is committed once. Before each call that changes something the simulated file system says what a power cut at
this moment may leave, some times over, and what the end of the process leaves. `check` looks at each such state with
a reader, lets the replay finish or undo it, and compares every byte with the two states that there may be.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from storage_core.commit_files.journal import read_commit_journal
from storage_core.commit_replay import finish_commit
from tests.commit.jobs import CONFIG, ROOT, contents
from tests.faults.crash_points import Crash, crashes
from tests.faults.simulated_filesystem import Call, SimulatedCrash, SimulatedFileSystem

Records = dict[tuple[str, int], list[tuple[int, bytes]]]


@dataclass
class Reference:
    """The two states that there may be: files without what was staged, and records."""

    before: dict[str, bytes]
    after: dict[str, bytes]
    records_before: Records
    records_after: Records
    outcomes: Counter[str] = field(default_factory=Counter)


def settled(filesystem: SimulatedFileSystem) -> dict[str, bytes]:
    """Return all files but those that a sweep may take, and the remains of a replacement."""
    return {
        path: content
        for path, content in filesystem.files().items()
        if ".segmentlog-stage-" not in path and not path.endswith((".tmp", "/.segmentlog-probe"))
    }


def replay(filesystem: SimulatedFileSystem) -> None:
    finish_commit(filesystem, ROOT, lambda topic: CONFIG, threads=1)


def crashes_of(
    filesystem: SimulatedFileSystem,
    commit: Callable[[SimulatedFileSystem], object],
    *,
    seed: int,
    variants: int,
) -> tuple[Reference, list[Crash]]:
    """Return the states after a crash at each call of a commit, from the first to after the last."""
    committed = filesystem.kill()
    before, records_before = settled(committed), contents(committed, ROOT)
    commit(committed)
    reference = Reference(before, settled(committed), records_before, contents(committed, ROOT))
    return reference, crashes_of_job(filesystem, commit, seed=seed, variants=variants)


def crashes_of_job(
    filesystem: SimulatedFileSystem, run: Callable[[SimulatedFileSystem], object], *, seed: int, variants: int
) -> list[Crash]:
    """Return what SIGKILL and power cuts leave before each call of a job, from its first to after its last."""
    return crashes(filesystem, lambda: run(filesystem), seed=seed, variants=variants)


def check(crashed: Crash, reference: Reference, *, reads: bool = True, again: int = 0) -> None:
    """Check that a crash left all of the job's rows or none, and that the replay ends in one of two states.

    Args:
        crashed: What a crash left.
        reference: The two states.
        reads: Whether a reader looks at it.
        again: A call of the replay at which there is another power cut; 0 for none.
    """
    filesystem, name = crashed.filesystem, crashed.name
    seen = contents(filesystem, ROOT) if reads else None
    if reads:
        assert seen in (reference.records_before, reference.records_after), name
    has_begun = read_commit_journal(filesystem, ROOT) is not None
    if again:
        second = crash_at(filesystem, replay, again, f"{name} {again}", only_power_cuts=True)
        if second is not None:
            reference.outcomes["again"] += 1
            check(
                replace(crashed, name=f"{name}; again before call {again}", filesystem=second),
                reference,
                reads=reads,
            )
            return
    else:
        replay(filesystem)
    final = settled(filesystem)
    is_done = has_begun or (seen == reference.records_after if reads else final == reference.after)
    expected = reference.after if is_done else reference.before
    changed = sorted(path for path in final.keys() | expected if final.get(path) != expected.get(path))
    assert changed == [], f"{name}, {changed}, {'done' if is_done else 'undone'}"
    assert read_commit_journal(filesystem, ROOT) is None, name
    reference.outcomes["done" if is_done else "undone"] += 1


def crash_at(
    filesystem: SimulatedFileSystem,
    run: Callable[[SimulatedFileSystem], object],
    number: int,
    seed: str,
    *,
    only_killed: bool = False,
    only_power_cuts: bool = False,
) -> SimulatedFileSystem | None:
    """Return what is left if SIGKILL or a power cut ends the run at its n-th call; None if it has no such call."""
    first, rng = filesystem.calls, random.Random(seed)
    found: list[SimulatedFileSystem] = []

    def observe(call: Call) -> None:
        if call.number - first == number:
            is_killed = only_killed or (not only_power_cuts and rng.random() < 0.3)
            found.append(filesystem.kill() if is_killed else filesystem.crash(rng))
            raise SimulatedCrash

    filesystem.observe = observe
    try:
        run(filesystem)
    except SimulatedCrash:
        return found[0]
    finally:
        filesystem.observe = None
    return None
