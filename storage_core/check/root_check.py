"""Check the files of a log directory itself, and the log directories of one node beside each other.

These files are checkpoints, ``meta.properties``, and directories that hold no log.
"""

from __future__ import annotations

import base64
import json
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from storage_core.check.cluster_topics import ClusterTopics, read_cluster_topics
from storage_core.checkpoint import (
    CLEAN_SHUTDOWN_FILE,
    CLEANER_OFFSET_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    META_PROPERTIES,
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_OFFSET_CHECKPOINT,
    MetaProperties,
    is_topic_id,
    read_clean_shutdown_file,
    read_meta_properties,
    read_offset_checkpoint,
)
from storage_core.checkpoint.checkpoint_file import (
    MAX_CHECKPOINT_BYTES,
    entry_fields,
    parse_integer,
    read_small_file,
)
from storage_core.commit_files.commits_file import COMMITS_FILE, LARGEST_COMMITS_BYTES, parse_commits_file
from storage_core.commit_files.journal import COMMIT_IN_PROGRESS, read_commit_journal
from storage_core.config import INT_MAX, LONG_MAX
from storage_core.directory import parse_partition_directory_name
from storage_core.directory.log_directory_files import (
    CLUSTER_METADATA_TOPIC,
    LogDirectoryFiles,
    keeps_broker_from_starting,
)
from storage_core.errors import CorruptError, LogDirectoryError
from storage_core.filesystem import DirectoryEntry, ReadableFileSystem
from storage_core.views.finding import Action, Finding, Severity
from storage_core.views.roots import LIVE, LogDir, PartitionLocation, leads_to_directory

_RESERVED_IDS: Final = 100
_MOST_STATE_BYTES: Final = 64 << 10
# Only a broker has these.
_BROKERS_ENTRIES: Final = frozenset({"bootstrap.checkpoint", f"{CLUSTER_METADATA_TOPIC}-0"})


@dataclass(frozen=True, slots=True)
class RootReport:
    """Result of the check of a log directory's own files, and whether its cluster's metadata is here."""

    path: str
    is_clean: bool
    findings: tuple[Finding, ...]
    is_cluster_known: bool = False

    @property
    def is_refused(self) -> bool:
        """Return True if a broker does not start with the log directory, whatever its partitions are like."""
        return any(each.action == "refuse" for each in self.findings)


def is_directory_id(text: str) -> bool:
    """Return True if Kafka takes a text for the id of a log directory: the first hundred are reserved."""
    return is_topic_id(text) and int.from_bytes(base64.urlsafe_b64decode(text + "==")) >= _RESERVED_IDS


class RootCheck:
    """The checkpoints of a log directory, as a starting broker takes them.

    Attributes:
        meta: Which node owns it; None if that is not known.
        topics: Those of its cluster; None if they are not known.
        is_sole_voter: Whether no other node has newer ones.
    """

    def __init__(self, filesystem: ReadableFileSystem, root: LogDir) -> None:
        self.path = root.path
        self.topics: ClusterTopics | None = None
        self.is_sole_voter = False
        self._filesystem = filesystem
        self._findings: list[Finding] = []
        self.is_clean = self._find_marker()
        # A broker takes a checkpoint that it cannot read for a failure of the disk.
        self.recovery_points = self._read(RECOVERY_POINT_CHECKPOINT)
        self.log_start_offsets = self._read(LOG_START_OFFSET_CHECKPOINT)
        self.high_watermarks = self._read(REPLICATION_OFFSET_CHECKPOINT)
        self.cleaner_offsets = self._read(CLEANER_OFFSET_CHECKPOINT)
        self.meta = self._read_meta()
        entries = filesystem.list_directory(root.path) if root.is_whole else []
        self._is_brokers = bool(_BROKERS_ENTRIES & {each.name for each in entries}) or self._has_epoch()
        self._check_commits()
        self._check_states(root)
        self._check_directories(root, entries)
        names = {each.name for each in entries}
        if root.is_whole and self.meta is None and self._is_brokers and META_PROPERTIES not in names:
            self.refuse(
                META_PROPERTIES,
                "The file that says which broker owns the log directory is missing. Restore it, or write it with "
                "kafka-storage.sh format.",
            )

    @property
    def is_kraft(self) -> bool:
        """Return True if a broker of a cluster without ZooKeeper owns it: it knows each topic by its id."""
        return self.meta is not None and self.meta.version > 0

    def report(self) -> RootReport:
        """Return what was found out about them."""
        return RootReport(self.path, self.is_clean, tuple(self._findings), self.topics is not None)

    def add(
        self,
        kind: str,
        name: str,
        reason: str,
        severity: Severity = "damage",
        action: Action = "unnoticed",
        start_byte: int | None = None,
        end_byte: int | None = None,
    ) -> None:
        """Add a finding about the file of a name, or about a path."""
        path = os.path.join(self.path, name)
        self._findings.append(
            Finding(severity, kind, path, reason, action, start_byte=start_byte, end_byte=end_byte)
        )

    def refuse(self, name: str, reason: str, kind: str = "metadata", severity: Severity = "damage") -> None:
        """Add that a broker does not start because of a file or a directory."""
        self.add(kind, name, f"{reason} A broker does not start with it.", severity, "refuse")

    def _check_commits(self) -> None:
        """Check the list of commits, which readers and jobs need, and the journal of a commit."""
        path = os.path.join(self.path, COMMITS_FILE)
        try:
            is_under_way = read_commit_journal(self._filesystem, self.path) is not None
            data = read_small_file(self._filesystem, path, LARGEST_COMMITS_BYTES) or b""
            size_bytes = parse_commits_file(data, path).size_bytes
        except CorruptError as error:
            self.add("file", error.path or path, str(error.args[0]), start_byte=error.position_bytes)
            return
        except LogDirectoryError as error:
            self.add("file", COMMITS_FILE, str(error.args[0]), "unreadable")
            return
        rest = data[size_bytes:]
        if rest and not is_under_way:
            # A power cut leaves the beginning of a line, or zeros.
            severity: Severity = "damage" if rest.endswith(b"\n") and b"\0" not in rest else "unclean"
            reason = (
                f"Expected a whole line with its CRC at the end, found {len(rest)} bytes that do not count: if a job has "
                "written them, it does not count as committed. The next job removes them."
            )
            self.add("file", path, reason, severity, start_byte=size_bytes, end_byte=len(data))

    def _check_states(self, root: LogDir) -> None:
        for location in root.locations:
            if location.state != LIVE:
                action: Action = {"delete": "remove", "stray": "set aside"}.get(location.state, "unnoticed")  # type: ignore[assignment]
                reason = f"the directory's name says that it is in state {location.state}."
                if root.is_whole:
                    self.add("file", location.path, f"Not verified: {reason}", "note", action)
                else:
                    self.add("file", location.path, f"No broker serves it: {reason}", "suspect", action)

    def _check_directories(self, root: LogDir, entries: list[DirectoryEntry]) -> None:
        """Check directories that hold no log: a broker begins an empty one in them, or does not start."""
        known = {location.path for location in root.locations}
        for entry in entries:
            path = os.path.join(root.path, entry.name)
            if path in known or not leads_to_directory(self._filesystem, root.path, entry):
                continue
            if entry.name == COMMIT_IN_PROGRESS:
                reason = (
                    "The commit of a job is under way, or was cut short: the next job completes it. Leave it."
                )
                self.refuse(path, reason, "file", "suspect")
            elif keeps_broker_from_starting(entry.name):
                is_brokers = self.meta is not None or self._is_brokers
                reason = "A directory is not called <topic>-<partition>. Move it away."
                self.refuse(path, reason, "file", "damage" if is_brokers else "suspect")
            elif parse_partition_directory_name(entry.name) is not None and entry.is_directory:
                done = "sets it aside" if self.is_kraft else "begins an empty one"
                reason = f"The directory has the name of a partition and no log in it: a broker {done}."
                self.add("file", path, reason, "suspect", "set aside" if self.is_kraft else "unnoticed")

    def _read_meta(self) -> MetaProperties | None:
        path = os.path.join(self.path, META_PROPERTIES)
        try:
            meta = read_meta_properties(self._filesystem, path)
        except CorruptError as error:
            self.add("metadata", META_PROPERTIES, str(error.args[0]), action="refuse")
            return None
        except LogDirectoryError as error:
            self.add("metadata", META_PROPERTIES, str(error.args[0]), "unreadable")
            return None
        problem = None
        if meta is not None and meta.node_id is None:
            problem = "There is no node.id: the file is empty or cut"
        elif meta is not None and meta.directory_id is not None and not is_directory_id(meta.directory_id):
            problem = f"Expected a directory.id as Kafka writes it, found {meta.directory_id[:80]!r}"
        if problem is not None:
            self.refuse(path, f"{problem}. Restore it, or copy it from another disk of the broker.")
        return meta

    def _has_epoch(self) -> bool:
        """Return True if a broker wrote the marker: this package writes -1 as its epoch."""
        try:
            marker = json.loads(read_clean_shutdown_file(self._filesystem, self.path) or b"{}")
            return isinstance(marker, dict) and int(marker.get("brokerEpoch", -1)) >= 0
        except (LogDirectoryError, ValueError, TypeError):
            return False

    def _find_marker(self) -> bool:
        try:
            return LogDirectoryFiles(self._filesystem, self.path).clean_shutdown
        except LogDirectoryError as error:
            self.add("file", CLEAN_SHUTDOWN_FILE, str(error.args[0]), "unreadable")
            return False

    def _read(self, name: str) -> dict[tuple[str, int], int]:
        try:
            return read_offset_checkpoint(self._filesystem, os.path.join(self.path, name))
        except CorruptError as error:
            # With wrong high watermarks it starts, and serves nothing.
            is_refused = name == REPLICATION_OFFSET_CHECKPOINT or self._fails_reading(name)
            self.add("checkpoint", name, str(error.args[0]), action="refuse" if is_refused else "reset")
        except LogDirectoryError as error:
            self.add("checkpoint", name, str(error.args[0]), "unreadable")
        return {}

    def _fails_reading(self, name: str) -> bool:
        """Return True if a broker takes a malformed checkpoint for a failure of the disk, and not for an empty one.

        A broker takes a text instead of a number for damage of the content, not of the disk. Source: ``CheckpointFile``, ``LogManager.loadLogs``.
        """
        path = os.path.join(self.path, name)
        try:
            data = self._filesystem.read_file(path, MAX_CHECKPOINT_BYTES) or b""
            if data.startswith(b"0\n-"):
                return False
            for _, (_, partition, offset) in entry_fields(data, path, 3):
                if parse_integer(partition, INT_MAX) is None or parse_integer(offset, LONG_MAX) is None:
                    return False
        except (CorruptError, LogDirectoryError):
            return True
        return False


# The log directories of one node, and what its cluster knows of them.


def compare_roots(
    filesystem: ReadableFileSystem, roots: Sequence[LogDir], checks: Mapping[str, RootCheck]
) -> None:
    """Compare the log directories that belong together, and find out what their clusters know."""
    by_node: dict[tuple[int, str | None], list[LogDir]] = defaultdict(list)
    for root in roots:
        check = checks.get(root.path)
        if check is not None and check.meta is not None and check.meta.node_id is not None:
            by_node[check.meta.node_id, check.meta.cluster_id].append(root)
    clusters: dict[int, str | None] = {}
    _find_topics(filesystem, by_node, checks)
    for (node_id, cluster_id), members in by_node.items():
        if clusters.setdefault(node_id, cluster_id) != cluster_id:
            reason = (
                f"Expected the cluster.id of the other log directory of broker {node_id}, found {cluster_id}: these are two "
                "brokers, or a broker does not start with both."
            )
            checks[members[0].path].add("metadata", META_PROPERTIES, reason, "suspect")
        _compare_directory_ids(members, checks)
        _find_absent(members, checks)
        _find_duplicates([location for root in members for location in root.locations], checks)


def _find_topics(
    filesystem: ReadableFileSystem,
    by_node: Mapping[tuple[int, str | None], Sequence[LogDir]],
    checks: Mapping[str, RootCheck],
) -> None:
    """Read the metadata of each cluster: a node's own, else that of another node."""
    known: dict[str | None, ClusterTopics] = {}
    for (node_id, cluster_id), roots in by_node.items():
        for root in roots:
            directory = os.path.join(root.path, f"{CLUSTER_METADATA_TOPIC}-0")
            if filesystem.status(directory) is None:
                continue
            topics = read_cluster_topics(filesystem, directory)
            voters = _voters(filesystem, directory, checks[root.path])
            if topics is not None:
                known[cluster_id] = topics
                for check in (checks[member.path] for member in roots):
                    check.topics, check.is_sole_voter = topics, voters == [node_id]
    for (_, cluster_id), roots in by_node.items():
        for check in (checks[member.path] for member in roots):
            check.topics = check.topics or known.get(cluster_id)


def _voters(filesystem: ReadableFileSystem, directory: str, check: RootCheck) -> list[int]:
    """Read the controllers that ``quorum-state`` names.

    Returns:
        Their node ids; none if a newer Kafka wrote the file, or if it cannot be read.
    """
    path = os.path.join(directory, "quorum-state")
    try:
        data = filesystem.read_file(path, _MOST_STATE_BYTES)
        state = {} if data is None else json.loads(data)
        return [each["voterId"] for each in state.get("currentVoters", ())]
    except LogDirectoryError as error:
        check.refuse(path, f"The state of the quorum cannot be read: {error}")
        return []
    except (ValueError, LookupError, TypeError, AttributeError):
        check.refuse(path, "The state of the quorum is not JSON. Remove it.")
        return []


def _compare_directory_ids(roots: Sequence[LogDir], checks: Mapping[str, RootCheck]) -> None:
    paths: dict[str, str] = {}
    for root in roots:
        meta = checks[root.path].meta
        directory_id = None if meta is None else meta.directory_id
        if directory_id is not None and paths.setdefault(directory_id, root.path) != root.path:
            reason = (
                f"Expected a directory.id of its own, found that of {paths[directory_id]}: one is a copy of the other, and a "
                "broker does not start with both."
            )
            checks[root.path].add("metadata", META_PROPERTIES, reason, "suspect")


def _find_absent(roots: Sequence[LogDir], checks: Mapping[str, RootCheck]) -> None:
    """Find partitions that the cluster has in a log directory and that are not there, and an id that it does not know."""
    present = {
        location.topic_partition for root in roots for location in root.locations if location.state == LIVE
    }
    known = {meta.directory_id for meta in (checks[root.path].meta for root in roots) if meta is not None}
    for root in roots:
        check = checks[root.path]
        meta, topics = check.meta, check.topics
        if not root.is_whole or topics is None or meta is None:
            continue
        owners = topics.owners_of(meta.directory_id or "")
        if owners and meta.node_id not in owners:
            reason = f"Expected node.id {max(owners)}, by which the cluster knows the log directory, found {meta.node_id}."
            check.refuse(os.path.join(root.path, META_PROPERTIES), reason)
        assigned = topics.directories_of(meta.node_id)
        here = {key for key, directory_id in assigned.items() if directory_id == meta.directory_id}
        for topic, partition in sorted(here - present):
            reason = "The directory of a partition that the cluster has here is missing: a broker begins an empty one."
            check.add("file", f"{topic}-{partition}", reason, "suspect")
        elsewhere = {
            assigned[location.topic_partition]
            for location in root.locations
            if location.topic_partition in assigned
        }
        if elsewhere and not here and is_directory_id(max(elsewhere)) and not elsewhere & known:
            reason = (
                f"Expected directory.id {max(elsewhere)}, by which the cluster knows these partitions, found "
                f"{meta.directory_id or 'none'}: a broker may serve none of them."
            )
            check.add("metadata", META_PROPERTIES, reason, "suspect")


def _find_duplicates(locations: Iterable[PartitionLocation], checks: Mapping[str, RootCheck]) -> None:
    """Find partitions that a node has twice: it does not start."""
    live: dict[tuple[str, int], PartitionLocation] = {}
    future: dict[tuple[str, int], PartitionLocation] = {}
    for location in locations:
        known = {LIVE: live, "future": future}.get(location.state)
        if known is None or location.topic == CLUSTER_METADATA_TOPIC:
            continue
        other = known.setdefault(location.topic_partition, location)
        if other is not location:
            _refuse_pair(location, other, checks)
    for key, location in future.items():
        if key in live and live[key].root == location.root:
            reason = (
                f"Expected the partition's move from another log directory, found {live[key].path} beside it. Move one of "
                "them away."
            )
            checks[location.root].refuse(location.path, reason, "file")


def _refuse_pair(
    location: PartitionLocation, other: PartitionLocation, checks: Mapping[str, RootCheck]
) -> None:
    ids = [
        None if meta is None else meta.directory_id
        for meta in (checks[each.root].meta for each in (location, other))
    ]
    # Two copies of one log directory are no two disks.
    is_certain = None not in ids and ids[0] != ids[1]
    for each, twin in ((location, other), (other, location)):
        reason = (
            f"The partition is in another log directory of the broker as well: {twin.root}. Move the one with the "
            "lower log end away."
        )
        if is_certain:
            checks[each.root].refuse(each.path, reason, "file")
        else:
            checks[each.root].add("file", os.path.basename(each.path), reason, "suspect")
