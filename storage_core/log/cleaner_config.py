"""The configuration of cleaning (Kafka's ``CleanerConfig``): the broker's keys ``log.cleaner.*``.

What belongs to a topic, such as ``min.cleanable.dirty.ratio`` or ``delete.retention.ms``, stands in `LogConfig`.

What a cleaning did (Kafka's ``CleanerStats``).
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

from storage_core.compaction import MAP_SLOT_BYTES
from storage_core.config import INT_MAX, ConfigKey, ConfigKind, parse_config_value
from storage_core.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["CLEANER_KEYS", "CleanerConfig", "CleanerStatistics"]


_PREFIX: Final = "log.cleaner."
# fmt: off
CLEANER_KEYS: Final = (
    ConfigKey("log.cleaner.dedupe.buffer.size", 134_217_728, ConfigKind.LONG, unit="bytes", minimum=1,
              doc="Memory for the last offset of each key; with more keys than fit, a pass goes up to where it is full."),
    ConfigKey("log.cleaner.io.buffer.size", 524_288, ConfigKind.INT, unit="bytes", minimum=0, maximum=INT_MAX,
              doc="How much of a segment is read at a time; here 4 MiB at the least."),
    ConfigKey("log.cleaner.io.buffer.load.factor", 0.9, ConfigKind.DOUBLE, minimum=0, maximum=1,
              doc="How full the memory for keys may become."),
    ConfigKey("log.cleaner.io.max.bytes.per.second", None, ConfigKind.DOUBLE, unit="bytes a second", minimum=0, excluded=(0,),
              doc="What is read and written a second, on average; no limit if it is not set."),
    ConfigKey("log.cleaner.backoff.ms", 15_000, ConfigKind.LONG, unit="milliseconds", minimum=0,
              doc="How long is waited before another look at logs of which none was to be cleaned."),
)
# fmt: on

_KEYS: Final = {key.name.removeprefix(_PREFIX).replace(".", "_"): key for key in CLEANER_KEYS}


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanerConfig:
    """How logs are cleaned: Kafka's keys without ``log.cleaner.``, with underscores for dots, and Kafka's defaults.

    Values may also be given as text.

    Attributes:
        dedupe_buffer_size: Memory for the last offset of each key. With more keys than fit, a pass goes up to where
            it is full.
        io_buffer_size: How much of a segment is read at a time; here 4 MiB at the least.
        io_buffer_load_factor: How full the memory for keys may become.
        io_max_bytes_per_second: What is read and written a second, on average; None for no limit.
        backoff_ms: How long is waited before another look at logs of which none was to be cleaned.

    Raises:
        OptionError: A value is of the wrong type or out of its range, or the memory is too small for two keys.
    """

    dedupe_buffer_size: int = 134_217_728
    io_buffer_size: int = 524_288
    io_buffer_load_factor: float = 0.9
    io_max_bytes_per_second: float | None = None
    backoff_ms: int = 15_000

    def __post_init__(self) -> None:
        """Bring each value to its type and check its range."""
        for name, key in _KEYS.items():
            given = getattr(self, name)
            if given is not None or key.default is not None:
                object.__setattr__(self, name, parse_config_value(key, given))
        # A map of one key is full before the second: a log of several keys would never become clean.
        if self.dedupe_buffer_size // MAP_SLOT_BYTES * self.io_buffer_load_factor <= 1:
            raise OptionError(
                "Expected memory for more than one key in log.cleaner.dedupe.buffer.size, of which each takes "
                f"{MAP_SLOT_BYTES} bytes, found {self.dedupe_buffer_size} bytes to be filled to "
                f"{self.io_buffer_load_factor}."
            )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Make a configuration of ``{"log.cleaner.backoff.ms": "15000"}`` or ``{"backoff_ms": 15000}``.

        Raises:
            OptionError: There is no such key, it is given twice, or a value is wrong.
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
    """What one pass over one log did.

    Attributes:
        topic: The topic.
        partition: The partition's number.
        start_offset: The first offset that was dirty.
        end_offset: Up to where the log is clean now.
        bytes_read: Size of the batches that were cleaned.
        bytes_written: Size of what is left of them.
        records_before: How many records were looked at; those of batches that were dropped unseen do not count.
        records_after: How many records are left.
        invalid_records: How many records without a key were dropped.
        map_bytes_read: Size of the dirty batches, in which the last offset of each key was looked up first.
        map_records_read: How many records they had.
        map_size: How many keys there were among them.
        map_utilization: How full that made the memory for keys, from 0 to 1.
        segments_before: How many segments were cleaned.
        segments_after: How many took their place.
        started_ms: When it began.
        map_built_ms: When all keys were known.
        ended_ms: When it ended.
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
