"""The configuration of one log (Kafka's ``LogConfig``): values of the keys in `storage_core.config`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, Self, TypeAlias

from storage_core.config import CONFIG_KEYS, INTERNAL_KEYS, ConfigKeys, parse_java_properties
from storage_core.errors import OptionError

_KEYS = ConfigKeys((*CONFIG_KEYS, *INTERNAL_KEYS), "configuration key")
# Codec numbers of record batch attributes. "producer" keeps a batch's codec; records encoded here have none.
_CODECS = {"uncompressed": 0, "producer": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


class _Readable(Protocol):
    def read(self) -> str | bytes: ...


PropertiesSource: TypeAlias = str | bytes | _Readable


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class LogConfig:
    """The configuration of one log: Kafka's topic-level keys with underscores for dots, and Kafka's defaults.

    Values may also be strings. ``conf/segmentlog.properties`` describes each key.

    Raises:
        OptionError: A key is unknown, or a value has the wrong type or is out of range.
    """

    segment_bytes: int = _KEYS.default("segment.bytes")
    segment_ms: int = _KEYS.default("segment.ms")
    segment_jitter_ms: int = _KEYS.default("segment.jitter.ms")
    preallocate: bool = _KEYS.default("preallocate")
    segment_index_bytes: int = _KEYS.default("segment.index.bytes")
    index_interval_bytes: int = _KEYS.default("index.interval.bytes")
    max_message_bytes: int = _KEYS.default("max.message.bytes")
    compression_type: str = _KEYS.default("compression.type")
    compression_gzip_level: int = _KEYS.default("compression.gzip.level")
    compression_lz4_level: int = _KEYS.default("compression.lz4.level")
    compression_zstd_level: int = _KEYS.default("compression.zstd.level")
    message_timestamp_type: str = _KEYS.default("message.timestamp.type")
    message_timestamp_before_max_ms: int = _KEYS.default("message.timestamp.before.max.ms")
    message_timestamp_after_max_ms: int = _KEYS.default("message.timestamp.after.max.ms")
    batch_size: int = _KEYS.default("batch.size")
    producer_id_expiration_ms: int = _KEYS.default("producer.id.expiration.ms")
    flush_messages: int = _KEYS.default("flush.messages")
    flush_ms: int = _KEYS.default("flush.ms")
    cleanup_policy: tuple[str, ...] = _KEYS.default("cleanup.policy")
    retention_bytes: int = _KEYS.default("retention.bytes")
    retention_ms: int = _KEYS.default("retention.ms")
    file_delete_delay_ms: int = _KEYS.default("file.delete.delay.ms")
    min_cleanable_dirty_ratio: float = _KEYS.default("min.cleanable.dirty.ratio")
    min_compaction_lag_ms: int = _KEYS.default("min.compaction.lag.ms")
    max_compaction_lag_ms: int = _KEYS.default("max.compaction.lag.ms")
    delete_retention_ms: int = _KEYS.default("delete.retention.ms")
    min_insync_replicas: int = _KEYS.default("min.insync.replicas")
    unclean_leader_election_enable: bool = _KEYS.default("unclean.leader.election.enable")
    remote_storage_enable: bool = _KEYS.default("remote.storage.enable")
    local_retention_bytes: int = _KEYS.default("local.retention.bytes")
    local_retention_ms: int = _KEYS.default("local.retention.ms")
    internal_segment_bytes: int | None = _KEYS.default("internal.segment.bytes")

    def __new__(cls, **values: Any) -> Self:
        """Reject unknown keywords before ``__init__`` does, with the nearest known name."""
        _KEYS.by_field(dict.fromkeys(values))
        return object.__new__(cls)

    def __post_init__(self) -> None:
        """Parse each value and check its range."""
        _KEYS.coerce(self)
        if self.min_compaction_lag_ms > self.max_compaction_lag_ms:
            raise OptionError(
                f"Expected min.compaction.lag.ms to be at most max.compaction.lag.ms ({self.max_compaction_lag_ms}), "
                f"found {self.min_compaction_lag_ms}."
            )

    def __repr__(self) -> str:
        changed = (
            f"{each.name}={getattr(self, each.name)!r}"
            for each in dataclasses.fields(self)
            if getattr(self, each.name) != each.default
        )
        return f"LogConfig({', '.join(changed)})"

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Make a configuration from ``{"segment.bytes": "1048576"}`` or ``{"segment_bytes": 1048576}``.

        Raises:
            OptionError: A key is unknown or given twice, or a value is invalid.
        """
        return cls(**_KEYS.by_field(values))

    @classmethod
    def from_properties(cls, source: PropertiesSource) -> Self:
        """Make a configuration from the text of a Java properties file, or from an open file.

        As in Java, the later of two lines for one key counts, and bytes are ISO 8859-1.

        Raises:
            OptionError: The text is malformed, a key is unknown, or a value is invalid.
        """
        text = _text_of(source)
        try:
            values = dict(parse_java_properties(text))
        except ValueError as error:
            raise OptionError(str(error)) from error
        return cls.from_dict(values)

    def replace(self, **changes: Any) -> Self:
        """Return the same configuration with other values for some keys.

        Raises:
            OptionError: A key is unknown, or a value is invalid.
        """
        return dataclasses.replace(self, **_KEYS.by_field(changes))

    @property
    def max_segment_bytes(self) -> int:
        """The largest size of a segment: ``segment.bytes``, unless a test overrides it."""
        return self.segment_bytes if self.internal_segment_bytes is None else self.internal_segment_bytes

    @property
    def is_compacted(self) -> bool:
        """Whether ``cleanup.policy`` includes compact."""
        return "compact" in self.cleanup_policy

    @property
    def has_log_append_time(self) -> bool:
        """Whether records get the time of their append instead of their producer's timestamp."""
        return self.message_timestamp_type == "LogAppendTime"

    @property
    def max_segment_ms(self) -> int:
        """The largest age of a segment: a compacted log must roll it within ``max.compaction.lag.ms``."""
        return min(self.segment_ms, self.max_compaction_lag_ms) if self.is_compacted else self.segment_ms

    @property
    def compression_codec(self) -> int:
        """The codec's number in the attributes of a record batch."""
        return _CODECS[self.compression_type]

    @property
    def compression_level(self) -> int | None:
        """The level of the codec; None if it has no levels, or for the library's default."""
        if self.compression_type == "gzip":
            return None if self.compression_gzip_level == -1 else self.compression_gzip_level
        if self.compression_type == "lz4":
            return self.compression_lz4_level
        if self.compression_type == "zstd":
            return self.compression_zstd_level
        return None


def altered_config(config: LogConfig, changes: LogConfig | Mapping[str, Any]) -> LogConfig:
    """Return a configuration with some keys changed, or a copy of another configuration.

    Raises:
        OptionError: A key is unknown, a value is invalid, or ``changes`` is not a configuration.
    """
    if isinstance(changes, LogConfig):
        return changes.replace()
    if not isinstance(changes, Mapping):
        raise OptionError(
            f"Expected the keys that change, or a LogConfig, found {type(changes).__name__}. Give them as "
            '{"retention.ms": 3600000}.'
        )
    return dataclasses.replace(config, **_KEYS.by_field(changes))


def _text_of(source: PropertiesSource) -> str:
    if not isinstance(source, (str, bytes)) and not hasattr(source, "read"):
        message = f"Expected the text of a properties file, or an open file, found {type(source).__name__}."
        raise OptionError(message)
    content = source if isinstance(source, (str, bytes)) else source.read()
    return content.decode("latin-1") if isinstance(content, bytes) else content
