"""Making a job's staged files part of a log directory, as its journal says, however often that was begun.

Below the logs: whoever opens a log directory for writing finishes here what a crash has left. What
goes into the journal is decided in `storage_core.commit`.
"""

from __future__ import annotations

from storage_core.commit_replay.replay import finish_commit, has_unfinished_commit

__all__ = ["finish_commit", "has_unfinished_commit"]
