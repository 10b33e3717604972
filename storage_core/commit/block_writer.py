"""Encodes rows of many partitions and writes them: small pieces into one pack file, large ones into segments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from storage_core.commit.batch_runs import BatchRuns
from storage_core.commit.open_files import OpenFiles
from storage_core.commit.routing import PartitionNumbers, sort_rows
from storage_core.commit.row_block import OFFSET_COLUMN, RowBlock
from storage_core.commit.stage_placement import PartitionStage, StagePlacement
from storage_core.errors import InvalidRecordError
from storage_core.log.append_validation import validate_leader_append
from storage_core.record.encode_groups import GroupEncoder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from storage_core.checkpoint.stage_names import StageId
    from storage_core.commit.batch_runs import PlacedRun
    from storage_core.commit.routing import RoutedRows, SortedRows
    from storage_core.filesystem import FileSystem
    from storage_core.log_config import LogConfig
    from storage_core.record.encode import BatchEncoding
    from storage_core.record.record_batches import RecordBatches

__all__ = ["BlockWriter"]

_LARGEST_OFFSET: Final = (1 << 63) - 2

_Int64Array = npt.NDArray[np.int64]


class BlockWriter:
    """Stages rows, a block of them at a time, which are sorted by partition and encoded together.

    Args:
        filesystem: Through which files are written.
        root: The log directory.
        stage: Whose rows they are.
        encoding: How batches are made.
        config: Of all logs.
        default_timestamp_ms: For records without a timestamp.
        piece_bytes: So much of one partition is worth a segment.
        begins_flushes: Whether all will be flushed in the end.

    Attributes:
        files: What was staged.
        numbers: The partitions that rows were given for, of which rows may still come.
    """

    def __init__(
        self,
        filesystem: FileSystem,
        root: str,
        stage: StageId,
        encoding: BatchEncoding,
        config: LogConfig,
        *,
        default_timestamp_ms: int,
        piece_bytes: int,
        begins_flushes: bool = False,
    ) -> None:
        self.files = OpenFiles(filesystem, root, begins_flushes=begins_flushes)
        self._pack_name = stage.pack_name
        self._config = config
        self._encoder = GroupEncoder(encoding, default_timestamp_ms)
        self.numbers = PartitionNumbers()
        self._stages: list[PartitionStage] = []
        self._placement = StagePlacement(self.files, stage, config, piece_bytes)
        self._pack_size_bytes = 0

    def write(self, rows: Sequence[RoutedRows], numbers: Sequence[npt.NDArray[np.integer[Any]]]) -> None:
        """Encode and write rows, of which there is at least one. They are not flushed.

        Args:
            rows: They.
            numbers: The same rows' partitions, as `numbers` calls them.

        Raises:
            InvalidRecordError: Offsets do not ascend within a partition, or a record cannot be encoded.
            RecordTooLargeError: A batch is larger than ``max.message.bytes``.
            RecordBatchTooLargeError: A batch is larger than ``segment.bytes``.
            StorageError: The file system refused.
        """
        ordered = sort_rows(np.concatenate(numbers))
        # They ascend: the largest one stands at the end.
        for number in range(len(self._stages), int(ordered.numbers[-1]) + 1):
            self._stages.append(PartitionStage(*self.numbers.topic_partition(number)))
        block = RowBlock([each.records for each in rows])
        offsets = None
        if block.offsets is not None:
            offsets = block.offsets if ordered.order is None else block.offsets[ordered.order]
            self._check_offsets(offsets, ordered)
        encoded = self._encoder.encode(
            lambda start, stop: block.rows(ordered.order, start, stop), ordered.ends, offsets
        )
        for each in encoded:
            runs = BatchRuns(each.batches, ordered.numbers[each.groups], keeps_offsets=offsets is not None)
            self._check_sizes(runs)
            placed = self._placement.place(runs, self._stages)
            self._write(runs.with_offsets(placed), placed)
            self._placement.seal_full_segments()

    def complete(self) -> list[bytes]:
        """Complete what was written, but for flushing it; the pieces as the manifest has them."""
        return self._placement.complete(self._stages)

    def _write(self, batches: RecordBatches, placed: Sequence[PlacedRun]) -> None:
        # What goes to the pack file without a segment in between is written at once.
        start = 0
        for run in placed:
            if run.segment is not None:
                self._write_to_pack(batches, start, run.start)
                run.segment.append(batches.select(run.start, run.stop))
                start = run.stop
        self._write_to_pack(batches, start, batches.count)

    def _write_to_pack(self, batches: RecordBatches, start: int, stop: int) -> None:
        if start == stop:
            return
        pieces = batches.pieces[2 * start : 2 * stop]
        self.files.write(self._pack_name, pieces, self._pack_size_bytes)
        self._pack_size_bytes += int(batches.sizes_bytes[start:stop].sum())

    def _check_sizes(self, runs: BatchRuns) -> None:
        batches = runs.batches
        number = int(batches.sizes_bytes.argmax())
        largest_bytes = int(batches.sizes_bytes[number])
        if largest_bytes > min(self._config.max_message_bytes, self._config.max_segment_bytes):
            stage = self._stages[int(runs.partitions[runs.starts.searchsorted(number, "right") - 1])]
            where = f"{stage.topic}-{stage.partition}"
            validate_leader_append(batches.select(number, number + 1), self._config, path=where)

    def _check_offsets(self, offsets: _Int64Array, ordered: SortedRows) -> None:
        """Offsets ascend within a partition, from block to block, too."""
        starts = np.concatenate([np.zeros(1, np.int64), ordered.ends[:-1]])
        stages = [self._stages[number] for number in ordered.numbers.tolist()]
        before = np.empty(len(offsets), np.int64)
        before[1:] = offsets[:-1]
        before[starts] = [stage.last_offset for stage in stages]
        wrong = np.flatnonzero((offsets <= before) | (offsets > _LARGEST_OFFSET))
        if len(wrong):
            row = int(wrong[0])
            stage = stages[int(ordered.ends.searchsorted(row, "right"))]
            raise InvalidRecordError(
                f"Expected the column {OFFSET_COLUMN} to ascend within a partition and a task, from 0 to "
                f"{_LARGEST_OFFSET}, found {int(offsets[row])} behind {int(before[row])} in {stage.topic}-"
                f"{stage.partition}. Sort the rows: repartition by topic and partition, then "
                "sortWithinPartitions by offset.",
                offset=int(offsets[row]),
            )
        for stage, last_offset in zip(stages, offsets[ordered.ends - 1].tolist(), strict=True):
            stage.last_offset = last_offset
