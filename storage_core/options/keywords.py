"""The options of a batch read as keywords of functions, for completion, type checkers and `help`."""

from __future__ import annotations

import datetime as dt
import os
import re
from collections.abc import Callable, Iterable, Mapping
from inspect import cleandoc
from typing import Any, Final, SupportsIndex, TypeAlias, TypedDict, TypeVar

from storage_core.options import READ_OPTIONS
from storage_core.options.column_choice import Format
from storage_core.options.option import keyword_of
from storage_core.options.predicate import Predicate
from storage_core.options.read_options import DamageMode, EndingAt, IsolationLevel, StartingStrategy

_Function = TypeVar("_Function", bound=Callable[..., Any])
# Markdown, and what follows the first sentence.
_NOT_SHOWN: Final = re.compile(r"^Required\. |`|\[(?=[^]]*\]\()|\]\([^)]*\)|\.(?= [A-Z]).*|\.$")

# The values of each kind of option. None is as if the option were not given.
Flag: TypeAlias = bool | str | None
Json: TypeAlias = Mapping[str, Any] | str | None
Names: TypeAlias = list[str] | tuple[str, ...] | set[str] | frozenset[str] | str | None
Number: TypeAlias = SupportsIndex | str | None
Path: TypeAlias = os.PathLike[str] | str
Paths: TypeAlias = Path | Iterable[Path] | None
Schema: TypeAlias = Mapping[str, Any] | list[Any] | Path | None
Text: TypeAlias = str | None
Time: TypeAlias = dt.date | SupportsIndex | str | None

# Generated from the registry of options: python -m tests.option_tables --write-keywords
# fmt: off
ReadKeywords = TypedDict("ReadKeywords", {  # noqa: UP013  (fewer lines)
    "path": Paths, "remote_storage": Paths, "subscribe": Names, "subscribe_pattern": Text, "assign": Json,
    "starting_offsets": Json, "ending_offsets": Json, "starting_offsets_by_timestamp": Json,
    "ending_offsets_by_timestamp": Json, "starting_timestamp": Time, "ending_timestamp": Time,
    "starting_offsets_by_timestamp_strategy": StartingStrategy | None, "time_zone": dt.tzinfo | str | None,
    "isolation_level": IsolationLevel | None, "kafka_isolation_level": IsolationLevel | None,
    "fail_on_data_loss": Flag, "min_partitions": Number, "max_records_per_partition": Number,
    "max_bytes_per_partition": Number, "ending_at": EndingAt | None, "ignore_checkpoints": Flag,
    "use_indexes": Flag, "max_decompressed_batch_bytes": Number, "include_headers": Flag,
    "include_metadata": Flag, "columns": Names, "value_format": Format | None, "value_schema": Schema,
    "value_schema_id": Number, "value_schema_version": Number, "value_subject": Text, "value_message": Text,
    "key_format": Format | None, "key_schema": Schema, "key_schema_id": Number, "key_schema_version": Number,
    "key_subject": Text, "key_message": Text, "follow_symlinks": Flag, "filter_pushdown": Flag,
    "where": Predicate | str | None, "max_timestamp_disorder": dt.timedelta | SupportsIndex | str | None,
    "mode": DamageMode | None, "column_name_of_corrupt_record": Text, "view": Text, "as_of": Time,
    "exact": Flag, "schemas_path": Paths, "schemas_topic": Text, "remote_storage_key_file": Path | None,
    "storage_options": Mapping[str, Any] | None,
}, total=False)
# fmt: on


def with_options(function: _Function) -> _Function:
    """Add a line for each option of a batch read to a function's docstring: keyword, default and meaning."""
    lines = [
        f"    {keyword_of(each.name)}{each.default and f' ({each.default})'}: {_NOT_SHOWN.sub('', each.doc)}."
        for each in READ_OPTIONS
        if each.only != "stream"
    ]
    function.__doc__ = "\n".join([cleandoc(function.__doc__ or ""), "", "Options:", *lines])
    return function
