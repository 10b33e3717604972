"""The files that a commit leaves in a log directory: the journal, the commits file and the staged files.

Brokers ignore all of them. Kafka's own small files are in `storage_core.checkpoint`.
"""

from __future__ import annotations

from storage_core.commit_files.commits_file import COMMITS_FILE, OWN_PREFIX, CommitEntry, read_last_commit
from storage_core.commit_files.journal import COMMIT_JOURNAL, CommitJournal, read_commit_journal
from storage_core.commit_files.stage_names import StageId, job_of

__all__ = [
    "COMMITS_FILE",
    "COMMIT_JOURNAL",
    "OWN_PREFIX",
    "CommitEntry",
    "CommitJournal",
    "StageId",
    "job_of",
    "read_commit_journal",
    "read_last_commit",
]
