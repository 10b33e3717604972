"""From Spark's options to the read options of `storage_core`.

Spark passes names in lower case and values as text, and adds options of its own; scripts keep options
that they set for Spark's Kafka source. Options that select and bound a read are passed to
`parse_read_options`, which refuses unknown ones. Options that only a broker, a stream or a catalog
could use are ignored. Options that would change the meaning of the read are refused in the words of
Spark's Kafka source.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Final

from storage_core.errors import OptionError
from storage_core.option_table import TRIGGER_OPTIONS
from storage_core.scan.options import ReadOptions, parse_read_options
from storage_core.scan.where import parse_where

if TYPE_CHECKING:
    from collections.abc import Mapping


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
        *TRIGGER_OPTIONS,
        # added by CREATE TABLE, as all that begin with "option."
        "owner",
        "provider",
        "location",
    )
}
_TWO_ZONES: Final = (dt.UTC, dt.timezone(dt.timedelta(hours=1)))
_IGNORED_PREFIXES: Final = ("kafka.", "option.")
# The only consumer option that changes what is read.
_ISOLATION_LEVEL: Final = "kafka.isolation.level"
# Both are given if, and only if, Spark asks for the schema of a CREATE TABLE.
_CATALOG: Final = frozenset({"owner", "provider"})
_DESERIALIZER: Final = (
    "Kafka option '{kind}.deserializer' is not supported as {kind}s are deserialized as byte arrays with "
    "ByteArrayDeserializer. Use DataFrame operations to explicitly deserialize the {kind}s."
)
_REJECTED: Final = {
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
    given = {name.lower(): value for name, value in options.items()}
    for name, message in _REJECTED.items():
        if name in given:
            raise OptionError(message)
    if _CATALOG.issubset(given):
        given = _table_options(given)
    return parse_read_options({name: value for name, value in given.items() if not _is_ignored(name)})


def has_times_without_zone(options: Mapping[str, str]) -> bool:
    """Whether the option ``where`` compares with a time that neither it nor ``timeZone`` puts into a zone.

    Spark reads such times in the session's zone, which a source is not told before its tasks run.
    """
    given = {name.lower(): value for name, value in options.items()}
    if "where" not in given or "timezone" in given:
        return False
    # At an instant that is the same for both, a difference comes from the zone.
    here, elsewhere = (parse_where(given["where"], zone, now_ms=0) for zone in _TWO_ZONES)
    return here != elsewhere


def ignored_options(options: Mapping[str, str]) -> tuple[str, ...]:
    """Names, never values, of the options that are accepted and have no effect."""
    return tuple(_IGNORED.get(name, name) for name in sorted(map(str.lower, options)) if _is_ignored(name))


def is_for_a_broker_or_catalog(name: str) -> bool:
    """Whether only a broker, a stream or a catalog could use an option, by its name in lower case."""
    return name in _IGNORED or name.startswith(_IGNORED_PREFIXES)


def _is_ignored(name: str) -> bool:
    return name != _ISOLATION_LEVEL and is_for_a_broker_or_catalog(name)


def _table_options(given: Mapping[str, str]) -> dict[str, str]:
    """The OPTIONS (...) of a CREATE TABLE, without TBLPROPERTIES and COMMENT.

    Spark mixes them, but repeats each of OPTIONS as ``option.<name>``.
    """
    options = {name: value for name, value in given.items() if f"option.{name}" in given}
    # A table may be created without a path: Spark drops it anyway, and each query names its own.
    return {"path": given.get("path", "."), **options}
