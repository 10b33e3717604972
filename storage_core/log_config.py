"""The configuration of one log (Kafka's ``LogConfig``): what ``storage_core.config`` lists, as values."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, Self, TypeAlias

from storage_core.config import (
    CONFIG_KEYS,
    INTERNAL_KEYS,
    ConfigKey,
    parse_config_value,
    parse_java_properties,
)
from storage_core.errors import OptionError

__all__ = ["LogConfig", "altered_config"]


_KEYS = {key.name.replace(".", "_"): key for key in (*CONFIG_KEYS, *INTERNAL_KEYS)}
# The numbers of record batch attributes. "producer" keeps what arrives; what is encoded here arrives uncompressed.
_CODECS = {"uncompressed": 0, "producer": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


class _Readable(Protocol):
    def read(self) -> str | bytes: ...


PropertiesSource: TypeAlias = str | bytes | _Readable


def _default(name: str) -> Any:
    key = _KEYS[name.replace(".", "_")]
    return field(default=None if key.default is None else parse_config_value(key, key.default))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class LogConfig:
    """The configuration of one log: Kafka's topic-level keys with underscores for dots, and Kafka's defaults.

    Values may also be given as text. What each key means stands in ``conf/segmentlog.properties``.

    Raises:
        OptionError: There is no such key, or a value is of the wrong type or out of its range.
    """

    segment_bytes: int = _default("segment.bytes")
    segment_ms: int = _default("segment.ms")
    segment_jitter_ms: int = _default("segment.jitter.ms")
    preallocate: bool = _default("preallocate")
    segment_index_bytes: int = _default("segment.index.bytes")
    index_interval_bytes: int = _default("index.interval.bytes")
    max_message_bytes: int = _default("max.message.bytes")
    compression_type: str = _default("compression.type")
    compression_gzip_level: int = _default("compression.gzip.level")
    compression_lz4_level: int = _default("compression.lz4.level")
    compression_zstd_level: int = _default("compression.zstd.level")
    message_timestamp_type: str = _default("message.timestamp.type")
    message_timestamp_before_max_ms: int = _default("message.timestamp.before.max.ms")
    message_timestamp_after_max_ms: int = _default("message.timestamp.after.max.ms")
    batch_size: int = _default("batch.size")
    producer_id_expiration_ms: int = _default("producer.id.expiration.ms")
    flush_messages: int = _default("flush.messages")
    flush_ms: int = _default("flush.ms")
    cleanup_policy: tuple[str, ...] = _default("cleanup.policy")
    retention_bytes: int = _default("retention.bytes")
    retention_ms: int = _default("retention.ms")
    file_delete_delay_ms: int = _default("file.delete.delay.ms")
    min_cleanable_dirty_ratio: float = _default("min.cleanable.dirty.ratio")
    min_compaction_lag_ms: int = _default("min.compaction.lag.ms")
    max_compaction_lag_ms: int = _default("max.compaction.lag.ms")
    delete_retention_ms: int = _default("delete.retention.ms")
    min_insync_replicas: int = _default("min.insync.replicas")
    unclean_leader_election_enable: bool = _default("unclean.leader.election.enable")
    remote_storage_enable: bool = _default("remote.storage.enable")
    local_retention_bytes: int = _default("local.retention.bytes")
    local_retention_ms: int = _default("local.retention.ms")
    internal_segment_bytes: int | None = _default("internal.segment.bytes")

    def __new__(cls, **values: Any) -> Self:
        """Refuse unknown keywords before ``__init__`` does, which knows no nearest name."""
        for name in values:
            _require_known(name)
        return object.__new__(cls)

    def __post_init__(self) -> None:
        """Bring each value to its type and check its range."""
        for name, key in _KEYS.items():
            given = getattr(self, name)
            if given is not None or key.default is not None:
                object.__setattr__(self, name, parse_config_value(key, given))
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
        """Make a configuration of ``{"segment.bytes": "1048576"}`` or ``{"segment_bytes": 1048576}``.

        Raises:
            OptionError: There is no such key, it is given twice, or a value is wrong.
        """
        return cls(**_by_field(values))

    @classmethod
    def from_properties(cls, source: PropertiesSource) -> Self:
        """Make a configuration of the text of a Java properties file, or of a file opened by the caller.

        Of two lines for one key the later counts, as in Java. Bytes are read as ISO 8859-1, as there.

        Raises:
            OptionError: The text is malformed, there is no such key, or a value is wrong.
        """
        text = _text_of(source)
        try:
            values = dict(parse_java_properties(text))
        except ValueError as error:
            raise OptionError(str(error)) from error
        return cls.from_dict(values)

    def replace(self, **changes: Any) -> Self:
        """The same configuration with other values for some keys.

        Raises:
            OptionError: There is no such key, or a value is wrong.
        """
        return dataclasses.replace(self, **_by_field(changes))

    @property
    def max_segment_bytes(self) -> int:
        """The size that a segment may have: ``segment.bytes``, unless a test says otherwise."""
        return self.segment_bytes if self.internal_segment_bytes is None else self.internal_segment_bytes

    @property
    def is_compacted(self) -> bool:
        """Whether ``cleanup.policy`` has the word compact."""
        return "compact" in self.cleanup_policy

    @property
    def has_log_append_time(self) -> bool:
        """Whether records get the time of their append, whatever a producer says."""
        return self.message_timestamp_type == "LogAppendTime"

    @property
    def max_segment_ms(self) -> int:
        """The age that a segment may have: a compacted log must close it before ``max.compaction.lag.ms``."""
        return min(self.segment_ms, self.max_compaction_lag_ms) if self.is_compacted else self.segment_ms

    @property
    def compression_codec(self) -> int:
        """The codec as a record batch's attributes have it."""
        return _CODECS[self.compression_type]

    @property
    def compression_level(self) -> int | None:
        """The level of that codec; None where it has none, or the library chooses."""
        if self.compression_type == "gzip":
            return None if self.compression_gzip_level == -1 else self.compression_gzip_level
        if self.compression_type == "lz4":
            return self.compression_lz4_level
        if self.compression_type == "zstd":
            return self.compression_zstd_level
        return None


def altered_config(config: LogConfig, changes: LogConfig | Mapping[str, Any]) -> LogConfig:
    """A configuration with other values for some keys, or another one; an object of its own in any case.

    Raises:
        OptionError: There is no such key, a value is wrong, or it is no configuration.
    """
    if isinstance(changes, LogConfig):
        return changes.replace()
    if not isinstance(changes, Mapping):
        raise OptionError(
            f"Expected the keys that change, or a LogConfig, found {type(changes).__name__}. Give them as "
            '{"retention.ms": 3600000}.'
        )
    return dataclasses.replace(config, **_by_field(changes))


def _by_field(values: Mapping[str, Any]) -> dict[str, Any]:
    """The same values by field name; dotted and underscored names are taken."""
    fields: dict[str, Any] = {}
    for name, value in values.items():
        key = _require_known(name)
        field_name = key.name.replace(".", "_")
        if field_name in fields:
            raise OptionError(f"Expected the configuration key '{key.name}' once, found it twice.")
        fields[field_name] = value
    return fields


def _require_known(name: object) -> ConfigKey:
    key = _KEYS.get(str(name).replace(".", "_"))
    if key is None:
        known = [known.name for known in CONFIG_KEYS]
        nearest = difflib.get_close_matches(str(name).lower().replace("_", "."), known, n=1)
        hint = f"Did you mean '{nearest[0]}'?" if nearest else f"Known are: {', '.join(sorted(known))}."
        raise OptionError(f"Unknown configuration key '{name}'. {hint}")
    return key


def _text_of(source: PropertiesSource) -> str:
    if not isinstance(source, (str, bytes)) and not hasattr(source, "read"):
        message = f"Expected the text of a properties file, or an open file, found {type(source).__name__}."
        raise OptionError(message)
    content = source if isinstance(source, (str, bytes)) else source.read()
    return content.decode("latin-1") if isinstance(content, bytes) else content
