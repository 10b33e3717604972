"""Random lives of a streaming query over volumes that go away, come back, and are replaced by older copies.

A model knows which records there are. After each run without an error, what the query has not read of the partitions that it
knows must have been named by a warning. No row may come twice, no partition may leave the offsets, and no offset may go
back. At the end everything is mounted again, and the query must read all that is left.
"""

from __future__ import annotations

import itertools
import json
import logging
import random
import shutil
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from storage_core.errors import SegmentLogError
from storage_core.scan import stream, tail
from tests.log.logs import append, name, open_directory
from tests.scan.test_stream import Query

if TYPE_CHECKING:
    from collections.abc import Callable

_RECORDS = 200
Place = tuple[str, int]


@cache
def _batches(folder: Path) -> list[bytes]:
    """Return one batch for each offset, the same for all partitions."""
    with open_directory(folder / "template") as logs:
        log = logs.create("orders")
        for _ in range(_RECORDS):
            append(log, 1)
        data = b"".join(path.read_bytes() for path in sorted(folder.glob("template/orders-0/*.log")))
    size = len(data) // _RECORDS
    assert size * _RECORDS == len(data)
    return [data[at : at + size] for at in range(0, len(data), size)]


class Told(logging.Handler):
    """The warnings since the last start."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())

    def names(self, place: Place) -> bool:
        return any(f"{place[0]}-{place[1]}" in text for text in self.texts)


@dataclass
class Life:
    """One life: a folder of volumes, a query that reads them, and what must come out.

    Attributes:
        ends: By partition, how many records it has.
        homes: By partition, the volume that has all of them.
        away: Volumes that are not mounted.
        newer: Volumes that an older copy stands in for.
        deleted: Partitions that were deleted on purpose.
        excused: Partitions whose loss a warning has told, with failOnDataLoss=false.
    """

    root: Path
    templates: Path
    seed: int
    ends: dict[Place, int] = field(default_factory=dict)
    homes: dict[Place, str] = field(default_factory=dict)
    snapshots: dict[str, Path] = field(default_factory=dict)
    away: set[str] = field(default_factory=set)
    newer: set[str] = field(default_factory=set)
    deleted: set[Place] = field(default_factory=set)
    excused: set[Place] = field(default_factory=set)
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.batches = _batches(self.templates)
        self.disks = [f"disk{number}" for number in range(self.rng.randint(1, 3))]
        self.is_brokers = self.rng.random() < 0.3
        self.has_failed = False
        (self.root / "disks").mkdir(parents=True)
        for number, disk in enumerate(self.disks):
            self._path(disk).mkdir()
            if self.is_brokers:
                (self._path(disk) / "meta.properties").write_text(
                    "version=1\nnode.id=1\ncluster.id=MkU3OEVBNTcwNTJENDM2Qk\n"
                )
            self._create(("orders", number), disk)
            self._create(("clicks", number), disk)
        paths = {
            "folder": [self.root / "disks"],
            "glob": [self.root / "disks" / "*"],
            "list": [self._path(disk) for disk in self.disks] + [self._path("copy")],
        }[self.rng.choice(("folder", "glob", "list"))]
        limits = self.rng.choice(({}, {}, {"max_offsets_per_trigger": 5}, {"max_bytes_per_trigger": 300}))
        self.told = Told()
        self.query = Query(
            *paths, knows_starts=self.rng.random() < 0.5, fail_on_data_loss=self.rng.random() < 0.5, **limits
        )

    def live(self, steps: int) -> None:
        """Take random steps, restore everything, and compare."""
        logger = logging.getLogger("storage_core")
        logger.addHandler(self.told)
        try:
            kinds: list[Callable[[], None]] = [
                *[self.append] * 4,
                *[self.run] * 4,
                *[self.restart] * 2,
                self.unmount,
                self.unmount,
                self.mount,
                self.mount,
                self.snapshot,
                self.put_older_copy,
                self.put_newer_back,
                self.add_copy,
                self.new_partition,
                self.checkpoint,
                self.plan_only,
                self.available_now,
                self.delete,
            ]
            for _ in range(steps):
                self.rng.choice(kinds)()
            self._restore()
        finally:
            logger.removeHandler(self.told)

    # What happens to the volumes.

    def append(self) -> None:
        place = self.rng.choice(sorted(self.ends))
        if not self._is_whole(self.homes[place]) or place in self.deleted:
            return
        directory = self._directory(place)
        if self.rng.random() < 0.2 and self.ends[place]:
            (directory / name(self.ends[place])).touch()
        self._append(place, self.rng.randint(1, 6))
        self.counts["appends"] += 1

    def _append(self, place: Place, count: int) -> None:
        active = max(self._directory(place).glob("*.log"))
        for _ in range(count):
            if self.ends[place] < _RECORDS:
                with active.open("ab") as file:
                    file.write(self.batches[self.ends[place]])
                self.ends[place] += 1

    def new_partition(self) -> None:
        disk = self.rng.choice(self.disks)
        place = "orders", len(self.ends) + 10
        if self._is_whole(disk) and len(self.ends) < 9:
            self._create(place, disk)

    def unmount(self) -> None:
        disk = self.rng.choice(self.disks)
        if disk in self.away:
            return
        self._path(disk).rename(self.root / f"away-{disk}")
        if self.rng.random() < 0.6:
            self._path(disk).mkdir()
        self.away.add(disk)
        self.counts["volumes away"] += 1

    def mount(self) -> None:
        for disk in sorted(self.away):
            if self._path(disk).exists():
                self._path(disk).rmdir()
            (self.root / f"away-{disk}").rename(self._path(disk))
            self.away.remove(disk)
            return

    def snapshot(self) -> None:
        disk = self.rng.choice(self.disks)
        if self._is_whole(disk):
            path = self.root / f"snapshot-{disk}"
            shutil.rmtree(path, ignore_errors=True)
            self.snapshots[disk] = shutil.copytree(self._path(disk), path)

    def put_older_copy(self) -> None:
        disk = self.rng.choice(self.disks)
        if disk in self.snapshots and self._is_whole(disk):
            self._path(disk).rename(self.root / f"newer-{disk}")
            shutil.copytree(self.snapshots[disk], self._path(disk))
            self.newer.add(disk)
            self.counts["older copies"] += 1

    def put_newer_back(self) -> None:
        for disk in sorted(self.newer - self.away):
            shutil.rmtree(self._path(disk))
            (self.root / f"newer-{disk}").rename(self._path(disk))
            self.newer.remove(disk)
            return

    def add_copy(self) -> None:
        """Put a copy of a volume beside it, perhaps without the first segments of its logs."""
        disk, copy = self.rng.choice(self.disks), self._path("copy")
        if copy.exists() or not self._is_whole(disk):
            return
        shutil.copytree(self._path(disk), copy)
        for place in self._of(disk):
            segments = sorted((copy / f"{place[0]}-{place[1]}").glob("*.log"))
            # Where a new query starts is what it finds.
            if len(segments) > 1 and self.query.committed and self._is_known(place):
                for path in self.rng.sample(segments[:-1], self.rng.randint(0, len(segments) - 1)):
                    path.unlink()
        self.counts["second copies"] += 1

    def delete(self) -> None:
        """Delete a partition of which there is no copy."""
        place = self.rng.choice(sorted(self.ends))
        disk = self.homes[place]
        has_copy = self._path("copy").exists() or disk in self.snapshots
        # A directory in which nothing is left is one that is not mounted.
        is_last = len(set(self._of(disk)) - self.deleted) == 1
        if self._is_whole(disk) and not has_copy and not is_last and place not in self.deleted:
            shutil.rmtree(self._directory(place))
            self.deleted.add(place)
            self.excused.add(place)
            self.counts["partitions deleted"] += 1

    def checkpoint(self) -> None:
        """Write an old checkpoint of high watermarks, as a broker leaves it that does not run."""
        if not self.is_brokers:
            return
        for disk in self.disks:
            if self._is_whole(disk):
                self._write_checkpoint(
                    disk,
                    {
                        place: self.rng.randint(0, self.ends[place])
                        for place in self._of(disk)
                        if self.rng.random() < 0.8
                    },
                )
                self.counts["old checkpoints"] += 1

    # What happens to the query.

    def run(self) -> None:
        if self.has_failed:
            self.restart()
        if self.has_failed:
            return
        if self.query.committed < len(self.query.ends):
            self._attempt(self.query.run_batch)
        if self.query.committed == len(self.query.ends):
            self._attempt(self._drain)

    def plan_only(self) -> None:
        """Leave a batch that is planned and not read, so that volumes change in between."""
        if self.query.committed == len(self.query.ends) and not self.has_failed:
            self._attempt(self.query.plan_batch)

    def available_now(self) -> None:
        """Start the query with the trigger availableNow, and then as usual."""
        self.restart()
        if not self.has_failed:
            self._attempt(lambda: (self.query.stream.stop_at_present_ends(), self._drain()))
        self.restart()

    def restart(self) -> None:
        self.told.texts.clear()
        self._attempt(lambda: self.query.start(fail_on_data_loss=self.rng.random() < 0.5))

    def _drain(self) -> None:
        self.query.run()
        read = Counter((topic, partition) for topic, partition, _ in self.query.rows)
        for place, end in self.ends.items():
            if not self._is_whole(self.homes[place]) and (self._path("copy").exists() or self.newer):
                # Nothing tells that there are more records than in the copy.
                continue
            is_told = self.told.names(place)
            assert is_told or place not in self.deleted or not self._is_known(place), (
                f"{place}: deleted in silence"
            )
            is_excused = place in self.excused or not self._is_known(place)
            assert is_excused or read[place] >= end or is_told, f"{place}: silent at {read[place]} of {end}"
        self.counts["runs"] += 1

    def _is_known(self, place: Place) -> bool:
        """Return True if the offsets of the query have a partition."""
        ends = json.loads(self.query.ends[-1]) if self.query.ends else {}
        return str(place[1]) in ends.get(place[0], {})

    def _attempt(self, act: Callable[[], object]) -> None:
        before = list(self.query.ends)
        try:
            act()
            self.has_failed = False
        except SegmentLogError as error:
            if not (self.away or self.newer or self.deleted):
                raise
            self.has_failed = True
            self.counts[f"errors while something was away, {type(error).__name__}"] += 1
        self._check_offsets(before)
        self._check_rows()

    def _check_offsets(self, before: list[str]) -> None:
        """Check that no partition leaves the offsets, and that none goes back."""
        ends = [
            stream.offsets_of_json(json.loads(text)) for text in self.query.ends[max(len(before) - 1, 0) :]
        ]
        for earlier, later in itertools.pairwise(ends):
            assert all(later.get(key, -1) >= offset for key, offset in earlier.items()), (earlier, later)

    def _check_rows(self) -> None:
        twice = [row for row, count in Counter(self.query.rows).items() if count > 1]
        assert not twice, f"rows twice: {twice[:5]}"
        # With failOnDataLoss=false, offsets that a planned batch names may be skipped, with a warning.
        for text in self.told.texts:
            if (
                "COULD_NOT_READ_OFFSET_RANGE" in text
                or "have been deleted." in text
                or "found that the log now" in text
            ):
                self.excused |= {place for place in self.ends if f"{place[0]}-{place[1]}" in text}

    def _restore(self) -> None:
        while self.away:
            self.mount()
        while self.newer:
            self.put_newer_back()
        if self.is_brokers:
            for disk in self.disks + ["copy"] * self._path("copy").exists():
                self._write_checkpoint(disk, self.ends)
        self.told.texts.clear()
        # A path that does not exist may be that of a volume, until it is left out.
        paths = [path for path in self.query.options["path"] if "*" in path or Path(path).exists()]
        self.query.start(fail_on_data_loss=not self.deleted, path=paths)
        self._drain()
        self._check_rows()
        self.query.start()
        assert self.query.run() == []
        for place, end in self.ends.items():
            read = [offset for *of, offset in self.query.rows if tuple(of) == place]
            assert read == sorted(read)
            if place in self.excused:
                self.counts["partitions with a loss that was told"] += 1
            else:
                assert read == list(range(end)), f"{place}: {len(read)} of {end} rows"
        self.counts["rows"] += len(self.query.rows)

    # Files.

    def _path(self, disk: str) -> Path:
        return self.root / "disks" / disk

    def _directory(self, place: Place) -> Path:
        return self._path(self.homes[place]) / f"{place[0]}-{place[1]}"

    def _of(self, disk: str) -> list[Place]:
        return [place for place in sorted(self.homes) if self.homes[place] == disk]

    def _is_whole(self, disk: str) -> bool:
        return disk not in self.away and disk not in self.newer

    def _create(self, place: Place, disk: str) -> None:
        self.ends[place], self.homes[place] = 0, disk
        self._directory(place).mkdir()
        (self._directory(place) / name(0)).touch()

    def _write_checkpoint(self, disk: str, offsets: dict[Place, int]) -> None:
        path = self._path(disk) / "replication-offset-checkpoint"
        lines = [f"{topic} {number} {offset}" for (topic, number), offset in offsets.items()]
        path.with_suffix(".tmp").write_text("\n".join(["0", str(len(lines)), *lines, ""]))
        path.with_suffix(".tmp").rename(path)


def live(folder: Path, seeds: range, monkeypatch, steps: int = 30) -> Counter[str]:
    """Live some lives, and count what happened in them."""
    monkeypatch.setattr(stream.MicroBatchPlanner, "_wait_while_idle", lambda self: None)
    # As if a minute went by between two looks.
    monkeypatch.setattr(tail, "_QUIET_S", -1)
    total: Counter[str] = Counter()
    for seed in seeds:
        # Globs are looked at at once, or as late as usual.
        monkeypatch.setattr(tail, "_SEARCH_AGAIN_S", seed % 2 * 30)
        life = Life(folder / f"life{seed}", folder, seed)
        try:
            life.live(steps)
        except Exception as error:
            error.add_note(f"in life {seed}")
            raise
        total += life.counts
        total["lives"] += 1
        shutil.rmtree(life.root)
    return total
