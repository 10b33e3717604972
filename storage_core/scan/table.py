"""`read_table`: a read into one Arrow table, without Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from storage_core.errors import OptionError
from storage_core.filesystem import FileSystem
from storage_core.scan.options import parse_read_options
from storage_core.scan.plan import plan_scan
from storage_core.scan.read import read_task
from storage_core.scan.schema import project, record_schema

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from storage_core.scan.options import ReadOptions

__all__ = ["options_of", "read_table"]

_SMALL_BATCH_BYTES: Final = 64 << 10
_JOINED_BATCHES: Final = 1_000
_JOINED_BYTES: Final = 8 << 20


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


def read_table(
    *paths: str | os.PathLike[str], filesystem: FileSystem | None = None, **options: object
) -> pa.Table:
    """Read log directories into one table, ordered by topic, partition and offset.

    Args:
        paths: Log directories, folders of them, or partition directories.
        filesystem: Where to read; its ``statistics`` say afterwards what was read.
        options: The read options of the Spark source in snake_case: ``subscribe="orders"``,
            ``starting_timestamp=...``, ``isolation_level="read_committed"``, ``columns=[...]``,
            ``where="key = 'k1'"`` (or a `Predicate`).

    Returns:
        The columns of Spark's Kafka source: ``key``, ``value``, ``topic``, ``partition``,
        ``offset``, ``timestamp`` (microseconds, UTC), ``timestampType``; ``headers`` and
        ``_metadata`` if asked for; ``_corrupt_record`` with ``mode="PERMISSIVE"``.

    Raises:
        OptionError: An option is unknown or wrong.
        SegmentLogError: What is asked for cannot be read.
    """
    filesystem = filesystem or FileSystem()
    parsed = options_of(paths, options)
    schema = project(
        record_schema(
            include_headers=parsed.include_headers,
            include_metadata=parsed.include_metadata,
            corrupt_record_column=parsed.corrupt_record_column if parsed.mode == "PERMISSIVE" else None,
        ),
        parsed.columns,
    )
    plan = plan_scan(filesystem, parsed)
    batches = (batch for task in plan.tasks for batch in read_task(filesystem, task, schema))
    return pa.Table.from_batches(_with_small_ones_joined(batches), schema=schema)


def _with_small_ones_joined(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows. A batch takes kilobytes besides them, and each tiny segment gives one."""
    small: list[pa.RecordBatch] = []
    small_bytes = 0
    for batch in batches:
        size_bytes = batch.nbytes
        is_small = size_bytes < _SMALL_BATCH_BYTES
        if small and (
            not is_small or len(small) == _JOINED_BATCHES or small_bytes + size_bytes > _JOINED_BYTES
        ):
            yield pa.concat_batches(small)
            small, small_bytes = [], 0
        if is_small:
            small.append(batch)
            small_bytes += size_bytes
        else:
            yield batch
    if small:
        yield pa.concat_batches(small)
