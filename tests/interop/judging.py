"""Damaged copies of partitions, and how a broker recovers them.

The broker finds no clean-shutdown marker and no recovery point. So it checks every batch from the beginning, truncates
each log at the first damaged one, and drops the later segments.
"""

from __future__ import annotations

import itertools
import random
import re
import shutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.interop.broker import BrokerError, KafkaBroker
from tests.interop.clients import ISOLATION_LEVELS, Consumed, consume_partitions
from tests.interop.damage import damage_partition
from tests.interop.expectation import remains_of
from tests.interop.filled import PARTITIONS, Filled, Place

if TYPE_CHECKING:
    from pathlib import Path

    from tests.interop.log_bytes import Log

SETTINGS: dict[str, object] = {
    # Some thousand index files are preallocated.
    "log.index.size.max.bytes": 65_536,
    "num.recovery.threads.per.data.dir": 2,
    # Open transactions must not time out during the recovery.
    "transaction.max.timeout.ms": 86_400_000,
}

# Each attempt finds one more partition that keeps the broker from starting.
_MOST_ATTEMPTS = 5
# A consumer waits forever where a log ends in compacted offsets before an empty segment.
_PATIENCE_S = 10.0


@dataclass(slots=True)
class Judged:
    """How the broker treated each damaged partition.

    Attributes:
        done: The damage.
        damaged: The log files before the broker's start.
        kept: The log files after its recovery.
        consumed: By isolation level.
        refused: Partitions that keep the broker from starting, and why.
    """

    directory: Path
    done: dict[Place, list[str]]
    damaged: dict[Place, Log] = field(default_factory=dict)
    kept: dict[Place, Log] = field(default_factory=dict)
    consumed: dict[str, dict[Place, Consumed]] = field(default_factory=dict)
    refused: dict[Place, str] = field(default_factory=dict)


def damage_copy(filled: Filled, target: Path, seed: object) -> Judged:
    """Copy a log directory, damage each partition, and remove the files that make a broker trust it."""
    shutil.copytree(filled.directory, target)
    (target / ".kafka_cleanshutdown").unlink()
    (target / "recovery-point-offset-checkpoint").write_text("0\n0\n")
    judged = Judged(target, {})
    for place in PARTITIONS:
        partition = target / place.directory
        judged.done[place] = damage_partition(partition, random.Random(f"{seed} {place}"))
        judged.damaged[place] = log_of(partition)
        original = log_of(filled.directory / place.directory)
        if remains_of(original, judged.damaged[place]).is_refused_by_a_broker:
            judged.refused[place] = "an entry's offset does not fit the file"
    return judged


def judge(judged: Judged, scratch: Path) -> None:
    """Let a broker recover a copy of the damaged directory, and consume everything that it kept."""
    with _start(judged, scratch) as broker:
        places = [place for place in PARTITIONS if place not in judged.refused]
        for level in ISOLATION_LEVELS:
            consumed = consume_partitions(broker, places, level, patience_s=_PATIENCE_S)
            judged.consumed[level] = {Place(*place): each for place, each in consumed.items()}
        for place in places:
            judged.kept[place] = log_of(broker.log_directory / place.directory)


def _start(judged: Judged, scratch: Path) -> KafkaBroker:
    for attempt in itertools.count():
        logs = scratch / f"judged-{attempt}"
        refused = [place.directory for place in judged.refused]
        shutil.copytree(judged.directory, logs, ignore=shutil.ignore_patterns(*refused))
        broker = KafkaBroker(scratch / "broker", SETTINGS, log_directory=logs)
        try:
            return broker.start()
        except BrokerError as error:
            place = _refused_place(str(error))
            if place is None or attempt == _MOST_ATTEMPTS:
                raise
            judged.refused[place] = str(error).splitlines()[1]
    raise AssertionError


def _refused_place(message: str) -> Place | None:
    """The partition that kept a broker from starting: the error names one of its files."""
    cause = re.search(r"There was an error in one of the threads during logs loading: .*", message)
    names = re.split(r"[/\s]", cause.group() if cause else "")
    return next((place for place in PARTITIONS if place.directory in names), None)


def log_of(directory: Path) -> Log:
    """A partition's log files."""
    return {int(path.stem): path.read_bytes() for path in sorted(directory.glob("*.log"))}
