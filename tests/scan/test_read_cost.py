"""What a read costs: memory by the window, bytes by what the bounds need."""

from __future__ import annotations

import struct
import tracemalloc
from pathlib import Path

import pyarrow as pa
import pytest

from storage_core.directory import partition_log as segments
from storage_core.filesystem import DirectoryEntry, FileStatus, FileSystem
from storage_core.scan import parse_read_options, plan_scan
from storage_core.segment.batch_walk import USUAL_MAX_BATCH_BYTES
from storage_core.tier.tier_files import MemoryFile


def many_batches(log_root, count, content, records, codec=0):
    """Return a log of equal batches: only the base offset, which no CRC covers, differs."""
    log = log_root.rows()
    template = bytearray(log.values(records, content, codec=codec).segments[0].data)
    log.write()
    with log.log_path().open("wb") as file:
        for number in range(count):
            template[:8] = struct.pack(">q", number * records)
            file.write(template)
    if len(template) > 4096:
        # A broker then makes an entry for each batch but the first.
        entries = ((number * records + records - 1, number * len(template)) for number in range(1, count))
        index = b"".join(struct.pack(">ii", *entry) for entry in entries)
        log.log_path().with_suffix(".index").write_bytes(index)
    return log


def anonymous_bytes():
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.partition("RssAnon:")[2].split()[0]) * 1024


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize(
    ("count", "content", "records", "codec"),
    [(200, b"x" * 1000, 1000, 0), (200, b"x" * 1000, 1000, 4), (13_000, b"x" * 1000, 15, 0)],
    ids=["large batches", "batches that inflate a hundredfold", "small batches"],
)
def test_memory_is_bounded_by_the_window(log_root, scan, count, content, records, codec):
    log = many_batches(log_root, count, content, records, codec)
    planned = scan(log.path, max_bytes_per_partition="1g")
    assert len(planned.plan.tasks) == 1
    before_bytes = largest_bytes = anonymous_bytes()
    rows = 0
    for number, found in enumerate(planned.batches()):
        rows += found.num_rows
        if number % 8 == 0:
            largest_bytes = max(largest_bytes, anonymous_bytes())
    assert rows == count * records
    assert largest_bytes - before_bytes < 100 << 20


@pytest.mark.parametrize("use_indexes", [True, False])
def test_one_percent_of_the_offsets_is_two_percent_of_the_bytes(log_root, scan, use_indexes):
    # 1,600 batches of 16 KiB.
    log = many_batches(log_root, 1600, b"x" * 1013, 16)
    planned = scan(log.path, use_indexes=use_indexes, start=12_800, end=13_056)
    assert planned.offsets() == list(range(12_800, 13_056))
    size = log.log_path().stat().st_size
    assert size == pytest.approx(1600 * 16_384, rel=0.02)
    # Without an index, a header walk from the segment's beginning finds where to start. A damaged length may have led
    # it into a value, so the CRCs of all that a batch could reach across are checked, which are bytes to be read: no
    # less evidence will do. The end is looked for from the start on, which is proven by then.
    proof = 0 if use_indexes else USUAL_MAX_BATCH_BYTES
    rows = 0 if use_indexes else size * 0.01
    assert planned.filesystem.statistics.bytes_read <= size * 0.02 + proof + rows


@pytest.mark.parametrize("use_indexes", [True, False])
def test_where_damage_is_skipped_planning_hops_over_what_is_sound(log_root, scan, use_indexes):
    log = many_batches(log_root, 1600, b"x" * 1013, 16)
    planned = scan(log.path, mode="DROPMALFORMED", use_indexes=use_indexes, start=12_800, end=13_056)
    # Without an index, both ends of the range are looked for by hopping over headers, and the CRCs near them checked.
    proof = 0 if use_indexes else 3 * USUAL_MAX_BATCH_BYTES
    assert planned.filesystem.statistics.bytes_read <= log.log_path().stat().st_size * 0.02 + proof


def test_a_whole_read_reads_everything_once(log_root, scan):
    log = many_batches(log_root, 500, b"x" * 1000, 16)
    planned = scan(log.path, max_bytes_per_partition="4m")
    assert len(planned.plan.tasks) == 2
    planned.rows()
    size = log.log_path().stat().st_size
    assert size <= planned.filesystem.statistics.bytes_read <= size * 1.01


def test_arrow_frees_what_was_read(log_root, scan):
    log = many_batches(log_root, 20, b"x" * 1000, 16)
    before = pa.total_allocated_bytes()
    for _ in range(3):
        scan(log.path).rows()
    assert pa.total_allocated_bytes() - before < 1 << 20


class ManySegments(FileSystem):
    """A partition of many segments, of one batch each, that take no space on a disk."""

    def __init__(self, count, batch):
        super().__init__()
        self._count = count
        self._batch = batch

    def walk_directory(self, path):
        if path == "/logs":
            yield DirectoryEntry("events-0", True, False, False)
            return
        for number in range(self._count):
            for suffix in ("log", "index", "timeindex"):
                yield DirectoryEntry(f"{number:020d}.{suffix}", False, True, False)

    def list_directory(self, path):
        return list(self.walk_directory(path))

    def status(self, path, *, follow_symlinks=False):
        if path.endswith(".log"):
            return FileStatus(len(self._batch), 0, 10**7 + base_offset(path), 1, True, False)
        return FileStatus(4096, 0, 2, 1, False, True) if path in ("/logs", "/logs/events-0") else None

    def open(self, path, version=None):
        if not path.endswith(".log"):
            raise FileNotFoundError(path)
        data = struct.pack(">q", base_offset(path)) + self._batch[8:]
        return MemoryFile(path, self.status(path), data)

    def read_file(self, path, limit_bytes):
        return None


def base_offset(path):
    return int(path[-24:-4])


@pytest.mark.thorough
def test_a_plan_takes_less_than_two_hundred_bytes_a_segment(log_root, monkeypatch):
    """So a million segments fit in 200 MB. The number of segments held as objects is limited; here, to fewer."""
    monkeypatch.setattr(segments, "_MOST_OPENED", 100)
    batch = bytes(log_root.rows().values(1).segments[0].data)
    options = parse_read_options({"path": "/logs"})

    def peak_bytes(count):
        tracemalloc.start()
        try:
            plan = plan_scan(ManySegments(count, batch), options)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
            assert plan.planned_segments == count

    peak_bytes(10)
    assert peak_bytes(10_000) - peak_bytes(1_000) < 9_000 * 200
