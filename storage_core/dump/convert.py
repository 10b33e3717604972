"""Records as Parquet files by topic and day, in the layout that Hive and Spark call partitioned.

    OUT/topic=orders/date=2026-03-06/part-00000.parquet
    OUT/topic=orders/date=__HIVE_DEFAULT_PARTITION__/...    records without a timestamp
    OUT/_SUCCESS                                            the last file: all others are complete

Files have the columns of a read but the topic, which the path tells. Days are those of UTC. All files are written below
``OUT/_temporary`` and renamed at the end, so that a crash leaves none that is not whole under its final name.

Rows wait in memory, by topic and day, until there are enough for a row group; the largest goes first when they take more
than they may. A file whose descriptor another one needs is finished, and its day goes on in a next one.
"""

from __future__ import annotations

import contextlib
import os
from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from storage_core.directory.log_directory_files import is_log_directory
from storage_core.errors import OptionError, SegmentLogError, StorageError
from storage_core.filesystem.files import WriteStream
from storage_core.options.paths import path_to_write
from storage_core.scan.batches import read_plan
from storage_core.scan.read import read_schema
from storage_core.scan.read_ahead import memory_bytes
from storage_core.scan.resolve import split_paths
from storage_core.scan.spans import record_schema
from storage_core.segment.file_names import log_file_name
from storage_core.views.roots import require_outside

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt

    from storage_core.filesystem import FileSystem, ReadableFileSystem, WritableFile
    from storage_core.options import ReadOptions
    from storage_core.scan.plan import ScanPlan


Compression = Literal["zstd", "snappy", "gzip", "lz4", "none"]
SUCCESS_FILE: Final = "_SUCCESS"
NO_DATE: Final = "__HIVE_DEFAULT_PARTITION__"
_STAGING: Final = "_temporary"
_TOPIC_PREFIX: Final = "topic="
_DATE_PREFIX: Final = "date="
_PARQUET_SUFFIX: Final = ".parquet"
_DAY_US: Final = 86_400_000_000
# SQL dates have these years; others could not be read back as dates.
_FIRST_DAY, _LAST_DAY = (int(np.datetime64(day).astype(int)) for day in ("0001-01-01", "9999-12-31"))
_NO_DAY: Final = _FIRST_DAY - 1
# A slice below this fraction of its batch is copied, so that it does not keep the whole batch in memory.
_SMALL_PART: Final = 4


@dataclass(frozen=True, slots=True)
class ConvertSettings:
    """Settings of the files that a conversion writes.

    Attributes:
        row_group_bytes: How many bytes of rows make a row group.
        buffered_bytes: How many bytes of rows wait in memory at most.
        file_bytes: A file of this size is followed by another one.
        max_files: More files are an error: wrong timestamps may be of a million days.
    """

    compression: Compression = "zstd"
    is_overwriting: bool = False
    row_group_bytes: int = 64 << 20
    buffered_bytes: int = 128 << 20
    file_bytes: int = 1 << 30
    max_open_files: int = 64
    max_files: int = 100_000


@dataclass(frozen=True, slots=True)
class ConvertedFile:
    """A file that a conversion wrote; its path is relative to the target."""

    path: str
    topic: str
    date: str | None
    rows: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Conversion:
    """Result of a conversion."""

    target: str
    rows: int
    size_bytes: int
    files: tuple[ConvertedFile, ...]


def convert(
    filesystem: ReadableFileSystem,
    plan: ScanPlan,
    options: ReadOptions,
    target: str,
    settings: ConvertSettings | None = None,
    advance: Callable[[int], None] = lambda _: None,
    threads: int | None = None,
) -> Conversion:
    """Write the records of a planned read to a directory: all of them, or none if it fails.

    Args:
        filesystem: Where to read; its local file system writes.
        plan: As planned for the options.
        options: What is read.
        target: The directory; it is created if only it is missing.
        settings: How files are written.
        advance: Takes how many bytes of log files were done since its last call.
        threads: How many threads decode, as for `read_plan`.

    Raises:
        OptionError: The target is not empty, or is in what is read, or no column is left for the files.
        StorageError: The file system refused, or there would be too many files.
        SegmentLogError: The records cannot be read.
    """
    settings = settings or ConvertSettings()
    wanted = read_schema(options, plan.formats)
    schema = pa.schema([field for field in wanted if field.name != "topic"])
    if not schema.names:
        raise OptionError(
            "columns: files do not have the topic, which their path tells. Name another column, too."
        )
    for column in schema:
        _require_storable(column.type, column.name)
    place = _Target(filesystem.local, target, is_overwriting=settings.is_overwriting)
    sources = _log_directories(filesystem, plan, options)
    place.begin(sources, [*sources, *_partition_files(plan)])
    # Those that tell topic and day.
    needed = [record_schema().field(name) for name in ("topic", "timestamp") if name not in wanted.names]
    batches = read_plan(filesystem, plan, pa.schema([*wanted, *needed]), threads=threads, progress=advance)
    try:
        with (
            contextlib.closing(batches),
            contextlib.closing(_DatasetWriter(filesystem.local, place, schema, settings)) as writer,
        ):
            for batch in batches:
                writer.write(batch)
            writer.finish()
    except BaseException:
        place.abandon()
        raise
    place.commit()
    files = writer.files
    return Conversion(
        place.path, sum(each.rows for each in files), sum(each.size_bytes for each in files), tuple(files)
    )


def _log_directories(filesystem: ReadableFileSystem, plan: ScanPlan, options: ReadOptions) -> list[str]:
    """Return the paths that are read, and the log directories that contain them."""
    resolution = plan.resolution
    directories = [each.log.directory for each in resolution.partitions]
    roots = {each.root.path for each in (*directories, *resolution.not_asked_for, *resolution.ruled_out)}
    return [
        *split_paths(filesystem, options.paths),
        # The parent of a copied partition is no log directory.
        *(root for root in sorted(roots) if is_log_directory(filesystem.walk_directory(root))),
    ]


def _partition_files(plan: ScanPlan) -> Iterator[str]:
    """Yield the directory of each partition and the log file of its last segment, whose permissions the output gets."""
    for each in plan.resolution.partitions:
        yield each.log.directory.path
        bases = each.log.segments.base_offsets
        if bases:
            yield os.path.join(each.log.directory.path, log_file_name(bases[-1]))


def _require_storable(kind: pa.DataType, path: str) -> None:
    """Raise `OptionError` if Parquet cannot hold a type: a struct without fields."""
    if pa.types.is_struct(kind) and not kind.num_fields:
        raise OptionError(
            f"Parquet files cannot hold {path}, a record without fields. Name the fields to write, as in "
            f"columns={path.partition('.')[0]}.id,offset."
        )
    if pa.types.is_struct(kind):
        for child in kind:
            _require_storable(child.type, f"{path}.{child.name}")
    elif pa.types.is_map(kind):
        _require_storable(kind.item_type, path)
    elif pa.types.is_list(kind):
        _require_storable(kind.value_type, path)


class _Target:
    """The directory of the files: staged, then all put in place."""

    def __init__(self, filesystem: FileSystem, path: str, *, is_overwriting: bool) -> None:
        self.path = os.path.abspath(path_to_write(path))
        self.staging = os.path.join(self.path, _STAGING)
        self._filesystem = filesystem
        self._is_overwriting = is_overwriting
        self._is_new = False

    def begin(self, sources: Sequence[str], like: Sequence[str]) -> None:
        """Check that the directory may be written to, and create the one for staging.

        Raises:
            OptionError: It is in one of the sources, or holds what is not replaced.
        """
        status = self._filesystem.status(self.path, follow_symlinks=True)
        require_outside(self._filesystem, self.path, sources)
        if status is None:
            self._filesystem.make_directory(self.path)
            self._filesystem.make_as_private(self.path, like)
            self._is_new = True
        elif not status.is_directory:
            raise OptionError(f"Expected a directory to write to, found a file: {self.path}.")
        else:
            self._require_replaceable()
        if self._is_overwriting:
            self._delete_tree(self.staging)
        self._filesystem.make_directory(self.staging)

    def _require_replaceable(self) -> None:
        names = [entry.name for entry in self._filesystem.list_directory(self.path)]
        if names and not self._is_overwriting:
            raise OptionError(
                f"Expected an empty directory, or none, found {names[0]!r} in {self.path}. Name another one; what an "
                "earlier conversion wrote is replaced with --overwrite."
            )
        for name in names:
            path = os.path.join(self.path, name)
            if name != SUCCESS_FILE:
                self._require_ours(path, is_ours=name == _STAGING or name.startswith(_TOPIC_PREFIX))

    def _require_ours(self, path: str, *, is_ours: bool) -> None:
        """Require that a directory has the shape that conversions write."""
        status = self._filesystem.status(path)
        if not is_ours or status is None or not status.is_directory:
            raise OptionError(
                f"Only what a conversion wrote is replaced, found {path}. Name another directory."
            )
        for entry in self._filesystem.list_directory(path):
            if not (entry.is_regular_file and entry.name.endswith(_PARQUET_SUFFIX)):
                is_ours = entry.name.startswith((_TOPIC_PREFIX, _DATE_PREFIX))
                self._require_ours(os.path.join(path, entry.name), is_ours=is_ours)

    def commit(self) -> None:
        """Put all files in place."""
        filesystem = self._filesystem
        staged = [entry.name for entry in filesystem.list_directory(self.staging)]
        self._flush_directories(self.staging)
        if self._is_overwriting:
            filesystem.delete(os.path.join(self.path, SUCCESS_FILE))
            # A power cut must not keep it beside files of which some are deleted.
            filesystem.flush_directory(self.path)
            for entry in filesystem.list_directory(self.path):
                if entry.name != _STAGING:
                    self._delete_tree(os.path.join(self.path, entry.name))
        for name in staged:
            filesystem.rename(os.path.join(self.staging, name), os.path.join(self.path, name))
        filesystem.delete_directory(self.staging)
        filesystem.flush_directory(self.path)
        with filesystem.open_for_writing(os.path.join(self.path, SUCCESS_FILE), create=True) as file:
            file.flush()
        filesystem.flush_directory(self.path)

    def _flush_directories(self, path: str) -> None:
        for entry in self._filesystem.list_directory(path):
            if entry.is_directory:
                self._flush_directories(os.path.join(path, entry.name))
        self._filesystem.flush_directory(path)

    def abandon(self) -> None:
        """Delete the staged files; those that are in place stay."""
        # The error that ended the conversion matters more than one of the clean-up.
        with contextlib.suppress(SegmentLogError):
            self._delete_tree(self.staging)
            if self._is_new:
                self._filesystem.delete_directory(self.path)

    def _delete_tree(self, path: str) -> None:
        """Delete a directory of the shape that conversions write, and nothing else."""
        if self._filesystem.status(path) is None:
            return
        for entry in self._filesystem.list_directory(path):
            below = os.path.join(path, entry.name)
            if entry.is_directory:
                self._delete_tree(below)
            elif entry.name.endswith(_PARQUET_SUFFIX):
                self._filesystem.delete(below)
        self._filesystem.delete_directory(path)


@dataclass(slots=True, eq=False)
class _Day:
    """Rows of a topic and day that wait to be written, and the files of that day."""

    topic: str
    day: int
    pending: list[pa.RecordBatch] = field(default_factory=list)
    pending_bytes: int = 0
    files: int = 0

    @property
    def date(self) -> str | None:
        return None if self.day == _NO_DAY else str(np.datetime64(self.day, "D"))

    @property
    def path(self) -> str:
        """Relative to the target."""
        return f"{_TOPIC_PREFIX}{self.topic}/{_DATE_PREFIX}{self.date or NO_DATE}"


class _OpenParquetFile:
    """A Parquet file to which row groups are appended."""

    def __init__(
        self,
        filesystem: FileSystem,
        folder: str,
        relative_path: str,
        schema: pa.Schema,
        compression: str,
    ) -> None:
        self.relative_path = relative_path
        self.rows = 0
        path = os.path.join(folder, relative_path)
        self._file: WritableFile = filesystem.open_for_writing(path, create=True)
        self._stream = WriteStream(self._file)
        self._writer = pq.ParquetWriter(self._stream, schema, compression=compression)

    @property
    def size_bytes(self) -> int:
        return self._stream.tell()

    def append(self, table: pa.Table) -> None:
        self._writer.write_table(table, row_group_size=max(table.num_rows, 1))
        self.rows += table.num_rows

    def finish(self) -> None:
        self._writer.close()
        self._file.flush()
        self._stream.close()

    def give_up(self) -> None:
        """Close the file as it is; that it is not whole does not matter any more."""
        self._writer.is_open = False
        self._stream.close()


class _DatasetWriter:
    """Sorts rows by topic and day, and writes them. `finish` makes the files whole; `close` it."""

    def __init__(
        self, filesystem: FileSystem, place: _Target, schema: pa.Schema, settings: ConvertSettings
    ) -> None:
        self.files: list[ConvertedFile] = []
        self._filesystem = filesystem
        self._folder = place.staging
        self._schema = schema
        self._settings = settings
        self._days: dict[tuple[str, int], _Day] = {}
        self._pending_bytes = 0
        # The least recently used file first.
        self._open: OrderedDict[_Day, _OpenParquetFile] = OrderedDict()

    def close(self) -> None:
        """Close files that are not whole."""
        while self._open:
            self._open.popitem()[1].give_up()

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows, and write row groups as they become full."""
        for topic, day, part in _by_topic_and_day(batch):
            key = (topic, day)
            if key not in self._days:
                self._days[key] = _Day(topic, day)
            waiting = self._days[key]
            size_bytes = memory_bytes(part)
            waiting.pending.append(part.select(self._schema.names))
            waiting.pending_bytes += size_bytes
            self._pending_bytes += size_bytes
            if waiting.pending_bytes >= self._settings.row_group_bytes:
                self._write_row_group(waiting)
        while self._pending_bytes > self._settings.buffered_bytes:
            self._write_row_group(max(self._days.values(), key=lambda each: each.pending_bytes))

    def finish(self) -> None:
        """Write what waits, and make all files whole."""
        for waiting in self._days.values():
            if waiting.pending:
                self._write_row_group(waiting)
        while self._open:
            self._finish_file(next(iter(self._open)))

    def _write_row_group(self, waiting: _Day) -> None:
        table = pa.Table.from_batches(waiting.pending, schema=self._schema)
        self._pending_bytes -= waiting.pending_bytes
        waiting.pending, waiting.pending_bytes = [], 0
        opened = self._open_file(waiting)
        opened.append(table)
        if opened.size_bytes >= self._settings.file_bytes:
            self._finish_file(waiting)

    def _open_file(self, waiting: _Day) -> _OpenParquetFile:
        opened = self._open.get(waiting)
        if opened is not None:
            self._open.move_to_end(waiting)
            return opened
        if len(self._open) >= self._settings.max_open_files:
            self._finish_file(next(iter(self._open)))
        if not waiting.files:
            self._filesystem.make_directories(os.path.join(self._folder, waiting.path))
        self._require_room_for_a_file()
        relative_path = f"{waiting.path}/part-{waiting.files:05d}{_PARQUET_SUFFIX}"
        waiting.files += 1
        if self._filesystem.status(os.path.join(self._folder, relative_path)) is not None:
            raise StorageError(
                f"Expected no file {relative_path} yet, found that of a topic whose name differs only in case: this file "
                "system ignores case. Convert the topics to different directories.",
                path=self._folder,
            )
        opened = _OpenParquetFile(
            self._filesystem, self._folder, relative_path, self._schema, self._settings.compression
        )
        self._open[waiting] = opened
        return opened

    def _require_room_for_a_file(self) -> None:
        if len(self.files) + len(self._open) >= self._settings.max_files:
            raise StorageError(
                f"Expected at most {self._settings.max_files} files, found records of {len(self._days)} topics and "
                "days: are the timestamps in milliseconds? Choose records with --where or --starting-timestamp."
            )

    def _finish_file(self, waiting: _Day) -> None:
        opened = self._open.pop(waiting)
        opened.finish()
        self.files.append(
            ConvertedFile(opened.relative_path, waiting.topic, waiting.date, opened.rows, opened.size_bytes)
        )


def _by_topic_and_day(batch: pa.RecordBatch) -> Iterator[tuple[str, int, pa.RecordBatch]]:
    """Divide the rows of one partition by day."""
    topic: str = batch["topic"][0].as_py()
    days = _days(batch["timestamp"])
    if days.min() == days.max():
        yield topic, int(days[0]), batch
        return
    order = np.argsort(days, kind="stable")
    days, ordered = days[order], batch.take(pa.array(order))
    ends = [0, *(np.flatnonzero(np.diff(days)) + 1).tolist(), len(days)]
    for start, end in pairwise(ends):
        part = ordered.slice(start, end - start)
        if part.num_rows * _SMALL_PART < batch.num_rows:
            part = part.take(pa.array(np.arange(part.num_rows)))
        yield topic, int(days[start]), part


def _days(timestamps: pa.Array) -> npt.NDArray[np.int64]:
    """Return the day since 1970 of each timestamp; `_NO_DAY` where it is missing or no date."""
    timestamps_us = timestamps.cast(pa.int64()).fill_null(_NO_TIMESTAMP_US).to_numpy()
    days: npt.NDArray[np.int64] = timestamps_us // _DAY_US
    is_date = (timestamps_us != _NO_TIMESTAMP_US) & (days >= _FIRST_DAY) & (days <= _LAST_DAY)
    return np.where(is_date, days, _NO_DAY)


_NO_TIMESTAMP_US: Final = -1_000
