"""Builders of segments that share no code with the package.

Below them: folders for segments that the package itself writes, and a disk that fails.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from storage_core.errors import StorageError
from storage_core.filesystem import FileSystem
from storage_core.log_config import LogConfig
from storage_core.record.record_batches import RecordBatches
from storage_core.segment.batch_walk import BatchWalk
from storage_core.segment.log_segment import LogSegment
from tests.record.encoding import LOG_APPEND_TIME, Batch, Record


def build_batch(
    base_offset,
    timestamps_ms=(0,),
    *,
    offset_deltas=None,
    last_offset_delta=None,
    log_append_time_ms=None,
    attributes=0,
    leader_epoch=0,
    key=None,
    value=b"v",
    producer=(-1, -1, -1),
):
    """Return one uncompressed v2 batch with a record for each timestamp."""
    deltas = range(len(timestamps_ms)) if offset_deltas is None else offset_deltas
    pairs = zip(deltas, timestamps_ms, strict=True)
    return Batch(
        tuple(Record(delta, timestamp_ms, key, value) for delta, timestamp_ms in pairs),
        base_offset,
        leader_epoch=leader_epoch,
        attributes=attributes | LOG_APPEND_TIME * (log_append_time_ms is not None),
        last_offset_delta=last_offset_delta,
        max_timestamp_ms=log_append_time_ms,
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=producer[2],
    ).encode()


@dataclass
class Segment:
    """A segment in memory, with the index entries that a broker writes."""

    base_offset: int
    log: bytes = b""
    offset_entries: list = field(default_factory=list)  # (last offset of a batch, its position)
    time_entries: list = field(default_factory=list)  # (timestamp, last offset of its batch)
    batches: list = field(default_factory=list)  # (position, end, base offset, last offset, max timestamp)

    def write(self, directory, *, indexes=True, index_zeros=0, log_zeros=0):
        """Write the files; ``index_zeros`` entries and ``log_zeros`` bytes of zeros follow the content."""
        stem = f"{directory}/{self.base_offset:020d}"
        files = {".log": self.log + bytes(log_zeros)}
        if indexes:
            files[".index"] = self.offset_index_bytes + bytes(8 * index_zeros)
            files[".timeindex"] = self.time_index_bytes + bytes(12 * index_zeros)
        for suffix, content in files.items():
            with open(stem + suffix, "wb") as file:
                file.write(content)

    @property
    def offset_index_bytes(self):
        return b"".join(struct.pack(">ii", o - self.base_offset, p) for o, p in self.offset_entries)

    @property
    def time_index_bytes(self):
        return b"".join(struct.pack(">qi", t, o - self.base_offset) for t, o in self.time_entries)

    @property
    def next_offset(self):
        return self.batches[-1][3] + 1 if self.batches else self.base_offset


def build_segment(base_offset, batches, *, index_interval_bytes=4096, closed=True):
    """Append batches as a broker does."""
    batches = list(batches)
    segment = Segment(base_offset, b"".join(batches))
    position = since_entry_bytes = 0
    largest = (-1, base_offset)

    def add_time_entry():
        if largest[0] > (segment.time_entries[-1][0] if segment.time_entries else -1):
            segment.time_entries.append(largest)

    for batch in batches:
        first, length = struct.unpack_from(">qi", batch)
        last = first + struct.unpack_from(">i", batch, 23)[0]
        (timestamp_ms,) = struct.unpack_from(">q", batch, 35)
        assert length + 12 == len(batch)
        if timestamp_ms > largest[0]:
            largest = (timestamp_ms, last)
        if since_entry_bytes > index_interval_bytes:
            segment.offset_entries.append((last, position))
            add_time_entry()
            since_entry_bytes = 0
        since_entry_bytes += len(batch)
        segment.batches.append((position, position + len(batch), first, last, timestamp_ms))
        position += len(batch)
    if closed:
        add_time_entry()
    return segment


@pytest.fixture
def open_walk(tmp_path):
    opened = []

    def open_file(content, *, base_offset=0, end_position_bytes=None):
        path = tmp_path / f"{base_offset:020d}.log"
        path.write_bytes(content)
        log_file = FileSystem().open(str(path))
        opened.append(log_file)
        end = len(content) if end_position_bytes is None else end_position_bytes
        return BatchWalk(log_file, base_offset, end)

    yield open_file
    for log_file in opened:
        log_file.close()


@pytest.fixture(scope="session")
def make_batch():
    return build_batch


@pytest.fixture(scope="session")
def make_segment():
    return build_segment


@pytest.fixture
def filesystem():
    return FileSystem()


class Disk(FileSystem):
    """A file system that fails where it is told to.

    Attributes:
        failing_suffix: Writing to a file whose name ends with it fails; None for no file.
        written_bytes: How many bytes of such a write reach the file.
    """

    failing_suffix = None
    written_bytes = 0

    def open_for_writing(self, path, *, create=False, **options):
        file = super().open_for_writing(path, create=create, **options)
        write_at = file.write_at

        def write(pieces, position_bytes):
            if self.failing_suffix is not None and path.endswith(self.failing_suffix):
                write_at([b"".join(map(bytes, pieces))[: self.written_bytes]], position_bytes)
                raise StorageError("No space left on this disk.", path=path)
            write_at(pieces, position_bytes)

        file.write_at = write
        return file


@pytest.fixture
def disk():
    return Disk()


@dataclass
class SegmentFolder:
    """A folder for segments that are written by the package."""

    path: Path
    filesystem: FileSystem

    def create(self, base_offset=0, *, now_ms=0, suffix="", **config):
        return LogSegment.create(
            self.filesystem, str(self.path), base_offset, LogConfig(**config), now_ms=now_ms, suffix=suffix
        )

    def open(self, base_offset=0, *, now_ms=0, suffix="", **config):
        return LogSegment(
            self.filesystem, str(self.path), base_offset, LogConfig(**config), now_ms=now_ms, suffix=suffix
        )

    def bytes_of(self, suffix, base_offset=0):
        return self.path.joinpath(f"{base_offset:020d}{suffix}").read_bytes()

    def put(self, suffix, content, base_offset=0):
        self.path.joinpath(f"{base_offset:020d}{suffix}").write_bytes(content)

    @property
    def names(self):
        return sorted(path.name[20:] for path in self.path.iterdir())


@pytest.fixture
def folder(tmp_path, disk):
    return SegmentFolder(tmp_path, disk)


@pytest.fixture(scope="session")
def make_folder(tmp_path_factory):
    """Make folders for hypothesis, which runs many examples in one test."""
    return lambda: SegmentFolder(tmp_path_factory.mktemp("segments"), FileSystem())


def append_batches(segment, *batches):
    segment.append(RecordBatches.parse(b"".join(batches)))


@pytest.fixture(scope="session")
def append():
    return append_batches


def offsets_and_positions(segment):
    """Return the entries of a segment's offset index."""
    index = segment.offset_index
    return [(entry.offset, entry.position_bytes) for entry in map(index.entry, range(len(index)))]


def timestamps_and_offsets(segment):
    """Return the entries of a segment's time index."""
    index = segment.time_index
    return [(entry.timestamp_ms, entry.offset) for entry in map(index.entry, range(len(index)))]


@pytest.fixture(scope="session")
def offset_entries():
    return offsets_and_positions


@pytest.fixture(scope="session")
def time_entries():
    return timestamps_and_offsets


@pytest.fixture(autouse=True)
def closed_at_the_end(closes_pooled_files):
    """Tests here have segments and indexes without the log that would close them."""
