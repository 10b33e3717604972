"""What log directories hold, as one typed report: topics, partitions, sizes, times, formats, and what does not belong there.

The report is of one look. Directories of a running broker may be examined, too: what it deletes meanwhile is left out.
"""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from storage_core.checkpoint import META_PROPERTIES, read_meta_properties, read_offset_checkpoint
from storage_core.commit_replay.replay import ROOT_CHECKPOINTS
from storage_core.errors import CorruptError, LogDirectoryError, SegmentLogError, first_of
from storage_core.filesystem import ReadableFileSystem
from storage_core.options import ReadOptions, options_of
from storage_core.views.files import LEFTOVERS, UNKNOWN, FoundFile, root_files
from storage_core.views.finding import Finding, by_severity, has_severity
from storage_core.views.partitions import (
    FileTally,
    PartitionSummary,
    RootFiles,
    choose_replicas,
    summarize_partitions,
)
from storage_core.views.roots import LIVE, REMOTE, LogDir, roots_of, selected_locations

_Value = TypeVar("_Value")
_MOST_FOREIGN: Final = 1000
_MOST_NAMED: Final = 3
_STATES: Final = {
    "delete": "wait for their deletion: a broker deletes them when it runs",
    "future": "are being moved here from another disk",
    "stray": "are not known to the cluster: no broker deletes them by itself",
    "uncommitted": "are created by a job that has not committed yet",
}


@dataclass(frozen=True, slots=True)
class ForeignFile:
    """A file or directory that neither Kafka nor segmentlog has; its size is None if it was not examined."""

    path: str
    kind: str
    size_bytes: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class RootSummary:
    """A log directory.

    Attributes:
        is_whole: Whether all of it was asked for, or only partitions in it.
        is_remote: Whether it is remote storage.
        is_clean: Whether the broker closed its logs before it stopped.
        node_id: The broker that owns it, by ``meta.properties``; likewise the next two.
        free_bytes: What is left on the file system; None if that is not known.
    """

    path: str
    is_whole: bool
    is_clean: bool | None = None
    node_id: int | None = None
    cluster_id: str | None = None
    directory_id: str | None = None
    partition_count: int = 0
    segment_count: int = 0
    size_bytes: int = 0
    allocated_bytes: int = 0
    free_bytes: int | None = None
    unreadable: str | None = None
    is_remote: bool = False


@dataclass(frozen=True, slots=True)
class TopicSummary:
    """A topic. Offsets, records, times, codecs and formats are those of the directories that a read takes.

    Attributes:
        topic_ids: Of all directories; more than one if the topic was deleted and created again.
        directory_count: How many live directories its partitions have: more than partitions if there are replicas.
        log_bytes: Length of the log files of all these directories; likewise the next two.
        offset_count: From log start to log end, over all partitions: at least as many as records. None if unknown.
        record_count: Without markers; None if the headers were not read, or do not tell.
        remote_segment_count: In remote storage, which does not count elsewhere; likewise the next two.
        remote_offset_count: From the first one there to the last one, whether they are here too or not.
    """

    topic: str
    topic_ids: tuple[str, ...]
    partition_count: int
    directory_count: int
    segment_count: int
    log_bytes: int
    size_bytes: int
    allocated_bytes: int
    preallocated_bytes: int
    offset_count: int | None
    batch_count: int | None
    record_count: int | None
    min_timestamp_ms: int | None
    max_timestamp_ms: int | None
    codecs: tuple[str, ...]
    magics: tuple[int, ...]
    damaged_partition_count: int
    remote_segment_count: int = 0
    remote_log_bytes: int = 0
    remote_offset_count: int = 0


@dataclass(frozen=True, slots=True)
class Inventory:
    """Inventory of log directories.

    Attributes:
        partitions: Every directory of a partition, by topic, partition and path; those that no read takes, too.
        files: All files by kind, the largest first.
        foreign_files: Some of the files that are neither Kafka's nor segmentlog's.
    """

    roots: tuple[RootSummary, ...]
    topics: tuple[TopicSummary, ...]
    partitions: tuple[PartitionSummary, ...]
    files: tuple[FileTally, ...]
    foreign_files: tuple[ForeignFile, ...]
    findings: tuple[Finding, ...]
    is_exact: bool

    @property
    def has_damage(self) -> bool:
        """Whether something contradicts its format. An unclean shutdown alone does not count."""
        return has_severity("damage", self.findings)

    @property
    def is_complete(self) -> bool:
        """Whether everything could be read."""
        return not has_severity("unreadable", self.findings)


def inventory(
    filesystem: ReadableFileSystem,
    paths: Sequence[str],
    *,
    options: ReadOptions | None = None,
    exact: bool = False,
    on_bytes: Callable[[int], None] = lambda _: None,
) -> Inventory:
    """Examine log directories. What is damaged, or may not be read, is part of the report, and the rest goes on.

    With ``exact``, the header of every batch is read, which tells numbers of batches and records, and all times, codecs and
    formats. Otherwise these are those of the first and the last batch of each partition. Of the options, the paths do not
    count. ``on_bytes`` takes the length of the log files of each partition that was examined.

    Raises:
        OptionError: A topic that is named does not exist.
        LogDirectoryError: A path does not exist, or has no log directory.
    """
    options = options or options_of(paths, {})
    roots = roots_of(filesystem, replace(options, paths=tuple(paths)))
    found = _Examination(filesystem, has_selection=options.names_topics)
    locations = selected_locations(filesystem, roots, options)
    choices = choose_replicas(filesystem, locations, found.files)
    for summary in summarize_partitions(filesystem, choices, found.files, exact=exact):
        found.add_partition(summary)
        on_bytes(summary.log_bytes)
    for root in roots:
        found.add_root(root)
    return found.report(exact=exact)


class _Examination:
    """Examination of log directories, so far."""

    def __init__(self, filesystem: ReadableFileSystem, *, has_selection: bool) -> None:
        self.files = RootFiles(filesystem)
        self._filesystem = filesystem
        self._has_selection = has_selection
        self._partitions: list[PartitionSummary] = []
        self._roots: list[RootSummary] = []
        self._tallies: dict[str, list[FileTally]] = defaultdict(list)
        self._foreign: list[ForeignFile] = []
        self._findings: list[Finding] = []

    def add_partition(self, summary: PartitionSummary) -> None:
        """Add the summary of a partition's directory."""
        self._partitions.append(summary)
        self._tallies[summary.root] += summary.files
        for name in summary.unknown_files:
            path = os.path.join(summary.directory, name)
            self._add_foreign(path, UNKNOWN, None, "no partition has a file of this name")

    def add_root(self, root: LogDir) -> None:
        """Examine the files of a log directory itself."""
        if root.problem is not None:
            self._findings.append(Finding("unreadable", "log directory", root.path, root.problem))
            self._roots.append(RootSummary(root.path, root.is_whole, unreadable=root.problem))
            return
        if root.is_whole and not self._has_selection:
            self._tally_files(root)
        own_files = (os.path.join(root.path, name) for name in (META_PROPERTIES, *ROOT_CHECKPOINTS))
        has_own_files = root.is_whole or any(self._filesystem.status(path) is not None for path in own_files)
        meta = self._read_or_record_error(root.path, META_PROPERTIES, read_meta_properties)
        is_clean = self.files.of(root.path).clean_shutdown
        if has_own_files and not root.is_remote:
            self._check_root(root, is_clean=is_clean)
        partitions = [each for each in self._partitions if each.root == root.path]
        tallies = self._tallies[root.path]
        free_bytes: int | None = None
        with contextlib.suppress(SegmentLogError):
            free_bytes = self._filesystem.free_bytes(root.path)
        self._roots.append(
            RootSummary(
                root.path,
                root.is_whole,
                is_clean if has_own_files and not root.is_remote else None,
                None if meta is None else meta.node_id,
                None if meta is None else meta.cluster_id,
                None if meta is None else meta.directory_id,
                len(partitions),
                sum(each.segment_count for each in partitions),
                sum(each.size_bytes for each in tallies),
                sum(each.allocated_bytes for each in tallies),
                free_bytes,
                is_remote=root.is_remote,
            )
        )

    def _read_or_record_error(
        self, root: str, name: str, read: Callable[[ReadableFileSystem, str], _Value]
    ) -> _Value | None:
        path = os.path.join(root, name)
        try:
            return read(self._filesystem, path)
        except CorruptError as error:
            self._findings.append(Finding("damage", name, path, str(error)))
        except LogDirectoryError as error:
            self._findings.append(Finding("unreadable", name, path, str(error)))
        return None

    def _tally_files(self, root: LogDir) -> None:
        try:
            for file in root_files(self._filesystem, root.path, root.locations):
                self._tally_file(file)
        except LogDirectoryError as error:
            self._findings.append(Finding("unreadable", "log directory", root.path, str(error)))

    def _tally_file(self, file: FoundFile) -> None:
        size_bytes = file.size_bytes
        if size_bytes is not None:
            tally = FileTally(file.kind, file.leftover, 1, size_bytes, file.allocated_bytes)
            self._tallies[file.root].append(tally)
        is_partition = file.topic is not None
        path = os.path.join(file.root, file.path)
        if file.reason is not None and file.leftover is None and not is_partition:
            if file.kind.startswith("segmentlog"):
                self._findings.append(Finding("warning", file.kind, path, f"Found a file: {file.reason}."))
            else:
                self._add_foreign(path, file.kind, size_bytes, file.reason)

    def _add_foreign(self, path: str, kind: str, size_bytes: int | None, reason: str) -> None:
        if len(self._foreign) < _MOST_FOREIGN:
            self._foreign.append(ForeignFile(path, kind, size_bytes, reason))

    def _check_root(self, root: LogDir, *, is_clean: bool) -> None:
        if root.path in self.files.problems:
            problem = self.files.problems[root.path]
            self._findings.append(Finding("damage", "commit of a job", root.path, problem))
        if not is_clean:
            message = (
                "The clean-shutdown marker is missing: a broker uses the directory, or it was not shut down. A broker "
                "that starts recovers the logs from their recovery points on."
            )
            self._findings.append(Finding("warning", "unclean shutdown", root.path, message))
        present = {(location.topic, location.partition) for location in root.locations}
        for name in ROOT_CHECKPOINTS:
            offsets = self._read_or_record_error(root.path, name, read_offset_checkpoint) or {}
            missing = sorted(f"{topic}-{partition}" for topic, partition in offsets.keys() - present)
            if root.is_whole and missing:
                message = f"The checkpoint names partitions that have no directory here: {first_of(missing, _MOST_NAMED)}."
                self._findings.append(Finding("warning", name, os.path.join(root.path, name), message))

    def report(self, *, exact: bool) -> Inventory:
        """Return the whole report."""
        self._findings += _partition_findings(self._partitions)
        self._findings += _cluster_findings(self._roots)
        files = _sum_tallies(each for tallies in self._tallies.values() for each in tallies)
        self._findings += _leftover_findings(files)
        if self._foreign:
            paths = [file.path for file in self._foreign]
            more = "at least " if len(paths) == _MOST_FOREIGN else ""
            message = f"Neither Kafka nor segmentlog has such files, {more}{len(paths)}: {first_of(paths, _MOST_NAMED)}."
            self._findings.append(Finding("note", "foreign files", "", message))
        return Inventory(
            tuple(self._roots),
            tuple(_topics(self._partitions)),
            tuple(self._partitions),
            tuple(sorted(files, key=lambda tally: tally.size_bytes, reverse=True)),
            tuple(self._foreign),
            by_severity(self._findings),
            exact,
        )


def _sum_tallies(tallies: Iterable[FileTally]) -> list[FileTally]:
    """Add up the tallies of each kind and leftover."""
    sums: dict[tuple[str, str | None], list[int]] = defaultdict(lambda: [0, 0, 0])
    for each in tallies:
        known = sums[each.kind, each.leftover]
        known[0] += each.count
        known[1] += each.size_bytes
        known[2] += each.allocated_bytes
    return [FileTally(kind, leftover, *known) for (kind, leftover), known in sums.items()]


def _partition_findings(partitions: Sequence[PartitionSummary]) -> Iterator[Finding]:
    for each in partitions:
        if each.unreadable is not None:
            yield Finding("unreadable", "partition", each.directory, each.unreadable)
        for message in each.damage:
            yield Finding("damage", "partition", each.directory, message)
    yield from _replica_findings(partitions)
    for state, meaning in _STATES.items():
        members = [each for each in partitions if each.state == state]
        if members:
            size_bytes = sum(member.size_bytes for member in members)
            names = first_of([os.path.basename(member.directory) for member in members], _MOST_NAMED)
            message = f"Directories of {size_bytes:,} bytes in total {meaning}: {names}."
            yield Finding("warning" if state == "stray" else "note", f"{state} directories", "", message)
    preallocated_bytes = sum(each.preallocated_bytes for each in partitions)
    if preallocated_bytes:
        message = (
            f"Files of active segments have {preallocated_bytes:,} bytes after their last batch or entry: preallocated "
            "space, which a broker cuts off when it closes a segment."
        )
        yield Finding("note", "preallocated space", "", message)
    orphans = [each.name for each in partitions if each.orphan_files]
    if orphans:
        message = f"Index files or snapshots belong to no segment, and a broker deletes them: in {first_of(orphans, _MOST_NAMED)}."
        yield Finding("note", "orphans", "", message)


def _replica_findings(partitions: Iterable[PartitionSummary]) -> Iterator[Finding]:
    replicated = {each.name: each for each in partitions if each.state == LIVE and len(each.replicas) > 1}
    for each in replicated.values():
        if each.replica_conflict is not None:
            yield Finding("warning", "replicas", "", each.replica_conflict)
    agreeing = [name for name, each in replicated.items() if each.replica_conflict is None]
    if agreeing:
        message = f"Partitions with several directories, of which a read takes one: {first_of(agreeing, _MOST_NAMED)}."
        yield Finding("note", "replicas", "", message)


def _cluster_findings(roots: Iterable[RootSummary]) -> Iterator[Finding]:
    clusters = {root.cluster_id: root.path for root in roots if root.cluster_id is not None}
    if len(clusters) > 1:
        named = ", ".join(f"{cluster} ({path})" for cluster, path in clusters.items())
        yield Finding(
            "warning", "clusters", "", f"The log directories belong to different clusters: {named}."
        )


def _leftover_findings(files: Iterable[FileTally]) -> Iterator[Finding]:
    by_suffix = _sum_tallies(replace(each, kind="") for each in files if each.leftover is not None)
    for each in by_suffix:
        message = f"{each.count:,} files of {each.size_bytes:,} bytes in total {LEFTOVERS[each.leftover or ''].plural}."
        yield Finding("note", f"{each.leftover} files", "", message)


def _topics(partitions: Iterable[PartitionSummary]) -> Iterator[TopicSummary]:
    by_topic: dict[str, list[PartitionSummary]] = defaultdict(list)
    for each in partitions:
        if each.state in (LIVE, REMOTE):
            by_topic[each.topic].append(each)
    return (_topic(topic, directories) for topic, directories in sorted(by_topic.items()))


def _topic(topic: str, everywhere: Sequence[PartitionSummary]) -> TopicSummary:
    directories = [each for each in everywhere if each.state == LIVE]
    remote = [each for each in everywhere if each.state == REMOTE]
    read = _directories_read(directories)
    starts_ms = [each.min_timestamp_ms for each in read if each.min_timestamp_ms is not None]
    ends_ms = [each.max_timestamp_ms for each in read if each.max_timestamp_ms is not None]
    return TopicSummary(
        topic,
        tuple(sorted({each.topic_id for each in directories if each.topic_id is not None})),
        len(read),
        len(directories),
        sum(each.segment_count for each in directories),
        sum(each.log_bytes for each in directories),
        sum(each.size_bytes for each in directories),
        sum(each.allocated_bytes for each in directories),
        sum(each.preallocated_bytes for each in directories),
        _sum([each.offset_count for each in read]),
        _sum([each.batch_count for each in read]),
        _sum([each.record_count for each in read]),
        min(starts_ms, default=None),
        max(ends_ms, default=None),
        tuple(sorted({codec for each in read for codec in each.codecs})),
        tuple(sorted({magic for each in read for magic in each.magics})),
        len({each.partition for each in everywhere if each.damage}),
        sum(each.segment_count for each in remote),
        sum(each.log_bytes for each in remote),
        sum(each.offset_count or 0 for each in remote),
    )


def _directories_read(directories: Iterable[PartitionSummary]) -> list[PartitionSummary]:
    """Choose a directory of each partition: the one that is read, or among conflicting ones the one with the highest log end."""
    chosen: dict[int, PartitionSummary] = {}
    for each in directories:
        known = chosen.get(each.partition)
        if known is None or _rank(each) > _rank(known):
            chosen[each.partition] = each
    return list(chosen.values())


def _rank(summary: PartitionSummary) -> tuple[bool, int]:
    return summary.is_read, -1 if summary.log_end_offset is None else summary.log_end_offset


def _sum(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None
