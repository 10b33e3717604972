"""The configuration and the statistics of cleaning (Kafka's ``CleanerConfig`` and ``CleanerStats``).

The keys are the broker's ``log.cleaner.*``. Keys of a topic, such as ``min.cleanable.dirty.ratio``, are in `LogConfig`.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

from storage_core.compaction import MAP_SLOT_BYTES
from storage_core.config import INT_MAX, ConfigKey, ConfigKind, parse_config_value
from storage_core.errors import OptionError
from storage_core.segment.segment_reader import DEFAULT_MAX_BATCH_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping


_PREFIX: Final = "log.cleaner."
# fmt: off
CLEANER_KEYS: Final = (
    ConfigKey("log.cleaner.dedupe.buffer.size", 134_217_728, ConfigKind.LONG, unit="bytes", minimum=1,
              doc="Memory for the last offset of each key. If it fills up, a pass cleans only up to there."),
    ConfigKey("log.cleaner.io.buffer.size", 524_288, ConfigKind.INT, unit="bytes", minimum=0, maximum=INT_MAX,
              doc="How much of a segment is read at a time, at least 4 MiB."),
    ConfigKey("log.cleaner.io.buffer.load.factor", 0.9, ConfigKind.DOUBLE, minimum=0, maximum=1,
              doc="How full the memory for keys may become."),
    ConfigKey("log.cleaner.io.max.bytes.per.second", None, ConfigKind.DOUBLE, unit="bytes a second", minimum=0, excluded=(0,),
              doc="The average rate of reading and writing; unlimited if not set."),
    ConfigKey("log.cleaner.backoff.ms", 15_000, ConfigKind.LONG, unit="milliseconds", minimum=0,
              doc="The pause between two checks for logs to clean."),
    ConfigKey("log.cleaner.max.decompressed.batch.bytes", DEFAULT_MAX_BATCH_BYTES, ConfigKind.INT, unit="bytes", minimum=1,
              maximum=INT_MAX, doc="The largest batch that a pass decompresses. Kafka has no such key and no limit."),
)
# fmt: on

_KEYS: Final = {key.name.removeprefix(_PREFIX).replace(".", "_"): key for key in CLEANER_KEYS}


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanerConfig:
    """The configuration of cleaning: Kafka's keys without ``log.cleaner.``, with underscores, and Kafka's defaults.

    Values may also be strings.

    Attributes:
        dedupe_buffer_size: Memory for the last offset of each key. If it fills up, a pass cleans only up to there.
        io_buffer_size: How much of a segment is read at a time, at least 4 MiB.
        io_buffer_load_factor: How full the memory for keys may become.
        io_max_bytes_per_second: The average rate of reading and writing; unlimited if None.
        backoff_ms: The pause between two checks for logs to clean.
        max_decompressed_batch_bytes: The largest batch that a pass decompresses. Not a key of Kafka's.

    Raises:
        OptionError: A value has the wrong type or is out of range, or the memory is too small for two keys.
    """

    dedupe_buffer_size: int = 134_217_728
    io_buffer_size: int = 524_288
    io_buffer_load_factor: float = 0.9
    io_max_bytes_per_second: float | None = None
    backoff_ms: int = 15_000
    max_decompressed_batch_bytes: int = DEFAULT_MAX_BATCH_BYTES

    def __post_init__(self) -> None:
        """Convert each value to its type, and check its range."""
        for name, key in _KEYS.items():
            given = getattr(self, name)
            if given is not None or key.default is not None:
                object.__setattr__(self, name, parse_config_value(key, given))
        # With room for one key only, a pass would stop at the second key, and the log would never become clean.
        if self.dedupe_buffer_size // MAP_SLOT_BYTES * self.io_buffer_load_factor <= 1:
            raise OptionError(
                "Expected memory for more than one key in log.cleaner.dedupe.buffer.size, at "
                f"{MAP_SLOT_BYTES} bytes a key, found {self.dedupe_buffer_size} bytes with a load factor of "
                f"{self.io_buffer_load_factor}."
            )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Make a configuration from ``{"log.cleaner.backoff.ms": "15000"}`` or ``{"backoff_ms": 15000}``.

        Raises:
            OptionError: A key is unknown or given twice, or a value is invalid.
        """
        fields: dict[str, Any] = {}
        for name, value in values.items():
            field_name = _field_of(str(name))
            if field_name in fields:
                raise OptionError(f"Expected the key '{_KEYS[field_name].name}' once, found it twice.")
            fields[field_name] = value
        return cls(**fields)


def _field_of(name: str) -> str:
    field_name = name.replace("_", ".").removeprefix(_PREFIX).replace(".", "_")
    if field_name not in _KEYS:
        known = [key.name for key in CLEANER_KEYS]
        nearest = difflib.get_close_matches(name, known, n=1)
        hint = f"Did you mean '{nearest[0]}'?" if nearest else f"Known are: {', '.join(sorted(known))}."
        raise OptionError(f"Unknown configuration key of the cleaner '{name}'. {hint}")
    return field_name


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanerStatistics:
    """The statistics of one pass over one log.

    Attributes:
        topic: The topic.
        partition: The partition's number.
        start_offset: The first offset that was dirty.
        end_offset: The first offset that is dirty now.
        bytes_read: The size of the batches that were cleaned.
        bytes_written: The size of the batches that remain of them.
        records_before: The number of records read; batches that were dropped without decoding do not count.
        records_after: The number of records that remain.
        invalid_records: The number of dropped records without a key.
        map_bytes_read: The size of the dirty batches, from which the map of last offsets was built.
        map_records_read: The number of their records.
        map_size: The number of their keys.
        map_utilization: How full the memory for keys became, from 0 to 1.
        segments_before: The number of segments cleaned.
        segments_after: The number of segments that replaced them.
        started_ms: When the pass began.
        map_built_ms: When the map was complete.
        ended_ms: When the pass ended.
    """

    topic: str
    partition: int
    start_offset: int
    end_offset: int
    bytes_read: int
    bytes_written: int
    records_before: int
    records_after: int
    invalid_records: int
    map_bytes_read: int
    map_records_read: int
    map_size: int
    map_utilization: float
    segments_before: int
    segments_after: int
    started_ms: int
    map_built_ms: int
    ended_ms: int

    def __str__(self) -> str:
        return (
            f"Cleaned {self.topic}-{self.partition} from offset {self.start_offset} to {self.end_offset} in "
            f"{self.ended_ms - self.started_ms} ms, {self.map_built_ms - self.started_ms} ms of it for "
            f"{self.map_size} keys in {self.map_bytes_read} bytes ({self.map_utilization:.1%} of the memory for "
            f"keys): {self.segments_before} segments with {self.records_before} records, {self.bytes_read} bytes, "
            f"became {self.segments_after} with {self.records_after} records, {self.bytes_written} bytes."
        )
