"""Rows that are to get a partition: the columns that decide about it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage_core.errors import InvalidRecordError

__all__ = ["KeyedRows"]


@dataclass(frozen=True, slots=True, eq=False)
class KeyedRows:
    """What decides about the partitions of some rows, by column.

    Args:
        topics: The topics that occur, as in a dictionary array.
        partition_counts: Per topic, how many partitions it has.
        sizes_bytes: Per row, how much of a batch it takes: one number a row, so it also says how many rows there are.
        keys: Binary or string, nullable; None: no row has a key.
        topic_indexes: Per row, its place in ``topics``; None: all rows are of the first one.
        partitions: Per row, a partition that is asked for, int32; null, or None for all: the partitioner chooses.

    Raises:
        InvalidRecordError: Columns do not fit together, a topic has no partitions, or a row asks for a partition
            that its topic does not have.
    """

    topics: tuple[str, ...]
    partition_counts: tuple[int, ...]
    sizes_bytes: npt.NDArray[np.int64]
    keys: pa.Array | None = None
    topic_indexes: npt.NDArray[np.integer[Any]] | None = None
    partitions: pa.Array | None = None

    def __post_init__(self) -> None:
        self._check_lengths()
        for topic, count in zip(self.topics, self.partition_counts, strict=True):
            if count < 1:
                raise InvalidRecordError(
                    f"Topic {topic} has {count} partitions. It needs at least one to take rows."
                )
        self._check_topic_indexes()
        self._check_partitions()

    def __len__(self) -> int:
        return len(self.sizes_bytes)

    def counts_by_row(self) -> npt.NDArray[np.int32] | np.int32:
        """How many partitions the topic of each row has; one number if they are all of one topic."""
        counts = np.array(self.partition_counts, np.int32)
        if self.topic_indexes is None or len(counts) == 1:
            return np.int32(counts[0])
        found: npt.NDArray[np.int32] = counts[self.topic_indexes]
        return found

    def by_topic(self) -> Iterator[tuple[str, int, npt.NDArray[np.int64]]]:
        """Each topic that has rows: its name, how many partitions it has, and which rows, ascending."""
        if not len(self):
            return
        if self.topic_indexes is None:
            yield self.topics[0], self.partition_counts[0], np.arange(len(self))
            return
        order = np.argsort(self.topic_indexes, kind="stable")
        sorted_indexes = self.topic_indexes[order]
        for rows in np.split(order, np.flatnonzero(np.diff(sorted_indexes)) + 1):
            topic = int(self.topic_indexes[rows[0]])
            yield self.topics[topic], self.partition_counts[topic], rows

    def take(self, rows: npt.NDArray[np.int64]) -> KeyedRows:
        """Some of the rows, without the partitions that they ask for."""
        return KeyedRows(
            self.topics,
            self.partition_counts,
            self.sizes_bytes[rows],
            None if self.keys is None else self.keys.take(pa.array(rows)),
            None if self.topic_indexes is None else self.topic_indexes[rows],
        )

    def _check_lengths(self) -> None:
        if len(self.topics) != len(self.partition_counts) or (len(self) and not self.topics):
            raise InvalidRecordError(
                f"Expected a number of partitions for each topic; found {len(self.topics)} topics and "
                f"{len(self.partition_counts)} numbers."
            )
        for name, column in (
            ("keys", self.keys),
            ("topic_indexes", self.topic_indexes),
            ("partitions", self.partitions),
        ):
            if column is not None and len(column) != len(self):
                raise InvalidRecordError(f"Expected {len(self)} {name}, one a row; found {len(column)}.")

    def _check_topic_indexes(self) -> None:
        indexes = self.topic_indexes
        if indexes is None or not len(indexes):
            return
        lowest, highest = int(indexes.min()), int(indexes.max())
        if lowest < 0 or highest >= len(self.topics):
            raise InvalidRecordError(
                f"Expected topic_indexes from 0 to {len(self.topics) - 1}; found {lowest} to {highest}."
            )

    def _check_partitions(self) -> None:
        """As Kafka's producer does, in its words."""
        if self.partitions is None:
            return
        if self.partitions.type != pa.int32():
            raise InvalidRecordError(
                f"Column `partition` must be int32; found {self.partitions.type}. Cast it to int."
            )
        # Where there is none, any number that is allowed.
        numbers = self.partitions.fill_null(0).to_numpy(zero_copy_only=False)
        counts = self.counts_by_row() if len(self) else np.int32(1)
        wrong = np.flatnonzero((numbers < 0) | (numbers >= counts))
        if not len(wrong):
            return
        row = int(wrong[0])
        number = int(numbers[row])
        topic = 0 if self.topic_indexes is None else int(self.topic_indexes[row])
        if number < 0:
            raise InvalidRecordError(
                f"Invalid partition: {number}. Partition number should always be non-negative or null. "
                f"Found in row {row}, of topic {self.topics[topic]}."
            )
        count = self.partition_counts[topic]
        raise InvalidRecordError(
            f"Partition {number} of topic {self.topics[topic]} with partition count {count} is not present. "
            f"Found in row {row}: use 0 to {count - 1}, or null to have one chosen."
        )
