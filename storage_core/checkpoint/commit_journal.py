"""``.segmentlog-journal`` in a log directory's root: what a commit does, written before the first of it is done.

While it is there, and its job is not in ``.segmentlog-commits``, the partitions that it names
are being changed: readers take each to end at ``log_end_before``. Whoever finds it finishes it.

Two lines: JSON, and its CRC-32C as 8 hexadecimal digits. Offsets and bytes are integers:

    {"version":1,"job":"<32 hex>","generation":8,"time_ms":…,"txn_app_id":null,"txn_version":null,
     "clean_shutdown":"<base64>","flushed":true,"manifests":["<name>",…],
     "partitions":[{"topic":"t","partition":0,"is_new":false,"topic_id":"<22 characters>"|null,
       "leader_epoch":0,"log_start_before":0,"log_start_after":0,"log_end_before":900,"log_end_after":4960,
       "epochs_after":[[<epoch>,<start offset>],…],"snapshot_from":900|"empty"|null,"keep_offsets":false,
       "operations":[
         {"append":[{"file":"<name without suffix>","position":0,"size":7300},…],"base_offset":900,
          "segment":0,"size_before":18440,"index_size_before":16,"time_index_size_before":24},
         {"link":"<name without suffix>","base_offset":960,"size":486332,"fingerprint":"<8 hex>"}]}]}
"""

from __future__ import annotations

import base64
import os
from typing import TYPE_CHECKING, Any, Final

from storage_core.checkpoint._small_file import read_small_file, replace_file
from storage_core.checkpoint.commits_file import OWN_PREFIX
from storage_core.checkpoint.journal_parse import JOURNAL_VERSION, parse_commit_journal
from storage_core.checkpoint.journal_values import (
    AppendOperation,
    CommitJournal,
    JournalledPartition,
    LinkOperation,
    PackRange,
)
from storage_core.checkpoint.json_fields import json_file_bytes
from storage_core.errors import OptionError

if TYPE_CHECKING:
    from storage_core.filesystem import FileSystem

__all__ = [
    "COMMIT_IN_PROGRESS",
    "COMMIT_JOURNAL",
    "MAX_JOURNAL_BYTES",
    "AppendOperation",
    "CommitJournal",
    "JournalledPartition",
    "LinkOperation",
    "PackRange",
    "commit_journal_bytes",
    "parse_commit_journal",
    "read_commit_journal",
    "read_journal_bytes",
    "write_commit_journal",
]

COMMIT_JOURNAL: Final = f"{OWN_PREFIX}journal"
COMMIT_IN_PROGRESS: Final = "segmentlog.commit-in-progress"
"""A directory beside the journal, over which no broker starts: its name is not that of a partition."""
# 300,000 partitions of about 800 bytes each.
MAX_JOURNAL_BYTES: Final = 256 * 1024 * 1024


def read_commit_journal(filesystem: FileSystem, root: str) -> CommitJournal | None:
    """Read the journal in a log directory; None if there is none.

    Raises:
        CorruptCheckpointError: It is damaged, or written by a newer release.
        UnreadableError: This user may not read it.
    """
    data = read_journal_bytes(filesystem, root)
    return None if data is None else parse_commit_journal(data, os.path.join(root, COMMIT_JOURNAL))


def read_journal_bytes(filesystem: FileSystem, root: str) -> bytes | None:
    """Read the journal in a log directory without parsing it; None if there is none."""
    return read_small_file(filesystem, os.path.join(root, COMMIT_JOURNAL), MAX_JOURNAL_BYTES)


def write_commit_journal(filesystem: FileSystem, root: str, journal: CommitJournal) -> None:
    """Write the journal of a log directory: it is there for good when this returns, or as it was before.

    Of a job that does not flush, only the content is on the disk: a journal that cannot be read would be in the way
    of everybody.

    Raises:
        OptionError: It would be longer than any that is read.
        CorruptCheckpointError: Nobody could read it.
        StorageError: The file system refused.
    """
    data = commit_journal_bytes(journal)
    path = os.path.join(root, COMMIT_JOURNAL)
    if len(data) > MAX_JOURNAL_BYTES:
        raise OptionError(
            f"Expected a commit whose journal has at most {MAX_JOURNAL_BYTES} bytes, found {len(data)} for "
            f"{len(journal.partitions)} partitions. Write fewer partitions, or fewer and larger files, at once.",
            path=path,
        )
    # Behind a journal that is refused, nobody reads or writes any more.
    parse_commit_journal(data, path)
    replace_file(filesystem, path, data, flush_name=journal.is_flushed)


def commit_journal_bytes(journal: CommitJournal) -> bytes:
    """The content of a journal."""
    return json_file_bytes(
        {
            "version": JOURNAL_VERSION,
            "job": journal.job_id,
            "generation": journal.generation,
            "time_ms": journal.time_ms,
            "txn_app_id": journal.txn_app_id,
            "txn_version": journal.txn_version,
            "clean_shutdown": base64.b64encode(journal.clean_shutdown).decode("ascii"),
            "flushed": journal.is_flushed,
            "manifests": list(journal.manifests),
            "partitions": [_partition_values(each) for each in journal.partitions],
        }
    )


def _partition_values(partition: JournalledPartition) -> dict[str, Any]:
    return {
        "topic": partition.topic,
        "partition": partition.partition,
        "is_new": partition.is_new,
        "topic_id": partition.topic_id,
        "leader_epoch": partition.leader_epoch,
        "log_start_before": partition.log_start_before,
        "log_start_after": partition.log_start_after,
        "log_end_before": partition.log_end_before,
        "log_end_after": partition.log_end_after,
        "epochs_after": [[entry.epoch, entry.start_offset] for entry in partition.epochs_after],
        "snapshot_from": partition.snapshot_from,
        "keep_offsets": partition.keep_offsets,
        "operations": [_operation_values(each) for each in partition.operations],
    }


def _operation_values(operation: AppendOperation | LinkOperation) -> dict[str, Any]:
    if isinstance(operation, LinkOperation):
        return {
            "link": operation.file,
            "base_offset": operation.base_offset,
            "size": operation.size_bytes,
            "fingerprint": f"{operation.fingerprint:08x}",
        }
    return {
        "append": [
            {"file": each.file, "position": each.position_bytes, "size": each.size_bytes}
            for each in operation.ranges
        ],
        "base_offset": operation.base_offset,
        "segment": operation.segment_base_offset,
        "size_before": operation.size_before_bytes,
        "index_size_before": operation.index_size_before_bytes,
        "time_index_size_before": operation.time_index_size_before_bytes,
    }
