"""Kafka's configuration keys of a log: name, default, range and meaning of each.

The names, defaults and ranges are those of Kafka 4.1.0 (its ``LogConfig`` and ``TopicConfig``).
``conf/segmentlog.properties`` is generated from this table by `storage_core.properties_file`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

__all__ = ["CONFIG_GROUPS", "CONFIG_KEYS", "INTERNAL_KEYS", "ConfigKey", "ConfigKind", "ConfigValue"]

ConfigValue: TypeAlias = bool | int | float | str

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1


class ConfigKind(Enum):
    """The type of a value, as Kafka documents it."""

    BOOLEAN = "boolean"
    INT = "int"
    LONG = "long"
    DOUBLE = "double"
    STRING = "string"
    LIST = "list"


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """One configuration key.

    Args:
        name: Kafka's name of it.
        default: Its value where nothing is set; None where that is no value at all.
        kind: The type of its value.
        unit: What a number counts; empty for a plain number.
        minimum: The smallest number allowed; None where there is none.
        maximum: The largest number allowed; None where only the kind limits it.
        excluded: Numbers within the limits that are not allowed.
        choices: The words allowed; empty for a number.
        doc: One sentence: what it does.
    """

    name: str
    default: ConfigValue | None
    kind: ConfigKind
    unit: str = ""
    minimum: int | None = None
    maximum: int | None = None
    excluded: tuple[int, ...] = ()
    choices: tuple[str, ...] = ()
    doc: str = field(kw_only=True)

    @property
    def range_text(self) -> str:
        """Unit and range in words, such as ``bytes, 1048576 or more``."""
        if self.kind is ConfigKind.BOOLEAN:
            return "true or false"
        if self.choices:
            joined = ", ".join(self.choices)
            return f"any of {joined}" if self.kind is ConfigKind.LIST else f"one of {joined}"
        excluded = tuple(f"not {number}" for number in self.excluded)
        return ", ".join(part for part in (self.unit, self._limits_text, *excluded) if part)

    @property
    def _limits_text(self) -> str:
        if self.minimum is None:
            return "any number" if self.maximum is None else f"{self.maximum} or less"
        if self.maximum is None:
            return f"{self.minimum} or more"
        return f"{self.minimum} to {self.maximum}"


# The groups follow the life of a segment: it fills, is indexed and flushed, is deleted or compacted.
# One line of values and one of text a key: what is compared stands in one column.
# fmt: off
CONFIG_GROUPS: tuple[tuple[str, tuple[ConfigKey, ...]], ...] = (
    ("Segments", (
        ConfigKey("segment.bytes", 1 << 30, ConfigKind.INT, unit="bytes", minimum=1 << 20, maximum=INT_MAX,
                  doc="A segment that would grow beyond this is closed and a new one begun."),
        ConfigKey("segment.ms", 604_800_000, ConfigKind.LONG, unit="milliseconds", minimum=1,
                  doc="A segment whose first record is older than this is closed even when it is not full."),
        ConfigKey("segment.jitter.ms", 0, ConfigKind.LONG, unit="milliseconds", minimum=0,
                  doc="At most this is taken off segment.ms at random, so that not all segments roll at once."),
        ConfigKey("preallocate", False, ConfigKind.BOOLEAN,
                  doc="Whether a new segment's file is made at its full size."),
    )),
    ("Indexes", (
        ConfigKey("segment.index.bytes", 10 << 20, ConfigKind.INT, unit="bytes", minimum=4, maximum=INT_MAX,
                  doc="Largest size of an offset or time index; a full index closes its segment."),
        ConfigKey("index.interval.bytes", 4096, ConfigKind.INT, unit="bytes", minimum=0, maximum=INT_MAX,
                  doc="An index entry is added after this many bytes of the log."),
    )),
    ("Records", (
        ConfigKey("max.message.bytes", 1_048_588, ConfigKind.INT, unit="bytes", minimum=0, maximum=INT_MAX,
                  doc="Largest record batch that is accepted, after compression."),
        ConfigKey("compression.type", "producer", ConfigKind.STRING,
                  choices=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
                  doc="Codec of the batches on disk; producer keeps the one they arrive with, and is none for what is made here."),
        ConfigKey("compression.gzip.level", -1, ConfigKind.INT, minimum=-1, maximum=9, excluded=(0,),
                  doc="Level for gzip; -1 is the library's own choice."),
        ConfigKey("compression.lz4.level", 9, ConfigKind.INT, minimum=1, maximum=17,
                  doc="Level for lz4."),
        ConfigKey("compression.zstd.level", 3, ConfigKind.INT, minimum=-131_072, maximum=22,
                  doc="Level for zstd."),
        ConfigKey("message.timestamp.type", "CreateTime", ConfigKind.STRING, choices=("CreateTime", "LogAppendTime"),
                  doc="Whether a record keeps its producer's timestamp or gets the time of its append."),
        ConfigKey("message.timestamp.before.max.ms", LONG_MAX, ConfigKind.LONG, unit="milliseconds", minimum=0,
                  doc="A record whose timestamp lies further than this before the present is refused."),
        ConfigKey("message.timestamp.after.max.ms", 3_600_000, ConfigKind.LONG, unit="milliseconds", minimum=0,
                  doc="A record whose timestamp lies further than this after the present is refused."),
    )),
    ("Encoding: a producer's key; here the log makes the batches itself", (
        ConfigKey("batch.size", 16_384, ConfigKind.INT, unit="bytes", minimum=0, maximum=INT_MAX,
                  doc="A batch that would grow beyond this, before compression, is closed and a new one begun."),
    )),
    ("Producers: a broker's key, for all its logs; here each log may have its own", (
        ConfigKey("producer.id.expiration.ms", 86_400_000, ConfigKind.INT, unit="milliseconds", minimum=1, maximum=INT_MAX,
                  doc="A producer whose last batch is older than this, and that has no open transaction, is forgotten."),
    )),
    ("Flushing", (
        ConfigKey("flush.messages", LONG_MAX, ConfigKind.LONG, unit="records", minimum=1,
                  doc="The log is forced to disk after this many records."),
        ConfigKey("flush.ms", LONG_MAX, ConfigKind.LONG, unit="milliseconds", minimum=0,
                  doc="The log is forced to disk after this time."),
    )),
    ("Retention", (
        ConfigKey("cleanup.policy", "delete", ConfigKind.LIST, choices=("delete", "compact"),
                  doc="What becomes of old segments; both words, separated by a comma, or none at all, are allowed."),
        ConfigKey("retention.bytes", -1, ConfigKind.LONG, unit="bytes of one partition", minimum=-1,
                  doc="Old segments are deleted while a partition is larger than this; -1 is no limit."),
        ConfigKey("retention.ms", 604_800_000, ConfigKind.LONG, unit="milliseconds", minimum=-1,
                  doc="Segments whose youngest record is older than this are deleted; -1 is no limit."),
        ConfigKey("file.delete.delay.ms", 60_000, ConfigKind.LONG, unit="milliseconds", minimum=0,
                  doc="A deleted segment keeps its bytes, under the name *.deleted, for this time."),
    )),
    ("Compaction", (
        ConfigKey("min.cleanable.dirty.ratio", 0.5, ConfigKind.DOUBLE, minimum=0, maximum=1,
                  doc="A log is compacted once this part of it has not been compacted yet."),
        ConfigKey("min.compaction.lag.ms", 0, ConfigKind.LONG, unit="milliseconds", minimum=0,
                  doc="Records younger than this are left alone."),
        ConfigKey("max.compaction.lag.ms", LONG_MAX, ConfigKind.LONG, unit="milliseconds", minimum=1,
                  doc="Records older than this are compacted whatever the dirty ratio is."),
        ConfigKey("delete.retention.ms", 86_400_000, ConfigKind.LONG, unit="milliseconds", minimum=0,
                  doc="A null value and a transaction marker are kept for this time after their compaction."),
    )),
    ("Replication and tiers: known, because a topic may carry them; only a broker acts on them", (
        ConfigKey("min.insync.replicas", 1, ConfigKind.INT, unit="replicas", minimum=1, maximum=INT_MAX,
                  doc="Replicas that must have a record before acks=all is answered."),
        ConfigKey("unclean.leader.election.enable", False, ConfigKind.BOOLEAN,
                  doc="Whether a replica that is behind may become leader."),
        ConfigKey("remote.storage.enable", False, ConfigKind.BOOLEAN,
                  doc="Whether closed segments are copied to remote storage."),
        ConfigKey("local.retention.bytes", -2, ConfigKind.LONG, unit="bytes of one partition", minimum=-2,
                  doc="retention.bytes of the local copy; -2 takes that key's value."),
        ConfigKey("local.retention.ms", -2, ConfigKind.LONG, unit="milliseconds", minimum=-2,
                  doc="retention.ms of the local copy; -2 takes that key's value."),
    )),
)
# fmt: on

CONFIG_KEYS: tuple[ConfigKey, ...] = tuple(key for _, keys in CONFIG_GROUPS for key in keys)
"""Every documented key, in the order of ``conf/segmentlog.properties``."""

INTERNAL_KEYS: tuple[ConfigKey, ...] = (
    ConfigKey(
        "internal.segment.bytes",
        None,
        ConfigKind.INT,
        unit="bytes",
        minimum=1,
        maximum=INT_MAX,
        doc="Takes the place of segment.bytes, without its lower limit: for tests.",
    ),
)
"""Keys that Kafka does not document; not in ``conf/segmentlog.properties``."""
