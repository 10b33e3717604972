"""Damaged copies of brokers' directories for `segmentlog verify`: each is determined by its log and its number."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from storage_core.check.verify import plan_verification, verify
from storage_core.filesystem import FileSystem
from storage_core.options import options_of
from tests.damage.base_log import BaseLog, write_files
from tests.damage.broker_logs import broker_logs
from tests.damage.mutations import Files, Mutation, draw_mutations

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from storage_core.check.verify import VerifyReport

CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
# How often a copy loses the marker of a clean shutdown, or gets one.
_MARKER_CHANGES = 0.4


@dataclass(frozen=True)
class DamagedCopy:
    """A directory of a broker with some of its bytes or files changed.

    Attributes:
        is_marker_changed: Whether it lost its clean-shutdown marker besides, or got one.
    """

    log: BaseLog
    number: int
    mutations: tuple[Mutation, ...]
    files: Files
    is_marker_changed: bool

    @property
    def name(self) -> str:
        return f"{self.log.name}#{self.number}"

    @property
    def is_clean(self) -> bool:
        return CLEAN_SHUTDOWN in self.files

    def write(self, folder: Path) -> None:
        write_files(folder, self.files, self.log.modified_ms)

    def text(self) -> str:
        marker = "with" if self.is_clean else "without"
        lines = [f"{self.name}, {marker} {CLEAN_SHUTDOWN}", *(f"  {each.text}" for each in self.mutations)]
        return "\n".join(lines)


def draw_copy(log: BaseLog, number: int) -> DamagedCopy:
    """Return the copy with this number."""
    rng = random.Random(f"verify {log.name}#{number}")
    # Nothing tells a batch whose CRC was made right from a genuine one.
    mutations = tuple(each for each in draw_mutations(rng, log) if not each.is_forged)
    files = dict(log.files)
    for mutation in mutations:
        mutation.apply(files)
    is_marker_changed = rng.random() < _MARKER_CHANGES
    if is_marker_changed:
        _change_marker(files)
    return DamagedCopy(log, number, mutations, files, is_marker_changed)


def undamaged_copies() -> Iterator[DamagedCopy]:
    """Yield each directory as it was, and as if the broker had crashed."""
    for log in broker_logs().values():
        yield DamagedCopy(log, -1, (), dict(log.files), is_marker_changed=False)
        if CLEAN_SHUTDOWN in log.files:
            files = dict(log.files)
            _change_marker(files)
            yield DamagedCopy(log, -2, (), files, is_marker_changed=True)


def _change_marker(files: Files) -> None:
    if files.pop(CLEAN_SHUTDOWN, None) is None:
        files[CLEAN_SHUTDOWN] = b'{"version":0,"brokerEpoch":1}'


def verified(folder: Path, **options: object) -> VerifyReport:
    """Return what `segmentlog verify --deep` says of a log directory."""
    filesystem = FileSystem()
    plan = plan_verification(filesystem, options_of([str(folder)], options), is_deep=True)
    return verify(filesystem, plan)
