"""The options of a read, parsed and validated in one pure function.

Names and meanings are those of Spark's Kafka source where it has them. Every mistake is
found here, before a directory is read, and reported in one line.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Literal, TypeVar, cast

from storage_core.errors import OptionError
from storage_core.options.bounds import (
    Bound,
    EarliestBound,
    LatestBound,
    parse_assignment,
    parse_bounds,
    parse_stream_start,
)
from storage_core.options.java_pattern import compile_java_pattern
from storage_core.options.option import find_option
from storage_core.options.predicate import Predicate, checked_predicate
from storage_core.options.values import (
    DEFAULT_MAX_DECOMPRESSED_BATCH_BYTES,
    parse_boolean,
    parse_choice,
    parse_columns,
    parse_count,
    parse_interval_ms,
    parse_max_batch_bytes,
    parse_paths,
    parse_size_bytes,
    parse_time_zone,
    parse_timestamp_ms,
    parse_topics,
)
from storage_core.options.where import parse_where

if TYPE_CHECKING:
    import datetime as dt
    import os
    from collections.abc import Callable, Mapping, Sequence


_Parsed = TypeVar("_Parsed")
_Word = TypeVar("_Word", bound=str)
_RECORD_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
RECORDS = "records"
"""The view that is a read of the records; `storage_core.views` makes the others."""
# By view, the columns that conditions know as `offset` and `timestamp`, in lower case.
VIEWS: Final[dict[str, dict[str, str]]] = {
    RECORDS: {},
    "batches": {"baseoffset": "offset", "maxtimestamp": "timestamp"},
    "segments": {"baseoffset": "offset", "maxtimestamp": "timestamp"},
    "partitions": {},
    "index": {},
    "transactions": {"firstoffset": "offset", "starttimestamp": "timestamp"},
    "producers": {"lastoffset": "offset", "lasttimestamp": "timestamp"},
    "epochs": {"startoffset": "offset"},
    "damage": {"startoffset": "offset"},
    "group_offsets": {"committime": "timestamp"},
    "files": {},
}
_RECORDS_ONLY = ("includeHeaders", "includeMetadata", "columnNameOfCorruptRecord")
# Options of one or two views.
_VIEW_OPTIONS = {"asOf": ("group_offsets",), "exact": ("segments", "partitions")}
_TOPIC_OPTIONS = ("subscribe", "subscribePattern", "assign")
DamageMode = Literal["FAILFAST", "DROPMALFORMED", "PERMISSIVE"]
"""Damage fails the read, is skipped, or is skipped and described in a row of its own."""
CORRUPT_RECORD_COLUMN = "_corrupt_record"
"""The default name of the column that describes damage."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What to read, and how; see ``READ_OPTIONS`` for the meaning of each option.

    Attributes:
        paths: As given; `storage_core.scan.resolve.split_paths` splits them at commas.
        assign: Partitions by topic.
        starting: Where each partition starts.
        ending: Where each partition stops, exclusive.
        where: Only rows for which it is true are read.
        max_timestamp_disorder_ms: A record is at most this much earlier than any record before it.
        mode: How damage is handled.
        corrupt_record_column: With mode PERMISSIVE, the column that describes damage.
        view: What the rows are; a key of `VIEWS`.
        as_of_ms: The time as of which group offsets are wanted; None for the latest.
        exact: Whether a view walks every batch header for what file names and sizes do not tell.
    """

    paths: tuple[str, ...]
    subscribe: tuple[str, ...] | None = None
    subscribe_pattern: str | None = None
    assign: Mapping[str, tuple[int, ...]] | None = None
    starting: Bound = EarliestBound()  # noqa: RUF009  (frozen)
    ending: Bound = LatestBound()  # noqa: RUF009  (frozen)
    starting_timestamp_strategy: Literal["error", "latest"] = "error"
    isolation_level: Literal["read_uncommitted", "read_committed"] = "read_uncommitted"
    fail_on_data_loss: bool = True
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    max_bytes_per_partition: int | None = None
    ending_at: Literal["logEnd", "highWatermark"] = "logEnd"
    ignore_checkpoints: bool = False
    use_indexes: bool = True
    max_decompressed_batch_bytes: int = DEFAULT_MAX_DECOMPRESSED_BATCH_BYTES
    include_headers: bool = False
    include_metadata: bool = False
    columns: tuple[str, ...] | None = None
    follow_symlinks: bool = False
    filter_pushdown: bool = False
    where: Predicate | None = None
    max_timestamp_disorder_ms: int | None = None
    mode: DamageMode = "FAILFAST"
    corrupt_record_column: str = CORRUPT_RECORD_COLUMN
    view: str = RECORDS
    as_of_ms: int | None = None
    exact: bool = False


@dataclass(frozen=True, slots=True)
class TriggerLimits:
    """How much a micro-batch takes; None is no limit.

    Attributes:
        max_offsets: The most offsets of all partitions together.
        min_offsets: Fewer new offsets than this wait for more.
        max_delay_ms: The longest wait for them.
        max_bytes: About the most bytes of log.
    """

    max_offsets: int | None = None
    min_offsets: int | None = None
    max_delay_ms: int = 900_000
    max_bytes: int | None = None

    @property
    def are_given(self) -> bool:
        """Whether there is any."""
        return any(each is not None for each in (self.max_offsets, self.min_offsets, self.max_bytes))


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """What a stream reads, and how much at a time.

    Attributes:
        read: What to read. ``starting`` is where a new query starts, ``ending`` is the latest offset, and ``ending_at``
            is what the user asked for if ``is_end_given``.
        limits: How much a micro-batch takes.
        is_start_relative: Whether the start is a time relative to the present, so that each start of the query would
            find another one.
        is_end_given: Whether the user says what the latest offset is.
    """

    read: ReadOptions
    limits: TriggerLimits = TriggerLimits()
    is_start_relative: bool = False
    is_end_given: bool = False


# Relative times are told from others by reading them at another time, too.
_LATER_MS: Final = 3_600_000


def parse_read_options(raw: Mapping[str, object], *, now_ms: int | None = None) -> ReadOptions:
    """Parse and check the options of a batch read. Nothing is opened or looked up.

    Args:
        raw: Values by name. Names may have any case, or be in snake_case; values are texts, as
            Spark passes them, or Python values (numbers, booleans, lists, dicts, datetimes).
            None means that the option is not given.
        now_ms: The time that relative times are relative to; the clock if None.

    Raises:
        OptionError: A name is unknown, a value is wrong, options contradict each other, or one is for streams.
    """
    given = _by_documented_name(raw)
    for name in given:
        if find_option(name).applies_to == "stream":
            raise OptionError(f"Option '{name}' is for streams, and this is a batch read. Leave it out.")
    zone = parse_time_zone("timeZone", given.get("timeZone", "UTC"))
    now_ms = int(time.time() * 1000) if now_ms is None else now_ms
    starting, ending = parse_bounds(given, zone, now_ms)
    return _parse_options(given, starting, ending, zone, now_ms)


def parse_stream_options(raw: Mapping[str, object], *, now_ms: int | None = None) -> StreamOptions:
    """Parse and check the options of a streaming read, as `parse_read_options` does those of a batch read.

    Raises:
        OptionError: As there; or an option makes sense only for a batch.
    """
    given = _by_documented_name(raw)
    zone = parse_time_zone("timeZone", given.get("timeZone", "UTC"))
    now_ms = int(time.time() * 1000) if now_ms is None else now_ms
    starting = parse_stream_start(given, zone, now_ms)
    _refuse_options_of_batches(given)
    read = _parse_options(given, starting, LatestBound(), zone, now_ms)
    if _parse_condition(given, RECORDS, zone, now_ms + _LATER_MS) != read.where:
        raise OptionError(
            f"where is {given['where']!r}, which names a relative time: a batch that is repeated after a failure would "
            "have other rows. Name the time itself, or filter the DataFrame."
        )
    limits = TriggerLimits(
        _optional(given, "maxOffsetsPerTrigger", partial(parse_count, least=0)),
        _optional(given, "minOffsetsPerTrigger", partial(parse_count, least=0)),
        parse_interval_ms("maxTriggerDelay", given.get("maxTriggerDelay", "15m")),
        _optional(given, "maxBytesPerTrigger", parse_size_bytes),
    )
    most, least = limits.max_offsets, limits.min_offsets
    if most is not None and least is not None and least > most:
        raise OptionError(
            f"The value of minOffsetPerTrigger({least}) is higher than the maxOffsetsPerTrigger({most})."
        )
    return StreamOptions(
        read,
        limits,
        is_start_relative=parse_stream_start(given, zone, now_ms + _LATER_MS) != starting,
        is_end_given="endingAt" in given,
    )


def _refuse_options_of_batches(given: Mapping[str, object]) -> None:
    for name, value in given.items():
        option = find_option(name)
        if option.applies_to == "batch" and str(value).strip().lower() != option.default:
            raise OptionError(f"Option '{name}' is for batch reads, and this is a stream. Leave it out.")


def _parse_options(
    given: Mapping[str, object], starting: Bound, ending: Bound, zone: dt.tzinfo, now_ms: int
) -> ReadOptions:
    view = parse_choice("view", given.get("view", RECORDS), tuple(VIEWS))
    _refuse_options_of_other_views(given, view)
    subscribe, subscribe_pattern, assign = _parse_topic_selection(given)
    include_headers = _boolean(given, "includeHeaders", default=False)
    include_metadata = _boolean(given, "includeMetadata", default=False)
    mode: DamageMode = _choice(given, "mode", "FAILFAST", "DROPMALFORMED", "PERMISSIVE")
    corrupt_record_column = _parse_corrupt_record_column(given)
    return ReadOptions(
        paths=_parse_paths(given),
        subscribe=subscribe,
        subscribe_pattern=subscribe_pattern,
        assign=assign,
        starting=starting,
        ending=ending,
        starting_timestamp_strategy=_choice(given, "startingOffsetsByTimestampStrategy", "error", "latest"),
        isolation_level=_choice(given, "isolationLevel", "read_uncommitted", "read_committed"),
        fail_on_data_loss=_boolean(given, "failOnDataLoss", default=True),
        min_partitions=_optional(given, "minPartitions", parse_count),
        # Spark's Kafka source has this name in lower case in its message.
        max_records_per_partition=_optional(
            given, "maxRecordsPerPartition", partial(parse_count, name_in_error="maxrecordsperpartition")
        ),
        max_bytes_per_partition=_optional(given, "maxBytesPerPartition", parse_size_bytes),
        ending_at=_parse_ending_at(given),
        ignore_checkpoints=_boolean(given, "ignoreCheckpoints", default=False),
        use_indexes=_boolean(given, "useIndexes", default=True),
        max_decompressed_batch_bytes=parse_max_batch_bytes(given.get("maxDecompressedBatchBytes")),
        include_headers=include_headers,
        include_metadata=include_metadata,
        columns=_parse_columns(
            given,
            view,
            include_headers=include_headers,
            include_metadata=include_metadata,
            corrupt_record_column=corrupt_record_column if mode == "PERMISSIVE" else None,
        ),
        follow_symlinks=_boolean(given, "followSymlinks", default=False),
        filter_pushdown=_boolean(given, "filterPushdown", default=False),
        where=_parse_condition(given, view, zone, now_ms),
        max_timestamp_disorder_ms=_optional(given, "maxTimestampDisorder", parse_interval_ms),
        mode=mode,
        corrupt_record_column=corrupt_record_column,
        view=view,
        as_of_ms=None if "asOf" not in given else parse_timestamp_ms("asOf", given["asOf"], zone, now_ms),
        exact=_boolean(given, "exact", default=False),
    )


def options_of(paths: Sequence[str | os.PathLike[str]], options: Mapping[str, object]) -> ReadOptions:
    """The options of a call that takes paths by position and options by name.

    Raises:
        OptionError: An option is unknown or wrong, or paths are given twice.
    """
    raw = dict(options)
    if paths and "path" in raw:
        raise OptionError("Paths are given by position and again as path=. Give them once.")
    if paths:
        raw["path"] = list(paths)
    return parse_read_options(raw)


def _by_documented_name(raw: Mapping[str, object]) -> dict[str, object]:
    given: dict[str, object] = {}
    given_as: dict[str, str] = {}
    for name, value in raw.items():
        option = find_option(name).name
        if value is None:
            continue
        # Parsed here, where the name tells whether the list form, `paths`, was used.
        parsed = parse_paths(name.lower(), value) if option == "path" else value
        if option in given and not _same_value(given[option], parsed):
            raise OptionError(
                f"'{given_as[option]}' and '{name}' are the same option, but they are given as "
                f"{given[option]!r} and {parsed!r}. Give it once."
            )
        given.setdefault(option, parsed)
        given_as.setdefault(option, name)
    return given


def _same_value(first: object, second: object) -> bool:
    if isinstance(first, str) and isinstance(second, str):
        return first.strip().lower() == second.strip().lower()
    return first == second


def _refuse_options_of_other_views(given: Mapping[str, object], view: str) -> None:
    for name, value in given.items():
        if str(value).lower() == find_option(name).default:
            continue
        if view != RECORDS and name in _RECORDS_ONLY:
            raise OptionError(f"{name} is for records, and view={view} has none. Leave it out.")
        views = _VIEW_OPTIONS.get(name)
        if views is not None and view not in views:
            raise OptionError(f"{name} is for view={' or '.join(views)}, found view={view}. Leave it out.")


def _parse_paths(given: Mapping[str, object]) -> tuple[str, ...]:
    paths = cast("tuple[str, ...]", given.get("path", ()))
    if not paths:
        raise OptionError(
            'No path is given. Name a log directory: .load("/path") or .option("path", "/path"); in SQL '
            "SELECT ... FROM t WITH (path = '/path') or CREATE TEMPORARY VIEW ... USING segmentlog "
            "OPTIONS (path '/path') (Spark does not pass the options of CREATE TABLE to reads)."
        )
    return paths


def _parse_topic_selection(
    given: Mapping[str, object],
) -> tuple[tuple[str, ...] | None, str | None, dict[str, tuple[int, ...]] | None]:
    chosen = [name for name in _TOPIC_OPTIONS if name in given]
    if len(chosen) > 1:
        raise OptionError(
            "Only one of the following options can be specified for Kafka source: "
            f"{', '.join(_TOPIC_OPTIONS)}, but {' and '.join(chosen)} are given."
        )
    subscribe = _optional(given, "subscribe", parse_topics)
    assign = _optional(given, "assign", parse_assignment)
    pattern = None
    if "subscribePattern" in given:
        value = given["subscribePattern"]
        if not isinstance(value, str):
            raise OptionError(f"subscribePattern is {value!r}. Use the text of a regular expression.")
        compile_java_pattern("subscribePattern", value)
        pattern = value.strip()
    return subscribe, pattern, assign


def _parse_ending_at(given: Mapping[str, object]) -> Literal["logEnd", "highWatermark"]:
    ending_at: Literal["logEnd", "highWatermark"] = _choice(given, "endingAt", "logEnd", "highWatermark")
    if ending_at == "highWatermark" and _boolean(given, "ignoreCheckpoints", default=False):
        raise OptionError(
            "endingAt=highWatermark needs the checkpoint of high watermarks, and ignoreCheckpoints leaves it out. "
            "Give one of them."
        )
    return ending_at


def _parse_corrupt_record_column(given: Mapping[str, object]) -> str:
    name = given.get("columnNameOfCorruptRecord", CORRUPT_RECORD_COLUMN)
    if not isinstance(name, str) or not name.strip():
        raise OptionError(f"columnNameOfCorruptRecord is {name!r}. Use the name of a column.")
    # Spark compares column names without regard to case.
    if name.lower() in {known.lower() for known in (*_RECORD_COLUMNS, "headers", "_metadata")}:
        raise OptionError(
            f"columnNameOfCorruptRecord is {name!r}, which is the name of a record's column. Use another one."
        )
    return name


def _parse_columns(
    given: Mapping[str, object],
    view: str,
    *,
    include_headers: bool,
    include_metadata: bool,
    corrupt_record_column: str | None,
) -> tuple[str, ...] | None:
    if "columns" not in given:
        return None
    if view != RECORDS:
        # The view checks the names.
        return parse_columns("columns", given["columns"], None)
    known = list(_RECORD_COLUMNS)
    if include_headers:
        known.append("headers")
    if include_metadata:
        known.append("_metadata")
    if corrupt_record_column is not None:
        known.append(corrupt_record_column)
    return parse_columns("columns", given["columns"], known)


def _parse_condition(
    given: Mapping[str, object], view: str, zone: dt.tzinfo, now_ms: int
) -> Predicate | None:
    if "where" not in given:
        return None
    value = given["where"]
    if isinstance(value, str):
        return parse_where(value, zone, now_ms, VIEWS[view], has_content=view == RECORDS)
    return checked_predicate(value)


def _optional(
    given: Mapping[str, object], name: str, parse: Callable[[str, object], _Parsed]
) -> _Parsed | None:
    return parse(name, given[name]) if name in given else None


def _boolean(given: Mapping[str, object], name: str, *, default: bool) -> bool:
    return parse_boolean(name, given.get(name, default))


def _choice(given: Mapping[str, object], name: str, default: _Word, *others: _Word) -> _Word:
    return cast("_Word", parse_choice(name, given.get(name, default), (default, *others)))
