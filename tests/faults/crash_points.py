"""A crash at every call of a workload, and the checks afterwards.

`crash_states` runs a workload once. Before each mutating call, it asks the simulated file system for several states
that a power cut at this moment may leave, and for the state after the process ends. `recover` opens each such state,
compares it with what the model allows, and continues to work on it.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from storage_core import LogConfig, LogDirectory
from storage_core.errors import CorruptError, RecoveryWouldDiscardError
from tests.faults.log_model import Expectation
from tests.faults.session import CONFIG, ROOT, TOPIC, Session, StillClock, records_of, timestamp_of
from tests.faults.simulated_filesystem import SimulatedFileSystem
from tests.faults.valid_batches import loses_valid_batches

Workload = Callable[[Session], None]


@dataclass
class CrashState:
    """The state after a crash, and the expected content.

    Attributes:
        name: For messages.
        filesystem: The files.
        expectation: What must be found.
        after_power_cut: What a power cut would have left.
        is_on_disk: Whether the crash was a power cut.
        config: Of the log.
    """

    name: str
    filesystem: SimulatedFileSystem
    expectation: Expectation
    after_power_cut: Expectation
    is_on_disk: bool = True
    config: LogConfig = CONFIG


@dataclass
class Crash:
    """What a crash left, and what was known when it happened.

    Attributes:
        name: For messages.
        filesystem: The files.
        known: What the test noted.
        is_power_cut: Whether it was a power cut, not the end of the process alone.
    """

    name: str
    filesystem: SimulatedFileSystem
    known: Any
    is_power_cut: bool


def crashes(
    filesystem: SimulatedFileSystem,
    run: Callable[[], object],
    known: Callable[[], object] = lambda: None,
    *,
    seed: object = 1,
    variants: int = 1,
) -> list[Crash]:
    """Return what a SIGKILL, or so many power cuts, may leave before each mutating call of a run, and after it."""
    found: list[Crash] = []

    def observe(call: object) -> None:
        name, noted = f"before {call}", known()
        found.append(Crash(f"{name}, killed", filesystem.kill(), noted, is_power_cut=False))
        for variant in range(variants):
            rng = random.Random(f"{seed} {filesystem.calls} {variant}")
            after = filesystem.crash(rng)
            found.append(Crash(f"{name}, power cut {variant}", after, noted, is_power_cut=True))

    filesystem.observe = observe
    run()
    filesystem.observe = None
    observe("nothing more")
    return found


def new_filesystem() -> SimulatedFileSystem:
    """Return a file system with an empty log directory."""
    filesystem = SimulatedFileSystem()
    filesystem.make_directory(ROOT)
    filesystem.flush_directory("/")
    return filesystem


def crash_states(
    prepare: Workload, workload: Workload, *, seed: int, variants: int, config: LogConfig = CONFIG
) -> Iterator[CrashState]:
    """Yield the states after a crash at each call of a workload, from before the first call to after the last one."""
    filesystem = new_filesystem()
    session = Session(filesystem, config=config)
    prepare(session)

    def known() -> tuple[Expectation, Expectation]:
        return session.model.after_kill(), session.model.after_power_cut()

    for crash in crashes(filesystem, lambda: workload(session), known, seed=seed, variants=variants):
        after_kill, on_disk = crash.known
        expectation = on_disk if crash.is_power_cut else after_kill
        yield CrashState(
            f"seed {seed}, {crash.name}", crash.filesystem, expectation, on_disk, crash.is_power_cut, config
        )


def recovery_states(state: CrashState, recovery: str, *, seed: int, variants: int) -> Iterator[CrashState]:
    """Yield the states after a second crash at each call of the recovery."""
    filesystem, on_disk = state.filesystem.kill(), state.after_power_cut

    opened: list[LogDirectory | None] = []

    def open_again() -> None:
        opened.append(open_or_none(filesystem, recovery, config=state.config))

    found = crashes(filesystem, open_again, seed=f"{seed} {state.name}", variants=variants)
    for logs in opened:
        if logs is not None:
            logs.close()
    for crash in found:
        if crash.is_power_cut:
            name = f"{state.name}; again {crash.name}"
            yield CrashState(name, crash.filesystem, on_disk, on_disk, config=state.config)


def open_directory(
    filesystem: SimulatedFileSystem,
    recovery: str = "tail",
    *,
    config: LogConfig = CONFIG,
    read_only: bool = False,
) -> LogDirectory:
    """Open the log directory."""
    return LogDirectory.open(
        ROOT,
        filesystem=filesystem,
        recovery=recovery,
        config=config,
        clock=StillClock(),
        read_only=read_only,
    )


def open_or_none(
    filesystem: SimulatedFileSystem, recovery: str, *, config: LogConfig = CONFIG
) -> LogDirectory | None:
    """Open the log directory; None if the recovery refuses because it would discard valid batches."""
    try:
        return open_directory(filesystem, recovery, config=config)
    except RecoveryWouldDiscardError as error:
        if not error.discarded:
            raise
        return None


def recover(state: CrashState, recovery: str, *, is_thorough: bool = True) -> str:
    """Open the state after a crash, check it, and continue; return how it went."""
    filesystem, expectation, config = state.filesystem, state.expectation, state.config
    before = filesystem.files()
    if is_thorough:
        _read_only(state)
    outcome, logs = "opened", open_or_none(filesystem, recovery, config=config)
    if logs is None:
        assert recovery == "tail", state.name
        assert loses_valid_batches(before), f"{state.name}: refused without a reason"
        assert log_files(filesystem.files()) == log_files(before), f"{state.name}: refused, and changed files"
        outcome, logs = "refused", open_directory(filesystem, "kafka", config=config)
    if (TOPIC, 0) not in logs:
        assert expectation.required_end == 0, f"{state.name}: the log is gone"
        logs.close()
        return "no log"
    found, log_start_offset, log_end_offset = contents_of(logs)
    problems = expectation.problems(found, log_start_offset, log_end_offset)
    assert problems == [], f"{state.name}, {outcome}: {problems}"
    # Every state is opened and read; slower checks run on a share of the states.
    if is_thorough:
        _check_look_ups(logs.get(TOPIC, 0), found, state.name)
        _go_on(state, logs, found)
    return outcome


def _read_only(state: CrashState) -> None:
    """Check that a read-only log directory shows the same records without recovery, and changes nothing."""
    filesystem = state.filesystem
    before, calls = filesystem.files(), filesystem.calls
    is_damaged = loses_valid_batches(before)
    with (
        open_directory(filesystem, read_only=True) as logs,
        contextlib.suppress(CorruptError) if is_damaged else contextlib.nullcontext(),
    ):
        problems = state.expectation.problems(*contents_of(logs))
        assert is_damaged or problems == [], f"{state.name}, read-only: {problems}"
    assert filesystem.calls == calls, f"{state.name}: a read-only directory was written to"


def log_files(files: dict[str, bytes]) -> dict[str, bytes]:
    """Return the files that hold records."""
    return {path: content for path, content in files.items() if path.endswith(".log")}


def _check_look_ups(log, found: list[tuple[int, bytes]], name: str) -> None:
    """Indexes agree with the log."""
    for offset, value in found[:: max(1, len(found) // 3)]:
        assert records_of(log, start_offset=offset, end_offset=offset + 1) == [(offset, value)], name
        answer = log.offset_for_timestamp(timestamp_of(value))
        assert answer is not None, name
        assert answer.offset == offset, name


def _go_on(state: CrashState, logs: LogDirectory, found: list[tuple[int, bytes]]) -> None:
    """Append, lose power again, close, and open: no previous or acknowledged record is lost."""
    filesystem, name, config = state.filesystem, state.name, state.config
    rng = random.Random(name)
    session = Session(filesystem, first_number=1_000_000, config=config)
    session.logs, session.log = logs, logs.get(TOPIC, 0)
    start_offset, end_offset = session.log.log_start_offset, session.log.log_end_offset
    session.model.adopt(found, start_offset, end_offset, state.after_power_cut, is_on_disk=state.is_on_disk)
    # Sizes that other batches have, so that the new batch may end exactly where truncated bytes ended.
    session.append(*rng.choice([(60, 5), (20, 10), (90, 10), (600,)]), acks=-1 if rng.random() < 0.5 else 1)
    after = filesystem.crash(rng)
    opened = open_or_none(after, "tail", config=config) or open_directory(after, "kafka", config=config)
    problems = session.model.after_power_cut().problems(*contents_of(opened))
    assert problems == [], f"{name}: after one more append and power cut: {problems}"
    logs.close()
    calls = filesystem.calls
    with open_directory(filesystem, read_only=True) as again:
        assert contents_of(again)[0] == session.model.records, f"{name}: after a clean close"
    assert filesystem.calls == calls, f"{name}: a read-only directory was written to"


def contents_of(logs: LogDirectory) -> tuple[list[tuple[int, bytes]], int, int]:
    """Records, log start and log end; empty if the log itself is gone."""
    if (TOPIC, 0) not in logs:
        return [], 0, 0
    log = logs.get(TOPIC, 0)
    return records_of(log), log.log_start_offset, log.log_end_offset
