"""Checking the files of a log directory itself: checkpoints, ``meta.properties``, and directories that hold no log."""

from __future__ import annotations

import base64
import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

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
from storage_core.errors import CorruptError, LogDirectoryError, SegmentLogError
from storage_core.views.finding import Action, Finding, Severity
from storage_core.views.roots import LIVE, leads_to_directory

if TYPE_CHECKING:
    from storage_core.check.cluster_topics import ClusterTopics
    from storage_core.filesystem import DirectoryEntry, FileSystem
    from storage_core.views.roots import LogRoot


_RESERVED_IDS: Final = 100
# Only a broker has these.
_BROKERS_ENTRIES: Final = frozenset({"bootstrap.checkpoint", f"{CLUSTER_METADATA_TOPIC}-0"})


@dataclass(frozen=True, slots=True)
class RootReport:
    """What was found out about the own files of a log directory.

    Attributes:
        is_cluster_known: Whether its cluster's metadata is here, so that it is known what a broker sets aside.
    """

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

    def __init__(self, filesystem: FileSystem, root: LogRoot) -> None:
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
        if root.is_whole and self.meta is None:
            self._check_missing_meta({each.name for each in entries})

    @property
    def is_kraft(self) -> bool:
        """Return True if a broker of a cluster without ZooKeeper owns it: it knows each topic by its id."""
        return self.meta is not None and self.meta.version > 0

    def report(self) -> RootReport:
        """Return what was found out about them."""
        return RootReport(self.path, self.is_clean, tuple(self._findings), self.topics is not None)

    def add(self, finding: Finding) -> None:
        """Add what a comparison with others has found."""
        self._findings.append(finding)

    def _check_commits(self) -> None:
        """Check the list of commits, which readers and jobs need, and the journal of a commit."""
        path = os.path.join(self.path, COMMITS_FILE)
        try:
            is_under_way = read_commit_journal(self._filesystem, self.path) is not None
            data = read_small_file(self._filesystem, path, LARGEST_COMMITS_BYTES) or b""
            size_bytes = parse_commits_file(data, path).size_bytes
        except CorruptError as error:
            self.add(
                Finding(
                    "damage", "file", error.path or path, str(error.args[0]), start_byte=error.position_bytes
                )
            )
            return
        except LogDirectoryError as error:
            self._add("file", COMMITS_FILE, error, severity="unreadable")
            return
        rest = data[size_bytes:]
        if rest and not is_under_way:
            # A power cut leaves the beginning of a line, or zeros.
            severity: Severity = "damage" if rest.endswith(b"\n") and b"\0" not in rest else "unclean"
            reason = (
                f"Expected a whole line with its CRC at the end, found {len(rest)} bytes that do not count: if a job has "
                "written them, it does not count as committed. The next job removes them."
            )
            self.add(Finding(severity, "file", path, reason, start_byte=size_bytes, end_byte=len(data)))

    def _check_states(self, root: LogRoot) -> None:
        for place in root.places:
            if place.state != LIVE:
                action: Action = {"delete": "remove", "stray": "set aside"}.get(place.state, "unnoticed")  # type: ignore[assignment]
                reason = f"the directory's name says that it is in state {place.state}."
                self.add(
                    Finding("note", "file", place.path, f"Not verified: {reason}", action)
                    if root.is_whole
                    else Finding("suspect", "file", place.path, f"No broker serves it: {reason}", action)
                )

    def _check_directories(self, root: LogRoot, entries: list[DirectoryEntry]) -> None:
        """Check directories that hold no log: a broker begins an empty one in them, or does not start."""
        known = {place.path for place in root.places}
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
                reason = (
                    "Expected only directories called <topic>-<partition>, found another one. Move it away."
                )
                self.refuse(path, reason, "file", "damage" if is_brokers else "suspect")
            elif parse_partition_directory_name(entry.name) is not None and entry.is_directory:
                done = "sets it aside" if self.is_kraft else "begins an empty one"
                self.add(
                    Finding(
                        "suspect", "file", path,
                        f"Expected a log in a directory with the name of a partition, found none: a broker {done}.",
                        "set aside" if self.is_kraft else "unnoticed",
                    )
                )  # fmt: skip

    def _read_meta(self) -> MetaProperties | None:
        path = os.path.join(self.path, META_PROPERTIES)
        try:
            meta = read_meta_properties(self._filesystem, path)
        except CorruptError as error:
            self._add("metadata", META_PROPERTIES, error, "refuse")
            return None
        except LogDirectoryError as error:
            self._add("metadata", META_PROPERTIES, error, severity="unreadable")
            return None
        problem = None
        if meta is not None and meta.node_id is None:
            problem = "Expected node.id, found none: the file is empty or cut"
        elif meta is not None and meta.directory_id is not None and not is_directory_id(meta.directory_id):
            problem = f"Expected a directory.id as Kafka writes it, found {meta.directory_id[:80]!r}"
        if problem is not None:
            self.refuse(path, f"{problem}. Restore it, or copy it from another disk of the broker.")
        return meta

    def _check_missing_meta(self, names: set[str]) -> None:
        if META_PROPERTIES not in names and self._is_brokers:
            self.refuse(
                os.path.join(self.path, META_PROPERTIES),
                "Expected the file that says which broker owns the log directory, found none. Restore it, or write it with "
                "kafka-storage.sh format.",
            )

    def refuse(self, path: str, reason: str, kind: str = "metadata", severity: Severity = "damage") -> None:
        """Add that a broker does not start because of a file or a directory."""
        self.add(Finding(severity, kind, path, f"{reason} A broker does not start with it.", "refuse"))

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
            self._add("file", CLEAN_SHUTDOWN_FILE, error, severity="unreadable")
            return False

    def _read(self, name: str) -> dict[tuple[str, int], int]:
        try:
            return read_offset_checkpoint(self._filesystem, os.path.join(self.path, name))
        except CorruptError as error:
            # With wrong high watermarks it starts, and serves nothing.
            is_refused = name == REPLICATION_OFFSET_CHECKPOINT or self._fails_reading(name)
            self._add("checkpoint", name, error, "refuse" if is_refused else "reset")
        except LogDirectoryError as error:
            self._add("checkpoint", name, error, severity="unreadable")
        return {}

    def _fails_reading(self, name: str) -> bool:
        """Return True if a broker takes a malformed checkpoint for a failure of the disk, and not for an empty one.

        A text in place of a number is none to it. Source: ``CheckpointFile``, ``LogManager.loadLogs``.
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

    def _add(
        self,
        kind: str,
        name: str,
        error: SegmentLogError,
        action: Action = "unnoticed",
        severity: Severity = "damage",
    ) -> None:
        self.add(Finding(severity, kind, os.path.join(self.path, name), str(error.args[0]), action))
