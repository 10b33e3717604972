"""The schemas of typed values: from the topic of a schema registry, or from a folder of schema files.

The topic is read as any other one, batch by batch; what it holds is in `storage_core.values.schema_registry`.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import re
from itertools import islice
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from storage_core.directory.consistent import read_consistently
from storage_core.directory.visibility import CommitMonitor
from storage_core.errors import SchemaError, first_of
from storage_core.options import RECORDS
from storage_core.options.bounds import EarliestBound, LatestBound
from storage_core.record.batch_header import NO_TIMESTAMP_MS
from storage_core.scan.plan import plan_ranges
from storage_core.scan.read import read_schema, read_tasks
from storage_core.scan.resolve import find_directories, resolve_partition, split_paths
from storage_core.values.registered_schema import context_text
from storage_core.values.schema_registry import (
    INDEX_FILE,
    OTHER_SUFFIX,
    SUFFIXES,
    read_registry,
    registry_of_files,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from storage_core.directory import PartitionDirectory
    from storage_core.filesystem import ReadableFileSystem
    from storage_core.options import ReadOptions
    from storage_core.scan.offset_ranges import PartitionRange
    from storage_core.values.schema_registry import SchemaRegistry


_log = logging.getLogger(__name__)
_SHOWN: Final = 5
# Or the index of an export; a log directory may have other JSON files.
_NAMED_BY_ID: Final = re.compile(rf"[0-9]+\.(avsc|proto|json)|{re.escape(INDEX_FILE)}")
_MOST_FILE_BYTES: Final = 64 << 20
_MOST_BYTES: Final = 1 << 30


def load_registry(
    filesystem: ReadableFileSystem, options: ReadOptions, *, is_quiet: bool = False
) -> SchemaRegistry:
    """Read the schemas at ``schemasPath``, or else in the directories that are read.

    Args:
        filesystem: Where to look.
        options: Where the schemas are.
        is_quiet: True to log nothing about duplicate ids and unreadable records.

    Raises:
        SchemaError: There is no topic of a registry, or a schema file cannot be read.
        SegmentLogError: The topic cannot be read.
    """
    files = _schema_files(filesystem, options)
    if files:
        registry = registry_of_files(_contents(filesystem, files))
    else:
        registry = _registry_in_topic(filesystem, options)
    for line in () if is_quiet else complaints(registry):
        _log.warning("%s: %s", first_of(_paths(options), 1), line)
    return registry


def _paths(options: ReadOptions) -> tuple[str, ...]:
    return options.schemas_paths or options.paths


def complaints(registry: SchemaRegistry) -> Iterator[str]:
    """Yield a sentence about each thing in a registry that is not as it should be."""
    for (context, schema_id), schemas in islice(registry.duplicate_ids.items(), _SHOWN):
        places = [f"{each.subject} version {each.version}" for each in schemas]
        yield (
            f"Id {schema_id} in {context_text(context)} is that of different schemas: "
            f"{first_of(places, _SHOWN)}. A topic's records are read with that of its own subject, or else the first."
        )
    if len(registry.duplicate_ids) > _SHOWN:
        yield f"{len(registry.duplicate_ids) - _SHOWN:,} more ids are those of different schemas."
    unreadable = [str(offset) for offset in registry.unreadable_offsets]
    if unreadable:
        yield f"Records that no schema registry writes are left out: at offset {first_of(unreadable, _SHOWN)}."
    if registry.unknown_count:
        yield f"Records of a kind that is not known are left out: {registry.unknown_count:,}."


def source_paths(filesystem: ReadableFileSystem, options: ReadOptions) -> list[str]:
    """Return the paths that the schemas are read from, the directories that have them, and the files in these."""
    directories = schema_directories(filesystem, options)
    files = [
        os.path.join(path, entry.name) for path in directories for entry in filesystem.walk_directory(path)
    ]
    return [*split_paths(filesystem, _paths(options)), *directories, *files]


def schema_directories(filesystem: ReadableFileSystem, options: ReadOptions) -> list[str]:
    """Return the directories that the schemas lie in: the folder of schema files, or the partitions of the topic."""
    files = _schema_files(filesystem, options)
    if files:
        return [os.path.dirname(files[0])]
    return [each.path for each in _partitions_of_topic(filesystem, options, None)]


def _partitions_of_topic(
    filesystem: ReadableFileSystem, options: ReadOptions, watch: CommitMonitor | None
) -> list[PartitionDirectory]:
    found = find_directories(filesystem, dataclasses.replace(options, paths=_paths(options)), watch)
    return [directory for directory in found if directory.topic == options.schemas_topic]


def _registry_in_topic(filesystem: ReadableFileSystem, options: ReadOptions) -> SchemaRegistry:
    wanted = dataclasses.replace(
        options,
        paths=_paths(options),
        starting=EarliestBound(),
        ending=LatestBound(),
        isolation_level="read_uncommitted",
        min_partitions=None,
        max_records_per_partition=None,
        max_bytes_per_partition=None,
        columns=("offset", "timestamp", "key", "value"),
        include_headers=False,
        include_metadata=False,
        where=None,
        max_timestamp_disorder_ms=None,
        mode="FAILFAST" if options.mode == "FAILFAST" else "DROPMALFORMED",
        view=RECORDS,
    )

    def ranges(watch: CommitMonitor) -> list[PartitionRange]:
        chosen = _partitions_of_topic(filesystem, wanted, watch)
        return [resolve_partition(filesystem, directory, wanted) for directory in chosen]

    found = read_consistently(CommitMonitor(filesystem), ranges)
    if not found:
        raise SchemaError(
            f"There is no topic {wanted.schemas_topic} in {first_of(wanted.paths, _SHOWN)}. Name the log directory that has the "
            "schema registry's topic, or a folder of schema files, as schemasPath; or another topic as schemasTopic."
        )
    plan = plan_ranges(filesystem, found, wanted, formats=())
    batches = read_tasks(filesystem, plan.tasks, read_schema(wanted))
    return read_registry(_records(batches))


def _records(
    batches: Iterable[pa.RecordBatch],
) -> Iterator[tuple[int, int, bytes | None, bytes | None]]:
    for batch in batches:
        offsets, times, keys, values = batch.columns
        times_us = times.cast(pa.int64()).fill_null(NO_TIMESTAMP_MS * 1000).to_pylist()
        for offset, time_us, key, value in zip(
            offsets.to_pylist(), times_us, keys.to_pylist(), values.to_pylist(), strict=True
        ):
            yield offset, time_us // 1000, key, value


def _schema_files(filesystem: ReadableFileSystem, options: ReadOptions) -> list[str]:
    """Return the paths of the schema files, if ``schemasPath`` is one folder that has some; otherwise none."""
    folders = split_paths(filesystem, options.schemas_paths or ())
    status = filesystem.status(folders[0], follow_symlinks=True) if len(folders) == 1 else None
    if status is None or not status.is_directory:
        return []
    names = [entry.name for entry in filesystem.walk_directory(folders[0])]
    if not any(map(_NAMED_BY_ID.fullmatch, names)):
        return []
    suffixes = (*SUFFIXES.values(), OTHER_SUFFIX)
    return [os.path.join(folders[0], name) for name in names if name == INDEX_FILE or name.endswith(suffixes)]


def _contents(filesystem: ReadableFileSystem, paths: Iterable[str]) -> dict[str, str]:
    """Read schema files; return their texts by name."""
    texts: dict[str, str] = {}
    left_bytes = _MOST_BYTES
    for path in paths:
        content = filesystem.read_file(path, min(_MOST_FILE_BYTES, left_bytes)) or b""
        left_bytes -= len(content)
        try:
            texts[os.path.basename(path)] = content.decode()
        except UnicodeDecodeError as error:
            raise SchemaError(f"A schema file is not UTF-8: {error}.", path=path) from error
    return texts
