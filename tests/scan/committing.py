"""A job's rows committed to a log directory step by step, as docs/decisions/0008-commit.md says, by plain file calls."""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING

from storage_core.commit_files.commits_file import CommitEntry, commit_line
from storage_core.commit_files.journal import CommitJournal, JournalledPartition, commit_journal_bytes
from tests.scan.conftest import batch, record

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

JOB = "0123456789abcdef0123456789abcdef"
OLDER_JOB = "f" * 32
HOUR_MS = 3_600_000


def batches(start, end, *, size=5, time_ms=0) -> bytes:
    """Batches of ``size`` records; each value is the offset."""
    encoded = b""
    for base_offset in range(start, end, size):
        count = min(size, end - base_offset)
        records = [record(delta, 0, None, b"%d" % (base_offset + delta)) for delta in range(count)]
        times = (time_ms, time_ms)
        encoded += batch(base_offset, records, last_offset_delta=count - 1, timestamps_ms=times)
    return encoded


def place_index(data: bytes, base_offset: int) -> bytes:
    """An offset index with an entry for every batch but the first."""
    entries, position = b"", 0
    while position < len(data):
        first_offset, length = struct.unpack_from(">qi", data, position)
        last_offset = first_offset + struct.unpack_from(">i", data, position + 23)[0]
        if position:
            entries += struct.pack(">ii", last_offset - base_offset, position)
        position += 12 + length
    return entries


class SmallCommit:
    """A root with logs of every kind, and a job that adds to most of them.

    Attributes:
        before: (topic-partition, offset) of each row that is there before.
        after: The same with the job's rows, all of them.
        is_visible: Whether the step that was done last, or one before it, made the rows visible.
    """

    def __init__(self, root: Path, *, is_first: bool = False) -> None:
        self.root = root
        self.is_visible = False
        self._generation = 1 if is_first else 8
        root.mkdir(parents=True)
        (root / ".kafka_cleanshutdown").write_bytes(b"{}")
        (root / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=c\n")
        if not is_first:
            (root / ".segmentlog-commits").write_bytes(commit_line(CommitEntry(7, OLDER_JOB, 0)))
        self._write("grown-0", 0, batches(0, 400))
        self._write("rolled-0", 0, batches(0, 10))
        self._write("rolled-0", 10, batches(10, 20))
        self._write("replaced-0", 0, batches(0, 20))
        self._write("untouched-0", 0, batches(0, 7))
        self._write("empty-0", 0, b"")
        self._write("emptied-0", 15, b"")
        self._checkpoint("recovery-point-offset-checkpoint", self._ends(0))
        self._checkpoint("replication-offset-checkpoint", self._ends(0))
        self._checkpoint("log-start-offset-checkpoint", {"emptied-0": 15})
        old = {"grown-0": 400, "rolled-0": 20, "replaced-0": 20, "untouched-0": 7}
        self.before = {(name, offset) for name, end in old.items() for offset in range(end)}
        new = {"grown-0": (400, 430), "rolled-0": (20, 30), "replaced-0": (20, 25), "empty-0": (0, 10)}
        new |= {"emptied-0": (15, 20), "fresh-0": (0, 10), "fresh-1": (0, 10)}
        added = {(name, offset) for name, bounds in new.items() for offset in range(*bounds)}
        self.after = added | {row for row in self.before if row[0] != "replaced-0"}

    @property
    def expected(self):
        return self.after if self.is_visible else self.before

    def steps(self) -> Iterator[str]:
        """Do one step after the other, and say which it was."""
        root = self.root
        (root / f".segmentlog-stage-{JOB}-0-0-1.log").write_bytes(batches(0, 10))
        yield "staged"
        (root / "segmentlog.commit-in-progress").mkdir()
        yield "interlock"
        journal = commit_journal_bytes(self._journal())
        (root / ".segmentlog-journal.tmp").write_bytes(journal[:100])
        yield "half of the journal"
        (root / ".segmentlog-journal.tmp").write_bytes(journal)
        os.replace(root / ".segmentlog-journal.tmp", root / ".segmentlog-journal")
        yield "journal"
        (root / ".kafka_cleanshutdown").unlink()
        yield "no marker"
        yield from self._publish()
        for name in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
            self._checkpoint(name, self._ends(1))
            yield name
        self._checkpoint("log-start-offset-checkpoint", {"emptied-0": 15, "replaced-0": 20})
        yield "log-start-offset-checkpoint"
        line = commit_line(CommitEntry(self._generation, JOB, 0))
        yield from self._append(root / ".segmentlog-commits", line[:20], "half of the line")
        with open(root / ".segmentlog-commits", "ab") as file:
            file.write(line[20:])
        self.is_visible = True
        yield "line"
        (root / f".segmentlog-stage-{JOB}-0-0-1.log").unlink()
        yield "no staged files"
        (root / ".kafka_cleanshutdown").write_bytes(b"{}")
        yield "marker"
        (root / ".segmentlog-journal").unlink()
        yield "no journal"
        (root / "segmentlog.commit-in-progress").rmdir()
        yield "no interlock"

    def _publish(self) -> Iterator[str]:
        root = self.root
        for name in ("fresh-0", "fresh-1"):
            (root / name).mkdir()
            yield f"directory {name}"
            (root / name / "partition.metadata").write_text("version: 0\ntopic_id: AAAAAAAAQACAAAAAAAAAAQ")
            yield f"metadata {name}"
            yield from self._link(name, 0, batches(0, 10))
        appended = batches(400, 420, time_ms=HOUR_MS)
        log = root / "grown-0" / f"{0:020d}.log"
        size = log.stat().st_size
        yield from self._append(log, appended[:300], "half of an append")
        with open(log, "r+b") as file:
            file.seek(size)
            file.write(bytes(150) + appended[150:])
        yield "an append that begins with zeros"
        log.write_bytes(log.read_bytes()[:size] + bytes(4096))
        yield "zeros instead of an append"
        log.write_bytes(log.read_bytes()[:size] + b"\xff" * 200 + appended)
        yield "garbage in front of an append"
        log.write_bytes(log.read_bytes()[:size])
        yield "cut again"
        yield from self._append(log, appended, "append")
        index = root / "grown-0" / f"{0:020d}.index"
        whole_index = place_index(log.read_bytes(), 0)
        yield from self._append(index, bytes(24), "zeros in the index")
        index.write_bytes(whole_index[:-3])
        yield "torn index"
        index.write_bytes(whole_index)
        yield "index"
        (root / "grown-0" / f"{0:020d}.timeindex").write_bytes(struct.pack(">qi", HOUR_MS, 404))
        yield "time index"
        yield from self._link("grown-0", 420, batches(420, 430, time_ms=HOUR_MS))
        yield from self._link("rolled-0", 20, batches(20, 30))
        yield from self._link("replaced-0", 20, batches(20, 25))
        yield from self._link("empty-0", 0, batches(0, 10))
        yield from self._append(root / "emptied-0" / f"{15:020d}.log", batches(15, 20), "append to emptied")
        for name in self._ends(1):
            (root / name / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")
            yield f"epochs {name}"

    def _link(self, name, base_offset, data) -> Iterator[str]:
        for suffix, content in (
            (".timeindex", b""),
            (".index", place_index(data, base_offset)),
            (".log", data),
        ):
            path = self.root / name / f"{base_offset:020d}{suffix}"
            temporary = path.with_name(path.name + ".tmp")
            temporary.write_bytes(content)
            os.replace(temporary, path)
            yield f"link {name} {path.name}"

    def _append(self, path, data, step) -> Iterator[str]:
        with open(path, "ab") as file:
            file.write(data)
        yield step

    def _write(self, name, base_offset, data) -> None:
        (self.root / name).mkdir(exist_ok=True)
        (self.root / name / f"{base_offset:020d}.log").write_bytes(data)
        (self.root / name / f"{base_offset:020d}.index").write_bytes(place_index(data, base_offset))
        (self.root / name / f"{base_offset:020d}.timeindex").write_bytes(b"")

    def _checkpoint(self, file_name, offsets) -> None:
        lines = [
            f"{name.rsplit('-', 1)[0]} {name.rsplit('-', 1)[1]} {offset}\n"
            for name, offset in offsets.items()
        ]
        temporary = self.root / f"{file_name}.tmp"
        temporary.write_text(f"0\n{len(lines)}\n{''.join(lines)}")
        os.replace(temporary, self.root / file_name)

    def _ends(self, moment) -> dict[str, int]:
        ends = {
            "grown-0": (400, 430),
            "rolled-0": (20, 30),
            "replaced-0": (20, 25),
            "untouched-0": (7, 7),
            "empty-0": (0, 10),
            "emptied-0": (15, 20),
        }
        if moment:
            ends |= {"fresh-0": (0, 10), "fresh-1": (0, 10)}
        return {name: bounds[moment] for name, bounds in ends.items()}

    def _journal(self) -> CommitJournal:
        before, after = self._ends(0), self._ends(1)
        partitions = []
        for name, end in after.items():
            if name == "untouched-0":
                continue
            topic, number = name.rsplit("-", 1)
            start = 15 if name == "emptied-0" else 0
            partitions.append(
                JournalledPartition(
                    topic=topic,
                    partition=int(number),
                    is_new=name not in before,
                    topic_id=None,
                    leader_epoch=0,
                    log_start_before=start,
                    log_start_after=20 if name == "replaced-0" else start,
                    log_end_before=before.get(name, 0),
                    log_end_after=end,
                    epochs_after=(),
                    snapshot_from=None,
                    operations=(),
                )
            )
        return CommitJournal(CommitEntry(self._generation, JOB, 0), b"{}", (), tuple(partitions))
