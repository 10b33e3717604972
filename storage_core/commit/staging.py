"""The task's side of a job: encodes rows and stages them next to the partitions, invisible until the commit.

Small pieces of many partitions go to one pack file, large ones to segments of their own.
"""

from __future__ import annotations

import contextlib
import logging
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.commit.manifest import StagedManifest, manifest_bytes, reported_manifest
from storage_core.commit.routing import OFFSET_COLUMN, PartitionNumbers, RoutedRows, RowBlock, held_bytes
from storage_core.commit.stage_placement import BatchRuns, OpenFiles, PartitionStage, StagePlacement
from storage_core.errors import InvalidRecordError, InvalidTimestampError, StorageError
from storage_core.filesystem import FileSystem, OwningProcess
from storage_core.log.log_validator import validate_leader_append
from storage_core.record.encode import BatchEncoding, GroupEncoder
from storage_core.record.record_input import check_columns, check_header_keys, check_rows
from storage_core.scan.rows import LARGEST_TIMESTAMP_MS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from storage_core.commit_files.stage_names import StageId
    from storage_core.log_config import LogConfig


_log = logging.getLogger(__name__)
# The process needs about 100 MB more than this for staging.
DEFAULT_MEMORY_LIMIT_BYTES: Final = 192 << 20
DEFAULT_PIECE_BYTES: Final = 8 << 20
# Rows are buffered until each partition has this many full batches, if memory allows, because more rows of a partition
# at a time make larger batches.
_BATCHES_HELD: Final = 4
_LEAST_BLOCK_BYTES: Final = 8 << 20
# By unit, the range that fits; all nanoseconds do. Microseconds are floored.
_FITTING_TIMESTAMPS: Final = {
    "s": (-(LARGEST_TIMESTAMP_MS // 1000), LARGEST_TIMESTAMP_MS // 1000),
    "ms": (-LARGEST_TIMESTAMP_MS, LARGEST_TIMESTAMP_MS),
    "us": (-LARGEST_TIMESTAMP_MS * 1000, 2**63 - 1),
}
_LARGEST_OFFSET: Final = (1 << 63) - 2
_Int64Array = npt.NDArray[np.int64]


class StageWriter(contextlib.AbstractContextManager["StageWriter"]):
    """Stages the rows of one task attempt. Used as a context manager, it removes the staged files after an error.

    Another thread encodes and writes earlier rows while new ones are appended. Its errors are raised by a later
    `append` or `finish`, and by every call after that: the attempt can only be aborted.

    A forked process can neither stage nor remove files, because it only has a copy of the writer.

    Args:
        stage: The task attempt. No other attempt has the same id.
        config: The configuration of all logs: sizes of batches and segments, and where index entries are due.
        default_timestamp_ms: The timestamp of records without one.
        memory_limit_bytes: The memory for rows that are not written yet.
        piece_bytes: A partition of at least this size gets a segment; smaller ones share the pack file.
        flush: Whether `finish` flushes all files, so that they survive a power cut. Writeback then begins early.
    """

    def __init__(  # noqa: PLR0913  (the last ones are rarely given)
        self,
        filesystem: FileSystem,
        root: str,
        stage: StageId,
        encoding: BatchEncoding,
        config: LogConfig,
        *,
        default_timestamp_ms: int,
        memory_limit_bytes: int = DEFAULT_MEMORY_LIMIT_BYTES,
        piece_bytes: int = DEFAULT_PIECE_BYTES,
        flush: bool = True,
    ) -> None:
        self._filesystem = filesystem
        self._root = root
        self._stage = stage
        self._config = config
        self._flush = flush
        self._batch_size_bytes = encoding.batch_size_bytes
        self._encoder = GroupEncoder(encoding, default_timestamp_ms)
        self._files = OpenFiles(filesystem, root, begins_flushes=flush)
        self._placement = StagePlacement(self._files, stage, config, piece_bytes)
        # Including the partitions of rows that are not written yet.
        self._numbers = PartitionNumbers()
        self._stages: list[PartitionStage] = []
        # One block is filled while another is written.
        self._most_block_bytes = memory_limit_bytes // 2
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="segmentlog-stage")
        self._being_written: Future[None] | None = None
        self._rows: list[RoutedRows] = []
        self._row_numbers: list[npt.NDArray[np.integer[Any]]] = []
        self._rows_bytes = 0
        self._schema: pa.Schema | None = None
        self._is_finished = False
        self._owner = OwningProcess()

    def append(self, rows: RoutedRows) -> None:
        """Stage rows with the columns of `storage_core.Log.append`, and ``offset`` if they keep their offsets.

        The buffers of ``rows`` must not change afterwards.

        Raises:
            OptionError: A topic or partition is not valid.
            InvalidRecordError: A column is missing, unknown, of a wrong type, or unlike that of earlier rows; a header
                has no key; offsets do not ascend within a partition.
            InvalidTimestampError: A timestamp does not fit the column that it is read into.
            RecordTooLargeError: A batch is larger than ``max.message.bytes``.
            RecordBatchTooLargeError: A batch is larger than ``segment.bytes``.
            LogForkedError: This process was forked from the one that stages.
            StorageError: The file system refused.
        """
        self._owner.check(self._root)
        records = rows.records
        self._check(records)
        if not records.num_rows:
            return
        # Numbered here because the number of partitions decides the size of a block.
        self._row_numbers.append(self._numbers.of_rows(rows))
        self._rows.append(rows)
        self._rows_bytes += held_bytes(records)
        wanted_bytes = len(self._numbers) * _BATCHES_HELD * self._batch_size_bytes
        if self._rows_bytes >= min(max(wanted_bytes, _LEAST_BLOCK_BYTES), self._most_block_bytes):
            self._hand_over()

    def _write_block(
        self, rows: Sequence[RoutedRows], numbers: Sequence[npt.NDArray[np.integer[Any]]]
    ) -> None:
        """Sort rows, at least one, by the numbers of their partitions, encode and write them; raises as `append` does.

        The other thread runs it.
        """
        block = RowBlock([each.records for each in rows], np.concatenate(numbers))
        for number in range(len(self._stages), int(block.partitions[-1]) + 1):
            self._stages.append(PartitionStage(*self._numbers.topic_partition(number)))
        keeps_offsets = block.offsets is not None
        if block.offsets is not None:
            self._check_offsets(block.offsets, block)
        for each in self._encoder.encode(block.rows, block.ends, block.offsets):
            runs = BatchRuns(each.batches, block.partitions[each.groups], keeps_offsets=keeps_offsets)
            self._check_sizes(runs)
            self._placement.write(runs, self._stages)

    def finish(self) -> StagedManifest:
        """Write the remaining rows and the manifest.

        Raises:
            SegmentLogError: As `append` does.
        """
        self._owner.check(self._root)
        self._hand_over()
        self._wait()
        self._thread.shutdown()
        data = manifest_bytes(self._stage, self._placement.complete(self._stages))
        files = self._files
        files.create(self._stage.manifest_name)
        files.write(self._stage.manifest_name, [data], 0)
        # In any order: the manifest is not read before it is reported.
        if self._flush:
            files.flush()
            self._filesystem.flush_directory(self._root)
        files.close()
        self._is_finished = True
        return reported_manifest(self._stage, data)

    def abort(self) -> None:
        """Remove the staged files. Those that cannot be removed are logged, and left to a later job.

        Raises:
            LogForkedError: This process was forked from the one that stages.
        """
        self._owner.check(self._root)
        self._rows.clear()
        self._thread.shutdown()
        refused: list[StorageError] = []
        try:
            self._files.close()
        except StorageError as error:
            refused.append(error)
        refused.extend(self._files.delete())
        for each in refused:
            _log.warning("A staged file could not be removed: %s", each)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # The files belong to the process that staged them.
        if not self._is_finished and self._owner.is_this:
            self.abort()

    def _check(self, records: pa.RecordBatch) -> None:
        is_known = records.schema == self._schema
        others = records
        if OFFSET_COLUMN in records.schema.names:
            column, others = records.column(OFFSET_COLUMN), records.drop_columns([OFFSET_COLUMN])
            if column.type != pa.int64() or column.null_count:
                raise InvalidRecordError(
                    f"Expected the column {OFFSET_COLUMN} to be int64 without nulls, found {column.type} with "
                    f"{column.null_count} nulls. Every row needs an offset to keep."
                )
        if not is_known:
            check_columns(others)
        check_rows(others)
        if others is not records:
            check_header_keys(others, records.column(OFFSET_COLUMN))
        _check_timestamps(records)
        if self._schema is not None and not is_known:
            raise InvalidRecordError(
                f"Expected all rows to have the same columns, found {_described(self._schema)}, then "
                f"{_described(records.schema)}. Cast them."
            )
        self._schema = records.schema

    def _hand_over(self) -> None:
        """Pass the rows to the other thread once it has written the earlier ones."""
        self._wait()
        if self._rows:
            self._being_written = self._thread.submit(self._write_block, self._rows, self._row_numbers)
            self._rows, self._row_numbers, self._rows_bytes = [], [], 0

    def _wait(self) -> None:
        if self._being_written is not None:
            self._being_written.result()

    def _check_sizes(self, runs: BatchRuns) -> None:
        batches = runs.batches
        number = int(batches.sizes_bytes.argmax())
        largest_bytes = int(batches.sizes_bytes[number])
        if largest_bytes > min(self._config.max_message_bytes, self._config.max_segment_bytes):
            stage = self._stages[int(runs.partitions[runs.starts.searchsorted(number, "right") - 1])]
            where = f"{stage.topic}-{stage.partition}"
            validate_leader_append(batches.select(number, number + 1), self._config, path=where)

    def _check_offsets(self, offsets: _Int64Array, block: RowBlock) -> None:
        """Refuse offsets that do not ascend within a partition, also across blocks."""
        starts = np.concatenate([np.zeros(1, np.int64), block.ends[:-1]])
        stages = [self._stages[number] for number in block.partitions.tolist()]
        before = np.empty(len(offsets), np.int64)
        before[1:] = offsets[:-1]
        before[starts] = [stage.last_offset for stage in stages]
        wrong = np.flatnonzero((offsets <= before) | (offsets > _LARGEST_OFFSET))
        if len(wrong):
            row = int(wrong[0])
            stage = stages[int(block.ends.searchsorted(row, "right"))]
            raise InvalidRecordError(
                f"Expected the column {OFFSET_COLUMN} to ascend within a partition and a task, from 0 to "
                f"{_LARGEST_OFFSET}, found {int(offsets[row])} after {int(before[row])} in {stage.topic}-"
                f"{stage.partition}. Sort the rows: repartition by topic and partition, then "
                "sortWithinPartitions by offset.",
                offset=int(offsets[row]),
            )
        for stage, last_offset in zip(stages, offsets[block.ends - 1].tolist(), strict=True):
            stage.last_offset = last_offset


def _check_timestamps(records: pa.RecordBatch) -> None:
    """Refuse timestamps that a log can hold, but a column of microseconds cannot."""
    if "timestamp" not in records.schema.names or pa.types.is_null(records.schema.field("timestamp").type):
        return
    column = records.column("timestamp")
    unit = column.type.unit if pa.types.is_timestamp(column.type) else "ms"
    if unit not in _FITTING_TIMESTAMPS:
        return
    first, last = _FITTING_TIMESTAMPS[unit]
    numbers = column.view(pa.int64())
    found = pc.min_max(numbers)
    least, most = found["min"].as_py(), found["max"].as_py()
    if least is None or (first <= least and most <= last):
        return
    wrong = least if least < first else most
    raise InvalidTimestampError(
        f"Expected timestamps from {first} to {last} {unit} since 1970, which fit a column of microseconds when they "
        f"are read, found {wrong} in row {pc.index(numbers, wrong).as_py()}. Leave such rows out, or give them another "
        "timestamp or none."
    )


def _described(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)
