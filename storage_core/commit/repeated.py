"""Recognising a job whose version is already committed: whether it is the same job, and how many of its rows are left.

A batch that Spark repeats may come in other tasks, and its rows in another order and with other commit times. So rows
are known by their number, and by a checksum that no order of rows or tasks changes. Each row counts by itself: the
CRC-32C of its topic, key and value, and its timestamp if it has one.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.types as kinds
from crc32c import crc32c

from storage_core.checkpoint.truncations_file import is_known_since, truncated_to
from storage_core.directory import PartitionLog
from storage_core.errors import CorruptError, OptionError, first_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

    from storage_core.commit.job_spec import JobContext, JobSpec
    from storage_core.commit.routing import RoutedRows
    from storage_core.commit_files.commits_file import CommitEntry, CommitsFile
    from storage_core.directory import PartitionDirectory

_PARTITIONS_SHOWN: Final = 5
_MODULUS: Final = 1 << 64
# Odd numbers, which keep the parts of a row apart.
_OF_TIMESTAMP: Final = 0x9E3779B97F4A7C15
_OF_NULL: Final = {"key": 0xC2B2AE3D27D4EB4F, "value": 0x165667B19E3779F9}


@dataclass(frozen=True, slots=True)
class RowsDigest:
    """The number of some rows and their checksum; None: unknown."""

    count: int = 0
    checksum: int | None = 0

    def __add__(self, other: RowsDigest) -> RowsDigest:
        """Return the digest of both together."""
        is_known = self.checksum is not None and other.checksum is not None
        total = (self.checksum or 0) + (other.checksum or 0)
        return RowsDigest(self.count + other.count, total % _MODULUS if is_known else None)

    def differs(self, other: RowsDigest) -> bool:
        """Return True if these are certainly other rows."""
        are_known = self.checksum is not None and other.checksum is not None
        return self.count != other.count or (are_known and self.checksum != other.checksum)


def rows_digest(rows: RoutedRows) -> RowsDigest:
    """Compute the digest of rows; it does not depend on their partitions, which may follow from their order."""
    records = rows.records
    total = 0
    crcs: Iterable[int] = _topic_crcs(rows)
    for name in ("key", "value"):
        if name in records.schema.names:
            column, null_count = _byte_strings(records.column(name))
            total += null_count * _OF_NULL[name]
            crcs = map(crc32c, column, crcs)
    total += sum(crcs)
    if "timestamp" in records.schema.names:
        total += _timestamp_sum(records.column("timestamp")) * _OF_TIMESTAMP
    return RowsDigest(records.num_rows, total % _MODULUS)


def _topic_crcs(rows: RoutedRows) -> list[int]:
    crcs = np.array([crc32c(topic.encode()) for topic in rows.topics], np.int64)
    indexes = np.zeros(rows.records.num_rows, np.intp) if rows.topic_indexes is None else rows.topic_indexes
    found: list[int] = crcs[indexes].tolist()
    return found


def _byte_strings(column: pa.Array) -> tuple[npt.NDArray[Any], int]:
    """Return the values, empty in place of nulls, and the number of nulls."""
    if kinds.is_dictionary(column.type):
        column = column.dictionary_decode()
    if kinds.is_string_view(column.type):
        column = column.cast(pa.string())
    if not kinds.is_binary(column.type):
        column = column.cast(pa.large_binary())
    return column.fill_null(b"").to_numpy(zero_copy_only=False), column.null_count


def _timestamp_sum(column: pa.Array) -> int:
    """Sum up the timestamps that the rows have, which are never the time of the job."""
    if kinds.is_null(column.type):
        return 0
    numbers = column.drop_null().view(pa.int64()).to_numpy()
    # Each is squared, so that a later one does not make up for an earlier one.
    return int((numbers.astype(np.uint64) * (numbers.astype(np.uint64) | np.uint64(1))).sum(dtype=np.uint64))


def is_version_committed(commits: CommitsFile, spec: JobSpec) -> bool:
    """Return True if an application has committed this version, or a later one.

    Raises:
        OptionError: The name of the application is that of another streaming query, or of an application that is none;
            or a micro-batch comes before the last one.
    """
    if spec.txn_app_id is None or spec.txn_version is None:
        return False
    last = commits.last_of(spec.txn_app_id)
    if last is None or last.txn_version is None:
        return False
    is_committed = spec.txn_version <= last.txn_version
    # Batches that another program has written, with foreachBatch perhaps, may be continued.
    is_other = spec.query_id != last.query_id and (last.query_id is not None or is_committed)
    if spec.query_id is not None and is_other:
        whose = "a job that is no stream" if last.query_id is None else f"the streaming query {last.query_id}"
        raise OptionError(
            f"Expected the txnAppId {spec.txn_app_id!r} to be that of the streaming query {spec.query_id}, at its "
            f"batch {spec.txn_version}; found that {whose} has written batch {last.txn_version} with it. A query "
            "with a new checkpoint is another query: restore the checkpoint, or give the query another txnAppId and "
            "a start that repeats no rows."
        )
    if spec.is_stream and spec.txn_version < last.txn_version:
        raise OptionError(
            f"Expected batch {last.txn_version} of the streaming query {_query(spec)} or a later one, found batch "
            f"{spec.txn_version}: Spark repeats only the last batch. So the checkpoint is older than the rows that "
            "are here, restored from a backup perhaps, or another query runs with a copy of it. Nothing was written. Stop "
            "the other query, or restore the newest checkpoint; without one, begin with a new checkpoint at the offsets "
            "that follow those of the rows that are here."
        )
    return is_committed


def check_repeated(
    job: JobContext, commits: CommitsFile, directories: Sequence[PartitionDirectory], found: RowsDigest
) -> str | None:
    """Compare a job whose version is committed with the job that has committed it.

    Returns:
        What the user has to know; None if the same rows are written, and are all there.

    Raises:
        OptionError: The last micro-batch of a stream is repeated with other rows.
    """
    spec = job.spec
    entry = commits.with_version(spec.txn_app_id, spec.txn_version)
    if entry is None:
        return (
            "a later version is committed, and which job has written this one, if any, is not known any more"
        )
    is_other = entry.row_count is not None and found.differs(RowsDigest(entry.row_count, entry.checksum))
    if spec.is_stream and spec.compares_rows and is_other:
        raise OptionError(
            f"Expected batch {spec.txn_version} of the streaming query {_query(spec)} with the "
            f"{entry.row_count} rows that job {entry.job_id} has written, found {found.count} other rows: the checkpoint "
            "is not the newest, another query runs with a copy of it, or the source has changed. Nothing was written. Stop "
            "the other query, or restore the newest checkpoint; without one, begin with a new checkpoint at the offsets "
            "that follow those of the rows that are here. If each run computes other rows, with uuid() for example, the "
            "option repeatedBatch=skip takes the batch for written."
        )
    lost = _lost(job, entry, directories)
    if not lost and not is_other:
        return None
    time = datetime.fromtimestamp(entry.time_ms / 1000, UTC).isoformat(sep=" ", timespec="seconds")
    rows = "rows" if entry.row_count is None else f"{entry.row_count} rows"
    return f"job {entry.job_id} has written {rows} at {time}{lost}; this job has {found.count} rows"


def _query(spec: JobSpec) -> str:
    return str(spec.query_id or spec.txn_app_id)


def _lost(job: JobContext, entry: CommitEntry, directories: Sequence[PartitionDirectory]) -> str:
    """Say what is left of the offsets that a job has written; empty if all are known to be."""
    by_partition = {directory.topic_partition: directory for directory in directories}
    is_known = is_known_since(job.filesystem, job.root, entry.truncations_bytes)
    left_count, texts = 0, []
    for topic, partition, start, end in entry.ranges or ():
        directory = by_partition.get((topic, partition))
        first = last = end
        if directory is not None:
            first, last = _bounds(job, directory, start, end, entry.truncations_bytes if is_known else None)
        left_count += last - first
        if last - first < end - start:
            left = f"{first} to {last - 1}" if first < last else "none"
            texts.append(f"{left} of offsets {start} to {end - 1} in {topic}-{partition}")
    if not texts:
        return "" if is_known or not entry.ranges else ", and whether they are all left is not known"
    return f", of which {left_count} are left ({first_of(texts, _PARTITIONS_SHOWN)})"


def _bounds(
    job: JobContext, directory: PartitionDirectory, start: int, end: int, truncations_bytes: int | None
) -> tuple[int, int]:
    """Return the part of a range of offsets that is still in the log: not below its start, and not known to be truncated."""
    try:
        log = PartitionLog.load(job.filesystem, directory)
        first, last = max(start, log.log_start_offset), min(end, log.log_end_offset)
    except CorruptError:
        return end, end
    if truncations_bytes is not None:
        cut = truncated_to(job.filesystem, job.root, *directory.topic_partition, truncations_bytes)
        last = last if cut is None else min(last, cut)
    return (first, last) if first < last else (end, end)
