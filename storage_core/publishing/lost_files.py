"""What to say, and to do, when a commit cannot be completed because a file that its tasks have staged is gone."""

from __future__ import annotations

import os

from storage_core.checkpoint.commit_journal import COMMIT_IN_PROGRESS, COMMIT_JOURNAL
from storage_core.checkpoint.stage_names import job_of, job_prefix
from storage_core.errors import CorruptError

__all__ = ["lost_staged_file"]


def lost_staged_file(path: str) -> CorruptError:
    """The error for a staged file that is not there."""
    job_id = job_of(os.path.basename(path)) or "?"
    return CorruptError(
        f"Expected a file that the commit of job {job_id} needs, which was interrupted and is being completed, found "
        "none: somebody has deleted it. Bring it back, then open the log directory again. Or give the job up: delete "
        f"{COMMIT_JOURNAL}, then the directory {COMMIT_IN_PROGRESS}, then {job_prefix(job_id)}*, all in "
        f"{os.path.dirname(path)}, and open it with LogDirectory.open, which recovers its logs. What was there before "
        "stays. Partitions that were done before this one keep their rows of the job, others have none, and it does "
        "not count as committed: written again, those rows are there twice.",
        path=path,
    )
