"""The data sets: topics that a real broker holds, in four partitions each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from benchmarks.settings import Settings

PARTITIONS = 4
SMALL_BATCH_BYTES = 16 << 10
LARGE_BATCH_BYTES = 1 << 20

_RECORDS_PER_PARTITION = 1_000_000
_KILOBYTE_RECORDS_PER_PARTITION = 200_000
_BATCH_SIZES = {"small": SMALL_BATCH_BYTES, "large": LARGE_BATCH_BYTES}


@dataclass(frozen=True, slots=True)
class DataSet:
    """One topic of the benchmark's broker.

    Attributes:
        value_sizes_bytes: Smallest and largest value.
        batch_size_bytes: The producer's ``batch.size``: bytes before compression.
    """

    value_sizes_bytes: tuple[int, int]
    compression: str
    batches: str
    records_per_partition: int

    @property
    def name(self) -> str:
        """The topic's name, as ``100b-zstd-small``."""
        smallest, largest = self.value_sizes_bytes
        size = f"{smallest}b" if smallest == largest else f"{smallest}-{largest}b"
        return f"{size}-{self.compression}-{self.batches}"

    @property
    def batch_size_bytes(self) -> int:
        """The producer's ``batch.size``: bytes of a batch before compression."""
        return _BATCH_SIZES[self.batches]

    @property
    def records(self) -> int:
        """Records in all partitions."""
        return PARTITIONS * self.records_per_partition

    def description(self) -> str:
        """Return what a table says of it: value size, codec, batch size."""
        smallest, largest = self.value_sizes_bytes
        size = f"{smallest} B" if smallest == largest else f"{smallest}–{largest} B"
        batch = "1 MiB" if self.batches == "large" else "16 KiB"
        return f"{size}, {self.compression}, {batch} batches"

    def partition_directories(self, log_directory: Path) -> list[Path]:
        """Return where the broker keeps the topic's partitions."""
        return [log_directory / f"{self.name}-{partition}" for partition in range(PARTITIONS)]

    def log_files(self, log_directory: Path) -> list[Path]:
        """Return every segment, by partition and base offset."""
        return [
            path
            for folder in self.partition_directories(log_directory)
            for path in sorted(folder.glob("*.log"))
        ]


def data_sets(settings: Settings) -> tuple[DataSet, ...]:
    """Return every data set of the run, or those that it was asked for."""
    wanted = tuple(data_set for data_set in _all(settings) if _is_wanted(data_set, settings))
    if not wanted:
        names = ", ".join(data_set.name for data_set in _all(settings))
        raise ValueError(f"Expected data sets from {names}; found {', '.join(settings.data_sets)}.")
    return wanted


def data_set_named(settings: Settings, name: str) -> DataSet:
    """Return the data set of that name, whether or not the run was narrowed to others."""
    return next(data_set for data_set in _all(settings) if data_set.name == name)


def _is_wanted(data_set: DataSet, settings: Settings) -> bool:
    return not settings.data_sets or data_set.name in settings.data_sets


def _all(settings: Settings) -> list[DataSet]:
    kinds = (
        ((100, 100), _RECORDS_PER_PARTITION, ("none", "zstd")),
        ((1000, 1000), _KILOBYTE_RECORDS_PER_PARTITION, ("none", "zstd")),
        # Fixed sizes flatter a parser that guesses well, so one kind of values varies.
        ((50, 150), _RECORDS_PER_PARTITION, ("none",)),
    )
    return [
        DataSet(sizes, compression, batches, settings.scaled(records))
        for sizes, records, codecs in kinds
        for compression in codecs
        for batches in ("small", "large")
    ]
