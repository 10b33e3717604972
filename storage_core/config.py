"""Kafka's configuration keys of a log: the name, default, range and meaning of each.

They are those of Kafka 4.1.0 (its ``LogConfig`` and ``TopicConfig``). `tests.properties_file` generates
``conf/segmentlog.properties`` from this table. Properties files are parsed as by ``java.util.Properties.load``.
"""

from __future__ import annotations

import difflib
import operator
import re
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeAlias

from storage_core.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


ConfigValue: TypeAlias = bool | int | float | str
INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
# How long a log directory remembers the jobs of an application, as Delta does.
DEFAULT_TXN_RETENTION_MS = 30 * 24 * 60 * 60 * 1000


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
        default: The default value; None for no value.
        minimum: The smallest number allowed; None for no limit.
        maximum: The largest number allowed; None for no limit but the type's.
        excluded: Numbers within the limits that are not allowed.
        choices: The words allowed; empty for a number.
        synonyms: Words of Kafka's clients for some of them, by the client's word.
    """

    name: str
    default: ConfigValue | None
    kind: ConfigKind
    unit: str = ""
    minimum: int | None = None
    maximum: int | None = None
    excluded: tuple[int, ...] = ()
    choices: tuple[str, ...] = ()
    synonyms: Mapping[str, str] = field(default_factory=dict, kw_only=True, hash=False)
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
# Each key has a line of values and a line of text, so that keys compare by eye.
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
                  choices=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"), synonyms={"none": "uncompressed"},
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
                  doc="Whether a replica that is not in sync may become leader."),
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
LogConfigValue: TypeAlias = bool | int | float | str | tuple[str, ...]
# The decimal numbers that Integer.parseInt, Long.parseLong and Double.parseDouble accept.
_INTEGER = re.compile(r"[+-]?[0-9]{1,20}")
_DECIMAL = re.compile(r"[+-]?([0-9]{1,40}\.?[0-9]{0,40}|\.[0-9]{1,40})([eE][+-]?[0-9]{1,3})?")
_VALUE_BLANKS = " \t\n\r\f"
_SHOWN_CHARACTERS = 80
_KIND_LIMITS = {ConfigKind.INT: INT_MAX, ConfigKind.LONG: LONG_MAX}


def parse_config_value(key: ConfigKey, given: Any) -> LogConfigValue:
    """Parse a value of a key, as Kafka's ``ConfigDef`` does, and check its range.

    Raises:
        OptionError: It is of another type or out of range.
    """
    if key.kind is ConfigKind.BOOLEAN:
        return _boolean(key, given)
    if key.kind is ConfigKind.LIST:
        return tuple(_require_choice(key, word, given) for word in _words(key, given))
    if key.kind is ConfigKind.STRING:
        if not isinstance(given, str):
            raise _wrong(key, given)
        word = given.strip(_VALUE_BLANKS)
        return _require_choice(key, key.synonyms.get(word, word), given)
    number = _decimal(key, given) if key.kind is ConfigKind.DOUBLE else _integer(key, given)
    minimum = key.minimum if key.minimum is not None else number
    maximum = key.maximum if key.maximum is not None else number
    # NaN is within no limits.
    if not minimum <= number <= maximum or number in key.excluded:
        raise _wrong(key, given)
    return number


def _boolean(key: ConfigKey, given: Any) -> bool:
    if isinstance(given, bool):
        return given
    word = given.strip(_VALUE_BLANKS).lower() if isinstance(given, str) else ""
    if word not in {"true", "false"}:
        raise _wrong(key, given)
    return word == "true"


def _integer(key: ConfigKey, given: Any) -> int:
    value: int
    if isinstance(given, str):
        text = given.strip(_VALUE_BLANKS)
        if not _INTEGER.fullmatch(text):
            raise _wrong(key, given)
        value = int(text)
    else:
        if isinstance(given, bool):
            raise _wrong(key, given)
        try:
            # Also a numpy integer; not a float, which may have lost digits.
            value = operator.index(given)
        except TypeError:
            raise _wrong(key, given) from None
    limit = _KIND_LIMITS[key.kind]
    if not -limit - 1 <= value <= limit:
        raise _wrong(key, given)
    return value


def _decimal(key: ConfigKey, given: Any) -> float:
    if isinstance(given, str):
        text = given.strip(_VALUE_BLANKS)
        if not _DECIMAL.fullmatch(text):
            raise _wrong(key, given)
        return float(text)
    if isinstance(given, bool) or not isinstance(given, (int, float)):
        raise _wrong(key, given)
    try:
        return float(given)
    except OverflowError:
        raise _wrong(key, given) from None


def _words(key: ConfigKey, given: Any) -> list[str]:
    if isinstance(given, str):
        text = given.strip(_VALUE_BLANKS)
        return [word.strip(_VALUE_BLANKS) for word in text.split(",")] if text else []
    if not isinstance(given, (list, tuple)) or not all(isinstance(word, str) for word in given):
        raise _wrong(key, given)
    return list(given)


def _require_choice(key: ConfigKey, word: str, given: Any) -> str:
    if key.choices and word not in key.choices:
        nearest = difflib.get_close_matches(word, key.choices, n=1)
        raise _wrong(key, given, f" Did you mean '{nearest[0]}'?" if nearest else "")
    return word


def _wrong(key: ConfigKey, given: Any, hint: str = "") -> OptionError:
    shown = repr(given)[:_SHOWN_CHARACTERS]
    return OptionError(
        f"Expected as {key.name} a value of type {key.kind.value} ({key.range_text}), found {shown}.{hint}"
    )


class ConfigKeys:
    """The keys of one configuration class, whose fields have their names with underscores for dots.

    Args:
        keys: The keys. Those that Kafka does not document are not suggested for a misspelt name.
        what: What an error calls such a key.
        prefix: Left out of the names of the fields.
    """

    def __init__(self, keys: Iterable[ConfigKey], what: str, prefix: str = "") -> None:
        self._what = what
        self._prefix = prefix
        self._keys = {key.name.removeprefix(prefix).replace(".", "_"): key for key in keys}

    def default(self, name: str) -> Any:
        """Return the field of a key, with its default."""
        key = self._keys[name.removeprefix(self._prefix).replace(".", "_")]
        return field(default=None if key.default is None else parse_config_value(key, key.default))

    def coerce(self, config: object) -> None:
        """Parse the value of each field of a frozen dataclass, and check its range.

        Raises:
            OptionError: A value has the wrong type or is out of range.
        """
        for name, key in self._keys.items():
            given = getattr(config, name)
            if given is not None or key.default is not None:
                object.__setattr__(config, name, parse_config_value(key, given))

    def by_field(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return values by field name. Their names may have dots or underscores.

        Raises:
            OptionError: A key is unknown or given twice.
        """
        fields: dict[str, Any] = {}
        for name, value in values.items():
            field_name = self._field_name(str(name))
            if field_name in fields:
                raise OptionError(
                    f"Expected the {self._what} '{self._keys[field_name].name}' once, found it twice."
                )
            fields[field_name] = value
        return fields

    def _field_name(self, name: str) -> str:
        field_name = name.replace("_", ".").removeprefix(self._prefix).replace(".", "_")
        if field_name not in self._keys:
            known = [key.name for key in self._keys.values() if key not in INTERNAL_KEYS]
            nearest = difflib.get_close_matches(name.lower().replace("_", "."), known, n=1)
            hint = f"Did you mean '{nearest[0]}'?" if nearest else f"Known are: {', '.join(sorted(known))}."
            raise OptionError(f"Unknown {self._what} '{name}'. {hint}")
        return field_name


_PROPERTIES_BLANKS = " \t\f"
_LINE_END = re.compile(r"\r\n|\n|\r")
_ESCAPE = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|(.)|$)", re.DOTALL)
_ESCAPED_BLANKS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def parse_java_properties(text: str) -> Iterator[tuple[str, str]]:
    r"""Yield key and value of each property in order; of two with one key, Java keeps the later one.

    Raises:
        ValueError: A ``\u`` is not followed by four hexadecimal digits.
    """
    for line in _logical_lines(text):
        key_end = _key_end(line)
        rest = line[key_end:].lstrip(_PROPERTIES_BLANKS)
        if rest[:1] in ("=", ":"):
            rest = rest[1:].lstrip(_PROPERTIES_BLANKS)
        yield _unescape(line[:key_end]), _unescape(rest)


def _logical_lines(text: str) -> Iterator[str]:
    """Join lines that end in an odd number of backslashes; leave out comments and blank lines."""
    pending: str | None = None
    natural_lines = _LINE_END.split(text)
    if natural_lines[-1] == "":
        # No line follows the last line end.
        natural_lines.pop()
    for natural_line in natural_lines:
        line = natural_line.lstrip(_PROPERTIES_BLANKS)
        if not pending and (not line or line[0] in "#!"):
            pending = None
            continue
        line = (pending or "") + line
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2 == 1:
            pending = line[:-1]
            continue
        pending = None
        yield line
    if pending is not None:
        yield pending


def _key_end(line: str) -> int:
    position = 0
    while position < len(line) and line[position] not in "=: \t\f":
        position += 2 if line[position] == "\\" else 1
    return min(position, len(line))


def _unescape(text: str) -> str:
    unescaped = _ESCAPE.sub(_unescaped, text)
    # A character beyond 16 bits is escaped as a surrogate pair.
    return unescaped.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


def _unescaped(match: re.Match[str]) -> str:
    if match[1] is not None:
        return chr(int(match[1], 16))
    character = match[2] or ""
    if character == "u":
        found = match.string[match.start() : match.start() + 6]
        raise ValueError(f"Expected four hexadecimal digits after \\u, found {found!r}.")
    return _ESCAPED_BLANKS.get(character, character)
