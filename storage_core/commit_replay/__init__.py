"""Replaying a commit's journal: publishes a job's staged files in a log directory, idempotently.

This layer is below the logs, because opening a log directory for writing completes a commit that a crash
interrupted. `storage_core.commit` decides what the journal says.
"""

from __future__ import annotations

from storage_core.commit_replay.replay import finish_commit

__all__ = ["finish_commit"]
