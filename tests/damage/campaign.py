"""The mutation campaign: damage a log directory, read it, and judge the result.

A case has a name, ``<log>#<number>``, and is fully determined by it::

    python -m tests.damage.campaign --case 'v2-gzip#1234'      # run one case, print all details
    python -m tests.damage.campaign --cases 50000              # run many
    python -m tests.damage.campaign --seconds 3600 --first 10000
    python -m tests.damage.campaign --cases 10000 --write docs/reliability.md
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Self

from tests.damage.base_log import BaseLog, write_files
from tests.damage.broker_logs import broker_logs
from tests.damage.built_logs import built_logs
from tests.damage.judge import judge
from tests.damage.mutations import Files, Mutation, draw_mutations
from tests.damage.observation import Observation, Verdict
from tests.damage.reads import Outcome, OutRow, Read, draw_read, run_read
from tests.damage.totals import Totals, write_table
from tests.damage.unprovable import unprovable_kinds

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import FrameType


# A case takes milliseconds. This only stops endless reads.
_HANG_SECONDS = 30
_HANG_SIGNALS = (signal.SIGPROF, signal.SIGALRM)
_LOGGER = logging.getLogger("storage_core")


class HangError(BaseException):
    """An endless read. Not an Exception, so that no handler on the way catches it."""


def all_logs() -> dict[str, BaseLog]:
    """Return every log that the campaign damages."""
    return {**built_logs(), **broker_logs()}


def fast_folder() -> str | None:
    """Return a folder in memory, if the system has one with room to spare."""
    folder = "/dev/shm"
    has_room = os.access(folder, os.W_OK) and shutil.disk_usage(folder).free >= 1 << 30
    return folder if has_room else None


@dataclass
class Case:
    """One log, damaged and read in one way."""

    log: BaseLog
    number: int
    mutations: list[Mutation]
    read: Read

    @classmethod
    def draw(cls, log: BaseLog, number: int) -> Case:
        """Return the case with this number."""
        rng = random.Random(f"{log.name}#{number}")
        return cls(log, number, draw_mutations(rng, log), draw_read(rng, log))

    @property
    def name(self) -> str:
        return f"{self.log.name}#{self.number}"

    @cached_property
    def files(self) -> Files:
        """The damaged files."""
        files = dict(self.log.files)
        for mutation in self.mutations:
            mutation.apply(files)
        return files

    def text(self) -> str:
        """Return the case in words."""
        return "\n".join([
            self.name, *(f"  {mutation.text}" for mutation in self.mutations), f"  read with {self.read.options()}",
        ])  # fmt: skip


class Campaign:
    """Runs cases in a temporary folder. Use as a context manager."""

    def __init__(self) -> None:
        self.totals = Totals()
        self._folder = Path(tempfile.mkdtemp(prefix="segmentlog-damage-", dir=fast_folder()))
        self._written: dict[str, Files] = {}

    def __enter__(self) -> Self:
        self._handlers = [signal.signal(number, _raise_hang) for number in _HANG_SIGNALS]
        # It logs a line for each damaged range: tens of thousands.
        _LOGGER.setLevel(logging.CRITICAL)
        return self

    def __exit__(self, *details: object) -> None:
        for number, handler in zip(_HANG_SIGNALS, self._handlers, strict=True):
            signal.signal(number, handler)
        _LOGGER.setLevel(logging.NOTSET)
        shutil.rmtree(self._folder)

    def run(self, case: Case) -> Verdict:
        """Run and count one case."""
        outcome = self._read(self._prepared(case), case)
        verdict = judge(
            case.log, case.mutations, case.files, case.read, outcome,
            lambda: self._read(self._undamaged(case.log), case),
        )  # fmt: skip
        self.totals.count(case, outcome, verdict)
        if case.read.mode == "FAILFAST" and not any(mutation.is_forged for mutation in case.mutations):
            self._account(case, outcome, verdict)
        return verdict

    def _account(self, case: Case, outcome: Outcome, verdict: Verdict) -> None:
        """Check that a read without an error returns the original rows, unless no reader can detect the change."""
        kinds = set()
        for root in case.log.roots:
            seen = Observation(case.log, root, case.mutations, case.files, case.read, outcome)
            kinds |= unprovable_kinds(seen)
        is_error = outcome.error is not None
        is_changed = not is_error and (
            _without_positions(outcome) != _without_positions(self._read(self._undamaged(case.log), case))
        )
        if is_changed and not kinds:
            verdict.problem("other rows than before, without an undetectable change")
        if len(case.mutations) == 1:
            self.totals.count_kinds(kinds, is_error=is_error, is_changed=is_changed)

    def run_numbers(self, log: BaseLog, numbers: range) -> list[str]:
        """Run the cases with these numbers; return the problems of each failed case."""
        failures = []
        for number in numbers:
            case = Case.draw(log, number)
            verdict = self.run(case)
            if verdict.problems:
                failures.append("\n  ".join([case.text(), *verdict.problems]))
        return failures

    def run_round(self, logs: Iterable[BaseLog], number: int) -> Iterator[str]:
        """Run the case with this number for each log; yield the problems of each failed case."""
        for log in logs:
            yield from self.run_numbers(log, range(number, number + 1))

    def shrink(self, case: Case) -> Case:
        """Drop everything that the case does not need to fail."""
        smaller = True
        while smaller:
            smaller = False
            for number in range(len(case.mutations)):
                fewer = case.mutations[:number] + case.mutations[number + 1 :]
                candidate = Case(case.log, case.number, fewer, case.read)
                if fewer and self.run(candidate).problems:
                    case, smaller = candidate, True
                    break
        return case

    def _read(self, folder: Path, case: Case) -> Outcome:
        signal.setitimer(signal.ITIMER_PROF, _HANG_SECONDS)
        signal.alarm(20 * _HANG_SECONDS)
        try:
            return run_read(folder, case.log, case.read)
        except HangError as error:
            return Outcome(error=error)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.alarm(0)

    def _undamaged(self, log: BaseLog) -> Path:
        folder = self._folder / log.name.replace("/", "-") / "undamaged"
        if not folder.exists():
            write_files(folder, log.files, log.modified_ms)
        return folder

    def _prepared(self, case: Case) -> Path:
        """Write the files that differ from the previous case."""
        log = case.log
        folder = self._folder / log.name.replace("/", "-") / "damaged"
        before = self._written.get(log.name, {})
        for path in before.keys() - case.files.keys():
            (folder / path).unlink()
        changed = {path: content for path, content in case.files.items() if before.get(path) != content}
        write_files(folder, changed, log.modified_ms)
        self._written[log.name] = case.files
        return folder


def _without_positions(outcome: Outcome) -> list[OutRow]:
    """Return the rows as they are where bytes before them are gone or added. The judge checks the positions."""
    return [
        dataclasses.replace(row, metadata=row.metadata and {**row.metadata, "position": None})
        for row in outcome.rows
    ]


def _raise_hang(number: int, frame: FrameType | None) -> None:
    raise HangError(f"no end after {_HANG_SECONDS} s of processor time, or {20 * _HANG_SECONDS} s")


def main(arguments: list[str] | None = None) -> int:
    """Run what the command line asks for; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--case", help="one case by its name")
    parser.add_argument("--cases", type=int, default=10_000, help="how many")
    parser.add_argument("--seconds", type=float, help="for how long, instead of how many")
    parser.add_argument("--first", type=int, default=0, help="the first number of each log")
    parser.add_argument("--logs", help="only logs whose names contain this")
    parser.add_argument("--failures", type=int, default=20, help="stop after this many")
    parser.add_argument(
        "--write", type=Path, metavar="FILE", help="put the table into FILE, between its markers"
    )
    options = parser.parse_args(arguments)
    logs = all_logs()
    with Campaign() as campaign:
        if options.case:
            name, _, number = options.case.rpartition("#")
            return _run_one(campaign, Case.draw(logs[name], int(number)))
        chosen = [log for name, log in logs.items() if not options.logs or options.logs in name]
        return _run_many(campaign, chosen, options)


def _run_one(campaign: Campaign, case: Case) -> int:
    verdict = campaign.run(case)
    if verdict.problems:
        case = campaign.shrink(case)
        verdict = campaign.run(case)
    print(case.text(), *verdict.problems, sep="\n  ")
    return bool(verdict.problems)


def _run_many(campaign: Campaign, logs: list[BaseLog], options: argparse.Namespace) -> int:
    start, spent = time.monotonic(), time.process_time()
    number, failures = options.first, 0
    totals = campaign.totals
    while (
        time.monotonic() - start < options.seconds if options.seconds else totals.cases < options.cases
    ) and failures < options.failures:
        for failure in campaign.run_round(logs, number):
            failures += 1
            print(failure, flush=True)
        number += 1
    print(f"{totals.cases:,} cases in {time.process_time() - spent:.0f} s of CPU: {failures} failures")
    print(f"numbers {options.first} to {number - 1} of {len(logs)} logs")
    print(totals.text())
    if options.write and not failures:
        write_table(options.write, totals.markdown(len(logs)))
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
