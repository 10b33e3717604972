"""``.segmentlog-journal`` in a log directory's root: everything that a commit is going to do.

The journal is written before the first change. While it exists and its job is not in ``.segmentlog-commits``, the
commit is changing the partitions that the journal names: readers take each of them to end at ``log_end_before``. The
next process that opens the log directory for writing completes the commit.

The file has two lines, JSON and its CRC-32C as 8 hexadecimal digits. Offsets and byte counts are integers:

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
import binascii
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from storage_core.checkpoint.checkpoint_file import read_small_file, replace_file
from storage_core.checkpoint.partition_files import EpochEntry
from storage_core.commit_files.commits_file import OWN_PREFIX, CommitEntry
from storage_core.commit_files.json_fields import JsonFields, json_bytes, parse_json_file, with_crc_line
from storage_core.commit_files.stage_names import STAGE_PREFIX, job_of, stage_of
from storage_core.config import INT_MAX, LONG_MAX
from storage_core.errors import CorruptCheckpointError, LogDirectoryError, OptionError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from storage_core.filesystem import FileSystem, ReadableFileSystem


COMMIT_JOURNAL: Final = f"{OWN_PREFIX}journal"
COMMIT_IN_PROGRESS: Final = "segmentlog.commit-in-progress"
"""A directory next to the journal. Brokers refuse to start with it, as its name is not that of a partition."""
# 300,000 partitions of about 800 bytes each.
MAX_JOURNAL_BYTES: Final = 256 * 1024 * 1024
JOURNAL_VERSION: Final = 1
_TOPIC_ID: Final = re.compile(r"[A-Za-z0-9_-]{22}")
# A file name without a directory: staged files are in the root.
_STAGED_FILE: Final = re.compile(rf"{re.escape(STAGE_PREFIX)}[A-Za-z0-9._-]{{1,200}}")
# The topics that `check_topic_partition` lets a job write to.
_WRITTEN_TOPIC: Final = re.compile(r"(?!\.{1,2}\Z|__cluster_metadata\Z|\.segmentlog-)[A-Za-z0-9._-]{1,249}")
_BASE64: Final = re.compile(r"[A-Za-z0-9+/]*={0,2}")


@dataclass(frozen=True, slots=True)
class StagedFileRange:
    """A range of complete batches in a staged file; ``file`` is its name without suffix."""

    file: str
    position_bytes: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class AppendOperation:
    """Append ranges of staged files to one segment.

    Attributes:
        base_offset: The offset of the first batch.
        segment_base_offset: The segment, created if it equals ``base_offset`` and ``size_before_bytes`` is 0.
    """

    ranges: tuple[StagedFileRange, ...]
    base_offset: int
    segment_base_offset: int
    size_before_bytes: int
    index_size_before_bytes: int
    time_index_size_before_bytes: int


@dataclass(frozen=True, slots=True)
class LinkOperation:
    """Link a staged segment into the log; ``file`` is its name without suffix."""

    file: str
    base_offset: int
    size_bytes: int
    fingerprint: int


@dataclass(frozen=True, slots=True)
class JournalledPartition:
    """Changes of a commit in one partition.

    Attributes:
        is_new: Whether the commit creates the directory.
        topic_id: The id in a new partition's ``partition.metadata``; None: no such file is written.
        leader_epoch: Of the new batches.
        snapshot_from: Source of the producer snapshot at the new log end: the offset of an existing snapshot,
            ``"empty"``, or None for no snapshot.
        keep_offsets: Whether the staged batches already have their final offsets.
    """

    topic: str
    partition: int
    is_new: bool
    topic_id: str | None
    leader_epoch: int
    log_start_before: int
    log_start_after: int
    log_end_before: int
    log_end_after: int
    epochs_after: tuple[EpochEntry, ...]
    snapshot_from: int | Literal["empty"] | None
    operations: tuple[AppendOperation | LinkOperation, ...]
    keep_offsets: bool = False

    @property
    def topic_partition(self) -> tuple[str, int]:
        """The partition's key in checkpoints."""
        return self.topic, self.partition


@dataclass(frozen=True, slots=True)
class CommitJournal:
    """A commit that has begun.

    Attributes:
        entry: The line that the commit appends to the commits file.
        clean_shutdown: The content of the clean-shutdown file, which the commit deletes and later restores.
        is_flushed: Whether everything is flushed before the rows become visible. Otherwise the clean-shutdown file
            is not restored and the recovery points stay, so that the next process to open the log directory
            recovers it.
    """

    entry: CommitEntry
    clean_shutdown: bytes
    manifests: tuple[str, ...]
    partitions: tuple[JournalledPartition, ...]
    is_flushed: bool = True

    @property
    def job_id(self) -> str:
        """The job that is committed."""
        return self.entry.job_id


def parse_commit_journal(data: bytes, path: str) -> CommitJournal:
    """Parse the content of a journal.

    Raises:
        CorruptCheckpointError: The CRC does not match, or a field violates the format.
    """
    fields = parse_json_file(data, path, JOURNAL_VERSION)
    manifests = fields.elements("manifests")
    if not all(isinstance(name, str) and _STAGED_FILE.fullmatch(name) for name in manifests):
        raise fields.error("manifests", "names of staged files")
    partitions = tuple(_partition(each) for each in fields.objects("partitions"))
    if len({each.topic_partition for each in partitions}) != len(partitions):
        raise fields.error("partitions", "each partition once")
    return CommitJournal(
        entry=CommitEntry.parse(fields),
        clean_shutdown=_decoded(fields, "clean_shutdown"),
        manifests=tuple(manifests),
        partitions=partitions,
        is_flushed=fields.is_null("flushed") or fields.flag("flushed"),
    )


def _decoded(fields: JsonFields, name: str) -> bytes:
    try:
        return base64.b64decode(fields.text(name, _BASE64, "base64"), validate=True)
    except binascii.Error as error:
        raise fields.error(name, "base64") from error


def _partition(fields: JsonFields) -> JournalledPartition:
    log_start_before, log_start_after = fields.integer("log_start_before"), fields.integer("log_start_after")
    topic, partition = fields.topic_partition()
    return JournalledPartition(
        topic=topic,
        partition=partition,
        is_new=fields.flag("is_new"),
        topic_id=None if fields.is_null("topic_id") else fields.text("topic_id", _TOPIC_ID, "22 characters"),
        leader_epoch=fields.integer("leader_epoch", maximum=INT_MAX),
        log_start_before=log_start_before,
        log_start_after=log_start_after,
        log_end_before=fields.integer("log_end_before", minimum=log_start_before),
        log_end_after=fields.integer("log_end_after", minimum=log_start_after),
        epochs_after=tuple(_epoch(fields, value) for value in fields.elements("epochs_after")),
        snapshot_from=_snapshot_from(fields),
        operations=tuple(_operation(each) for each in fields.objects("operations")),
        keep_offsets=not fields.is_null("keep_offsets") and fields.flag("keep_offsets"),
    )


def _epoch(fields: JsonFields, value: Any) -> EpochEntry:
    match value:
        case [int(epoch), int(start_offset)] if 0 <= epoch <= INT_MAX and 0 <= start_offset <= LONG_MAX:
            return EpochEntry(epoch, start_offset)
    raise fields.error("epochs_after", "pairs of epoch and start offset")


def _snapshot_from(fields: JsonFields) -> int | Literal["empty"] | None:
    match fields.values.get("snapshot_from"):
        case None | "empty" as source:
            return source
        case int():
            return fields.integer("snapshot_from")
    raise fields.error("snapshot_from", "an offset, 'empty' or null")


def _operation(fields: JsonFields) -> AppendOperation | LinkOperation:
    if "link" in fields.values:
        return LinkOperation(
            file=fields.text("link", _STAGED_FILE, "the name of a staged file"),
            base_offset=fields.integer("base_offset"),
            size_bytes=fields.integer("size", maximum=INT_MAX),
            fingerprint=fields.fingerprint(),
        )
    return AppendOperation(
        ranges=tuple(_range(each) for each in fields.objects("append")),
        base_offset=fields.integer("base_offset"),
        segment_base_offset=fields.integer("segment"),
        size_before_bytes=fields.integer("size_before", maximum=INT_MAX),
        index_size_before_bytes=fields.integer("index_size_before", maximum=INT_MAX),
        time_index_size_before_bytes=fields.integer("time_index_size_before", maximum=INT_MAX),
    )


def _range(fields: JsonFields) -> StagedFileRange:
    return StagedFileRange(
        file=fields.text("file", _STAGED_FILE, "the name of a staged file"),
        position_bytes=fields.integer("position"),
        size_bytes=fields.integer("size", minimum=1, maximum=INT_MAX),
    )


def parse_own_journal(data: bytes, path: str) -> CommitJournal:
    """Parse a journal that is found on disk, and refuse one that names what this package does not write.

    Raises:
        CorruptCheckpointError: As `parse_commit_journal`, or it names a topic that no job may write to, or a file that
            its job has not staged.
    """
    journal = parse_commit_journal(data, path)
    for partition in journal.partitions:
        if not _WRITTEN_TOPIC.fullmatch(partition.topic):
            raise _foreign_name(path, "the name of a topic that jobs may write to", partition.topic)
    for name, stage in _staged_names(journal):
        if stage != journal.job_id:
            raise _foreign_name(path, f"the name of a file that job {journal.job_id} has staged", name)
    return journal


def _staged_names(journal: CommitJournal) -> Iterator[tuple[str, str | None]]:
    """Return the staged files that a journal names, each with the job in its name."""
    for name in journal.manifests:
        yield name, job_of(name)
    for partition in journal.partitions:
        for operation in partition.operations:
            if isinstance(operation, LinkOperation):
                files = [operation.file]
            else:
                files = list(dict.fromkeys(each.file for each in operation.ranges))
            for file in files:
                stage = stage_of(file)
                yield file, None if stage is None else stage.job_id


def _foreign_name(path: str, expected: str, found: str) -> CorruptCheckpointError:
    return CorruptCheckpointError(
        f"Expected {expected}, found {found!r} in a commit journal: it is damaged, or another program wrote it. Nothing "
        f"was changed. Find out who wrote it; without it and the directory {COMMIT_IN_PROGRESS}, the log directory opens.",
        path=path,
    )


def read_commit_journal(filesystem: ReadableFileSystem, root: str) -> CommitJournal | None:
    """Read the journal of a log directory; None without one.

    Raises:
        CorruptCheckpointError: It is damaged, or a newer release wrote it.
        UnreadableError: This user may not read it.
    """
    data = read_journal_bytes(filesystem, root)
    return None if data is None else parse_own_journal(data, os.path.join(root, COMMIT_JOURNAL))


def read_journal_bytes(filesystem: ReadableFileSystem, root: str) -> bytes | None:
    """Read the journal of a log directory without parsing it; None without one."""
    return read_small_file(filesystem, os.path.join(root, COMMIT_JOURNAL), MAX_JOURNAL_BYTES)


def write_commit_journal(filesystem: FileSystem, root: str, journal: CommitJournal) -> None:
    """Write the journal of a log directory atomically and flush it.

    The content is flushed even if the job does not flush, because an unreadable journal blocks every other process.
    Only the name is not flushed then.

    Raises:
        OptionError: It would exceed the largest journal that readers accept.
        CorruptCheckpointError: A reader would refuse it.
        StorageError: The file system refused.
    """
    data = commit_journal_bytes(journal)
    path = os.path.join(root, COMMIT_JOURNAL)
    if len(data) > MAX_JOURNAL_BYTES:
        raise OptionError(
            f"Expected a commit with a journal of at most {MAX_JOURNAL_BYTES} bytes, found {len(data)} for "
            f"{len(journal.partitions)} partitions. Write fewer partitions, or fewer and larger files, at once.",
            path=path,
        )
    # A journal that readers refuse would block all reads and writes.
    parse_commit_journal(data, path)
    replace_file(filesystem, path, data, flush_name=journal.is_flushed)


def commit_journal_bytes(journal: CommitJournal) -> bytes:
    """Format a journal."""
    values = {
        "version": JOURNAL_VERSION,
        **journal.entry.json_values(),
        "clean_shutdown": base64.b64encode(journal.clean_shutdown).decode("ascii"),
        "flushed": journal.is_flushed,
        "manifests": list(journal.manifests),
        "partitions": [_partition_values(each) for each in journal.partitions],
    }
    return with_crc_line(json_bytes(values))


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


def require_no_commit(filesystem: ReadableFileSystem, root: str) -> None:
    """Require that no job's commit was interrupted in a log directory.

    Raises:
        LogDirectoryError: One was: only a writer that completes it knows what belongs to the logs.
    """
    for name in (COMMIT_JOURNAL, COMMIT_IN_PROGRESS):
        if filesystem.status(os.path.join(root, name)) is not None:
            raise LogDirectoryError(
                f"A commit was interrupted: there is a {name}. Run the job again, or open the directory once with "
                "LogDirectory.open, which completes it.",
                path=root,
            )
