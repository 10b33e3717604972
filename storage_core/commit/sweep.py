"""Deleting what jobs have staged and left: of jobs that were committed, and what nobody has touched for a week."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from storage_core.checkpoint.stage_names import job_of

if TYPE_CHECKING:
    from collections.abc import Collection

    from storage_core.filesystem import FileSystem

__all__ = ["sweep"]

_WEEK_MS: Final = 7 * 24 * 60 * 60 * 1000


def sweep(
    filesystem: FileSystem, root: str, *, committed_jobs: Collection[str], running_job: str, now_ms: int
) -> int:
    """Delete staged files that no job will commit any more; return how many. The root is locked, without a journal.

    Args:
        filesystem: Where to delete.
        root: The log directory.
        committed_jobs: The jobs whose rows are visible: a task of theirs may have been late.
        running_job: The job that is at work: its files are left alone.
        now_ms: The time.
    """
    count = 0
    for entry in filesystem.list_directory(root):
        job_id = job_of(entry.name) if entry.is_regular_file else None
        if job_id is None or job_id == running_job:
            continue
        path = os.path.join(root, entry.name)
        if job_id not in committed_jobs:
            status = filesystem.status(path)
            if status is None or now_ms - status.modified_ms < _WEEK_MS:
                continue
        count += filesystem.delete(path)
    return count
