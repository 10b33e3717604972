"""Checking the files of a log directory itself: checkpoints, ``meta.properties``, and directories without a log."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from storage_core.checkpoint import (
    CLEAN_SHUTDOWN_FILE,
    CLEANER_OFFSET_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    META_PROPERTIES,
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_OFFSET_CHECKPOINT,
    read_meta_properties,
    read_offset_checkpoint,
)
from storage_core.directory import parse_partition_directory_name
from storage_core.directory.log_directory_files import LogDirectoryFiles
from storage_core.errors import CorruptError, LogDirectoryError, SegmentLogError
from storage_core.inspect.findings import Action, Finding, RootReport, Severity
from storage_core.inspect.roots import LIVE

if TYPE_CHECKING:
    from storage_core.filesystem import FileSystem
    from storage_core.inspect.roots import LogRoot


class RootCheck:
    """The checkpoints of a log directory, as a starting broker takes them."""

    def __init__(self, filesystem: FileSystem, root: LogRoot) -> None:
        self.path = root.path
        self._filesystem = filesystem
        self._findings: list[Finding] = []
        self.is_clean = self._find_marker()
        self.recovery_points = self._read(RECOVERY_POINT_CHECKPOINT, "reset")
        self.log_start_offsets = self._read(LOG_START_OFFSET_CHECKPOINT, "reset")
        self.high_watermarks = self._read(REPLICATION_OFFSET_CHECKPOINT, "refuse")
        self.cleaner_offsets = self._read(CLEANER_OFFSET_CHECKPOINT, "refuse")
        try:
            read_meta_properties(filesystem, os.path.join(root.path, META_PROPERTIES))
        except CorruptError as error:
            self._add("metadata", META_PROPERTIES, error, "refuse")
        except LogDirectoryError as error:
            self._add("metadata", META_PROPERTIES, error, severity="unreadable")
        for place in root.places if root.is_whole else ():
            if place.state != LIVE:
                self._findings.append(
                    Finding(
                        "note", "file", place.path,
                        f"Not verified: the directory's name says that it is in state {place.state}.",
                        "remove" if place.state == "delete" else "unnoticed",
                    )
                )  # fmt: skip

        if root.is_whole:
            self._find_empty(root)

    def _find_empty(self, root: LogRoot) -> None:
        """Directories with the name of a partition that hold no log: a broker makes an empty one of them."""
        known = {place.path for place in root.places}
        for entry in self._filesystem.list_directory(root.path):
            path = os.path.join(root.path, entry.name)
            if entry.is_directory and path not in known and parse_partition_directory_name(entry.name):
                self._findings.append(
                    Finding(
                        "suspect", "file", path,
                        "Expected a log in a directory with the name of a partition, found none: a broker begins an empty "
                        "one.",
                    )
                )  # fmt: skip

    def _find_marker(self) -> bool:
        try:
            return LogDirectoryFiles(self._filesystem, self.path).clean_shutdown
        except LogDirectoryError as error:
            self._add("file", CLEAN_SHUTDOWN_FILE, error, severity="unreadable")
            return False

    def report(self) -> RootReport:
        """What was found out about them."""
        return RootReport(self.path, self.is_clean, tuple(self._findings))

    def _read(self, name: str, action: Action) -> dict[tuple[str, int], int]:
        try:
            return read_offset_checkpoint(self._filesystem, os.path.join(self.path, name))
        except CorruptError as error:
            self._add("checkpoint", name, error, action)
        except LogDirectoryError as error:
            self._add("checkpoint", name, error, severity="unreadable")
        return {}

    def _add(
        self,
        kind: str,
        name: str,
        error: SegmentLogError,
        action: Action = "unnoticed",
        severity: Severity = "damage",
    ) -> None:
        self._findings.append(
            Finding(severity, kind, os.path.join(self.path, name), str(error.args[0]), action)
        )
