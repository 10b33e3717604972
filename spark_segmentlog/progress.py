"""How far a streaming query is behind the logs that it reads."""

from __future__ import annotations

import ast
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Lag:
    """Records that a query has not read yet.

    Attributes:
        records_by_partition: By topic and partition, the offsets that are not read; a compacted log, and one with
            transactions, has fewer records than offsets. Partitions that are read to their ends are left out.
        bytes: What they take in the log files; None if no path was given.
    """

    records_by_partition: Mapping[tuple[str, int], int]
    bytes: int | None = None

    @property
    def records(self) -> int:
        """Number of offsets that are not read, of all partitions."""
        return sum(self.records_by_partition.values())


def lag(
    progress: Mapping[str, Any],
    path: str | os.PathLike[str] | None = None,
    *,
    source: int = 0,
    **options: object,
) -> Lag:
    """Tell from ``query.lastProgress`` how far a query is behind.

    Args:
        progress: One of the query's progress reports.
        path: The log directory that it reads. With it, the present ends of the logs count, and bytes are told, too.
            Without it, the ends that the report names: Spark has them from 4.2 on.
        source: The index of the source, if the query has several.
        **options: With a path, the options of the query that choose topics or ends (``subscribe``, ``endingAt``).

    Raises:
        OptionError: The report names no offsets of this source, or no ends, and no path is given.
        SegmentLogError: A log cannot be read.
    """
    # Loaded here, because importing the package is cheap.
    from storage_core.errors import OptionError  # noqa: PLC0415
    from storage_core.options import parse_stream_options  # noqa: PLC0415
    from storage_core.scan.stream import backlog, offsets_of_json  # noqa: PLC0415
    from storage_core.tier import open_file_system  # noqa: PLC0415

    reported = progress["sources"][source]
    read = offsets_of_json(_json(reported["endOffset"]) or {})
    if path is not None:
        stream = parse_stream_options({"path": os.fspath(path), **options})
        left = backlog(open_file_system(stream.read.storage), stream, read)
        records = {key: count for key, (count, _) in left.items()}
        return Lag(records, sum(size_bytes for _, size_bytes in left.values()))
    ends = _json(reported.get("latestOffset"))
    if ends is None:
        raise OptionError(
            "Expected a progress report with latestOffset, which Spark has from 4.2 on, found none. Give the path of the "
            "log directory, too."
        )
    counts = {key: end - read.get(key, 0) for key, end in offsets_of_json(ends).items()}
    return Lag({key: count for key, count in counts.items() if count > 0})


def _json(offsets: object) -> Any:
    # PySpark has values in its dictionaries, and text in its objects: JSON, or since 4.1 what Python prints of it. Numbers,
    # texts and objects are written alike in both.
    if not isinstance(offsets, str):
        return offsets
    return None if offsets in {"", "null", "None"} else ast.literal_eval(offsets)
