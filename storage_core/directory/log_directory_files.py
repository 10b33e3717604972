"""A log directory: one root (an entry of a broker's ``log.dirs``) and the partition directories in it."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from storage_core.cached_property import cached_property
from storage_core.checkpoint import (
    LOG_START_OFFSET_CHECKPOINT,
    META_PROPERTIES,
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_OFFSET_CHECKPOINT,
    has_clean_shutdown_file,
    read_meta_properties,
    read_offset_checkpoint,
)
from storage_core.directory.partition_name import INTERNAL_TOPICS
from storage_core.directory.visibility import read_visibility
from storage_core.errors import CorruptCheckpointError

if TYPE_CHECKING:
    from storage_core.checkpoint import MetaProperties
    from storage_core.directory.visibility import Visibility
    from storage_core.filesystem import FileSystem

__all__ = ["LogDirectoryFiles", "PartitionDirectory"]

_log = logging.getLogger(__name__)


class LogDirectoryFiles:
    """The root's own files, each read when it is first asked for and then kept.

    Args:
        filesystem: Where to read.
        path: The root. It need not hold any of these files: a copied partition directory's parent does not.
    """

    def __init__(self, filesystem: FileSystem, path: str) -> None:
        self.path = path
        self._filesystem = filesystem

    @cached_property
    def clean_shutdown(self) -> bool:
        """Whether the broker closed every log under this root before it stopped."""
        return has_clean_shutdown_file(self._filesystem, self.path)

    @cached_property
    def meta_properties(self) -> MetaProperties | None:
        """Which broker of which cluster owns this root; None without ``meta.properties``."""
        return read_meta_properties(self._filesystem, os.path.join(self.path, META_PROPERTIES))

    @cached_property
    def recovery_points(self) -> dict[tuple[str, int], int]:
        """First offset not known to be flushed, per (topic, partition); absent means 0."""
        return self._offsets_or_none(RECOVERY_POINT_CHECKPOINT, "every recovery point counts as 0")

    @cached_property
    def log_start_offsets(self) -> dict[tuple[str, int], int]:
        """Log start per (topic, partition), where it is above the first segment's base offset."""
        return self._offsets_or_none(LOG_START_OFFSET_CHECKPOINT, "every log starts at its first segment")

    @cached_property
    def high_watermarks(self) -> dict[tuple[str, int], int]:
        """High watermark per (topic, partition).

        Raises:
            CorruptCheckpointError: The checkpoint cannot be parsed.
        """
        return read_offset_checkpoint(
            self._filesystem, os.path.join(self.path, REPLICATION_OFFSET_CHECKPOINT)
        )

    @cached_property
    def visibility(self) -> Visibility:
        """Which commits of jobs are visible under this root.

        Raises:
            CorruptCheckpointError: The journal of a commit, or the list of commits, is damaged.
        """
        return read_visibility(self._filesystem, self.path)

    def _offsets_or_none(self, file_name: str, consequence: str) -> dict[tuple[str, int], int]:
        # A starting broker also goes on without these two.
        try:
            return read_offset_checkpoint(self._filesystem, os.path.join(self.path, file_name))
        except CorruptCheckpointError as error:
            _log.warning("Ignored a checkpoint, so that %s: %s", consequence, error)
            return {}

    def __repr__(self) -> str:
        return f"LogDirectoryFiles({self.path!r})"


@dataclass(frozen=True, slots=True)
class PartitionDirectory:
    """One replica of a partition on disk.

    Args:
        path: The partition's directory.
        topic: Its topic.
        partition: Its partition number.
        root: The log directory that it stands in.
    """

    path: str
    topic: str
    partition: int
    root: LogDirectoryFiles

    @property
    def topic_partition(self) -> tuple[str, int]:
        """The key of this partition in checkpoints."""
        return self.topic, self.partition

    @property
    def is_internal(self) -> bool:
        """Whether brokers keep this topic for themselves."""
        return self.topic in INTERNAL_TOPICS
