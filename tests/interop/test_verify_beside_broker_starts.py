"""What `segmentlog verify` foretells of a broker's start, beside real brokers that are started on the same directories.

Each case is a node's directories, broken in one way. The forecast must hold, or say that it does not know. To repeat or
to run more: SEGMENTLOG_STARTS_FIRST and SEGMENTLOG_STARTS_ROUNDS.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

import pytest

from storage_core.check.verify import plan_verification, verify
from storage_core.errors import LogDirectoryError
from storage_core.filesystem import FileSystem
from storage_core.options import options_of
from tests.damage.campaign import fast_folder
from tests.interop.broken_nodes import WAYS
from tests.interop.broker_roots import Node, Started, make_nodes, start_node

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from storage_core.check.verify import VerifyReport

FIRST = int(os.environ.get("SEGMENTLOG_STARTS_FIRST", "0"))
# Of each way to break a node, in each layout.
ROUNDS = int(os.environ.get("SEGMENTLOG_STARTS_ROUNDS", "1"))
_SAMPLE = (
    "nothing",
    "directory with a dash",
    "directory like an unknown partition",
    "on two disks",
    "copied as -future",
    "empty meta.properties",
    "gone partition.metadata",
    "foreign topic id",
    "partition of no topic",
    "gone partition",
    "garbage as recovery-point-offset-checkpoint",
    "wrong log-start-offset-checkpoint",
    "archived logs",
    "flipped log",
    "lost log",
    "garbage as epochs",
    "gone cluster metadata",
    "empty disk",
)


@dataclass
class Beside:
    """What the comparison of many starts has found.

    Attributes:
        table: How often a way to break a node led to a forecast, and to what a broker did.
    """

    problems: list[str] = field(default_factory=list)
    table: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    lock: Lock = field(default_factory=Lock)

    def text(self) -> str:
        lines = [
            f"{way}: {said}; it {did}: {count}" for (way, said, did), count in sorted(self.table.items())
        ]
        return "\n".join([*lines, *self.problems])


def compare(cases: Iterable[tuple[Node, str, int]]) -> Beside:
    """Break a copy of each node in a way, with a number that makes it random, and start it.

    Two at once: a starting broker often waits.
    """
    beside = Beside()
    with tempfile.TemporaryDirectory(prefix="segmentlog-starts-", dir=fast_folder()) as folder:

        def start(case: tuple[Node, str, int]) -> None:
            node, way, number = case
            copy = node.copy(Path(tempfile.mkdtemp(dir=folder), "node"))
            WAYS[way](copy, random.Random(f"{way} {node.layout} {number}"))
            report = _verified([str(disk) for disk in copy.disks])
            started = start_node(copy)
            with beside.lock:
                _compare(report, started, f"{way} [{node.layout}, {number}]", way, beside)
            shutil.rmtree(copy.folder)

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(start, cases))
    return beside


def _compare(report: VerifyReport | None, started: Started, name: str, way: str, beside: Beside) -> None:
    if report is None:
        beside.table[way, "nothing: a disk is empty, or not there", _did(report, started)] += 1
        return
    said, did = _said(report), _did(report, started)
    beside.table[way, said, did] += 1
    findings = [f"{each.severity} {each.kind} {each.action}: {each.reason[:90]}" for each in report.findings]
    more = f"{name}: {report.verdict}, {said}; it {did}: {started}\n    {findings}"
    is_well = started.ended is None and not started.offline and all(map(started.serves, report.partitions))
    if report.verdict == "sound" and _is_known(report) and not is_well:
        beside.problems.append(f"sound, and not served: {more}")
    beside.problems += [f"{problem}: {more}" for problem in _wrong(report, started)]


def _verified(paths: list[str]) -> VerifyReport | None:
    """Return a verification of all log directories of a node; None if one of them is none."""
    filesystem = FileSystem()
    try:
        return verify(filesystem, plan_verification(filesystem, options_of(paths, {})))
    except LogDirectoryError:
        return None


def _said(report: VerifyReport) -> str:
    if _refused(report):
        return "does not start"
    if not _is_known(report):
        return "not known"
    return "sets some aside" if any(each.start.stray for each in report.partitions) else "starts"


def _did(report: VerifyReport | None, started: Started) -> str:
    if started.ended is not None:
        return "did not start"
    if started.offline:
        return "took a disk offline"
    if report is None:
        return "started"
    return "served all" if all(map(started.serves, report.partitions)) else "did not serve some"


def _refused(report: VerifyReport) -> set[str]:
    """Return the log directories, and the partitions, that a broker does not start with."""
    roots = {root.path for root in report.roots if root.is_refused}
    return roots | {each.path for each in report.partitions if each.start.refusal}


def _is_known(report: VerifyReport) -> bool:
    """Return False if the cluster is not known, or if a finding about a directory or its owner says what may be."""
    return all(root.is_cluster_known for root in report.roots) and not any(
        each.severity in ("suspect", "unreadable") and each.kind in ("metadata", "file")
        for each in report.findings
    )


def _wrong(report: VerifyReport, started: Started) -> Iterator[str]:
    refused = _refused(report)
    if not _is_known(report) and not refused:
        return
    if started.ended is not None and not refused:
        yield "it did not start"
    for path in refused if started.ended is None else ():
        # It may start, and serve nothing of it.
        members = [each for each in report.partitions if path in (each.path, os.path.dirname(each.path))]
        if not started.is_offline(path) and all(map(started.serves, members)):
            yield "it served all"
    if any(
        path not in refused and not any(each.startswith(f"{path}/") for each in refused)
        for path in started.offline
    ):
        yield "it took a disk offline"
    if started.ended is None and not refused:
        yield from _wrong_partitions(report, started)


def _wrong_partitions(report: VerifyReport, started: Started) -> Iterator[str]:
    for partition in report.partitions:
        if partition.topic == "__cluster_metadata" or os.path.dirname(partition.path) in started.offline:
            continue
        start = partition.start
        if start.unknown is not None:
            continue
        found = started.served(partition.path)
        expected = (start.log_start_offset, start.log_end_offset)
        if start.stray is None and found != expected:
            yield f"{partition.topic}-{partition.partition} is {found}, not {expected}"
        names = os.listdir(os.path.dirname(partition.path))
        is_aside = any(
            name.startswith(f"{partition.topic}-{partition.partition}.") and name.endswith("-stray")
            for name in names
        )
        if start.stray is not None and not is_aside:
            yield f"{partition.topic}-{partition.partition} was not set aside"


@pytest.fixture(scope="module")
def scratch() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="segmentlog-nodes-", dir=fast_folder()))
    yield path
    shutil.rmtree(path)


def test_nodes_broken_in_many_ways(scratch: Path) -> None:
    combined = make_nodes(scratch, is_combined=True, disk_count=1)[0]
    killed = make_nodes(scratch, is_combined=False, disk_count=2)[1]
    beside = compare(((killed, combined)[number % 2], way, FIRST) for number, way in enumerate(_SAMPLE))
    assert beside.problems == [], beside.text()
    assert beside.table.total() == len(_SAMPLE)


@pytest.mark.soak
@pytest.mark.parametrize("disk_count", [1, 2])
@pytest.mark.parametrize("is_combined", [True, False])
def test_more_than_300_nodes(scratch: Path, is_combined: bool, disk_count: int) -> None:
    nodes = make_nodes(scratch, is_combined=is_combined, disk_count=disk_count)
    beside = compare(itertools.product(nodes, WAYS, range(FIRST, FIRST + ROUNDS)))
    print(beside.text())
    assert beside.problems == [], beside.text()
    assert beside.table.total() == 2 * ROUNDS * len(WAYS)
