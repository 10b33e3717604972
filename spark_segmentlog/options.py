"""Spark's options of a read as the values that it needs, parsed and checked by pure functions.

Spark passes names in lower case and values as text, and adds options of its own; scripts keep options that they set for
Spark's Kafka source. Options that select and bound a read are passed to `parse_read_options`, and unknown names are
refused. Options that only a broker, a stream or a catalog could use are ignored. Options that would change the meaning of
the read are refused in the words of Spark's Kafka source.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from storage_core.errors import OptionError
from storage_core.options import (
    READ_OPTIONS,
    ReadOptions,
    StreamOptions,
    parse_read_options,
    parse_stream_options,
)

if TYPE_CHECKING:
    from collections.abc import Mapping


_TRIGGERS: Final = {option.name.lower(): option.name for option in READ_OPTIONS if option.only == "stream"}
# Names in lower case, as Spark delivers them, with the spelling that users know.
_IGNORED: Final = {
    name.lower(): name
    for name in (
        # for a consumer of a broker, as all that begin with "kafka."
        "groupIdPrefix",
        "kafkaConsumer.pollTimeoutMs",
        "fetchOffset.numRetries",
        "fetchOffset.retryIntervalMs",
        # for streams; Spark's Kafka source ignores them in batch queries, too
        "checkpointLocation",
        *_TRIGGERS.values(),
        # added by CREATE TABLE, as all that begin with "option."
        "owner",
        "provider",
        "location",
    )
}
_IGNORED_PREFIXES: Final = ("kafka.", "option.")
# The only consumer option that changes what is read.
_ISOLATION_LEVEL: Final = "kafka.isolation.level"
# Both are given if, and only if, Spark asks for the schema of a CREATE TABLE.
_CATALOG: Final = frozenset({"owner", "provider"})
_DESERIALIZER: Final = (
    "Kafka option '{kind}.deserializer' is not supported as {kind}s are deserialized as byte arrays with "
    "ByteArrayDeserializer. Use DataFrame operations to explicitly deserialize the {kind}s."
)
_REJECTED_BY_READS: Final = {
    "kafka.auto.offset.reset": "Kafka option 'auto.offset.reset' is not supported. Instead set the source "
    "option 'startingOffsets' to 'earliest' or to offsets per partition to specify where to start.",
    "kafka.key.deserializer": _DESERIALIZER.format(kind="key"),
    "kafka.value.deserializer": _DESERIALIZER.format(kind="value"),
    "kafka.enable.auto.commit": "Kafka option 'enable.auto.commit' is not supported. Leave it out: "
    "no offsets are committed.",
    "kafka.interceptor.classes": "Kafka option 'interceptor.classes' is not supported. Leave it out.",
}


def read_options(options: Mapping[str, str]) -> ReadOptions:
    """Check all options of a batch read.

    Raises:
        OptionError: Naming the option, what was expected and what was found.
    """
    return parse_read_options(
        {name: value for name, value in _checked(options).items() if not _is_ignored_by_reads(name)}
    )


def stream_options(options: Mapping[str, str]) -> StreamOptions:
    """Check all options of a streaming read; raises as `read_options` does."""
    return parse_stream_options(
        {name: value for name, value in _checked(options).items() if not _is_ignored_by_streams(name)}
    )


def _checked(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options by their names in lower case, without those that only CREATE TABLE adds."""
    given = {name.lower(): value for name, value in options.items()}
    for name, message in _REJECTED_BY_READS.items():
        if name in given:
            raise OptionError(message)
    return _table_options(given) if _CATALOG.issubset(given) else given


def read_options_of_any_query(options: Mapping[str, str]) -> ReadOptions:
    """Check the options of a read that may be a batch or a stream.

    Raises:
        OptionError: Neither would accept them.
    """
    try:
        return read_options(options)
    except OptionError as error:
        if any(name.lower().startswith("ending") for name in options):
            raise
        # The batch's error may be about its start, which a stream accepts.
        try:
            return stream_options(options).read
        except OptionError as stream_error:
            raise (error if "view" in map(str.lower, options) else stream_error) from None


def read_notices(options: Mapping[str, str], parsed: ReadOptions, *, is_stream: bool = False) -> list[str]:
    """Say what the user should know about options that are accepted."""
    notices = []
    if ignored := ignored_options(options, is_stream=is_stream):
        how, whose = (
            ("", "brokers or catalogs") if is_stream else (", in one batch", "brokers, streams or catalogs")
        )
        notices.append(f"segmentlog reads files{how}: ignored {', '.join(ignored)}, which concern {whose}.")
    if parsed.assumes_zone:
        # Spark reads such times in the session's zone, which a source is not told before its tasks run.
        notices.append(
            "where compares with a time that names no zone: it is read as UTC, whatever spark.sql.session.timeZone "
            "is. Name the zone in the text (2026-01-01T00:00:00Z), or set the option timeZone."
        )
    return notices


def ignored_options(options: Mapping[str, str], *, is_stream: bool = False) -> tuple[str, ...]:
    """Return the names, never values, of the options that are accepted and have no effect."""
    is_ignored = _is_ignored_by_streams if is_stream else _is_ignored_by_reads
    return tuple(_IGNORED.get(name, name) for name in sorted(map(str.lower, options)) if is_ignored(name))


def is_for_a_broker_or_catalog(name: str) -> bool:
    """Return True if only a broker, a stream or a catalog could use the option of this name in lower case."""
    return name in _IGNORED or name.startswith(_IGNORED_PREFIXES)


def _is_ignored_by_reads(name: str) -> bool:
    return name != _ISOLATION_LEVEL and is_for_a_broker_or_catalog(name)


def _is_ignored_by_streams(name: str) -> bool:
    return _is_ignored_by_reads(name) and name not in _TRIGGERS


def _table_options(given: Mapping[str, str]) -> dict[str, str]:
    """Return the OPTIONS (...) of a CREATE TABLE, without TBLPROPERTIES and COMMENT.

    Spark mixes them, but repeats each of OPTIONS as ``option.<name>``.
    """
    options = {name: value for name, value in given.items() if f"option.{name}" in given}
    # A table may be created without a path: Spark drops it anyway, and each query names its own.
    return {"path": given.get("path", "."), **options}
