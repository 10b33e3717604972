"""The partition of each row, as Kafka's Java producer chooses it.

A row that specifies a partition gets it, and does not affect the choice for the others:

    DefaultPartitioner     key: to_positive(murmur2(key)) % partitions (Kafka's ``BuiltInPartitioner``)
                           no key: one partition until it has a batch, then the next one, and so on, cyclically
    RoundRobinPartitioner  one partition after another; keys are ignored (Kafka's ``RoundRobinPartitioner``)
    RandomPartitioner      any partition; keys are ignored

The choice is deterministic. The partition of a row without a key depends on the seed, on its topic, and on the earlier
rows of that topic; not on how rows are grouped into calls, nor on the rows of other topics. Where Kafka's own choice is
random, any choice is legal; a cyclic one spreads few batches more evenly. Concurrent writers use the seeds 0, 1, 2 ...,
so that default and round robin begin with different partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage_core.errors import InvalidRecordError
from storage_core.partitioning.murmur2 import murmur2, murmur2_column, to_positive


@dataclass(frozen=True, slots=True, eq=False)
class KeyedRows:
    """The columns of some rows that determine their partitions.

    Args:
        partition_counts: Per topic, the number of its partitions.
        sizes_bytes: Per row, its size in a batch.
        keys: Binary or string, nullable; None if no row has a key.
        topic_indexes: Per row, its index in ``topics``; None if all rows are of the first topic.
        partitions: Per row, the partition it specifies, int32; null, or None for all rows, to have one chosen.

    Raises:
        InvalidRecordError: Columns differ in length, a topic has no partitions, or a row specifies a partition
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
        """Return the number of partitions of each row's topic; one number if there is only one topic."""
        counts = np.array(self.partition_counts, np.int32)
        if self.topic_indexes is None or len(counts) == 1:
            return np.int32(counts[0])
        found: npt.NDArray[np.int32] = counts[self.topic_indexes]
        return found

    def by_topic(self) -> Iterator[tuple[str, int, npt.NDArray[np.int64]]]:
        """Yield each topic that has rows: its name, its number of partitions, and its rows, ascending."""
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
        """Return some of the rows, without the partitions that they specify."""
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
        """Check partitions as Kafka's producer does, with its messages."""
        if self.partitions is None:
            return
        if self.partitions.type != pa.int32():
            raise InvalidRecordError(
                f"Column `partition` must be int32; found {self.partitions.type}. Cast it to int."
            )
        # Null becomes any valid number.
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


# Clears the sign of Kafka's counters and hashes.
_POSITIVE: Final = 0x7FFFFFFF
# The step and factors of SplitMix64, which makes random numbers of consecutive ones.
_STEP: Final = 0x9E3779B97F4A7C15
_FIRST_FACTOR: Final = 0xBF58476D1CE4E5B9
_SECOND_FACTOR: Final = 0x94D049BB133111EB
_MASK: Final = (1 << 64) - 1
_Partitions = npt.NDArray[np.int32]
_Int64Array = npt.NDArray[np.int64]


@dataclass(slots=True)
class _TopicState:
    """The state of one topic: its hash, the choices made, and the bytes since the last change of partition."""

    hash: int
    chosen: int = 0
    filled_bytes: int = 0


@dataclass(slots=True)
class PartitionerState:
    """The state of a partitioner between calls, one per writer. It can be pickled."""

    _topics: dict[str, _TopicState] = field(default_factory=dict)

    def of_topic(self, topic: str) -> _TopicState:
        """Return the state of a topic, which the partitioner changes."""
        state = self._topics.get(topic)
        if state is None:
            state = self._topics[topic] = _TopicState(to_positive(murmur2(topic.encode())))
        return state


class Partitioner(Protocol):
    """Chooses a partition for each row."""

    def partition(self, rows: KeyedRows, state: PartitionerState) -> _Partitions:
        """Choose for each row, whether or not it specifies a partition, and advance the state."""
        ...


def partition_rows(partitioner: Partitioner, rows: KeyedRows, state: PartitionerState) -> _Partitions:
    """Return the partition of each row: the one it specifies, otherwise the partitioner's choice."""
    specified = rows.partitions
    if specified is None or specified.null_count == len(specified):
        return partitioner.partition(rows, state)
    numbers = specified.fill_null(0).to_numpy(zero_copy_only=False)
    if not specified.null_count:
        return np.array(numbers, np.int32)
    free = np.flatnonzero(specified.is_null().to_numpy(zero_copy_only=False))
    found = np.array(numbers, np.int32)
    found[free] = partitioner.partition(rows.take(free), state)
    return found


def partition_for_key(key: bytes, partition_count: int) -> int:
    """Return the partition of a key, among all partitions of the topic."""
    return to_positive(murmur2(key)) % partition_count


@dataclass(frozen=True, slots=True)
class DefaultPartitioner:
    """By key; rows without a key stick to one partition until it has a batch.

    Args:
        batch_size_bytes: The bytes that go to one partition before the next, including the row that exceeds them.
        seed: Shifts the first partition of the rows without a key.
    """

    batch_size_bytes: int = 16384
    seed: int = 0

    def partition(self, rows: KeyedRows, state: PartitionerState) -> _Partitions:
        """Choose for each row, and advance the state."""
        if rows.keys is None or rows.keys.null_count == len(rows.keys):
            return self._stick(rows, state)
        hashes = murmur2_column(rows.keys)
        hashes &= _POSITIVE
        hashes %= rows.counts_by_row()
        if rows.keys.null_count:
            without_key = np.flatnonzero(rows.keys.is_null().to_numpy(zero_copy_only=False))
            hashes[without_key] = self._stick(rows.take(without_key), state)
        return hashes

    def _stick(self, rows: KeyedRows, state: PartitionerState) -> _Partitions:
        def batch_numbers_of(topic: _TopicState, of_rows: _Int64Array) -> _Int64Array:
            numbers = _batch_numbers(rows.sizes_bytes[of_rows], max(self.batch_size_bytes, 1), topic)
            return numbers + (topic.hash + self.seed)

        return _choose(rows, state, batch_numbers_of)


@dataclass(frozen=True, slots=True)
class RoundRobinPartitioner:
    """One partition after another, per topic; keys are ignored.

    Args:
        seed: The start of each topic's counter. Kafka's starts at 0.
    """

    seed: int = 0

    def partition(self, rows: KeyedRows, state: PartitionerState) -> _Partitions:
        """Choose for each row, and advance the state."""
        return _choose(rows, state, lambda topic, of_rows: _next_numbers(topic, len(of_rows)) + self.seed)


@dataclass(frozen=True, slots=True)
class RandomPartitioner:
    """Any partition, with equal probability; keys are ignored.

    Args:
        seed: The same seed gives the same partitions.
    """

    seed: int = 0

    def partition(self, rows: KeyedRows, state: PartitionerState) -> _Partitions:
        """Choose for each row, and advance the state."""

        def numbers_of(topic: _TopicState, of_rows: _Int64Array) -> _Int64Array:
            first = _scramble(np.array([((topic.hash << 32) ^ self.seed) & _MASK], np.uint64))
            counted = _next_numbers(topic, len(of_rows)).astype(np.uint64)
            # The highest bits are the most random ones.
            return (_scramble(first + counted * np.uint64(_STEP)) >> np.uint64(33)).view(np.int64)

        return _choose(rows, state, numbers_of)


def _choose(
    rows: KeyedRows,
    state: PartitionerState,
    numbers_of: Callable[[_TopicState, _Int64Array], _Int64Array],
) -> _Partitions:
    """Get a number for each row, topic by topic; its remainder is the partition."""
    found = np.empty(len(rows), np.int32)
    for topic, partition_count, of_rows in rows.by_topic():
        numbers = numbers_of(state.of_topic(topic), of_rows)
        found[of_rows] = (numbers & _POSITIVE) % partition_count
    return found


def _next_numbers(topic: _TopicState, row_count: int) -> _Int64Array:
    """Return the next numbers of a topic's counter, one per row."""
    first = topic.chosen
    topic.chosen += row_count
    return np.arange(first, first + row_count)


def _batch_numbers(sizes_bytes: _Int64Array, batch_size_bytes: int, topic: _TopicState) -> _Int64Array:
    """Return the number of each row's batch; a batch ends with the row that fills it."""
    ends_bytes = np.cumsum(sizes_bytes, dtype=np.int64)
    begin_bytes = -topic.filled_bytes
    row_counts = []
    first = 0
    while (last := int(np.searchsorted(ends_bytes, begin_bytes + batch_size_bytes))) < len(ends_bytes):
        row_counts.append(last + 1 - first)
        first = last + 1
        begin_bytes = int(ends_bytes[last])
    row_counts.append(len(ends_bytes) - first)
    numbers = np.repeat(np.arange(topic.chosen, topic.chosen + len(row_counts)), row_counts)
    topic.chosen += len(row_counts) - 1
    topic.filled_bytes = int(ends_bytes[-1]) - begin_bytes
    return numbers


def _scramble(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Mix consecutive multiples of a step into random numbers (SplitMix64)."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(_FIRST_FACTOR)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(_SECOND_FACTOR)
    return numbers ^ (numbers >> np.uint64(31))
